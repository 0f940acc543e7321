//! What wakes a Job: itself, its Pods, and Pods that it may adopt.

use std::time::Duration;

use crate::controller::{Key, Wakes, Watch};
use crate::owned;
use crate::resource::{JOBS, PODS};

/// Pods of a Job often end together: they are counted together.
const BATCH: Duration = Duration::from_secs(1);

pub(super) const WATCHES: &[Watch] = &[
    Watch {
        resource: JOBS,
        keys: |change, _, wakes| {
            let Some(object) = change.object() else { return };
            let same = change.old.as_ref().zip(change.new.as_ref());
            let is_status = same.is_some_and(|(old, new)| {
                old.meta.generation == new.meta.generation && old.is_deleting() == new.is_deleting()
            });
            wakes.add_after(Key::of(object), if is_status { BATCH } else { Duration::ZERO });
        },
    },
    Watch {
        resource: PODS,
        keys: |change, view, wakes| {
            let mut now = Wakes::default();
            owned::wake(JOBS, change, view, &mut now);
            now.0.into_iter().for_each(|(key, _)| wakes.add_after(key, BATCH));
        },
    },
];
