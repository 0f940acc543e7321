//! Expressions: small steps over sixteen registers of four bytes. A step that does not match ends the rule.

use crate::verdict::{Family, Name, Verdict};
use crate::wire::{Attributes, Writer};

/// One of sixteen registers of four bytes. Longer data takes the ones after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(pub u8);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Bytes of the network header, or of the one after it.
    Network {
        offset: u32,
        len: u32,
        into: Reg,
    },
    Transport {
        offset: u32,
        len: u32,
        into: Reg,
    },
    Meta {
        key: Meta,
        into: Reg,
    },
    /// Changes what the packet is marked with, or its priority.
    SetMeta {
        key: Meta,
        from: Reg,
    },
    Ct {
        key: Ct,
        into: Reg,
    },
    Load {
        data: Box<[u8]>,
        into: Reg,
    },
    Cmp {
        from: Reg,
        op: Cmp,
        data: Box<[u8]>,
    },
    /// `(from & mask) ^ xor`.
    Bitwise {
        from: Reg,
        into: Reg,
        mask: Box<[u8]>,
        xor: Box<[u8]>,
    },
    /// Matches if the key is in the set, or if it is not.
    Member {
        set: Name,
        key: Reg,
        is_inverted: bool,
    },
    /// Matches if the map has the key.
    Map {
        map: Name,
        key: Reg,
        into: Reg,
    },
    /// The same with a verdict for a value.
    VerdictMap {
        map: Name,
        key: Reg,
    },
    /// A number in `offset..offset + modulus`.
    Random {
        modulus: u32,
        offset: u32,
        into: Reg,
    },
    /// The type of an address, as routing sees it: 2 for a local one.
    AddressType {
        of: Address,
        into: Reg,
    },
    /// Adds to a set, refreshes, or removes, by packet.
    Dynset {
        op: Dynset,
        set: Name,
        key: Reg,
        data: Option<Reg>,
        /// Milliseconds.
        timeout: Option<u64>,
    },
    Dnat {
        family: Family,
        address: Reg,
        port: Reg,
    },
    /// With a source port chosen at random.
    Masquerade,
    /// ICMP, or ICMPv6, unreachable with this code.
    Reject {
        code: u8,
    },
    Counter,
    NoTrack,
    Verdict(Verdict),
    /// Something that we never write.
    Foreign(Name),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    Priority,
    Mark,
    InputName,
    OutputName,
    Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ct {
    State,
    Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cmp {
    Equal,
    NotEqual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dynset {
    Update,
    Delete,
}

const VERDICT_REGISTER: u32 = 0;
const FIRST_REGISTER: u32 = 8;
/// Port at random (1 << 2) and the whole range at random (1 << 4).
const RANDOM_FULLY: u32 = 1 << 4;

// === impl Reg ===

impl Reg {
    fn wire(self) -> u32 {
        FIRST_REGISTER + u32::from(self.0)
    }

    /// The kernel tells every fourth register by the name it has as a register of sixteen bytes.
    fn read(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Reg((number as u8 - 1) * 4)),
            8..=23 => Some(Reg(number as u8 - 8)),
            _ => None,
        }
    }

    /// The register so many bytes further on.
    #[must_use]
    pub fn after(self, bytes: usize) -> Reg {
        Reg(self.0 + (bytes / 4) as u8)
    }
}

// === impl Expr ===

impl Expr {
    fn name(&self) -> &str {
        match self {
            Expr::Network { .. } | Expr::Transport { .. } => "payload",
            Expr::Meta { .. } | Expr::SetMeta { .. } => "meta",
            Expr::Ct { .. } => "ct",
            Expr::Load { .. } | Expr::Verdict(_) => "immediate",
            Expr::Cmp { .. } => "cmp",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Member { .. } | Expr::Map { .. } | Expr::VerdictMap { .. } => "lookup",
            Expr::Random { .. } => "numgen",
            Expr::AddressType { .. } => "fib",
            Expr::Dynset { .. } => "dynset",
            Expr::Dnat { .. } => "nat",
            Expr::Masquerade => "masq",
            Expr::Reject { .. } => "reject",
            Expr::Counter => "counter",
            Expr::NoTrack => "notrack",
            Expr::Foreign(name) => name,
        }
    }

    pub(crate) fn write(&self, out: &mut Writer) {
        let element = out.nest(1);
        out.text(1, self.name());
        let data = out.nest(2);
        self.write_data(out);
        out.close(data);
        out.close(element);
    }

    fn write_data(&self, out: &mut Writer) {
        match self {
            Expr::Network { offset, len, into } => write_payload(out, 1, *offset, *len, *into),
            Expr::Transport { offset, len, into } => write_payload(out, 2, *offset, *len, *into),
            Expr::Meta { key, into } => words(out, &[(1, into.wire()), (2, key.number())]),
            Expr::SetMeta { key, from } => words(out, &[(2, key.number()), (3, from.wire())]),
            Expr::Ct { key, into } => words(out, &[(1, into.wire()), (2, key.number())]),
            Expr::Load { data, into } => {
                out.u32(1, into.wire());
                write_value(out, 2, data);
            }
            Expr::Verdict(verdict) => {
                out.u32(1, VERDICT_REGISTER);
                verdict.write(out, 2);
            }
            Expr::Cmp { from, op, data } => {
                words(out, &[(1, from.wire()), (2, *op as u32)]);
                write_value(out, 3, data);
            }
            Expr::Bitwise { from, into, mask, xor } => {
                let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                words(out, &[(1, from.wire()), (2, into.wire()), (3, len)]);
                write_value(out, 4, mask);
                write_value(out, 5, xor);
            }
            Expr::Member { set, key, is_inverted } => {
                out.text(1, set);
                words(out, &[(2, key.wire()), (5, u32::from(*is_inverted))]);
            }
            Expr::Map { map, key, into } => {
                out.text(1, map);
                words(out, &[(2, key.wire()), (3, into.wire())]);
            }
            Expr::VerdictMap { map, key } => {
                out.text(1, map);
                words(out, &[(2, key.wire()), (3, VERDICT_REGISTER)]);
            }
            Expr::Random { modulus, offset, into } => {
                words(out, &[(1, into.wire()), (2, *modulus), (3, 1), (4, *offset)]);
            }
            Expr::AddressType { of, into } => {
                let flags = if *of == Address::Source { 1 } else { 2 };
                words(out, &[(1, into.wire()), (2, 3), (3, flags)]);
            }
            Expr::Dynset { op, set, key, data, timeout } => {
                out.text(1, set);
                words(out, &[(3, *op as u32 + 1), (4, key.wire())]);
                if let Some(data) = data {
                    out.u32(5, data.wire());
                }
                if let Some(timeout) = timeout {
                    out.u64(6, *timeout);
                }
            }
            Expr::Dnat { family, address, port } => {
                let (address, port) = (address.wire(), port.wire());
                words(out, &[(1, 1), (2, u32::from(family.number())), (3, address), (5, port)]);
            }
            Expr::Masquerade => out.u32(1, RANDOM_FULLY),
            Expr::Reject { code } => {
                out.u32(1, 0);
                out.u8(2, *code);
            }
            Expr::Counter | Expr::NoTrack | Expr::Foreign(_) => {}
        }
    }

    /// Whatever is not written the way we write it is [`Expr::Foreign`].
    pub(crate) fn read(element: Attributes<'_>) -> Option<Self> {
        let name = element.get(1)?.text()?;
        let data = element.get(2).map_or(Attributes(&[]), |a| a.nested());
        Some(Self::read_data(name, data).unwrap_or_else(|| Expr::Foreign(name.into())))
    }

    fn read_data(name: &str, data: Attributes<'_>) -> Option<Self> {
        let word = |kind| data.get(kind)?.u32();
        let reg = |kind| Reg::read(word(kind)?);
        let text = |kind| data.get(kind)?.text().map(Name::from);
        let value = |kind| read_value(data.get(kind)?.nested());
        match name {
            "payload" => {
                let (offset, len, into) = (word(3)?, word(4)?, reg(1)?);
                match word(2)? {
                    1 => Some(Expr::Network { offset, len, into }),
                    2 => Some(Expr::Transport { offset, len, into }),
                    _ => None,
                }
            }
            "meta" => match (Meta::read(word(2)?)?, reg(3)) {
                (key, Some(from)) => Some(Expr::SetMeta { key, from }),
                (key, None) => Some(Expr::Meta { key, into: reg(1)? }),
            },
            "ct" if data.get(3).is_none() => Some(Expr::Ct { key: Ct::read(word(2)?)?, into: reg(1)? }),
            "immediate" if word(1)? == VERDICT_REGISTER => {
                Verdict::read(data.get(2)?.nested()).map(Expr::Verdict)
            }
            "immediate" => Some(Expr::Load { data: value(2)?, into: reg(1)? }),
            "cmp" => {
                let op = match word(2)? {
                    0 => Cmp::Equal,
                    1 => Cmp::NotEqual,
                    _ => return None,
                };
                Some(Expr::Cmp { from: reg(1)?, op, data: value(3)? })
            }
            "bitwise" => {
                let is_boolean = word(6).unwrap_or(0) == 0;
                let (mask, xor) = (value(4).filter(|_| is_boolean)?, value(5)?);
                Some(Expr::Bitwise { from: reg(1)?, into: reg(2)?, mask, xor })
            }
            "lookup" => {
                let (set, key) = (text(1)?, reg(2)?);
                match word(3) {
                    None => Some(Expr::Member {
                        set,
                        key,
                        is_inverted: word(5).is_some_and(|flags| flags & 1 == 1),
                    }),
                    Some(VERDICT_REGISTER) => Some(Expr::VerdictMap { map: set, key }),
                    Some(_) => Some(Expr::Map { map: set, key, into: reg(3)? }),
                }
            }
            "numgen" => {
                let is_random = word(3)? == 1;
                let offset = word(4).unwrap_or(0);
                is_random.then_some(Expr::Random { modulus: word(2)?, offset, into: reg(1)? })
            }
            "fib" => {
                let of = match word(3)? {
                    1 => Address::Source,
                    2 => Address::Destination,
                    _ => return None,
                };
                (word(2)? == 3).then_some(Expr::AddressType { of, into: reg(1)? })
            }
            "dynset" => {
                let op = match word(3)? {
                    1 => Dynset::Update,
                    2 => Dynset::Delete,
                    _ => return None,
                };
                let timeout = data.get(6).and_then(|t| t.u64()).filter(|t| *t > 0);
                Some(Expr::Dynset { op, set: text(1)?, key: reg(4)?, data: reg(5), timeout })
            }
            "nat" => {
                let family = Family::from_number(u8::try_from(word(2)?).ok()?)?;
                let is_ours = word(1)? == 1 && word(4).is_none_or(|max| Some(max) == word(3));
                is_ours.then_some(Expr::Dnat { family, address: reg(3)?, port: reg(5)? })
            }
            "masq" => (word(1)? == RANDOM_FULLY && word(2).is_none()).then_some(Expr::Masquerade),
            "reject" => (word(1)? == 0).then_some(Expr::Reject { code: data.get(2)?.u8()? }),
            "counter" => Some(Expr::Counter),
            "notrack" => Some(Expr::NoTrack),
            _ => None,
        }
    }
}

fn words(out: &mut Writer, pairs: &[(u16, u32)]) {
    for (kind, value) in pairs {
        out.u32(*kind, *value);
    }
}

fn write_payload(out: &mut Writer, base: u32, offset: u32, len: u32, into: Reg) {
    words(out, &[(1, into.wire()), (2, base), (3, offset), (4, len)]);
}

pub(crate) fn write_value(out: &mut Writer, kind: u16, data: &[u8]) {
    let nest = out.nest(kind);
    out.bytes(1, data);
    out.close(nest);
}

pub(crate) fn read_value(data: Attributes<'_>) -> Option<Box<[u8]>> {
    data.get(1).map(|value| value.data.into())
}

// === impl Meta ===

impl Meta {
    fn number(self) -> u32 {
        match self {
            Meta::Priority => 2,
            Meta::Mark => 3,
            Meta::InputName => 6,
            Meta::OutputName => 7,
            Meta::Protocol => 16,
        }
    }

    fn read(number: u32) -> Option<Self> {
        [Meta::Priority, Meta::Mark, Meta::InputName, Meta::OutputName, Meta::Protocol]
            .into_iter()
            .find(|key| key.number() == number)
    }
}

// === impl Ct ===

impl Ct {
    fn number(self) -> u32 {
        match self {
            Ct::State => 0,
            Ct::Status => 2,
        }
    }

    fn read(number: u32) -> Option<Self> {
        [Ct::State, Ct::Status].into_iter().find(|key| key.number() == number)
    }
}
