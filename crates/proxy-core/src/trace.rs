//! The fate of a packet under a rule set. What a backend renders has to treat packets the same way.

use std::net::{IpAddr, SocketAddr};

use crate::objects::{PortKey, Protocol};
use crate::rules::{
    External, Hairpin, Host, Masquerade, NodePortKey, OffCluster, PortRules, RuleSet, Scope, Unserved, Vip,
    VipKey, Way,
};

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub destination: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
    pub arrival: Arrival,
}

/// What the kernel sees of a packet's way here. Whether an interface leads to a Pod of this node or to the
/// outside is for the rules to find out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    Interface(String),
    /// Sent by the node itself.
    Node,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Goes to one of the targets, with equal chances, or to the one the client had before.
    Sent {
        port: PortKey,
        targets: Vec<Target>,
        affinity: Option<u32>,
    },
    Rejected,
    Dropped,
    /// Nothing to do with Services.
    Passed,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub endpoint: SocketAddr,
    /// Whether the endpoint sees the node's address instead of the client's.
    pub is_masqueraded: bool,
}

pub fn trace(rules: &RuleSet, host: &Host, packet: &Packet) -> Fate {
    let key = VipKey { ip: packet.destination, protocol: packet.protocol, port: packet.port };
    if let Some(vip) = rules.vips.get(&key) {
        return to_vip(rules, host, packet, vip);
    }
    let key = NodePortKey { protocol: packet.protocol, port: packet.port };
    let owner = rules.node_ports.get(&key).and_then(|owner| rules.ports.get(owner));
    if let Some((port, external)) = owner.and_then(|port| Some((port, port.external?))) {
        if rules.node.node_port_addresses.contains(host, packet.destination) {
            return follow(rules, packet, port, external_way(rules, host, packet, &external));
        }
        if rules.node.manners.refuses_node_ports_everywhere && host.is_local(packet.destination) {
            match external.from_others {
                Way::Drop => return Fate::Dropped,
                Way::Reject => return Fate::Rejected,
                Way::To(..) => {}
            }
        }
    }
    unserved(rules, host, packet)
}

fn to_vip(rules: &RuleSet, host: &Host, packet: &Packet, vip: &Vip) -> Fate {
    if vip.firewall.as_ref().is_some_and(|allowed| !allowed.iter().any(|range| range.contains(packet.source)))
    {
        return Fate::Dropped;
    }
    let Some(port) = rules.ports.get(&vip.owner) else { return Fate::Passed };
    let way = match (vip.scope, &port.external) {
        (Scope::External, Some(external)) => external_way(rules, host, packet, external),
        _ => port.internal,
    };
    follow(rules, packet, port, way)
}

fn external_way(rules: &RuleSet, host: &Host, packet: &Packet, external: &External) -> Way {
    let is_from_pod =
        rules.node.detector.as_ref().is_some_and(|d| d.is_local(packet.source, packet.arrival.interface()));
    let is_from_node = host.is_local(packet.source);
    let from_pods = external.from_pods.filter(|_| is_from_pod);
    let from_node = external.from_node.filter(|_| is_from_node);
    from_pods.or(from_node).unwrap_or(external.from_others)
}

fn follow(rules: &RuleSet, packet: &Packet, port: &PortRules, way: Way) -> Fate {
    let (list, masquerade) = match way {
        Way::To(list, masquerade) => (list, masquerade),
        Way::Drop => return Fate::Dropped,
        Way::Reject => return Fate::Rejected,
    };
    let is_masqueraded = match masquerade {
        Masquerade::Never => false,
        Masquerade::Always => true,
        Masquerade::OffCluster => is_off_cluster(rules, packet),
    };
    let target = |endpoint: SocketAddr| {
        let hairpin = Hairpin { endpoint, protocol: packet.protocol };
        let meets_itself = endpoint.ip() == packet.source && rules.hairpins.contains_key(&hairpin);
        Target { endpoint, is_masqueraded: is_masqueraded || meets_itself }
    };
    Fate::Sent {
        port: port.key.clone(),
        targets: port.list(list).iter().map(|e| target(e.address)).collect(),
        affinity: port.affinity,
    }
}

fn is_off_cluster(rules: &RuleSet, packet: &Packet) -> bool {
    match &rules.node.off_cluster {
        OffCluster::Never => false,
        OffCluster::Always => true,
        OffCluster::NotLocal(detector) => !detector.is_local(packet.source, packet.arrival.interface()),
        OffCluster::FromClusterIps => {
            let key = VipKey { ip: packet.source, protocol: packet.protocol, port: packet.port };
            rules.vips.get(&key).is_some_and(|vip| vip.scope == Scope::Internal)
        }
    }
}

fn unserved(rules: &RuleSet, host: &Host, packet: &Packet) -> Fate {
    // A Service address that somebody gave to the machine is the machine's business.
    if host.is_local(packet.destination) {
        return Fate::Passed;
    }
    let manners = &rules.node.manners;
    let is_allocatable = rules.node.service_cidrs.iter().any(|cidr| cidr.contains(packet.destination));
    let treatment = match () {
        () if rules.cluster_ips.contains_key(&packet.destination) => manners.unused_port,
        () if manners.vips_are_local && has_vip(rules, packet.destination) => manners.unused_port,
        () if is_allocatable => manners.unallocated_ip,
        () => Unserved::Pass,
    };
    match treatment {
        Unserved::Pass => Fate::Passed,
        Unserved::Reject => Fate::Rejected,
        Unserved::Drop => Fate::Dropped,
    }
}

fn has_vip(rules: &RuleSet, ip: IpAddr) -> bool {
    let first = VipKey { ip, protocol: Protocol::Tcp, port: 0 };
    rules.vips.range(first..).next().is_some_and(|(key, _)| key.ip == ip)
}

// === impl Arrival ===

impl Arrival {
    pub fn interface(&self) -> Option<&str> {
        match self {
            Arrival::Interface(name) => Some(name),
            Arrival::Node => None,
        }
    }
}
