//! What of the kernel makes up this mode, and how it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proxy_core::ipvs::{
    Content, Entry, Real, Retirement, Server, ServerKey, SetId, SetKind, Step, retirement,
};
use proxy_core::objects::{Cidr, Family, Protocol};
use sys::ipset::{self, Ipsets};
use sys::ipvs::{Behaviour, Ipvs, Order, ServerId};
use sys::link::{self, Index, Links};

use crate::ports::Error;

#[derive(Debug)]
pub(super) struct Hands {
    pub(super) ipvs: Ipvs,
    pub(super) sets: Ipsets,
    pub(super) links: Links,
}

/// What the kernel would not do, cut down to the one object, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) step: Step,
    pub(super) why: String,
}

// === impl Hands ===

impl Hands {
    pub(super) fn open() -> Result<Self, Error> {
        Ok(Self { ipvs: Ipvs::open()?, sets: Ipsets::open()?, links: Links::open()? })
    }

    pub(super) fn servers(&mut self, family: Family) -> Result<BTreeMap<ServerKey, Server>, Error> {
        let mut servers = BTreeMap::new();
        for (id, behaviour) in self.ipvs.servers()? {
            let protocol = Protocol::ALL.into_iter().find(|p| p.number() == id.protocol);
            let Some(protocol) = protocol.filter(|_| Family::of(id.address.ip()) == family) else { continue };
            let reals = self.ipvs.reals(id)?;
            let server = Server {
                scheduler: behaviour.scheduler,
                persistence: behaviour.persistence,
                hashes_ports: behaviour.hashes_ports,
                reals: reals.iter().map(|real| (real.address, Real { weight: real.weight })).collect(),
            };
            servers.insert(ServerKey { protocol, address: id.address }, server);
        }
        Ok(servers)
    }

    /// What is in our sets. Those that are missing are made.
    pub(super) fn sets(&mut self, family: Family) -> Result<BTreeMap<SetId, BTreeSet<Entry>>, Error> {
        let found = self.sets.list("KUBE-")?;
        let mut sets = BTreeMap::new();
        for id in SetId::ALL {
            let name = id.name(family);
            let entries = match found.iter().find(|set| set.name == name) {
                Some(set) if set.kind == Some(kind(id.kind())) => {
                    set.entries.iter().filter_map(entry).collect()
                }
                Some(_) => return Err(Error::StrangeSet(name)),
                None => {
                    self.sets.create(&name, kind(id.kind()), family == Family::V6)?;
                    BTreeSet::new()
                }
            };
            sets.insert(id, entries);
        }
        Ok(sets)
    }

    /// What is to be done, and whether the real server stays for the sake of its connections.
    fn retire(&mut self, key: ServerKey, real: SocketAddr) -> Result<(Option<Order>, bool), Error> {
        let id = server_id(key);
        let found = self.ipvs.reals(id)?.into_iter().find(|found| found.address == real);
        let Some(found) = found else { return Ok((None, false)) };
        Ok(match retirement(key.protocol, found.active.saturating_add(found.inactive)) {
            Retirement::Delete => (Some(Order::DeleteReal(id, real)), false),
            Retirement::Quiesce if found.weight == 0 => (None, true),
            Retirement::Quiesce => (Some(Order::SetWeight(id, real, 0)), true),
        })
    }

    /// Carries the steps out, each whatever becomes of the others, and says which were refused; orders to IPVS go many at a
    /// time. A real server that is to stay for a while is put into what should be.
    pub(super) fn carry_out(
        &mut self,
        family: Family,
        device: Index,
        steps: &[Step],
        should: &mut Content,
    ) -> Result<Vec<Refused>, Error> {
        let (mut orders, mut refused) = (Vec::new(), Vec::new());
        for step in steps {
            let order = match step {
                Step::AddServer(key, server) => Order::Add(server_id(*key), behaviour(server)),
                Step::ChangeServer(key, server) => Order::Change(server_id(*key), behaviour(server)),
                Step::AddReal(key, real) => Order::AddReal(server_id(*key), *real, 1),
                Step::Restore(key, real) => Order::SetWeight(server_id(*key), *real, 1),
                Step::DeleteServer(key) => Order::Delete(server_id(*key)),
                Step::Retire(key, real) => {
                    let (order, stays) = self.retire(*key, *real)?;
                    if let Some(server) = should.servers.get_mut(key).filter(|_| stays) {
                        server.reals.insert(*real, Real { weight: 0 });
                    }
                    let Some(order) = order else { continue };
                    order
                }
                other => {
                    refused.extend(self.give(std::mem::take(&mut orders))?);
                    refused.extend(self.carry_out_one(family, device, other)?);
                    continue;
                }
            };
            orders.push((step, order));
        }
        refused.extend(self.give(orders)?);
        Ok(refused)
    }

    fn give(&mut self, orders: Vec<(&Step, Order)>) -> Result<Vec<Refused>, Error> {
        let (steps, orders): (Vec<&Step>, Vec<Order>) = orders.into_iter().unzip();
        let mut missing = None;
        let mut refused = Vec::new();
        for (place, error) in self.ipvs.carry_out(&orders)?.0 {
            match steps[place] {
                Step::AddServer(key, _) => missing = Some(*key),
                // Behind a virtual server that is not there nobody can be.
                Step::AddReal(key, _) if missing == Some(*key) => continue,
                _ => {}
            }
            refused.push(Refused { step: steps[place].clone(), why: error.to_string() });
        }
        Ok(refused)
    }

    fn carry_out_one(&mut self, family: Family, device: Index, step: &Step) -> Result<Vec<Refused>, Error> {
        let list = |ips: &BTreeSet<IpAddr>| ips.iter().copied().collect::<Vec<_>>();
        let told = |entries: &[Entry]| entries.iter().map(sys_entry).collect::<Vec<_>>();
        let of_set =
            |(place, error): (usize, ipset::Error), entries: &[Entry], step: fn(_, _) -> Step, set| {
                let entry: Entry = entries[place];
                Refused { step: step(set, vec![entry]), why: format!("{error}: {entry:?}") }
            };
        let of_device = |(place, error): (usize, link::Error), ips: &[IpAddr], step: fn(_) -> Step| Refused {
            step: step(BTreeSet::from([ips[place]])),
            why: error.to_string(),
        };
        Ok(match step {
            Step::AddEntries(set, entries) => {
                let refused = self.sets.add(&set.name(family), &told(entries))?.0.into_iter();
                refused.map(|refused| of_set(refused, entries, Step::AddEntries, *set)).collect()
            }
            Step::DeleteEntries(set, entries) => {
                let refused = self.sets.delete(&set.name(family), &told(entries))?.0.into_iter();
                refused.map(|refused| of_set(refused, entries, Step::DeleteEntries, *set)).collect()
            }
            Step::Bind(ips) => {
                let ips = list(ips);
                let refused = self.links.add_addresses(device, &ips)?.0.into_iter();
                refused.map(|refused| of_device(refused, &ips, Step::Bind)).collect()
            }
            Step::Unbind(ips) => {
                let ips = list(ips);
                let refused = self.links.delete_addresses(device, &ips)?.0.into_iter();
                refused.map(|refused| of_device(refused, &ips, Step::Unbind)).collect()
            }
            _ => Vec::new(),
        })
    }
}

fn server_id(key: ServerKey) -> ServerId {
    ServerId { protocol: key.protocol.number(), address: key.address }
}

fn behaviour(server: &Server) -> Behaviour {
    Behaviour {
        scheduler: server.scheduler.clone(),
        persistence: server.persistence,
        hashes_ports: server.hashes_ports,
    }
}

fn kind(kind: SetKind) -> ipset::SetType {
    match kind {
        SetKind::Ip => ipset::SetType::Ip,
        SetKind::IpPort => ipset::SetType::IpPort,
        SetKind::IpPortIp => ipset::SetType::IpPortIp,
        SetKind::IpPortNet => ipset::SetType::IpPortNet,
        SetKind::Port => ipset::SetType::Port,
    }
}

fn sys_entry(entry: &Entry) -> ipset::Entry {
    let of = |ip: IpAddr, protocol: Protocol, port: u16, second| ipset::Entry {
        ip: Some(ip),
        protocol: Some(protocol.number()),
        port: Some(port),
        second,
    };
    match *entry {
        Entry::Ip(ip) => ipset::Entry { ip: Some(ip), ..ipset::Entry::default() },
        Entry::Port(port) => ipset::Entry { port: Some(port), ..ipset::Entry::default() },
        Entry::IpPort(ip, protocol, port) => of(ip, protocol, port, None),
        Entry::IpPortIp(ip, protocol, port, second) => of(ip, protocol, port, Some((second, None))),
        Entry::IpPortNet(ip, protocol, port, net) => {
            of(ip, protocol, port, Some((net.network(), Some(net.length()))))
        }
    }
}

/// `None` for one that we would never make.
pub(super) fn entry(told: &ipset::Entry) -> Option<Entry> {
    let protocol = |number: u8| Protocol::ALL.into_iter().find(|p| p.number() == number);
    Some(match (told.ip, told.protocol, told.port, told.second) {
        (Some(ip), None, None, None) => Entry::Ip(ip),
        (None, None, Some(port), None) => Entry::Port(port),
        (Some(ip), Some(number), Some(port), None) => Entry::IpPort(ip, protocol(number)?, port),
        (Some(ip), Some(number), Some(port), Some((second, None))) => {
            Entry::IpPortIp(ip, protocol(number)?, port, second)
        }
        (Some(ip), Some(number), Some(port), Some((net, Some(length)))) => {
            Entry::IpPortNet(ip, protocol(number)?, port, Cidr::new(net, length)?)
        }
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_they_are_written() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let entries = [
            Entry::Ip(ip("10.96.0.10")),
            Entry::Port(30_080),
            Entry::IpPort(ip("fd96::10"), Protocol::Sctp, 80),
            Entry::IpPortIp(ip("10.244.0.5"), Protocol::Tcp, 8080, ip("10.244.0.5")),
            Entry::IpPortNet(ip("5.6.7.8"), Protocol::Udp, 53, Cidr::parse("10.0.0.0/8").unwrap()),
        ];
        for wanted in entries {
            assert_eq!(entry(&sys_entry(&wanted)), Some(wanted));
        }
        assert_eq!(entry(&ipset::Entry::default()), None);
    }
}
