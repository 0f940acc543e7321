//! How one endpoint of many is picked, as a number in a map and as a chain.
//!
//! A number of endpoints, and how long a client keeps its endpoint: Services that agree in these share a chain.
//! So there are as many chains as there are different numbers of endpoints, and a change of a Service touches
//! elements of maps only, which the kernel does not have to check for loops.

use nft::{Chain, Dynset, Expr, Meta, Name, Reg, Rule, Verdict};

use super::sets::SetId;
use super::words::{Door, Words};

/// The least significant bits are the number of endpoints, the next ones seconds of affinity; the topmost says
/// that the endpoints are those of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pick(u32);

const COUNT_BITS: u32 = 14;
const AFFINITY_BITS: u32 = 17;
const LOCAL: u32 = 1 << 31;

/// Where the endpoints of this node begin among the endpoints of an address.
const LOCAL_SLOTS: u32 = 1 << 16;

/// Of more endpoints than this, the others get no traffic.
pub(super) const MOST_ENDPOINTS: usize = (1 << COUNT_BITS) - 1;

// === impl Pick ===

impl Pick {
    /// A count of zero says that the address is known, and that the packet's fate is decided elsewhere.
    pub(super) fn new(count: usize, affinity: Option<u32>, is_local: bool) -> Self {
        let count = u32::try_from(count.min(MOST_ENDPOINTS)).unwrap_or(0);
        // The API allows a day, which fits.
        let seconds = if count == 0 { 0 } else { affinity.unwrap_or(0).min((1 << AFFINITY_BITS) - 1) };
        Pick(count | seconds << COUNT_BITS | if is_local { LOCAL } else { 0 })
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }

    pub(super) fn from_number(number: u32) -> Self {
        Pick(number)
    }

    pub(super) fn count(self) -> u32 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }

    fn affinity(self) -> Option<u32> {
        let seconds = (self.0 & !LOCAL) >> COUNT_BITS;
        (seconds > 0).then_some(seconds)
    }

    pub(super) fn is_local(self) -> bool {
        self.0 & LOCAL != 0
    }

    /// The number by which the endpoint at a place in its list is known.
    pub(super) fn slot(is_local: bool, place: usize) -> u32 {
        u32::try_from(place).unwrap_or(u32::MAX) + if is_local { LOCAL_SLOTS } else { 0 }
    }

    pub(super) fn chain_name(self, door: Door) -> Name {
        let door = match (door, self.is_local()) {
            (Door::Vip, false) => "service",
            (Door::Vip, true) => "local-service",
            (Door::NodePort, false) => "nodeport",
            (Door::NodePort, true) => "local-nodeport",
        };
        match self.affinity() {
            None => format!("{door}-{}", self.count()).into(),
            Some(seconds) => format!("{door}-{}-affinity-{seconds}s", self.count()).into(),
        }
    }

    /// The chain that every Service port with this pick is sent to.
    pub(super) fn chain(self, door: Door, words: Words) -> (Chain, Vec<Rule>) {
        let mut rules = Vec::new();
        if let Some(seconds) = self.affinity() {
            let milliseconds = u64::from(seconds) * 1000;
            rules.push(recall(door, words));
            rules.push(self.send_to_named(door, words, milliseconds));
            rules.push(self.draw_name(door, words));
            // An update alone would leave the memory of an endpoint that is gone as it is.
            rules.push(rule(remember(door, words, Dynset::Delete, None)));
            rules.push(self.send_to_named(door, words, milliseconds));
        }
        rules.push(self.send(door, words, self.draw(words.key_len(door))));
        if self.count() > 1 {
            // A packet in flight while the list gets shorter may have drawn a number that is no more.
            let first = constant(Pick::slot(self.is_local(), 0), Reg(0).after(words.key_len(door)));
            rules.push(self.send(door, words, first));
        }
        (Chain { name: self.chain_name(door), hook: None }, rules)
    }

    /// Draws the number of an endpoint.
    fn draw(self, after: usize) -> Expr {
        let (offset, into) = (Pick::slot(self.is_local(), 0), Reg(0).after(after));
        Expr::Random { modulus: self.count(), offset, into }
    }

    fn send(self, door: Door, words: Words, number: Expr) -> Rule {
        let mut exprs = forget(Reg(0));
        exprs.extend(words.key(door, Reg(0)));
        exprs.push(number);
        exprs.push(map(door.endpoints(), Reg(0), Reg(0)));
        exprs.push(words.dnat(Reg(0)));
        rule(exprs)
    }

    /// Draws the name of an endpoint.
    fn draw_name(self, door: Door, words: Words) -> Rule {
        let mut exprs = words.key(door, Reg(0));
        exprs.push(self.draw(words.key_len(door)));
        exprs.push(map(door.affinity_slots(), Reg(0), Reg(0)));
        exprs.push(note());
        rule(exprs)
    }

    /// To the endpoint whose name was found, if it is still one that this traffic may use; then its time begins
    /// anew.
    fn send_to_named(self, door: Door, words: Words, milliseconds: u64) -> Rule {
        let mut exprs = words.key(door, Reg(0));
        let name = Reg(0).after(words.key_len(door));
        exprs.push(Expr::Meta { key: Meta::Priority, into: name });
        exprs.push(constant(u32::from(self.is_local()), name.after(4)));
        exprs.push(map(door.affinity_endpoints(), Reg(0), Reg(0)));
        let endpoint = exprs.clone();
        exprs.extend(remember(door, words, Dynset::Update, Some(milliseconds)));
        exprs.extend(endpoint);
        exprs.extend(forget(Reg(0).after(words.address_len() + 4)));
        exprs.push(words.dnat(Reg(0)));
        rule(exprs)
    }
}

/// Finds the name of the endpoint that the client had before.
fn recall(door: Door, words: Words) -> Rule {
    let mut exprs = words.client(door, Reg(0));
    exprs.push(map(door.affinities(), Reg(0), Reg(0)));
    exprs.push(note());
    rule(exprs)
}

fn remember(door: Door, words: Words, op: Dynset, timeout: Option<u64>) -> Vec<Expr> {
    let name = Reg(0).after(words.client_len(door));
    let mut exprs = words.client(door, Reg(0));
    exprs.push(Expr::Meta { key: Meta::Priority, into: name });
    exprs.push(Expr::Dynset {
        op,
        set: door.affinities().name().into(),
        key: Reg(0),
        data: Some(name),
        timeout,
    });
    exprs
}

/// Keeps what was found for the rules to come. A register lasts as long as its rule, and a map cannot be asked
/// for a key that another map holds without `nft` giving up on the table; but a packet has a priority, which
/// nothing has looked at yet, and only the first packet of a connection comes here.
pub(super) fn note() -> Expr {
    Expr::SetMeta { key: Meta::Priority, from: Reg(0) }
}

/// The packet goes on without a trace of it.
fn forget(register: Reg) -> Vec<Expr> {
    let none = Expr::Load { data: [0; 4].into(), into: register };
    vec![none, Expr::SetMeta { key: Meta::Priority, from: register }]
}

pub(super) fn rule(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

pub(super) fn map(map: SetId, key: Reg, into: Reg) -> Expr {
    Expr::Map { map: map.name().into(), key, into }
}

/// One of one: `nft` has no way to print a number as part of a key.
fn constant(number: u32, into: Reg) -> Expr {
    Expr::Random { modulus: 1, offset: number, into }
}

pub(super) fn go(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(chain.into()))
}

pub(super) fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(chain.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pick_is_read_from_its_number() {
        let rows = [
            (2, None, false, "service-2", 2),
            (2, Some(10_800), false, "service-2-affinity-10800s", 0x0a8c_0002),
            (3, Some(1), true, "local-service-3-affinity-1s", 0x8000_4003),
            (0, Some(10), true, "local-service-0", 0x8000_0000),
            (1 << 20, None, false, "service-16383", 0x3fff),
        ];
        for (count, affinity, is_local, name, number) in rows {
            let pick = Pick::new(count, affinity, is_local);
            assert_eq!(&*pick.chain_name(Door::Vip), name);
            assert_eq!(pick.number(), number, "{name}");
            assert_eq!(Pick::from_number(number), pick);
        }
    }

    /// Which registers an expression fills, by number; lengths as the sets and words define them.
    fn filled(expr: &Expr, words: Words) -> std::ops::Range<usize> {
        let (into, len) = match expr {
            Expr::Network { len, into, .. } | Expr::Transport { len, into, .. } => (into, *len as usize),
            Expr::Meta { into, .. } | Expr::Random { into, .. } | Expr::Load { into, .. } => (into, 4),
            Expr::Map { map, into, .. } if map.ends_with("endpoints") => (into, words.address_len() + 4),
            Expr::Map { into, .. } => (into, 4),
            _ => return 0..0,
        };
        usize::from(into.0)..usize::from(into.0) + len.div_ceil(4)
    }

    #[test]
    fn rules_stay_within_the_registers_and_leave_the_endpoint_alone() {
        for words in crate::objects::Family::BOTH.map(Words) {
            for door in Door::BOTH {
                let (_, rules) = Pick::new(5, Some(7), true).chain(door, words);
                for exprs in rules.iter().map(|rule| &rule.exprs) {
                    assert!(exprs.iter().all(|expr| filled(expr, words).end <= 16), "{exprs:?}");
                    let Some(Expr::Dnat { .. }) = exprs.last() else { continue };
                    let is_endpoint =
                        |e: &Expr| matches!(e, Expr::Map { map, .. } if map.ends_with("endpoints"));
                    let drawn = exprs.iter().rposition(is_endpoint).unwrap();
                    let kept = filled(&exprs[drawn], words).end;
                    let is_kept = |e: &Expr| filled(e, words).is_empty() || filled(e, words).start >= kept;
                    assert!(exprs[drawn + 1..].iter().all(is_kept), "{exprs:?}");
                }
            }
        }
    }
}
