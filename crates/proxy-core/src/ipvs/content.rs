//! What the kernel holds, or should hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::objects::{Cidr, Protocol};
use crate::rules::{
    External, Host, List, Masquerade, NodePortAddresses, PortRules, RuleSet, Scope, Vip, VipKey, Way,
};

use super::sets::SetId;
use crate::iptables::Entry;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub servers: BTreeMap<ServerKey, Server>,
    /// Of the device.
    pub addresses: BTreeSet<IpAddr>,
    pub sets: BTreeMap<SetId, BTreeSet<Entry>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerKey {
    pub protocol: Protocol,
    pub address: SocketAddr,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub scheduler: String,
    /// For how many seconds a client keeps its endpoint.
    pub persistence: Option<u32>,
    /// The client's port counts as well: without it, all of a node behind one address would be one client.
    pub hashes_ports: bool,
    pub reals: BTreeMap<SocketAddr, Real>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Real {
    /// Zero takes no new connections.
    pub weight: u32,
}

/// The content of a rule set that was compiled for IPVS. Addresses that the machine has on other devices stay there.
pub fn render(rules: &RuleSet, host: &Host, scheduler: &str) -> Content {
    let mut page = Page { rules, host, scheduler, content: Content::default() };
    page.content.sets = SetId::ALL.into_iter().map(|set| (set, BTreeSet::new())).collect();
    // An address of a Service wins over a node port of the same number.
    page.node_ports();
    for (key, vip) in &rules.vips {
        if let Some(port) = rules.ports.get(&vip.owner) {
            page.vip(*key, vip, port);
        }
    }
    for hairpin in rules.hairpins.keys() {
        let (ip, port) = (hairpin.endpoint.ip(), hairpin.endpoint.port());
        page.put(SetId::LoopBack, Entry::IpPortIp(ip, hairpin.protocol, port, ip));
    }
    for check in rules.health_checks.values() {
        page.put(SetId::HealthCheckNodePort, Entry::Port(check.port));
    }
    for ip in page.content.addresses.clone() {
        page.put(SetId::IpvsIps, Entry::Ip(ip));
    }
    page.content
}

struct Page<'a> {
    rules: &'a RuleSet,
    host: &'a Host,
    scheduler: &'a str,
    content: Content,
}

// === impl Page ===

impl Page<'_> {
    fn vip(&mut self, key: VipKey, vip: &Vip, port: &PortRules) {
        let entry = Entry::IpPort(key.ip, key.protocol, key.port);
        let way = match (vip.scope, &port.external) {
            (Scope::External, Some(external)) => {
                let keeps_source = keeps_source(external);
                if port.load_balancer_vips().contains(&key.ip) {
                    self.put(SetId::LoadBalancer, entry);
                    if keeps_source {
                        self.put(SetId::LoadBalancerLocal, entry);
                    }
                } else {
                    let set = if keeps_source { SetId::ExternalIpLocal } else { SetId::ExternalIp };
                    self.put(set, entry);
                }
                external.from_others
            }
            _ => {
                self.put(SetId::ClusterIp, entry);
                port.internal
            }
        };
        if let Some(allowed) = &vip.firewall {
            self.put(SetId::LoadBalancerFirewall, entry);
            allowed.iter().for_each(|range| self.allow(key, *range));
        }
        if !self.host.is_local(key.ip) {
            self.content.addresses.insert(key.ip);
        }
        self.serve(key.protocol, SocketAddr::new(key.ip, key.port), port, way);
    }

    fn allow(&mut self, key: VipKey, range: Cidr) {
        if range == Cidr::host(key.ip) {
            self.put(SetId::LoadBalancerSourceIp, Entry::IpPortIp(key.ip, key.protocol, key.port, key.ip));
        } else {
            self.put(SetId::LoadBalancerSourceCidr, Entry::IpPortNet(key.ip, key.protocol, key.port, range));
        }
    }

    fn node_ports(&mut self) {
        // This mode always names its addresses.
        let NodePortAddresses::Only(addresses) = &self.rules.node.node_port_addresses else { return };
        for (key, owner) in &self.rules.node_ports {
            let Some(port) = self.rules.ports.get(owner) else { continue };
            let Some(external) = &port.external else { continue };
            let [all, local] = SetId::node_ports(key.protocol);
            let entries: Vec<Entry> = match key.protocol {
                Protocol::Sctp => {
                    addresses.iter().map(|ip| Entry::IpPort(*ip, key.protocol, key.port)).collect()
                }
                Protocol::Tcp | Protocol::Udp => vec![Entry::Port(key.port)],
            };
            for entry in entries {
                self.put(all, entry);
                if keeps_source(external) {
                    self.put(local, entry);
                }
            }
            for ip in addresses {
                let address = SocketAddr::new(*ip, key.port);
                self.serve(key.protocol, address, port, external.from_others);
            }
        }
    }

    fn serve(&mut self, protocol: Protocol, address: SocketAddr, port: &PortRules, way: Way) {
        let endpoints: &[_] = match way {
            Way::To(List::Cluster, _) => &port.cluster,
            Way::To(List::Local, _) => &port.local,
            Way::Drop | Way::Reject => &[],
        };
        let server = Server {
            scheduler: self.scheduler.to_owned(),
            persistence: port.affinity,
            hashes_ports: self.scheduler == "mh",
            reals: endpoints.iter().map(|endpoint| (endpoint.address, Real { weight: 1 })).collect(),
        };
        self.content.servers.insert(ServerKey { protocol, address }, server);
    }

    fn put(&mut self, set: SetId, entry: Entry) {
        self.content.sets.entry(set).or_default().insert(entry);
    }
}

/// Whether the endpoint sees the client's address.
fn keeps_source(external: &External) -> bool {
    matches!(external.from_others, Way::To(_, Masquerade::Never))
}
