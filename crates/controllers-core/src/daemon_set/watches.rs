//! What wakes a DaemonSet: itself, its Pods and revisions, and Nodes whose labels or taints change.

use std::sync::Arc;

use super::DaemonSet;
use super::fit::Place;
use crate::cache::Change;
use crate::controller::{Key, Wakes, Watch};
use crate::object::Object;
use crate::owned;
use crate::resource::{CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS};
use crate::taint_eviction::taints;
use crate::view::View;

pub(super) const WATCHES: &[Watch] = &[
    Watch::itself(DAEMON_SETS),
    Watch { resource: PODS, keys: |change, view, wakes| owned::wake(DAEMON_SETS, change, view, wakes) },
    Watch { resource: CONTROLLER_REVISIONS, keys: revisions },
    Watch { resource: NODES, keys: nodes },
];

/// A revision that comes with an owner wakes nobody: its owner made it, or somebody is about to look at it.
fn revisions(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let is_new = change.old.is_none();
    if !is_new || change.new.as_ref().is_some_and(|revision| revision.meta.controller.is_none()) {
        owned::wake(DAEMON_SETS, change, view, wakes);
    }
}

/// A heartbeat is no news; another label or taint is, to those whom it lets in or turns away.
fn nodes(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let sets = view.list(DAEMON_SETS, "");
    let (Some(old), Some(new)) = (&change.old, &change.new) else {
        return wakes.extend(sets.iter().map(|set| Key::of(set)));
    };
    if old.meta.labels == new.meta.labels && taints(old) == taints(new) {
        return;
    }
    let place = |set: &Arc<Object>, node: &Object| -> Option<Place> {
        Some(DaemonSet::read(set.clone()).ok()?.fit.place(node))
    };
    wakes.extend(sets.iter().filter(|set| place(set, old) != place(set, new)).map(|set| Key::of(set)));
}
