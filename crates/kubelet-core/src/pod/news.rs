//! Which changes of a Pod's object concern the task that runs it.

use std::collections::BTreeMap;

use api::pod::static_pod::{HASH_ANNOTATION, SEEN_ANNOTATION, SOURCE_ANNOTATION};
use k8s_openapi::api::core::v1::{Pod, PodCondition};

/// Annotations the kubelet adds to its own copy; nobody else's change.
const LOCAL: [&str; 3] = [SOURCE_ANNOTATION, SEEN_ANNOTATION, HASH_ANNOTATION];

/// Conditions that are the kubelet's alone.
pub const OWN_CONDITIONS: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];

/// The reason of a DisruptionTarget that the kubelet wrote itself.
pub(super) const BY_KUBELET: &str = "TerminationByKubelet";

/// Whether the Pod's task has to hear of the new version. Most versions are echoes of the status the
/// kubelet wrote itself; what others write into the status counts only where Ready depends on it.
#[must_use]
pub fn is_news(known: &Pod, fresh: &Pod) -> bool {
    let (a, b) = (&known.metadata, &fresh.metadata);
    a.uid != b.uid
        || a.generation != b.generation
        || a.labels != b.labels
        || a.deletion_timestamp != b.deletion_timestamp
        || a.deletion_grace_period_seconds != b.deletion_grace_period_seconds
        || !annotations(known).eq(annotations(fresh))
        || known.spec != fresh.spec
        || !foreign_conditions(known).eq(foreign_conditions(fresh))
}

fn annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let all = pod.metadata.annotations.iter().flat_map(BTreeMap::iter);
    all.filter(|(key, _)| !LOCAL.contains(&key.as_str()))
}

fn foreign_conditions(pod: &Pod) -> impl Iterator<Item = &PodCondition> {
    let all = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.filter(|c| !OWN_CONDITIONS.contains(&c.type_.as_str()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(change: Value) -> Pod {
        let mut base = json!({
            "metadata": {"name": "p", "uid": "u", "generation": 1, "resourceVersion": "5",
                         "labels": {"a": "b"}, "annotations": {"note": "x"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
            "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False"}]},
        });
        merge(&mut base, change);
        serde_json::from_value(base).unwrap()
    }

    fn merge(into: &mut Value, change: Value) {
        match (into, change) {
            (Value::Object(a), Value::Object(b)) => {
                b.into_iter().for_each(|(k, v)| merge(a.entry(k).or_insert(Value::Null), v));
            }
            (a, b) => *a = b,
        }
    }

    #[test]
    fn echoes_are_no_news_and_orders_are() {
        let known = pod(json!({"metadata": {"annotations": {"kubernetes.io/config.seen": "now"}}}));
        for (change, want) in [
            (json!({}), false),
            (json!({"metadata": {"resourceVersion": "9"}}), false),
            (json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}}), false),
            (json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}), false),
            (json!({"status": {"conditions": [{"type": "gate.io/x", "status": "True"}]}}), true),
            (json!({"metadata": {"labels": {"a": "c"}}}), true),
            (json!({"metadata": {"annotations": {"note": "y"}}}), true),
            (json!({"metadata": {"generation": 2}}), true),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
            (json!({"metadata": {"deletionGracePeriodSeconds": 1}}), true),
            (json!({"spec": {"containers": [{"name": "c", "image": "j"}]}}), true),
            (json!({"metadata": {"uid": "v"}}), true),
        ] {
            assert_eq!(is_news(&known, &pod(change.clone())), want, "{change}");
        }
    }
}
