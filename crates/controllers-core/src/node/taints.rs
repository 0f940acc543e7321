//! Taints, labels and the Pods of a Node follow what the Node says of itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use base::time::Now;
use serde_json::{Value, json};

use super::{NOT_READY, UNREACHABLE, set_taints, status_of};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Event, PatchKind, Plan, Step};
use crate::resource::{NODES, PODS};
use crate::terms::timestamp;
use crate::view::View;

pub(crate) const NODE_TAINTS: Row = Row {
    name: "node-lifecycle-controller",
    aliases: &["nodelifecycle"],
    identity: "node-controller",
    event_source: "node-controller",
    queue: "node_lifecycle_controller",
    workers: |_| 8,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch::itself(NODES), Watch { resource: PODS, keys: node_of }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Taints::default()),
};

/// What a condition of this status forbids.
const CONDITIONS: &[(&str, &str, &str)] = &[
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// Old labels that follow the new ones.
const LABELS: &[(&str, &str)] =
    &[("kubernetes.io/os", "beta.kubernetes.io/os"), ("kubernetes.io/arch", "beta.kubernetes.io/arch")];

/// Pods that were said to be unready, by Node, while it is: a kubelet that is alive and thinks otherwise is not answered again.
#[derive(Debug, Default)]
struct Taints {
    told: HashMap<Key, HashSet<Box<str>>>,
}

// === impl Taints ===

impl Controller for Taints {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(node) = view.get(NODES, "", &key.name) else {
            self.told.remove(key);
            return Plan::nothing();
        };
        let value = node.value();
        let wanted = wanted(&value);
        let managed: Vec<&str> =
            CONDITIONS.iter().map(|(_, _, taint)| *taint).chain([UNSCHEDULABLE]).collect();
        let taints = set_taints(&node, "NoSchedule", &managed, &wanted, now.wall);
        let own = Step::in_turn(taints.into_iter().chain(labels(&node)));
        let (pods, events) = self.pods(view, key, &value, now);
        Plan { events, ..Plan::nothing().then(own).then(Step::at_once(pods)) }
    }
}

impl Taints {
    /// The Pods of a Node that is not ready are not ready either, and are told so.
    fn pods(&mut self, view: &dyn View, key: &Key, node: &Value, now: Now) -> (Vec<Act>, Vec<Event>) {
        if matches!(status_of(node, "Ready"), "True" | "") {
            self.told.remove(key);
            return (Vec::new(), Vec::new());
        }
        let pods = view.on_node(&key.name);
        let told = self.told.entry(key.clone()).or_default();
        told.retain(|uid| pods.iter().any(|pod| pod.meta.uid == *uid));
        let ready =
            pods.iter().filter(|pod| pod.pod().is_some_and(|terms| terms.is_ready() && !terms.is_terminal()));
        let new: Vec<&Arc<Object>> = ready.filter(|pod| told.insert(pod.meta.uid.clone())).collect();
        let patch = json!({"metadata": {}, "status": {"conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(now.wall)}]}});
        let acts = new.iter().map(|pod| {
            let mut patch = patch.clone();
            patch["metadata"]["uid"] = json!(pod.meta.uid);
            Act::patch_status(pod, PatchKind::Strategic, &patch)
        });
        let events = new.iter().map(|pod| Event::warning(pod, "NodeNotReady", "Node is not ready"));
        (acts.collect(), events.collect())
    }
}

/// Taints that keep new Pods away.
fn wanted(node: &Value) -> Vec<&'static str> {
    let by_condition =
        CONDITIONS.iter().filter(|(condition, status, _)| status_of(node, condition) == *status);
    let cordoned = (node["spec"]["unschedulable"] == true).then_some(UNSCHEDULABLE);
    by_condition.map(|(_, _, taint)| *taint).chain(cordoned).collect()
}

fn labels(node: &Object) -> Option<Act> {
    let missing: serde_json::Map<String, Value> = LABELS
        .iter()
        .filter_map(|(new, old)| {
            let value = node.label(new)?;
            (node.label(old) != Some(value)).then(|| ((*old).to_owned(), json!(value)))
        })
        .collect();
    (!missing.is_empty())
        .then(|| Act::patch(node, PatchKind::Strategic, &json!({"metadata": {"labels": missing}})))
}

/// A Pod that becomes ready on a Node that is not.
fn node_of(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(pod) = &change.new else { return };
    let is_ready = |pod: &Arc<Object>| pod.pod().is_some_and(crate::terms::PodTerms::is_ready);
    if pod.meta.node.is_empty() || !is_ready(pod) || change.old.as_ref().is_some_and(is_ready) {
        return;
    }
    if let Some(node) = view.get(NODES, "", &pod.meta.node)
        && !matches!(status_of(&node.value(), "Ready"), "True" | "")
    {
        wakes.add(Key::of(&node));
    }
}
