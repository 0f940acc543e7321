//! Clusters for tests, written as the API writes them.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::{Value, json};

use crate::Name;
use crate::cluster::Cluster;
use crate::framework::{Plugin, PreFilter, PreScore, State, Verdict};
use crate::node::{Node, NodeInfo};
use crate::pod::Pod;

/// A Pod from its spec; what begins with `metadata` or `status` goes there.
pub(crate) fn pod(name: &str, spec: Value) -> Pod {
    pod_with(name, json!({}), spec, json!({}))
}

pub(crate) fn pod_with(name: &str, metadata: Value, mut spec: Value, status: Value) -> Pod {
    let mut meta = json!({"name": name, "namespace": "default", "uid": name});
    for (key, value) in metadata.as_object().unwrap() {
        meta[key] = value.clone();
    }
    if spec.get("containers").is_none() {
        spec["containers"] = json!([{"name": "c"}]);
    }
    let object = json!({"metadata": meta, "spec": spec, "status": status});
    Pod::read(&serde_json::from_value(object).unwrap())
}

/// A Pod that asks for an amount of each.
pub(crate) fn asking(name: &str, requests: Value) -> Pod {
    pod(name, json!({"containers": [{"name": "c", "resources": {"requests": requests}}]}))
}

pub(crate) fn labelled(name: &str, labels: Value, spec: Value) -> Pod {
    pod_with(name, json!({"labels": labels}), spec, json!({}))
}

/// A node with room for much.
pub(crate) fn node(name: &str, labels: Value) -> Node {
    node_with(name, labels, json!({}), json!({}))
}

pub(crate) fn node_with(name: &str, labels: Value, spec: Value, status: Value) -> Node {
    let mut full = json!({"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}});
    for (key, value) in status.as_object().unwrap() {
        full[key] = value.clone();
    }
    let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": full});
    Node::read(&serde_json::from_value(object).unwrap())
}

pub(crate) fn cluster(nodes: impl IntoIterator<Item = Node>) -> Cluster {
    let mut cluster = Cluster::default();
    for node in nodes {
        cluster.set_node(node);
    }
    cluster
}

/// Puts a Pod on a node.
pub(crate) fn put(cluster: &mut Cluster, pod: &Pod, node: &str) {
    cluster.set_pod(pod.on(node));
}

pub(crate) fn info<'a>(cluster: &'a Cluster, name: &str) -> &'a NodeInfo {
    cluster.info(cluster.node_index(name).unwrap())
}

/// What a plugin says of one node.
pub(crate) fn filter(plugin: &Arc<dyn Plugin>, cluster: &Cluster, pod: &Pod, node: &str) -> Verdict {
    match plugin.pre_filter(cluster, pod) {
        PreFilter::Skip => Ok(()),
        PreFilter::Reject(rejection) => Err(rejection),
        PreFilter::Error(error) => panic!("{error}"),
        PreFilter::Pass(state) => plugin.filter(cluster, pod, &state, info(cluster, node)),
        PreFilter::Only(state, names) => {
            assert!(names.iter().any(|n| **n == *node), "{node} is not among {names:?}");
            plugin.filter(cluster, pod, &state, info(cluster, node))
        }
    }
}

/// The nodes that pass, by name.
pub(crate) fn passing(plugin: &Arc<dyn Plugin>, cluster: &mut Cluster, pod: &Pod) -> Vec<String> {
    let order = cluster.order();
    let names = order.iter().map(|index| cluster.info(*index).name().to_owned());
    names.filter(|name| filter(plugin, cluster, pod, name).is_ok()).collect()
}

/// Normalised scores of all nodes, in their order; None where the plugin has nothing to say.
pub(crate) fn scores(plugin: &Arc<dyn Plugin>, cluster: &mut Cluster, pod: &Pod) -> Option<Vec<i64>> {
    let order = cluster.order();
    let nodes: Vec<&NodeInfo> = order.iter().map(|index| cluster.info(*index)).collect();
    let filtered = match plugin.pre_filter(cluster, pod) {
        PreFilter::Pass(state) | PreFilter::Only(state, _) => state,
        _ => State::default(),
    };
    let PreScore::Pass(state) = plugin.pre_score(cluster, pod, &filtered, &nodes) else { return None };
    let mut scores = vec![0; nodes.len()];
    plugin.score(cluster, pod, &state, &nodes, &mut scores);
    plugin.normalise(&state, &mut scores);
    Some(scores)
}

pub(crate) fn name(text: &str) -> Name {
    text.into()
}
