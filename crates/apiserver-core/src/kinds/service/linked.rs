//! Fields of a Service that hang together: clients set one and mean the other, or leave out what was allocated.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{is_externally_accessible, needs_cluster_ip, needs_health_check_port, needs_node_ports};
use crate::doc;

/// The single address and the list of addresses are both set, where one is.
pub(super) fn complete_new(object: &mut Value) {
    let single = doc::text(object, "spec.clusterIP").to_owned();
    if !single.is_empty() && doc::list(object, "spec.clusterIPs").is_empty() {
        doc::set(object, "spec.clusterIPs", json!([single]));
    }
}

/// What the server gave out and the client left out stays, so that the same manifest may be put again.
pub(super) fn keep_allocated(new: &mut Value, old: &Value) {
    if needs_cluster_ip(old) && needs_cluster_ip(new) {
        for path in ["spec.clusterIP", "spec.clusterIPs"] {
            if doc::is_unset(doc::at(new, path)) {
                doc::keep(new, old, path);
            }
        }
    }
    if needs_node_ports(old) && needs_node_ports(new) {
        keep_node_ports(new, old);
    }
    if needs_health_check_port(old)
        && needs_health_check_port(new)
        && doc::int(new, "spec.healthCheckNodePort") == 0
    {
        doc::keep(new, old, "spec.healthCheckNodePort");
    }
}

fn keep_node_ports(new: &mut Value, old: &Value) {
    let used: BTreeSet<i64> = node_ports(old).intersection(&node_ports(new)).copied().collect();
    let by_name: BTreeMap<&str, i64> = doc::list(old, "spec.ports")
        .iter()
        .map(|p| (doc::text(p, "name"), doc::int(p, "nodePort")))
        .collect();
    for port in doc::list_mut(new, "spec.ports") {
        if doc::int(port, "nodePort") == 0
            && let Some(before) =
                by_name.get(doc::text(port, "name")).filter(|p| **p != 0 && !used.contains(p))
        {
            doc::set(port, "nodePort", *before);
        }
    }
}

fn node_ports(object: &Value) -> BTreeSet<i64> {
    doc::list(object, "spec.ports").iter().map(|p| doc::int(p, "nodePort")).filter(|p| *p != 0).collect()
}

/// Guesses what a client meant that changed only one of `clusterIP` and `clusterIPs`.
pub(super) fn reconcile_cluster_ips(new: &mut Value, old: &Value) {
    let single = doc::text(new, "spec.clusterIP").to_owned();
    let same_single = single == doc::text(old, "spec.clusterIP");
    if doc::list(new, "spec.clusterIPs").is_empty() && same_single {
        doc::keep(new, old, "spec.clusterIPs");
    }
    if !same_single && doc::list(new, "spec.clusterIPs") == doc::list(old, "spec.clusterIPs") {
        if single.is_empty() {
            doc::remove(new, "spec.clusterIPs");
        } else {
            doc::set(new, "spec.clusterIPs", json!([single]));
        }
    }
}

/// A change of type takes with it what only the old type had, unless the client changed that too.
pub(super) fn drop_what_no_longer_applies(new: &mut Value, old: &Value) {
    let same = |new: &Value, path: &str| doc::same(doc::at(new, path), doc::at(old, path));
    if needs_cluster_ip(old) && !needs_cluster_ip(new) {
        if same(new, "spec.clusterIP") && same(new, "spec.clusterIPs") {
            doc::remove(new, "spec.clusterIP");
            doc::remove(new, "spec.clusterIPs");
        }
        for path in ["spec.ipFamilies", "spec.ipFamilyPolicy"] {
            if same(new, path) {
                doc::remove(new, path);
            }
        }
    }
    if needs_node_ports(old) && !needs_node_ports(new) && node_ports(old).is_superset(&node_ports(new)) {
        for port in doc::list_mut(new, "spec.ports") {
            doc::remove(port, "nodePort");
        }
    }
    type Applies = fn(&Value) -> bool;
    let drops: [(&str, Applies); 4] = [
        ("spec.healthCheckNodePort", needs_health_check_port),
        ("spec.allocateLoadBalancerNodePorts", is_load_balancer),
        ("spec.loadBalancerClass", is_load_balancer),
        ("spec.externalTrafficPolicy", is_externally_accessible),
    ];
    for (path, applies) in drops {
        if applies(old) && !applies(new) && same(new, path) {
            doc::remove(new, path);
        }
    }
    if !is_load_balancer(new) {
        doc::set(new, "status.loadBalancer", json!({}));
    }
}

fn is_load_balancer(service: &Value) -> bool {
    doc::text(service, "spec.type") == "LoadBalancer"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Strategy;

    fn updated(old: Value, new: Value) -> Value {
        let (old, mut new) = (json!({"spec": old}), json!({"spec": new}));
        super::super::Service.prepare_update(&mut new, &old);
        new["spec"].take()
    }

    #[test]
    fn the_same_manifest_may_be_put_again() {
        let old = json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ports": [{"name": "a", "port": 1, "nodePort": 30001}, {"name": "b", "port": 2, "nodePort": 30002}]});
        let new = json!({"type": "NodePort", "ports": [{"name": "b", "port": 2}, {"name": "c", "port": 3}]});
        assert_eq!(
            updated(old, new),
            json!({"type": "NodePort", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "ports": [{"name": "b", "port": 2, "nodePort": 30002}, {"name": "c", "port": 3}]})
        );
    }

    #[test]
    fn a_change_of_type_releases_what_the_old_one_had() {
        let old = json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 31000, "allocateLoadBalancerNodePorts": true, "ports": [{"port": 1, "nodePort": 30001}]});
        let mut to_cluster_ip = old.clone();
        to_cluster_ip["type"] = json!("ClusterIP");
        assert_eq!(
            updated(old.clone(), to_cluster_ip),
            json!({"type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "ports": [{"port": 1}]})
        );
        let to_name = json!({"type": "ExternalName", "externalName": "x", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"]});
        assert_eq!(updated(old, to_name), json!({"type": "ExternalName", "externalName": "x"}));
    }
}
