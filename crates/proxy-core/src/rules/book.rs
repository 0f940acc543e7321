//! Keeps the rules of one family up to date at the cost of what changed, not of what there is.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use crate::objects::{Changed, Cluster, Family, PortKey, Protocol, ServiceKey};

use super::claims::{Counts, Journal, Losers};
use super::delta::Delta;
use super::node::{Host, NodeRules, Settings};
use super::port::{Ground, compile};
use super::{Hairpin, HealthCheck, NoLocalEndpoints, NodePortKey, PortRules, RuleSet, Vip, VipKey};

/// The rules of one family, and what it takes to change them in place.
#[derive(Clone, Debug)]
pub struct Rulebook {
    settings: Settings,
    rules: RuleSet,
    ground: Option<Ground>,
    vip_losers: Losers<VipKey, Vip>,
    node_port_losers: Losers<NodePortKey, PortKey>,
    cluster_ip_counts: Counts<IpAddr>,
    hairpin_counts: Counts<Hairpin>,
    no_local: NoLocalEndpoints,
}

#[derive(Debug)]
struct Journals {
    ports: Journal<PortKey, Arc<PortRules>>,
    vips: Journal<VipKey, Vip>,
    node_ports: Journal<NodePortKey, PortKey>,
    cluster_ips: Journal<IpAddr, ()>,
    hairpins: Journal<Hairpin, ()>,
    health_checks: Journal<ServiceKey, HealthCheck>,
}

// === impl Rulebook ===

impl Rulebook {
    pub fn new(family: Family, settings: Settings) -> Self {
        let node = NodeRules::unknown(settings.mode);
        Self {
            settings,
            rules: RuleSet::empty(family, node),
            ground: None,
            vip_losers: Losers::new(),
            node_port_losers: Losers::new(),
            cluster_ip_counts: Counts::new(),
            hairpin_counts: Counts::new(),
            no_local: NoLocalEndpoints::default(),
        }
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    pub fn no_local_endpoints(&self) -> NoLocalEndpoints {
        self.no_local
    }

    /// Brings the rules up to date with the cluster and says what that changed. Only the Services named in
    /// `changed` are looked at, unless something changed that they all rest on, such as the node's zone.
    pub fn update(&mut self, cluster: &Cluster, host: &Host, changed: Changed) -> Delta {
        let family = self.rules.family;
        let node = NodeRules::compile(&self.settings, cluster, host, family);
        let ground = Ground {
            manners: node.manners,
            has_detector: node.detector.is_some(),
            node_ip: self.settings.node_ip(cluster, family),
            zone: cluster.node().zone.clone(),
            allows_external_ips: self.settings.allows_external_ips,
            keeps_sources: self.settings.keeps_sources,
        };
        let services = match self.ground.as_ref() == Some(&ground) {
            true => changed.0,
            false => self.all_services(cluster, changed.0),
        };
        let mut journals = Journals::new();
        for key in services {
            self.update_service(cluster, &key, &ground, &mut journals);
        }
        let is_new_node = self.rules.node != node;
        self.ground = Some(ground);
        self.rules.node = node;
        journals.close(&self.rules, is_new_node)
    }

    fn all_services(&self, cluster: &Cluster, changed: BTreeSet<ServiceKey>) -> BTreeSet<ServiceKey> {
        let mut all = changed;
        all.extend(cluster.services().map(|(key, _)| key.clone()));
        all.extend(self.rules.ports.keys().map(|key| key.service.clone()));
        all
    }

    fn update_service(
        &mut self,
        cluster: &Cluster,
        key: &ServiceKey,
        ground: &Ground,
        journals: &mut Journals,
    ) {
        let mut new = compile(cluster, key, self.rules.family, ground);
        let olds: Vec<Arc<PortRules>> = self.ports_of(key).cloned().collect();
        for old in olds {
            if new.ports.get(&old.key) == Some(&*old) {
                new.ports.remove(&old.key);
            } else {
                self.retire(&old, journals);
            }
        }
        for (_, rules) in new.ports {
            self.enact(Arc::new(rules), journals);
        }
        if self.rules.health_checks.get(key) != new.health_check.as_ref() {
            journals.health_checks.note(&self.rules.health_checks, key);
            match new.health_check {
                Some(check) => self.rules.health_checks.insert(key.clone(), check),
                None => self.rules.health_checks.remove(key),
            };
        }
    }

    fn ports_of(&self, key: &ServiceKey) -> impl Iterator<Item = &Arc<PortRules>> {
        let first = PortKey { service: key.clone(), port: "".into(), protocol: Protocol::Tcp };
        let from = self.rules.ports.range((Bound::Included(first), Bound::Unbounded));
        from.take_while(move |(port, _)| port.service == *key).map(|(_, rules)| rules)
    }

    fn enact(&mut self, port: Arc<PortRules>, journals: &mut Journals) {
        let rules = &mut self.rules;
        journals.ports.note(&rules.ports, &port.key);
        for (key, vip) in port.claims() {
            journals.vips.note(&rules.vips, &key);
            self.vip_losers.claim(&mut rules.vips, key, vip);
        }
        if let Some(key) = port.node_port_claim() {
            journals.node_ports.note(&rules.node_ports, &key);
            self.node_port_losers.claim(&mut rules.node_ports, key, port.key.clone());
        }
        journals.cluster_ips.note(&rules.cluster_ips, &port.cluster_ip);
        self.cluster_ip_counts.add(&mut rules.cluster_ips, port.cluster_ip);
        for key in hairpins(&port, rules.node.manners.hairpins_are_local) {
            journals.hairpins.note(&rules.hairpins, &key);
            self.hairpin_counts.add(&mut rules.hairpins, key);
        }
        self.no_local.internal += port.lacks_local().internal;
        self.no_local.external += port.lacks_local().external;
        rules.ports.insert(port.key.clone(), port);
    }

    fn retire(&mut self, port: &PortRules, journals: &mut Journals) {
        let rules = &mut self.rules;
        journals.ports.note(&rules.ports, &port.key);
        for (key, vip) in port.claims() {
            journals.vips.note(&rules.vips, &key);
            self.vip_losers.release(&mut rules.vips, &key, &vip);
        }
        if let Some(key) = port.node_port_claim() {
            journals.node_ports.note(&rules.node_ports, &key);
            self.node_port_losers.release(&mut rules.node_ports, &key, &port.key);
        }
        journals.cluster_ips.note(&rules.cluster_ips, &port.cluster_ip);
        self.cluster_ip_counts.drop(&mut rules.cluster_ips, &port.cluster_ip);
        for key in hairpins(port, rules.node.manners.hairpins_are_local) {
            journals.hairpins.note(&rules.hairpins, &key);
            self.hairpin_counts.drop(&mut rules.hairpins, &key);
        }
        self.no_local.internal -= port.lacks_local().internal;
        self.no_local.external -= port.lacks_local().external;
        rules.ports.remove(&port.key);
    }
}

fn hairpins(port: &PortRules, only_local: bool) -> impl Iterator<Item = Hairpin> {
    let protocol = port.key.protocol;
    let reachable = port.reachable().into_iter().filter(move |e| e.is_local || !only_local);
    reachable.map(move |e| Hairpin { endpoint: e.address, protocol })
}

// === impl Journals ===

impl Journals {
    fn new() -> Self {
        Self {
            ports: Journal::new(),
            vips: Journal::new(),
            node_ports: Journal::new(),
            cluster_ips: Journal::new(),
            hairpins: Journal::new(),
            health_checks: Journal::new(),
        }
    }

    fn close(self, rules: &RuleSet, is_new_node: bool) -> Delta {
        Delta {
            node: is_new_node.then(|| rules.node.clone()),
            ports: self.ports.close(&rules.ports),
            vips: self.vips.close(&rules.vips),
            node_ports: self.node_ports.close(&rules.node_ports),
            cluster_ips: self.cluster_ips.close(&rules.cluster_ips),
            hairpins: self.hairpins.close(&rules.hairpins),
            health_checks: self.health_checks.close(&rules.health_checks),
        }
    }
}
