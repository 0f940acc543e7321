//! The difference between two rule sets, element by element.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::net::IpAddr;
use std::sync::Arc;

use crate::objects::{PortKey, ServiceKey};

use super::{Hairpin, HealthCheck, NodePortKey, NodeRules, PortRules, RuleSet, Vip, VipKey};

/// What to add, replace and remove. Sorted by key; an element that did not change is not named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The new rules of the node, if they are new.
    pub node: Option<NodeRules>,
    pub ports: Vec<Change<PortKey, Arc<PortRules>>>,
    pub vips: Vec<Change<VipKey, Vip>>,
    pub node_ports: Vec<Change<NodePortKey, PortKey>>,
    pub cluster_ips: Vec<Change<IpAddr, ()>>,
    pub hairpins: Vec<Change<Hairpin, ()>>,
    pub health_checks: Vec<Change<ServiceKey, HealthCheck>>,
}

/// An element comes (`old` is absent), goes (`new` is absent) or is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<K, V> {
    pub key: K,
    pub old: Option<V>,
    pub new: Option<V>,
}

// === impl Delta ===

impl Delta {
    /// What leads from one rule set to another. Elements that both share in memory are not looked into.
    pub fn between(old: &RuleSet, new: &RuleSet) -> Self {
        let same_port = |a: &Arc<PortRules>, b: &Arc<PortRules>| Arc::ptr_eq(a, b) || a == b;
        Self {
            node: (old.node != new.node).then(|| new.node.clone()),
            ports: compare(&old.ports, &new.ports, same_port),
            vips: compare(&old.vips, &new.vips, PartialEq::eq),
            node_ports: compare(&old.node_ports, &new.node_ports, PartialEq::eq),
            cluster_ips: compare(&old.cluster_ips, &new.cluster_ips, PartialEq::eq),
            hairpins: compare(&old.hairpins, &new.hairpins, PartialEq::eq),
            health_checks: compare(&old.health_checks, &new.health_checks, PartialEq::eq),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.node.is_none() && self.len() == 0
    }

    /// How many elements change.
    pub fn len(&self) -> usize {
        self.ports.len()
            + self.vips.len()
            + self.node_ports.len()
            + self.cluster_ips.len()
            + self.hairpins.len()
            + self.health_checks.len()
    }
}

// === impl RuleSet ===

impl RuleSet {
    pub fn apply(&mut self, delta: &Delta) {
        if let Some(node) = &delta.node {
            self.node = node.clone();
        }
        patch(&mut self.ports, &delta.ports);
        patch(&mut self.vips, &delta.vips);
        patch(&mut self.node_ports, &delta.node_ports);
        patch(&mut self.cluster_ips, &delta.cluster_ips);
        patch(&mut self.hairpins, &delta.hairpins);
        patch(&mut self.health_checks, &delta.health_checks);
    }
}

fn patch<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, changes: &[Change<K, V>]) {
    for change in changes {
        match &change.new {
            Some(new) => map.insert(change.key.clone(), new.clone()),
            None => map.remove(&change.key),
        };
    }
}

fn compare<K: Ord + Clone, V: Clone>(
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    is_same: impl Fn(&V, &V) -> bool,
) -> Vec<Change<K, V>> {
    let (mut olds, mut news) = (old.iter().peekable(), new.iter().peekable());
    let mut changes = Vec::new();
    while let Some((key, old, new)) = next_pair(&mut olds, &mut news) {
        if !matches!((old, new), (Some(old), Some(new)) if is_same(old, new)) {
            changes.push(Change { key: key.clone(), old: old.cloned(), new: new.cloned() });
        }
    }
    changes
}

/// The least key of two sorted walks, with what each has for it.
fn next_pair<'a, K: Ord, V>(
    olds: &mut Peekable<impl Iterator<Item = (&'a K, &'a V)>>,
    news: &mut Peekable<impl Iterator<Item = (&'a K, &'a V)>>,
) -> Option<(&'a K, Option<&'a V>, Option<&'a V>)> {
    let key = match (olds.peek(), news.peek()) {
        (Some((old, _)), Some((new, _))) => *old.min(new),
        (Some((key, _)), None) | (None, Some((key, _))) => *key,
        (None, None) => return None,
    };
    let old = olds.next_if(|(k, _)| *k == key).map(|(_, v)| v);
    let new = news.next_if(|(k, _)| *k == key).map(|(_, v)| v);
    Some((key, old, new))
}
