//! The tables as iptables-restore would leave them, and the fate of a packet there. Rules are read from their text, so
//! that nothing the renderer meant but did not write counts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::objects::{Cidr, parse_ip};
use crate::rules::Host;
use crate::trace::Packet;

use super::ipset::Entry;
use super::script::Table;

const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
const TARGETS: [&str; 8] = ["ACCEPT", "DROP", "REJECT", "RETURN", "DNAT", "MARK", "MASQUERADE", ""];

/// Chains and their rules, and the sets that rules may look into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    chains: BTreeMap<Table, BTreeMap<String, Vec<String>>>,
    sets: Sets,
}

type Sets = BTreeMap<String, Vec<Entry>>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    Sent { endpoint: SocketAddr, is_masqueraded: bool },
    Rejected,
    Dropped,
    Passed,
}

/// What a packet is on its way.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    destination: IpAddr,
    port: u16,
    mark: u32,
    is_translated: bool,
    /// How likely the packet is to have come here.
    chance: f64,
}

pub(crate) enum Verdict {
    /// Through the chain, or returned from it.
    Fell,
    Accepted,
    Dropped,
    Rejected,
    Masqueraded,
}

// === impl Way ===

impl Way {
    pub(crate) fn of(packet: &Packet) -> Self {
        let (destination, port) = (packet.destination, packet.port);
        Self { destination, port, mark: 0, is_translated: false, chance: 1.0 }
    }

    pub(crate) fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.port)
    }

    /// On its way to an endpoint.
    pub(crate) fn translated(self, to: SocketAddr) -> Self {
        Self { destination: to.ip(), port: to.port(), is_translated: true, ..self }
    }
}

// === impl Tables ===

impl Default for Tables {
    fn default() -> Self {
        let chains = || BUILT_IN.iter().map(|chain| ((*chain).to_owned(), Vec::new())).collect();
        Self { chains: Table::ALL.into_iter().map(|table| (table, chains())).collect(), sets: Sets::new() }
    }
}

impl Tables {
    /// Does what `iptables-restore --noflush` does, and refuses what it would refuse.
    pub fn restore(&mut self, script: &str) -> Result<(), String> {
        let mut table = None;
        for line in script.lines() {
            let done = match (line.strip_prefix('*'), table) {
                (Some(name), _) => {
                    table = Table::ALL.into_iter().find(|t| t.name() == name);
                    table.map(drop).ok_or("no such table".to_owned())
                }
                (None, Some(_)) if line == "COMMIT" => Ok(()),
                (None, Some(table)) => self.take(table, line),
                (None, None) => Err("outside of a table".to_owned()),
            };
            done.map_err(|why| format!("{line}: {why}"))?;
        }
        Ok(())
    }

    /// As iptables-save prints it, as far as [`super::Saved`] looks.
    pub fn save(&self) -> String {
        let mut out = String::new();
        for (table, chains) in &self.chains {
            out.push_str(&format!("*{}\n", table.name()));
            for chain in chains.keys() {
                out.push_str(&format!(":{chain} - [0:0]\n"));
            }
            for (chain, rules) in chains {
                rules.iter().for_each(|rule| out.push_str(&format!("-A {chain} {rule}\n")));
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    fn take(&mut self, table: Table, line: &str) -> Result<(), String> {
        let chains = self.chains.get_mut(&table).ok_or("no such table")?;
        if let Some(rest) = line.strip_prefix(':') {
            let name = rest.split(' ').next().unwrap_or_default();
            if name.len() > 28 {
                return Err("the name is too long".into());
            }
            chains.insert(name.to_owned(), Vec::new());
            return Ok(());
        }
        if let Some(set) = after(line, "--match-set ").filter(|set| !self.sets.contains_key(*set)) {
            return Err(format!("looks into {set}, which is not there"));
        }
        let (act, rest) = line.split_once(' ').ok_or("not understood")?;
        let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Some(to) = target(rule).filter(|to| !TARGETS.contains(to))
            && !chains.contains_key(to)
        {
            return Err(format!("leads to {to}, which is not there"));
        }
        match act {
            "-X" => {
                let is_used = chains.values().flatten().any(|rule| target(rule) == Some(chain));
                let is_full = chains.get(chain).is_none_or(|rules| !rules.is_empty());
                if is_used || is_full {
                    return Err("the chain is in use, or not there".into());
                }
                chains.remove(chain);
            }
            "-A" => chains.get_mut(chain).ok_or("no such chain")?.push(rule.to_owned()),
            "-I" => {
                let rule = rule.strip_prefix("1 ").ok_or("no place")?;
                chains.get_mut(chain).ok_or("no such chain")?.insert(0, rule.to_owned());
            }
            "-D" => {
                let rules = chains.get_mut(chain).ok_or("no such chain")?;
                let at = rules.iter().position(|known| known == rule).ok_or("no such rule")?;
                rules.remove(at);
            }
            _ => return Err("not understood".into()),
        }
        Ok(())
    }

    /// How a first packet may end, and how likely each end is.
    pub fn endings(&self, host: &Host, packet: &Packet) -> Vec<(Ending, f64)> {
        let start = Way::of(packet);
        let is_nodes = packet.arrival.interface().is_none();
        let mut ends: BTreeMap<Ending, f64> = BTreeMap::new();
        let (nat, filters): (&str, &[&str]) = match is_nodes {
            true => ("OUTPUT", &["OUTPUT", "INPUT"]),
            false => ("PREROUTING", &["FORWARD", "INPUT"]),
        };
        let mut ways = self.run(host, packet, (Table::Nat, nat), start);
        for hook in filters {
            ways = ways
                .into_iter()
                .flat_map(|(verdict, way)| {
                    let is_local = host.is_local(way.destination);
                    let is_passing = match *hook {
                        "INPUT" => is_local,
                        "FORWARD" => !is_local,
                        _ => true,
                    };
                    match verdict {
                        Verdict::Fell | Verdict::Accepted if is_passing => {
                            self.run(host, packet, (Table::Filter, hook), way)
                        }
                        verdict => vec![(verdict, way)],
                    }
                })
                .collect();
        }
        for (verdict, way) in ways {
            let end = match verdict {
                Verdict::Dropped => Ending::Dropped,
                Verdict::Rejected => Ending::Rejected,
                _ if !way.is_translated => Ending::Passed,
                _ => {
                    let after = self.run(host, packet, (Table::Nat, "POSTROUTING"), way.clone());
                    let is_masqueraded = after.iter().any(|(v, _)| matches!(v, Verdict::Masqueraded));
                    let cleared = after.iter().all(|(_, after)| !is_masqueraded || after.mark != way.mark);
                    debug_assert!(cleared, "a masqueraded packet keeps its mark");
                    Ending::Sent { endpoint: SocketAddr::new(way.destination, way.port), is_masqueraded }
                }
            };
            *ends.entry(end).or_default() += way.chance;
        }
        ends.into_iter().collect()
    }

    /// The names of lists of clients that rules on a packet's way look into or write.
    pub fn recent_lists(&self) -> BTreeSet<String> {
        let rules = self.chains.values().flat_map(BTreeMap::values).flatten();
        rules.filter_map(|rule| Some(after(rule, "--name ")?.to_owned())).collect()
    }

    /// The sets, by name.
    pub(crate) fn set_sets(&mut self, sets: Sets) {
        self.sets = sets;
    }

    pub(crate) fn run(
        &self,
        host: &Host,
        packet: &Packet,
        at: (Table, &str),
        way: Way,
    ) -> Vec<(Verdict, Way)> {
        let mut done = Vec::new();
        let mut going = vec![way];
        let rules = self.chains.get(&at.0).and_then(|chains| chains.get(at.1));
        for rule in rules.into_iter().flatten() {
            let mut next = Vec::new();
            for way in going {
                let chance = matches(rule, &self.sets, host, packet, &way);
                if chance < 1.0 {
                    next.push(Way { chance: way.chance * (1.0 - chance), ..way.clone() });
                }
                if chance > 0.0 {
                    let way = Way { chance: way.chance * chance, ..way };
                    for (verdict, way) in self.follow(rule, host, packet, at.0, way) {
                        match verdict {
                            None => next.push(way),
                            Some(verdict) => done.push((verdict, way)),
                        }
                    }
                }
            }
            going = next;
        }
        done.extend(going.into_iter().map(|way| (Verdict::Fell, way)));
        done
    }

    /// No verdict: on to the next rule.
    fn follow(
        &self,
        rule: &str,
        host: &Host,
        packet: &Packet,
        table: Table,
        mut way: Way,
    ) -> Vec<(Option<Verdict>, Way)> {
        let verdict = match target(rule).unwrap_or_default() {
            "" => None,
            "ACCEPT" => Some(Verdict::Accepted),
            "DROP" => Some(Verdict::Dropped),
            "REJECT" => Some(Verdict::Rejected),
            "RETURN" => Some(Verdict::Fell),
            "MASQUERADE" => Some(Verdict::Masqueraded),
            "DNAT" => {
                if let Some(to) =
                    after(rule, "--to-destination ").and_then(|to| to.parse::<SocketAddr>().ok())
                {
                    (way.destination, way.port, way.is_translated) = (to.ip(), to.port(), true);
                }
                Some(Verdict::Accepted)
            }
            "MARK" => {
                let bits = |flag| after(rule, flag).and_then(number);
                way.mark = match (bits("--or-mark "), bits("--xor-mark ")) {
                    (Some(bits), _) => way.mark | bits,
                    (None, Some(bits)) => way.mark ^ bits,
                    (None, None) => way.mark,
                };
                None
            }
            chain => {
                let below = self.run(host, packet, (table, chain), way);
                let up = |(verdict, way)| match verdict {
                    Verdict::Fell => (None, way),
                    verdict => (Some(verdict), way),
                };
                return below.into_iter().map(up).collect();
            }
        };
        vec![(verdict, way)]
    }
}

/// How likely a rule is to take a packet.
fn matches(rule: &str, sets: &Sets, host: &Host, packet: &Packet, way: &Way) -> f64 {
    let mut words = words(rule).into_iter();
    let mut chance = 1.0;
    let mut is_turned = false;
    while let Some(word) = words.next() {
        let mut value = || words.next().unwrap_or_default();
        let is_met = match word.as_str() {
            "!" => {
                is_turned = true;
                continue;
            }
            "-j" => break,
            "-p" => value() == packet.protocol.to_string(),
            "-d" => within(&value(), way.destination),
            "-s" => within(&value(), packet.source),
            "--dport" => value() == way.port.to_string(),
            "--dst-type" => value() == "LOCAL" && host.is_local(way.destination),
            "--src-type" => value() == "LOCAL" && host.is_local(packet.source),
            "-i" => is_interface(&value(), packet.arrival.interface()),
            "--ctstate" => {
                let states = value();
                let is_in = |state: &str| states.split(',').any(|s| s == state);
                is_in("NEW") || (way.is_translated && is_in("DNAT"))
            }
            "--mark" => {
                let text = value();
                let (bits, mask) = text.split_once('/').unwrap_or((&text, "0xffffffff"));
                number(bits) == number(mask).map(|mask| way.mark & mask)
            }
            "--probability" => {
                chance *= value().parse().unwrap_or(0.0);
                true
            }
            "--match-set" => {
                let (name, sides) = (value(), value());
                sets.get(&name).is_some_and(|set| set.iter().any(|e| is_entry(e, &sides, packet, way)))
            }
            // Nobody has been here before.
            "--rcheck" => false,
            "-m" | "--comment" | "--name" | "--seconds" | "--mode" => {
                value();
                true
            }
            _ => true,
        };
        if is_met == is_turned {
            return 0.0;
        }
        is_turned = false;
    }
    chance
}

/// The sides say of each part of an entry whether it is about the source or the destination.
fn is_entry(entry: &Entry, sides: &str, packet: &Packet, way: &Way) -> bool {
    let side = |place: usize| match sides.split(',').nth(place) {
        Some("src") => packet.source,
        _ => way.destination,
    };
    let is_port = |protocol, port| protocol == packet.protocol && port == way.port;
    match *entry {
        Entry::Ip(ip) => ip == side(0),
        Entry::IpPort(ip, protocol, port) => ip == side(0) && is_port(protocol, port),
        Entry::IpPortIp(ip, protocol, port, second) => {
            ip == side(0) && is_port(protocol, port) && second == side(2)
        }
        Entry::IpPortNet(ip, protocol, port, net) => {
            ip == side(0) && is_port(protocol, port) && net.contains(side(2))
        }
        Entry::Port(port) => port == way.port,
    }
}

fn is_interface(pattern: &str, interface: Option<&str>) -> bool {
    match pattern.strip_suffix('+') {
        Some(prefix) => interface.is_some_and(|name| name.starts_with(prefix)),
        None => interface == Some(pattern),
    }
}

fn within(text: &str, ip: IpAddr) -> bool {
    let cidr = Cidr::parse(text).or_else(|| parse_ip(text).map(Cidr::host));
    cidr.is_some_and(|cidr| cidr.contains(ip))
}

fn number(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn target(rule: &str) -> Option<&str> {
    let rest = match rule.strip_prefix("-j ") {
        Some(rest) => rest,
        None => rule.rsplit_once(" -j ")?.1,
    };
    rest.split(' ').next()
}

fn after<'a>(rule: &'a str, flag: &str) -> Option<&'a str> {
    rule.split_once(flag)?.1.split(' ').next()
}

/// Quotes keep words together.
fn words(rule: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (i, part) in rule.split('"').enumerate() {
        match i % 2 {
            0 => out.extend(part.split(' ').filter(|w| !w.is_empty()).map(str::to_owned)),
            _ => out.push(part.to_owned()),
        }
    }
    out
}
