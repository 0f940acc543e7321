//! The rules of one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::objects::{
    Cidr, Cluster, Family, MergedEndpoint, PortKey, Protocol, Service, ServiceKey, ServicePort, merge,
};

use super::endpoints::{Choice, Needs, choose};
use super::node::Manners;
use super::{
    External, HealthCheck, List, Masquerade, NoLocalEndpoints, NodePortKey, PortRules, Scope, Vip, VipKey,
    Way,
};

/// What the rules of every Service depend on. When it changes, all of them are looked at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ground {
    pub(super) manners: Manners,
    pub(super) has_detector: bool,
    pub(super) node_ip: Option<IpAddr>,
    pub(super) zone: Option<Arc<str>>,
    pub(super) allows_external_ips: bool,
    pub(super) keeps_sources: bool,
}

#[derive(Debug, Default)]
pub(super) struct ServiceRules {
    pub(super) ports: BTreeMap<PortKey, PortRules>,
    pub(super) health_check: Option<HealthCheck>,
}

/// Nothing for a Service that is gone or has no address in this family.
pub(super) fn compile(cluster: &Cluster, key: &ServiceKey, family: Family, ground: &Ground) -> ServiceRules {
    let Some(service) = cluster.service(key) else { return ServiceRules::default() };
    let Some(cluster_ip) = service.cluster_ip(family) else { return ServiceRules::default() };
    let merged = merge(cluster.slices(key), family);
    let mut rules = ServiceRules {
        ports: BTreeMap::new(),
        health_check: service
            .health_check_node_port
            .map(|port| HealthCheck { port, local_endpoints: count_local(merged.values().flatten()) }),
    };
    for port in &service.ports {
        let endpoints =
            merged.get(&(port.name.clone(), port.protocol)).map(Vec::as_slice).unwrap_or_default();
        let key = PortKey { service: key.clone(), port: port.name.clone(), protocol: port.protocol };
        let compiled = compile_port(key.clone(), service, port, (cluster_ip, family), endpoints, ground);
        rules.ports.insert(key, compiled);
    }
    rules
}

fn compile_port(
    key: PortKey,
    service: &Service,
    port: &ServicePort,
    (cluster_ip, family): (IpAddr, Family),
    endpoints: &[MergedEndpoint],
    ground: &Ground,
) -> PortRules {
    let external_ips: Box<[IpAddr]> =
        service.external_ips(family).filter(|_| ground.allows_external_ips).collect();
    let load_balancer_vips: Box<[IpAddr]> = service.load_balancer_vips(family).collect();
    let is_external = Needs::is_external(port, external_ips.len() + load_balancer_vips.len());
    // Where every endpoint is here, policy Cluster and policy Local mean the same ones, and the latter keeps the source.
    let are_all_here = || !endpoints.is_empty() && endpoints.iter().all(|e| e.state.is_local);
    let external_stays = service.is_external_local || (ground.keeps_sources && are_all_here());
    let choice = choose(endpoints, Needs::of(service, is_external, external_stays), ground.zone.as_deref());
    let lacks_local = choice.is_served && choice.local.is_empty();
    PortRules {
        cluster_ip,
        port: port.port,
        node_port: port.node_port,
        affinity: service.affinity,
        internal: internal(service, &choice, ground),
        external: is_external.then(|| external(external_stays, &choice, ground)),
        serving: serving(port.protocol, endpoints),
        firewall: firewall(&service.source_ranges(family), &load_balancer_vips, ground)
            .filter(|_| choice.is_served || ground.manners.firewall_comes_first),
        lacks_local: NoLocalEndpoints {
            internal: usize::from(lacks_local && service.is_internal_local),
            external: usize::from(lacks_local && service.is_external_local && is_external),
        },
        key,
        external_ips,
        load_balancer_vips,
        cluster: choice.cluster,
        local: choice.local,
    }
}

fn internal(service: &Service, choice: &Choice, ground: &Ground) -> Way {
    choice.way(service.is_internal_local, Masquerade::OffCluster, ground)
}

fn external(stays: bool, choice: &Choice, ground: &Ground) -> External {
    if !stays {
        // The endpoint may be elsewhere, and its answer has to come back through here.
        return External::same_for_all(choice.way(false, Masquerade::Always, ground));
    }
    let from_others = choice.way(true, Masquerade::Never, ground);
    if !choice.is_served || !ground.manners.short_circuits {
        return External::same_for_all(from_others);
    }
    External {
        from_pods: ground.has_detector.then_some(Way::To(List::Cluster, Masquerade::Never)),
        // The node's own packets may carry the load balancer's address as their source.
        from_node: Some(Way::To(List::Cluster, Masquerade::Always)),
        from_others,
    }
}

/// The sources that may reach a load balancer's addresses; `None` for all. If the node is among them, so are
/// the addresses themselves: where they are local, the node talks to them from them.
fn firewall(ranges: &[Cidr], vips: &[IpAddr], ground: &Ground) -> Option<Arc<[Cidr]>> {
    if ranges.is_empty() || vips.is_empty() {
        return None;
    }
    let mut allowed: BTreeSet<Cidr> = ranges.iter().copied().collect();
    if ground.node_ip.is_some_and(|ip| ranges.iter().any(|range| range.contains(ip))) {
        allowed.extend(vips.iter().map(|vip| Cidr::host(*vip)));
    }
    Some(allowed.into_iter().collect())
}

fn serving(protocol: Protocol, endpoints: &[MergedEndpoint]) -> Arc<[std::net::SocketAddr]> {
    match protocol {
        Protocol::Tcp => Arc::default(),
        Protocol::Udp | Protocol::Sctp => {
            endpoints.iter().filter(|e| e.state.is_serving).map(|e| e.address).collect()
        }
    }
}

fn count_local<'a>(endpoints: impl Iterator<Item = &'a MergedEndpoint>) -> usize {
    let ready = endpoints.filter(|e| e.state.is_local && e.state.is_ready);
    ready.map(|e| e.state.ip).collect::<BTreeSet<_>>().len()
}

// === impl Choice ===

impl Choice {
    fn way(&self, is_local: bool, masquerade: Masquerade, ground: &Ground) -> Way {
        let wanted = match is_local {
            false => (List::Cluster, &self.cluster),
            true if self.local.is_empty() && ground.manners.local_falls_back => {
                (List::Cluster, &self.cluster)
            }
            true => (List::Local, &self.local),
        };
        match wanted {
            (list, endpoints) if !endpoints.is_empty() => Way::To(list, masquerade),
            // A virtual server without destinations answers for itself; it cannot keep quiet.
            _ if !self.is_served || ground.manners.local_falls_back => Way::Reject,
            _ => Way::Drop,
        }
    }
}

// === impl External ===

impl External {
    fn same_for_all(way: Way) -> Self {
        Self { from_pods: None, from_node: None, from_others: way }
    }
}

// === impl PortRules ===

impl PortRules {
    /// The addresses this port answers for, each once.
    pub(super) fn claims(&self) -> BTreeMap<VipKey, Vip> {
        let vip = |scope, firewall| Vip { scope, owner: self.key.clone(), firewall };
        let key = |ip: IpAddr| VipKey { ip, protocol: self.key.protocol, port: self.port };
        let mut claims = BTreeMap::new();
        for ip in &self.external_ips {
            claims.insert(key(*ip), vip(Scope::External, None));
        }
        // An address that is also the load balancer's stays behind its source ranges.
        for ip in &self.load_balancer_vips {
            claims.insert(key(*ip), vip(Scope::External, self.firewall.clone()));
        }
        claims.insert(key(self.cluster_ip), vip(Scope::Internal, None));
        claims
    }

    /// The same without who has them.
    pub(crate) fn vip_keys(&self) -> impl Iterator<Item = VipKey> {
        let others = self.external_ips.iter().chain(&self.load_balancer_vips).copied();
        let (protocol, port) = (self.key.protocol, self.port);
        others.chain([self.cluster_ip]).map(move |ip| VipKey { ip, protocol, port })
    }

    pub(crate) fn node_port_claim(&self) -> Option<NodePortKey> {
        self.node_port.map(|port| NodePortKey { protocol: self.key.protocol, port })
    }

    /// Whether a policy keeps traffic here and nobody is here, once for each kind of traffic.
    pub fn lacks_local(&self) -> NoLocalEndpoints {
        self.lacks_local
    }
}
