//! The fate of a packet where IPVS decides: the sets and the script before it and after it, and the virtual servers
//! between them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::iptables::walk::{Ending, Tables, Verdict, Way};
use crate::iptables::{Saved, Table};
use crate::objects::Family;
use crate::rules::{Host, RuleSet};
use crate::trace::Packet;

use super::content::{Content, ServerKey, render};
use super::script::{Options, script};

/// A node's kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    tables: Tables,
    content: Content,
    /// With the addresses of the device.
    host: Host,
}

// === impl Kernel ===

impl Kernel {
    /// Everything made anew. An error if iptables-restore would refuse the script.
    pub fn new(rules: &RuleSet, host: &Host, options: Options) -> Result<Self, String> {
        let content = render(rules, host, super::DEFAULT_SCHEDULER);
        let mut tables = Tables::default();
        let script = script(rules.family, &rules.node, options, &Saved::read(&tables.save()));
        tables.set_sets(named(rules.family, &content));
        tables.restore(&script.to_string())?;
        let addresses = host.addresses.union(&content.addresses).copied().collect();
        Ok(Self { tables, content, host: Host { addresses } })
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// How a first packet may end; with a scheduler that is fair, each end is as likely as the others.
    pub fn endings(&self, packet: &Packet) -> Vec<Ending> {
        let (before, after): (&[_], &[_]) = match packet.arrival.interface() {
            None => (&[(Table::Mangle, "OUTPUT"), (Table::Nat, "OUTPUT")], &[(Table::Filter, "OUTPUT")]),
            Some(_) if self.host.is_local(packet.destination) => {
                (&[(Table::Nat, "PREROUTING"), (Table::Filter, "INPUT")], &[])
            }
            Some(_) => (&[(Table::Nat, "PREROUTING"), (Table::Filter, "FORWARD")], &[]),
        };
        let way = match self.pass(packet, before, Way::of(packet)) {
            Ok(way) => way,
            Err(ending) => return vec![ending],
        };
        let key = ServerKey {
            protocol: packet.protocol,
            address: SocketAddr::new(packet.destination, packet.port),
        };
        let Some(server) = self.content.servers.get(&key) else { return vec![self.unserved(packet, way)] };
        if server.reals.is_empty() {
            return vec![Ending::Rejected];
        }
        let mut ends: Vec<Ending> =
            server.reals.keys().map(|real| self.send(packet, way.clone().translated(*real), after)).collect();
        ends.sort();
        ends
    }

    /// What the node sends itself comes in again.
    fn unserved(&self, packet: &Packet, way: Way) -> Ending {
        let is_own = packet.arrival.interface().is_none() && self.host.is_local(packet.destination);
        let hooks: &[_] = if is_own { &[(Table::Filter, "INPUT")] } else { &[] };
        self.pass(packet, hooks, way).map_or_else(|ending| ending, |_| Ending::Passed)
    }

    fn send(&self, packet: &Packet, way: Way, after: &[(Table, &str)]) -> Ending {
        let endpoint = way.destination();
        let way = match self.pass(packet, after, way) {
            Ok(way) => way,
            Err(ending) => return ending,
        };
        let last = self.tables.run(&self.host, packet, (Table::Nat, "POSTROUTING"), way);
        let is_masqueraded = last.iter().any(|(verdict, _)| matches!(verdict, Verdict::Masqueraded));
        Ending::Sent { endpoint, is_masqueraded }
    }

    /// Nothing here is left to chance before IPVS decides, so there is one way through.
    fn pass(&self, packet: &Packet, hooks: &[(Table, &str)], mut way: Way) -> Result<Way, Ending> {
        for hook in hooks {
            for (verdict, next) in self.tables.run(&self.host, packet, *hook, way.clone()) {
                match verdict {
                    Verdict::Dropped => return Err(Ending::Dropped),
                    Verdict::Rejected => return Err(Ending::Rejected),
                    Verdict::Fell | Verdict::Accepted | Verdict::Masqueraded => way = next,
                }
            }
        }
        Ok(way)
    }
}

fn named(family: Family, content: &Content) -> BTreeMap<String, Vec<crate::iptables::Entry>> {
    let named = |(set, entries): (&super::SetId, &std::collections::BTreeSet<_>)| {
        (set.name(family), entries.iter().copied().collect())
    };
    content.sets.iter().map(named).collect()
}
