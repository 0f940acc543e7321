//! What is the same for all Services of a node: settings, and the rules that follow from them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::objects::{Cidr, Cluster, Family};

/// The part of the configuration that decides about packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    pub local_traffic: LocalTraffic,
    pub masquerade_all: bool,
    pub node_port_addresses: NodePortChoice,
    /// Only the iptables mode can do this, and only for IPv4.
    pub localhost_node_ports: bool,
    /// A bind address that names one address overrides what the Node says of itself.
    pub bind_address: Option<IpAddr>,
    /// Whether `externalIPs` of Services count (`AllowServiceExternalIPs`).
    pub allows_external_ips: bool,
    /// Whether a Service whose endpoints are all on this node sees who calls it from outside. Only where what Pods answer comes
    /// back through this node's stack, as it does with a bridge and not with every network.
    pub keeps_sources: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
    Ipvs,
}

/// How Pods of this node are told from everybody else (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalTraffic {
    ClusterCidr(Vec<Cidr>),
    NodeCidr,
    BridgeInterface(String),
    InterfaceNamePrefix(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortChoice {
    /// The mode's own default.
    Unset,
    Primary,
    Cidrs(Vec<Cidr>),
}

/// The machine's own addresses, loopback ones included, but not those that a backend put there for Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub addresses: BTreeSet<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRules {
    pub manners: Manners,
    pub detector: Option<Detector>,
    pub off_cluster: OffCluster,
    pub node_port_addresses: NodePortAddresses,
    /// Where Service addresses come from.
    pub service_cidrs: BTreeSet<Cidr>,
}

/// Where the modes differ for the user, and not only in how they work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    pub mode: Mode,
    /// Pods of the node and the node itself reach all endpoints despite `externalTrafficPolicy: Local`.
    pub short_circuits: bool,
    /// Traffic that should stay local uses remote endpoints rather than none.
    pub local_falls_back: bool,
    pub unused_port: Unserved,
    pub unallocated_ip: Unserved,
    /// The refusal on a node port without endpoints holds on every local address, not only on those that
    /// would serve it.
    pub refuses_node_ports_everywhere: bool,
    /// Only endpoints of this node can meet themselves.
    pub hairpins_are_local: bool,
    /// Source ranges also hide that there is no endpoint.
    pub firewall_comes_first: bool,
    /// The node has every address of a Service as its own, so that what nobody serves there would reach the node.
    pub vips_are_local: bool,
}

/// What becomes of a packet to a Service address that nobody serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    Pass,
    Reject,
    Drop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detector {
    Source(Cidr),
    Interface(String),
    InterfacePrefix(String),
}

/// Which packets to a ClusterIP are masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffCluster {
    Never,
    Always,
    /// Those that the detector does not know as local.
    NotLocal(Detector),
    /// Those that come from a ClusterIP with that port: with every one of them on a local device, the node takes the
    /// address it calls as its own.
    FromClusterIps,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    AllLocal {
        loopback: bool,
    },
    /// May be empty: then no address serves node ports.
    Only(BTreeSet<IpAddr>),
}

// === impl Settings ===

impl Settings {
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            local_traffic: LocalTraffic::ClusterCidr(Vec::new()),
            masquerade_all: false,
            node_port_addresses: NodePortChoice::Unset,
            localhost_node_ports: true,
            bind_address: None,
            allows_external_ips: true,
            keeps_sources: false,
        }
    }

    /// The node's address in a family, for what rules need it for.
    pub fn node_ip(&self, cluster: &Cluster, family: Family) -> Option<IpAddr> {
        let specific = self.bind_address.filter(|ip| Family::of(*ip) == family && !ip.is_unspecified());
        specific.or_else(|| cluster.node().ip(family))
    }

    /// Whether node ports are served on 127.0.0.0/8, for which the kernel has to route what it otherwise would not.
    pub fn serves_loopback(&self) -> bool {
        let first = IpAddr::from([127, 0, 0, 0]);
        let is_allowed = match &self.node_port_addresses {
            NodePortChoice::Unset => true,
            NodePortChoice::Primary => false,
            NodePortChoice::Cidrs(cidrs) => {
                let mut of_v4 = cidrs.iter().filter(|cidr| cidr.family() == Family::V4).peekable();
                of_v4.peek().is_none()
                    || of_v4.any(|cidr| cidr.network().is_loopback() || cidr.contains(first))
            }
        };
        self.mode == Mode::Iptables && self.localhost_node_ports && is_allowed
    }

    fn detector(&self, cluster: &Cluster, family: Family) -> Option<Detector> {
        match &self.local_traffic {
            LocalTraffic::ClusterCidr(cidrs) => {
                cidrs.iter().find(|cidr| cidr.family() == family).copied().map(Detector::Source)
            }
            LocalTraffic::NodeCidr => cluster.node().pod_cidr(family).map(Detector::Source),
            LocalTraffic::BridgeInterface(name) => Some(Detector::Interface(name.clone())),
            LocalTraffic::InterfaceNamePrefix(prefix) => Some(Detector::InterfacePrefix(prefix.clone())),
        }
    }

    fn node_port_addresses(&self, cluster: &Cluster, host: &Host, family: Family) -> NodePortAddresses {
        let loopback = self.mode == Mode::Iptables && family == Family::V4 && self.localhost_node_ports;
        let is_primary = match self.node_port_addresses {
            NodePortChoice::Primary => true,
            NodePortChoice::Unset => self.mode == Mode::Nftables,
            NodePortChoice::Cidrs(_) => false,
        };
        let mut cidrs: Vec<Cidr> = match &self.node_port_addresses {
            NodePortChoice::Cidrs(cidrs) => cidrs.clone(),
            _ if is_primary => self.node_ip(cluster, family).map(Cidr::host).into_iter().collect(),
            _ => Vec::new(),
        };
        cidrs.retain(|cidr| cidr.family() == family);
        // A family that nothing is said about is open: so is the other family under `primary` on a
        // single-stack node.
        let takes_all = cidrs.is_empty() || cidrs.iter().any(Cidr::is_everything);
        if takes_all && self.mode != Mode::Ipvs {
            return NodePortAddresses::AllLocal { loopback };
        }
        let is_usable = |ip: &&IpAddr| {
            Family::of(**ip) == family
                && (takes_all || cidrs.iter().any(|cidr| cidr.contains(**ip)))
                && (loopback || !ip.is_loopback())
                && (self.mode != Mode::Ipvs || !is_link_local(**ip))
        };
        NodePortAddresses::Only(host.addresses.iter().filter(is_usable).copied().collect())
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

// === impl Host ===

impl Host {
    pub fn is_local(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.addresses.contains(&ip)
    }
}

// === impl NodeRules ===

impl NodeRules {
    pub fn compile(settings: &Settings, cluster: &Cluster, host: &Host, family: Family) -> Self {
        let manners = Manners::of(settings.mode);
        let detector = settings.detector(cluster, family);
        let off_cluster = match (&detector, settings.mode) {
            _ if settings.masquerade_all => OffCluster::Always,
            (Some(detector), _) => OffCluster::NotLocal(detector.clone()),
            (None, Mode::Ipvs) => OffCluster::FromClusterIps,
            (None, _) => OffCluster::Never,
        };
        Self {
            manners,
            detector,
            off_cluster,
            node_port_addresses: settings.node_port_addresses(cluster, host, family),
            service_cidrs: cluster.service_cidrs(family),
        }
    }

    /// The rules of a node about which nothing is known yet.
    pub fn unknown(mode: Mode) -> Self {
        Self {
            manners: Manners::of(mode),
            detector: None,
            off_cluster: OffCluster::Never,
            node_port_addresses: NodePortAddresses::Only(BTreeSet::new()),
            service_cidrs: BTreeSet::new(),
        }
    }
}

// === impl Manners ===

impl Manners {
    pub fn of(mode: Mode) -> Self {
        let (is_nftables, is_iptables, is_ipvs) =
            (mode == Mode::Nftables, mode == Mode::Iptables, mode == Mode::Ipvs);
        Self {
            mode,
            short_circuits: !is_ipvs,
            local_falls_back: is_ipvs,
            unused_port: if is_iptables { Unserved::Pass } else { Unserved::Reject },
            unallocated_ip: if is_nftables { Unserved::Drop } else { Unserved::Pass },
            refuses_node_ports_everywhere: is_iptables,
            hairpins_are_local: !is_iptables,
            firewall_comes_first: !is_iptables,
            vips_are_local: is_ipvs,
        }
    }
}

// === impl Detector ===

impl Detector {
    /// `interface` is the one the packet came in by; a packet of the node itself came in by none.
    pub fn is_local(&self, source: IpAddr, interface: Option<&str>) -> bool {
        match self {
            Detector::Source(cidr) => cidr.contains(source),
            Detector::Interface(name) => interface == Some(name),
            Detector::InterfacePrefix(prefix) => interface.is_some_and(|name| name.starts_with(&**prefix)),
        }
    }
}

// === impl NodePortAddresses ===

impl NodePortAddresses {
    pub fn contains(&self, host: &Host, ip: IpAddr) -> bool {
        match self {
            NodePortAddresses::AllLocal { loopback } => host.is_local(ip) && (*loopback || !ip.is_loopback()),
            NodePortAddresses::Only(addresses) => addresses.contains(&ip),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_opened_only_where_node_ports_are_served_on_it() {
        let cidrs = |texts: &[&str]| {
            NodePortChoice::Cidrs(texts.iter().map(|text| Cidr::parse(text).unwrap()).collect())
        };
        let cases = [
            (NodePortChoice::Unset, true),
            (NodePortChoice::Primary, false),
            (cidrs(&["10.0.0.0/8"]), false),
            (cidrs(&["10.0.0.0/8", "127.0.0.1/32"]), true),
            (cidrs(&["0.0.0.0/0"]), true),
            (cidrs(&["fd00::/8"]), true),
        ];
        for (choice, is_open) in cases {
            let mut settings = Settings::new(Mode::Iptables);
            settings.node_port_addresses = choice;
            assert_eq!(settings.serves_loopback(), is_open, "{settings:?}");
            let off = Settings { localhost_node_ports: false, ..settings.clone() };
            assert!(!off.serves_loopback());
            assert!(!Settings { mode: Mode::Nftables, ..settings }.serves_loopback());
        }
    }
}
