//! What wakes a set: itself, its Pods, and Pods that it may adopt.

use std::sync::Arc;

use api::selector::LabelSelector;

use crate::cache::Change;
use crate::controller::{Key, Wakes, Watch};
use crate::object::Object;
use crate::resource::{PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, Resource};
use crate::view::View;

pub(super) const REPLICA_SET: &[Watch] = &[
    Watch::itself(REPLICA_SETS),
    Watch { resource: PODS, keys: |change, view, wakes| pods(REPLICA_SETS, change, view, wakes) },
];

pub(super) const REPLICATION_CONTROLLER: &[Watch] = &[
    Watch::itself(REPLICATION_CONTROLLERS),
    Watch { resource: PODS, keys: |change, view, wakes| pods(REPLICATION_CONTROLLERS, change, view, wakes) },
];

fn pods(sets: Resource, change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let controller = |pod: &Arc<Object>| view.controller_of(pod, sets).map(|set| Key::of(&set));
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let owner = |pod: Option<&Arc<Object>>| pod.and_then(|pod| pod.meta.controller.clone());
    let has_new_owner = owner(old) != owner(new);
    if has_new_owner {
        wakes.extend(old.and_then(controller));
    }
    let Some(pod) = new else { return };
    if pod.meta.controller.is_some() {
        wakes.extend(controller(pod));
        return;
    }
    let has_new_labels = old.is_none_or(|old| old.meta.labels != pod.meta.labels);
    if (has_new_labels || has_new_owner) && !pod.is_deleting() {
        let sets = view.list(sets, &pod.meta.namespace);
        wakes.extend(sets.iter().filter(|set| takes(set, pod)).map(|set| Key::of(set)));
    }
}

/// Whether a set may want to adopt the Pod. One that takes everything wants nothing.
fn takes(set: &Object, pod: &Object) -> bool {
    let value = set.value();
    let selector = match set.meta.resource {
        REPLICA_SETS => LabelSelector::from_object(&value["spec"]["selector"]),
        _ => LabelSelector::from_object(&serde_json::json!({"matchLabels": value["spec"]["selector"]})),
    };
    !selector.is_empty() && pod.is_selected(&selector)
}
