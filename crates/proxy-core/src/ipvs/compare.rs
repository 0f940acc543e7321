//! What leads from one content to another.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::objects::{Cidr, Protocol};

use super::content::{Content, Server, ServerKey};
use super::sets::SetId;
use crate::iptables::Entry;

/// One thing to do. They are given in an order in which traffic that is served stays served: what is needed comes
/// before what needs it, and goes after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    AddEntries(SetId, Vec<Entry>),
    AddServer(ServerKey, Server),
    ChangeServer(ServerKey, Server),
    AddReal(ServerKey, SocketAddr),
    /// A real server that was to go is needed again, or somebody changed its weight.
    Restore(ServerKey, SocketAddr),
    Bind(BTreeSet<IpAddr>),
    Unbind(BTreeSet<IpAddr>),
    /// See [`retirement`].
    Retire(ServerKey, SocketAddr),
    DeleteServer(ServerKey),
    DeleteEntries(SetId, Vec<Entry>),
}

/// How a real server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    Delete,
    /// It takes no new connections, and is looked at again.
    Quiesce,
}

/// Connections end when their real server is deleted. Those of TCP are let finish; flows of the others have no end of
/// their own to wait for.
pub fn retirement(protocol: Protocol, connections: u32) -> Retirement {
    match protocol {
        Protocol::Tcp if connections > 0 => Retirement::Quiesce,
        Protocol::Tcp | Protocol::Udp | Protocol::Sctp => Retirement::Delete,
    }
}

/// Virtual servers in the excluded ranges are somebody else's.
pub fn compare(is: &Content, should: &Content, excluded: &[Cidr]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (set, wanted) in &should.sets {
        let missing = missing(wanted, is.sets.get(set));
        if !missing.is_empty() {
            steps.push(Step::AddEntries(*set, missing));
        }
    }
    for (key, wanted) in &should.servers {
        servers(&mut steps, *key, is.servers.get(key), wanted);
    }
    // Only now: an address that is bound before it is served would be refused.
    let bind: BTreeSet<IpAddr> = should.addresses.difference(&is.addresses).copied().collect();
    let unbind: BTreeSet<IpAddr> = is.addresses.difference(&should.addresses).copied().collect();
    steps.extend((!bind.is_empty()).then_some(Step::Bind(bind)));
    steps.extend((!unbind.is_empty()).then_some(Step::Unbind(unbind)));
    for (key, found) in &is.servers {
        match should.servers.get(key) {
            Some(wanted) => {
                let gone = found.reals.keys().filter(|real| !wanted.reals.contains_key(real));
                steps.extend(gone.map(|real| Step::Retire(*key, *real)));
            }
            None if excluded.iter().any(|range| range.contains(key.address.ip())) => {}
            None => steps.push(Step::DeleteServer(*key)),
        }
    }
    for (set, found) in &is.sets {
        let superfluous = missing(found, should.sets.get(set));
        if !superfluous.is_empty() {
            steps.push(Step::DeleteEntries(*set, superfluous));
        }
    }
    steps
}

fn servers(steps: &mut Vec<Step>, key: ServerKey, found: Option<&Server>, wanted: &Server) {
    let behaves = |server: &Server| (server.scheduler.clone(), server.persistence, server.hashes_ports);
    match found {
        None => steps.push(Step::AddServer(key, wanted.clone())),
        Some(found) if behaves(found) != behaves(wanted) => {
            steps.push(Step::ChangeServer(key, wanted.clone()));
        }
        Some(_) => {}
    }
    for (real, wanted) in &wanted.reals {
        match found.and_then(|found| found.reals.get(real)) {
            None => steps.push(Step::AddReal(key, *real)),
            Some(found) if found != wanted => steps.push(Step::Restore(key, *real)),
            Some(_) => {}
        }
    }
}

fn missing(wanted: &BTreeSet<Entry>, found: Option<&BTreeSet<Entry>>) -> Vec<Entry> {
    let is_there = |entry: &&Entry| found.is_some_and(|found| found.contains(entry));
    wanted.iter().filter(|entry| !is_there(entry)).copied().collect()
}

// === impl Content ===

impl Content {
    /// Makes it as if the step had been taken; a real server that is retired counts as gone.
    pub fn apply(&mut self, step: &Step) {
        let weight = super::content::Real { weight: 1 };
        match step {
            Step::AddEntries(set, entries) => self.sets.entry(*set).or_default().extend(entries),
            Step::DeleteEntries(set, entries) => {
                self.sets.entry(*set).or_default().retain(|entry| !entries.contains(entry));
            }
            Step::AddServer(key, server) => {
                self.servers.insert(*key, Server { reals: Default::default(), ..server.clone() });
            }
            Step::ChangeServer(key, server) => {
                if let Some(known) = self.servers.get_mut(key) {
                    *known = Server { reals: std::mem::take(&mut known.reals), ..server.clone() };
                }
            }
            Step::AddReal(key, real) | Step::Restore(key, real) => {
                if let Some(server) = self.servers.get_mut(key) {
                    server.reals.insert(*real, weight);
                }
            }
            Step::Retire(key, real) => {
                if let Some(server) = self.servers.get_mut(key) {
                    server.reals.remove(real);
                }
            }
            Step::DeleteServer(key) => {
                self.servers.remove(key);
            }
            Step::Bind(ips) => self.addresses.extend(ips),
            Step::Unbind(ips) => self.addresses.retain(|ip| !ips.contains(ip)),
        }
    }

    /// Makes it as if a step of those that led here from `was` had not been taken.
    pub fn withhold(&mut self, step: &Step, was: &Content) {
        let real_was = |key: &ServerKey, real: &SocketAddr| was.servers.get(key)?.reals.get(real).copied();
        match step {
            Step::AddEntries(set, entries) => {
                let known = self.sets.entry(*set).or_default();
                for entry in entries {
                    known.remove(entry);
                }
            }
            Step::DeleteEntries(set, entries) => self.sets.entry(*set).or_default().extend(entries),
            Step::AddServer(key, _) => drop(self.servers.remove(key)),
            Step::ChangeServer(key, _) => {
                if let (Some(known), Some(was)) = (self.servers.get_mut(key), was.servers.get(key)) {
                    *known = Server { reals: std::mem::take(&mut known.reals), ..was.clone() };
                }
            }
            Step::AddReal(key, real) | Step::Restore(key, real) | Step::Retire(key, real) => {
                if let Some(server) = self.servers.get_mut(key) {
                    match real_was(key, real) {
                        Some(was) => drop(server.reals.insert(*real, was)),
                        None => drop(server.reals.remove(real)),
                    }
                }
            }
            Step::DeleteServer(key) => {
                self.servers.extend(was.servers.get(key).map(|server| (*key, server.clone())));
            }
            Step::Bind(ips) => self.addresses.retain(|ip| !ips.contains(ip)),
            Step::Unbind(ips) => self.addresses.extend(ips),
        }
    }
}
