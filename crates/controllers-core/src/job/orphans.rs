//! Pods that hold a Job's finalizer and have no Job any more that would take it away.

use base::time::Now;

use super::{JOB, spec, untrack};
use crate::cache::Change;
use crate::controller::{Controller, Key, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Plan, Step};
use crate::resource::{JOBS, PODS};
use crate::view::View;

pub(crate) const JOB_ORPHANS: Row =
    Row { queue: "job_orphan_pod", workers: |_| 1, watches: WATCHES, make: |_| Box::new(Orphans), ..JOB };

pub(super) const WATCHES: &[Watch] =
    &[Watch { resource: PODS, keys: pods }, Watch { resource: JOBS, keys: jobs }];

#[derive(Debug)]
pub(super) struct Orphans;

impl Controller for Orphans {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let pod = view.get(PODS, &key.namespace, &key.name).filter(|pod| is_orphan(pod, view));
        Plan::nothing().then(Step::in_turn(pod.iter().map(untrack)))
    }
}

/// Its Job is gone, has ended, or let it go. Another kind of controller may use the finalizer as it likes.
fn is_orphan(pod: &Object, view: &dyn View) -> bool {
    if pod.meta.controller.as_ref().is_some_and(|owner| !owner.is_a(JOBS)) {
        return false;
    }
    let job = view.controller_of(pod, JOBS);
    let is_counted =
        job.is_some_and(|job| spec::is_foreign(&job) || !spec::is_finished(&job.value()["status"]));
    !is_counted && super::pod::is_tracked(pod)
}

fn pods(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let orphan = change.new.as_ref().filter(|pod| is_orphan(pod, view));
    wakes.extend(orphan.map(|pod| Key::of(pod)));
}

fn jobs(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(job) = change.object() else { return };
    if change.new.as_ref().is_none_or(|job| spec::is_finished(&job.value()["status"])) {
        let pods = view.owned_by(PODS, &job.meta.namespace, &job.meta.uid);
        wakes.extend(pods.iter().filter(|pod| is_orphan(pod, view)).map(|pod| Key::of(pod)));
    }
}
