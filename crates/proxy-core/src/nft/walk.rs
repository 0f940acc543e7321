//! The fate of a packet under a table, expression by expression, as the kernel would evaluate it.
//!
//! The table may be one that was rendered or one that the kernel told of, if [`Content::sorted`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use nft::{Address, Cmp, Ct, Dynset, Element, Expr, HookPoint, Meta, Reg, Rule, Set, Value, Verdict};

use crate::objects::{Family, Protocol};
use crate::rules::Host;
use crate::trace::{Arrival, Packet};

use super::content::Content;
use super::frontend::address;

/// Where one packet ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    Sent {
        endpoint: SocketAddr,
        is_masqueraded: bool,
    },
    Rejected,
    Dropped,
    Passed,
    /// The table holds something that the tracer does not understand.
    Lost,
}

/// What packets have left behind in dynamic sets, by set and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory(BTreeMap<(nft::Name, Bytes), Bytes>);

type Bytes = Box<[u8]>;

/// Every ending that chance allows, for a client that nobody remembers.
pub fn endings(content: &Content, host: &Host, packet: &Packet) -> BTreeSet<Ending> {
    let (mut found, mut draw, mut most) = (BTreeSet::new(), 0, 1);
    while draw < most {
        let (ending, modulus) = step(content, host, packet, &mut Memory::default(), draw);
        found.insert(ending);
        most = most.max(modulus);
        draw += 1;
    }
    found
}

/// The ending of one packet, if chance draws `draw`.
pub fn ending(content: &Content, host: &Host, packet: &Packet, memory: &mut Memory, draw: u32) -> Ending {
    step(content, host, packet, memory, draw).0
}

fn step(content: &Content, host: &Host, packet: &Packet, memory: &mut Memory, draw: u32) -> (Ending, u32) {
    let mut walker = Walker {
        content,
        host,
        memory,
        draw,
        modulus: 1,
        registers: [0; 64],
        source: packet.source,
        destination: SocketAddr::new(packet.destination, packet.port),
        protocol: packet.protocol,
        arrival: &packet.arrival,
        mark: 0,
        priority: 0,
        is_translated: false,
        is_masqueraded: false,
    };
    let ending = walker.walk();
    (ending, walker.modulus)
}

struct Walker<'a> {
    content: &'a Content,
    host: &'a Host,
    memory: &'a mut Memory,
    draw: u32,
    /// The greatest number of draws that any expression asked for.
    modulus: u32,
    registers: [u8; 64],
    source: IpAddr,
    destination: SocketAddr,
    protocol: Protocol,
    arrival: &'a Arrival,
    mark: u32,
    priority: u32,
    is_translated: bool,
    is_masqueraded: bool,
}

/// What an expression says about what comes next.
enum Next {
    /// The next expression.
    On,
    /// The next rule.
    Break,
    Go(Verdict),
    Reject,
    Lost,
}

enum Left {
    /// Nobody said anything final.
    Through,
    Accepted,
    Dropped,
    Rejected,
    Lost,
}

// === impl Walker ===

impl Walker<'_> {
    fn walk(&mut self) -> Ending {
        let (first, second): (&[HookPoint], _) = match self.arrival {
            Arrival::Interface(_) => (&[HookPoint::Prerouting], HookPoint::Forward),
            Arrival::Node => (&[HookPoint::Output], HookPoint::Output),
        };
        for point in first {
            if let Some(ending) = self.hook(*point) {
                return ending;
            }
        }
        let is_for_us = self.host.is_local(self.destination.ip());
        let rest = match (is_for_us, second) {
            (true, _) => Some(HookPoint::Input),
            (false, HookPoint::Output) => None,
            (false, other) => Some(other),
        };
        if let Some(ending) = rest.and_then(|point| self.hook(point)) {
            return ending;
        }
        // A packet for an endpoint on the host's own address never leaves it; that it is marked is what counts.
        if let Some(ending) = self.hook(HookPoint::Postrouting) {
            return ending;
        }
        match self.is_translated {
            true => Ending::Sent { endpoint: self.destination, is_masqueraded: self.is_masqueraded },
            false => Ending::Passed,
        }
    }

    /// All chains of a hook, by priority. Nothing if the packet goes on.
    fn hook(&mut self, point: HookPoint) -> Option<Ending> {
        let content = self.content;
        let at = content.chains.iter().filter_map(|(chain, rules)| Some((chain.hook?, rules)));
        let mut chains: Vec<_> = at.filter(|(hook, _)| hook.point == point).collect();
        chains.sort_by_key(|(hook, _)| hook.priority);
        for (_, rules) in chains {
            match self.chain(rules, 0) {
                Left::Through | Left::Accepted => {}
                Left::Dropped => return Some(Ending::Dropped),
                Left::Rejected => return Some(Ending::Rejected),
                Left::Lost => return Some(Ending::Lost),
            }
        }
        None
    }

    fn chain(&mut self, rules: &[Rule], depth: u8) -> Left {
        // The kernel allows sixteen.
        if depth > 16 {
            return Left::Lost;
        }
        for rule in rules {
            let verdict = match self.rule(rule) {
                Next::On | Next::Break => continue,
                Next::Reject => return Left::Rejected,
                Next::Lost => return Left::Lost,
                Next::Go(verdict) => verdict,
            };
            let content = self.content;
            match &verdict {
                Verdict::Accept => return Left::Accepted,
                Verdict::Drop => return Left::Dropped,
                Verdict::Return => return Left::Through,
                Verdict::Continue => {}
                Verdict::Jump(name) | Verdict::Goto(name) => {
                    let Some((_, rules)) = content.chain(name) else { return Left::Lost };
                    match (self.chain(rules, depth + 1), &verdict) {
                        (Left::Through, Verdict::Jump(_)) => {}
                        (left, _) => return left,
                    }
                }
            }
        }
        Left::Through
    }

    fn rule(&mut self, rule: &Rule) -> Next {
        for expr in &rule.exprs {
            match self.expr(expr) {
                Next::On => {}
                other => return other,
            }
        }
        Next::On
    }

    fn expr(&mut self, expr: &Expr) -> Next {
        match expr {
            Expr::Network { offset, into, .. } => {
                let source = if self.source.is_ipv4() { 12 } else { 8 };
                let ip = if *offset == source { self.source } else { self.destination.ip() };
                self.put(*into, &address(ip));
            }
            Expr::Transport { into, .. } => {
                let [high, low] = self.destination.port().to_be_bytes();
                self.put(*into, &[high, low]);
            }
            Expr::Meta { key, into } => self.meta(*key, *into),
            Expr::SetMeta { key, from } => {
                let value = u32::from_ne_bytes(self.get(*from, 4).try_into().unwrap_or_default());
                match key {
                    Meta::Mark => self.mark = value,
                    Meta::Priority => self.priority = value,
                    Meta::InputName | Meta::OutputName | Meta::Protocol => return Next::Lost,
                }
            }
            Expr::Ct { key, into } => {
                let value: u32 = match key {
                    Ct::State => 8,
                    Ct::Status => u32::from(self.is_translated) << 5,
                };
                self.put(*into, &value.to_ne_bytes());
            }
            Expr::Load { data, into } => self.put(*into, data),
            Expr::Cmp { from, op, data } => {
                let is_equal = *self.get(*from, data.len()) == **data;
                if is_equal != (*op == Cmp::Equal) {
                    return Next::Break;
                }
            }
            Expr::Bitwise { from, into, mask, xor } => {
                let old = self.get(*from, mask.len()).to_vec();
                let bytes = old.iter().zip(mask).zip(xor).map(|((byte, mask), xor)| byte & mask ^ xor);
                let new: Vec<u8> = bytes.collect();
                self.put(*into, &new);
            }
            Expr::Random { modulus, offset, into } => {
                self.modulus = self.modulus.max(*modulus);
                let Some(drawn) = self.draw.checked_rem(*modulus) else { return Next::Lost };
                self.put(*into, &(offset + drawn).to_ne_bytes());
            }
            Expr::AddressType { of, into } => {
                let ip = match of {
                    Address::Source => self.source,
                    Address::Destination => self.destination.ip(),
                };
                let kind: u32 = if self.host.is_local(ip) { 2 } else { 1 };
                self.put(*into, &kind.to_ne_bytes());
            }
            Expr::Masquerade => {
                self.is_masqueraded = true;
                return Next::Go(Verdict::Accept);
            }
            Expr::Reject { .. } => return Next::Reject,
            Expr::Verdict(verdict) => return Next::Go(verdict.clone()),
            Expr::Counter | Expr::NoTrack => {}
            Expr::Member { .. } | Expr::Map { .. } | Expr::VerdictMap { .. } => return self.lookup(expr),
            Expr::Dynset { .. } => return self.remember(expr),
            Expr::Dnat { address, port, .. } => return self.translate(*address, *port),
            Expr::Foreign(_) => return Next::Lost,
        }
        Next::On
    }

    fn meta(&mut self, key: Meta, into: Reg) {
        match key {
            Meta::Priority => self.put(into, &self.priority.to_ne_bytes()),
            Meta::Mark => self.put(into, &self.mark.to_ne_bytes()),
            Meta::Protocol => self.put(into, &[self.protocol.number()]),
            Meta::InputName => {
                let mut name = self.arrival.interface().unwrap_or_default().as_bytes().to_vec();
                name.resize(16, 0);
                self.put(into, &name);
            }
            // None of the rules walked here asks where a packet leaves.
            Meta::OutputName => self.put(into, &[0; 16]),
        }
    }

    fn lookup(&mut self, expr: &Expr) -> Next {
        let (Expr::Member { set: name, key, .. }
        | Expr::Map { map: name, key, .. }
        | Expr::VerdictMap { map: name, key }) = expr
        else {
            return Next::Lost;
        };
        let Some((set, elements)) = self.content.set(name) else { return Next::Lost };
        let bytes: Box<[u8]> = self.get(*key, nft::Field::len_of(&set.key)).into();
        let value = find(set, elements, &bytes).map(|element| element.value.clone());
        match (expr, value) {
            (Expr::Member { is_inverted, .. }, found) if found.is_some() != *is_inverted => Next::On,
            (Expr::Map { into, .. }, None) if set.is_dynamic => {
                match self.memory.0.get(&(name.clone(), bytes)).cloned() {
                    Some(data) => {
                        self.put(*into, &data);
                        Next::On
                    }
                    None => Next::Break,
                }
            }
            (Expr::Map { into, .. }, Some(Some(Value::Data(data)))) => {
                self.put(*into, &data);
                Next::On
            }
            (Expr::VerdictMap { .. }, Some(Some(Value::Verdict(verdict)))) => Next::Go(verdict),
            _ => Next::Break,
        }
    }

    fn remember(&mut self, expr: &Expr) -> Next {
        let Expr::Dynset { op, set: name, key, data, .. } = expr else { return Next::Lost };
        let Some((set, _)) = self.content.set(name) else { return Next::Lost };
        let key: Box<[u8]> = self.get(*key, nft::Field::len_of(&set.key)).into();
        let value: Box<[u8]> = data.map_or(&[][..], |data| self.get(data, 4)).into();
        match op {
            Dynset::Delete => {
                self.memory.0.remove(&(name.clone(), key));
            }
            // Data that is there stays as it is; only its time is renewed.
            Dynset::Update => {
                self.memory.0.entry((name.clone(), key)).or_insert(value);
            }
        }
        Next::On
    }

    fn translate(&mut self, ip: Reg, port: Reg) -> Next {
        let port = u16::from_be_bytes(self.get(port, 2).try_into().unwrap_or_default());
        let ip = match Family::of(self.source) {
            Family::V4 => <[u8; 4]>::try_from(self.get(ip, 4)).map(IpAddr::from),
            Family::V6 => <[u8; 16]>::try_from(self.get(ip, 16)).map(IpAddr::from),
        };
        let Ok(ip) = ip else { return Next::Lost };
        self.destination = SocketAddr::new(ip, port);
        self.is_translated = true;
        Next::Go(Verdict::Accept)
    }

    /// Registers are filled in whole words.
    fn put(&mut self, into: Reg, bytes: &[u8]) {
        let start = usize::from(into.0) * 4;
        let end = start + bytes.len().next_multiple_of(4);
        if let Some(words) = self.registers.get_mut(start..end) {
            words.fill(0);
            words[..bytes.len()].copy_from_slice(bytes);
        }
    }

    fn get(&self, from: Reg, len: usize) -> &[u8] {
        let start = usize::from(from.0) * 4;
        self.registers.get(start..start + len).unwrap_or_default()
    }
}

fn find<'a>(set: &Set, elements: &'a [Element], key: &[u8]) -> Option<&'a Element> {
    if !set.is_interval {
        return elements.binary_search_by(|element| (*element.key).cmp(key)).ok().map(|at| &elements[at]);
    }
    let is_inside = |element: &&Element| {
        let last = element.end.as_ref().unwrap_or(&element.key);
        let mut at = 0;
        set.key.iter().all(|field| {
            let range = at..at + field.padded();
            at = range.end;
            (&element.key[range.clone()]..=&last[range.clone()]).contains(&&key[range])
        })
    };
    elements.iter().find(is_inside)
}
