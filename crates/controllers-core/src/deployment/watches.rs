//! What wakes a Deployment: itself, its ReplicaSets, those it may adopt, and Pods that go while it waits for them.

use std::sync::Arc;

use api::selector::LabelSelector;

use crate::cache::Change;
use crate::controller::{Key, Wakes, Watch};
use crate::object::Object;
use crate::resource::{DEPLOYMENTS, PODS, REPLICA_SETS};
use crate::view::View;

pub(super) const WATCHES: &[Watch] = &[
    Watch::itself(DEPLOYMENTS),
    Watch { resource: REPLICA_SETS, keys: sets },
    Watch { resource: PODS, keys: pods },
];

fn sets(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let controller = |set: &Arc<Object>| view.controller_of(set, DEPLOYMENTS).map(|found| Key::of(&found));
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let owner = |set: Option<&Arc<Object>>| set.and_then(|set| set.meta.controller.clone());
    let has_new_owner = owner(old) != owner(new);
    if has_new_owner {
        wakes.extend(old.and_then(controller));
    }
    let Some(set) = new else { return };
    if set.meta.controller.is_some() {
        return wakes.extend(controller(set));
    }
    let has_new_labels = old.is_none_or(|old| old.meta.labels != set.meta.labels);
    if has_new_labels || has_new_owner {
        let all = view.list(DEPLOYMENTS, &set.meta.namespace);
        wakes.extend(all.iter().filter(|one| takes(one, set)).map(|one| Key::of(one)));
    }
}

fn takes(deployment: &Object, set: &Object) -> bool {
    let selector = LabelSelector::from_object(&deployment.value()["spec"]["selector"]);
    !selector.is_empty() && set.is_selected(&selector)
}

/// Only who recreates waits for Pods to be gone.
fn pods(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(pod) = change.old.as_ref().filter(|_| change.is_deletion()) else { return };
    let deployment =
        view.controller_of(pod, REPLICA_SETS).and_then(|set| view.controller_of(&set, DEPLOYMENTS));
    let recreates = |one: &Arc<Object>| one.value()["spec"]["strategy"]["type"] == "Recreate";
    wakes.extend(deployment.filter(recreates).map(|one| Key::of(&one)));
}
