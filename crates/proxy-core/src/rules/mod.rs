//! The neutral rules of one address family: what every backend has to bring about, in none of their languages.
//!
//! A packet is looked up in this order; [`crate::trace`] is the same as code:
//!
//! 1. destination, protocol and port in [`RuleSet::vips`]: first the firewall of a load balancer's address,
//!    then the way of the Service port that owns the address, [`PortRules::internal`] or
//!    [`PortRules::external`];
//! 2. protocol and port in [`RuleSet::node_ports`], if the destination is one of
//!    [`NodeRules::node_port_addresses`]: [`PortRules::external`];
//! 3. destination in [`RuleSet::cluster_ips`], any port, or in [`NodeRules::service_cidrs`]: what the
//!    [`Manners`] of the mode say.

mod book;
mod claims;
mod delta;
mod endpoints;
mod node;
mod port;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::objects::{Cidr, Family, PortKey, Protocol, ServiceKey};

pub use book::Rulebook;
pub use delta::{Change, Delta};
pub use node::{
    Detector, Host, LocalTraffic, Manners, Mode, NodePortAddresses, NodePortChoice, NodeRules, OffCluster,
    Settings, Unserved,
};

/// All rules of one family. Everything is sorted, so that two renderings of the same rules are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet {
    pub family: Family,
    pub node: NodeRules,
    pub ports: BTreeMap<PortKey, Arc<PortRules>>,
    pub vips: BTreeMap<VipKey, Vip>,
    pub node_ports: BTreeMap<NodePortKey, PortKey>,
    /// The ClusterIPs in use, whatever the port.
    pub cluster_ips: BTreeMap<IpAddr, ()>,
    /// Endpoints that may meet themselves as clients: a connection from the address to itself is
    /// masqueraded, or the answer would not come back through here.
    pub hairpins: BTreeMap<Hairpin, ()>,
    pub health_checks: BTreeMap<ServiceKey, HealthCheck>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    pub ip: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
}

/// Who answers for an address and port. Of several claimants the least wins: a ClusterIP cannot be taken over
/// by somebody's external address, and among equals the first name has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vip {
    pub scope: Scope,
    pub owner: PortKey,
    /// The sources that may reach it; all, if absent. Others are dropped.
    pub firewall: Option<Arc<[Cidr]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A ClusterIP: [`PortRules::internal`].
    Internal,
    /// An external or load balancer address: [`PortRules::external`].
    External,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePortKey {
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hairpin {
    pub endpoint: SocketAddr,
    pub protocol: Protocol,
}

/// What a load balancer is told on a Service's health check port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Distinct addresses of ready Pods on this node. Terminating ones take traffic but do not count.
    pub local_endpoints: usize,
}

/// One port of one Service: where its packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRules {
    pub key: PortKey,
    pub cluster_ip: IpAddr,
    pub port: u16,
    pub node_port: Option<u16>,
    /// Seconds for which a client keeps its endpoint: whichever of the port's addresses it came by, where the
    /// backend can; nftables and ipvs remember by address.
    pub affinity: Option<u32>,
    /// The endpoints for traffic that may leave the node. Empty if the port never has such traffic.
    pub cluster: Arc<[Endpoint]>,
    /// The endpoints for traffic that stays on the node. Empty if the port never has such traffic.
    pub local: Arc<[Endpoint]>,
    /// Way of traffic to the ClusterIP.
    pub internal: Way,
    /// Way of traffic to node ports, external and load balancer addresses.
    pub external: Option<External>,
    /// Endpoints that existing flows may keep, sorted; only for protocols whose flows nothing else ends.
    pub serving: Arc<[SocketAddr]>,
    external_ips: Box<[IpAddr]>,
    load_balancer_vips: Box<[IpAddr]>,
    firewall: Option<Arc<[Cidr]>>,
    lacks_local: NoLocalEndpoints,
}

/// The first of the three that applies to the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct External {
    /// For Pods of this node, as the detector knows them: they have no node to be local to, and would reach
    /// every endpoint if the packet went out to the load balancer and came back.
    pub from_pods: Option<Way>,
    /// For the node itself, that is: for a source that is one of its addresses.
    pub from_node: Option<Way>,
    pub from_others: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    To(List, Masquerade),
    /// There are endpoints, but none that this traffic may use here: another node may do better.
    Drop,
    /// There is no endpoint anywhere.
    Reject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Cluster,
    Local,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    Never,
    Always,
    /// As [`NodeRules::off_cluster`] says of the source.
    OffCluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub is_local: bool,
}

/// Service ports whose policy is Local, which have endpoints, but none on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    pub internal: usize,
    pub external: usize,
}

// === impl RuleSet ===

impl RuleSet {
    /// The rules of a cluster without Services, which is also what a kernel has that nobody has touched.
    pub fn empty(family: Family, node: NodeRules) -> Self {
        Self {
            family,
            node,
            ports: BTreeMap::new(),
            vips: BTreeMap::new(),
            node_ports: BTreeMap::new(),
            cluster_ips: BTreeMap::new(),
            hairpins: BTreeMap::new(),
            health_checks: BTreeMap::new(),
        }
    }
}

// === impl PortRules ===

impl PortRules {
    pub fn list(&self, list: List) -> &Arc<[Endpoint]> {
        match list {
            List::Cluster => &self.cluster,
            List::Local => &self.local,
        }
    }

    /// Addresses of this port other than the ClusterIP, as the Service names them.
    pub fn external_ips(&self) -> &[IpAddr] {
        &self.external_ips
    }

    pub fn load_balancer_vips(&self) -> &[IpAddr] {
        &self.load_balancer_vips
    }

    /// The sources that may reach the load balancer's addresses; all, if absent.
    pub fn firewall(&self) -> Option<&Arc<[Cidr]>> {
        self.firewall.as_ref()
    }

    /// Every endpoint that some packet may be sent to from this node, sorted, once.
    pub fn reachable(&self) -> Vec<Endpoint> {
        let mut all: Vec<Endpoint> = self.cluster.iter().chain(&*self.local).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}
