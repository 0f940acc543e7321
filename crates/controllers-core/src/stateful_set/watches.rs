//! What wakes a StatefulSet: itself, its Pods, and claims that go while a Pod waits for it.

use crate::cache::Change;
use crate::controller::{Key, Wakes, Watch};
use crate::owned;
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PODS, STATEFUL_SETS};
use crate::view::View;

pub(super) const WATCHES: &[Watch] = &[
    Watch::itself(STATEFUL_SETS),
    Watch { resource: PODS, keys: |change, view, wakes| owned::wake(STATEFUL_SETS, change, view, wakes) },
    Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: claims },
];

/// `<template>-<set>-<ordinal>`
fn claims(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(claim) = change.old.as_ref().filter(|_| change.is_deletion()) else { return };
    let Some((rest, _)) = claim.meta.name.rsplit_once('-') else { return };
    let sets = view.list(STATEFUL_SETS, &claim.meta.namespace);
    let is_its = |set: &str| rest.strip_suffix(set).is_some_and(|rest| rest.ends_with('-'));
    wakes.extend(sets.iter().filter(|set| is_its(&set.meta.name)).map(|set| Key::of(set)));
}
