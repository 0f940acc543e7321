//! Job: Pods that run to their end, counted exactly.
//!
//! A Pod of a Job holds a finalizer until it is counted. Counting survives a crash at any point: the UID of an ended Pod is
//! written into the status first, then the finalizer goes, and only a UID whose Pod has none becomes a number.

mod backoff;
mod indexes;
mod look;
mod manage;
mod orphans;
mod pod;
mod spec;
mod track;
mod watches;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Now;
use serde_json::json;

use self::backoff::Record;
use self::look::Look;
pub(crate) use self::orphans::JOB_ORPHANS;
use self::spec::Job;
use crate::claim::Claimant;
use crate::controller::{Controller, Key, Retry, Row};
use crate::object::Object;
use crate::plan::{Act, Done, Event, Outcome, PatchKind, Plan};
use crate::resource::JOBS;
use crate::template;
use crate::terms::JOB_TRACKING;
use crate::view::View;

pub(crate) const JOB: Row = Row {
    name: "job-controller",
    aliases: &["job"],
    identity: "job-controller",
    event_source: "job-controller",
    queue: "job",
    workers: |tuning| tuning.syncs("job", 5),
    retry: Retry { first: Duration::from_secs(1), last: Duration::from_secs(60), gives_up_after: None },
    is_on_by_default: true,
    watches: watches::WATCHES,
    reads: &[],
    is_single: false,
    make: |_| Box::<Jobs>::default(),
};

/// Pods made or deleted, and UIDs written down, at a time.
const BURST: usize = 500;

#[derive(Debug, Default)]
struct Jobs {
    /// Pauses after failures, by Job and its UID.
    records: HashMap<Key, (Box<str>, Record)>,
    /// Whose status is being written. The cache may show it before the answer is read.
    writing: HashMap<Key, Writing>,
}

#[derive(Debug)]
struct Writing {
    before: Arc<Object>,
    record: Record,
}

// === impl Jobs ===

impl Controller for Jobs {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let job = match self.job(view, key) {
            Ok(job) => job,
            Err(plan) => return plan,
        };
        let meta = &job.object.meta;
        let claimant = Claimant { finalizers: &[JOB_TRACKING], ..Claimant::new(&job.object, &job.selector) };
        let claim = claimant.claim(view.pods_of(&meta.namespace, &meta.uid));
        if !claim.is_settled() {
            return Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() };
        }
        let look = Look::new(&job, claim.owned, now);
        let work = match look.work(self.record(key, &job)) {
            Ok(work) => work,
            Err(error) => return Plan::unreadable(&job.object, &error),
        };
        let plan = if work.has_acts() { work } else { self.track(key, &look).wake(work.wake) };
        plan.wake(look.deadline_in())
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        if let Some((_, outcome)) = done.last().iter().find(|(act, _)| is_status(act)) {
            return self.written(key, outcome);
        }
        let claims = |(act, _): &(Act, Outcome)| !act.body()["metadata"]["ownerReferences"].is_null();
        if done.last().iter().any(|act| matches!(act.0, Act::Patch { .. }) && claims(act)) {
            return Plan::nothing();
        }
        let Ok(job) = self.job(view, key) else { return Plan::nothing() };
        let meta = &job.object.meta;
        let claimant = Claimant::new(&job.object, &job.selector);
        let mut look = Look::new(&job, claimant.claim(view.pods_of(&meta.namespace, &meta.uid)).owned, now);
        look.take_in(done);
        let mut plan = self.track(key, &look);
        plan.events = template::pod_events(&job.object, done.last());
        plan
    }
}

impl Jobs {
    /// Counts, and remembers what follows once that is written.
    fn track(&mut self, key: &Key, look: &Look<'_>) -> Plan {
        let record = self.record(key, look.job).after(&look.new_ends(false), &look.new_ends(true));
        self.writing.insert(key.clone(), Writing { before: look.job.object.clone(), record });
        look.track()
    }

    /// The status was written, or not.
    fn written(&mut self, key: &Key, outcome: &Outcome) -> Plan {
        let Some(Writing { before, record }) = self.writing.remove(key) else { return Plan::nothing() };
        let Some(new) = outcome.object(JOBS) else { return Plan::nothing() };
        self.records.insert(key.clone(), (before.meta.uid.clone(), record));
        Plan { events: track::told(&before, &new), ..Plan::nothing() }
    }

    /// The Job, if there is anything to do about it.
    fn job(&mut self, view: &dyn View, key: &Key) -> Result<Job, Plan> {
        let found = view.get(JOBS, &key.namespace, &key.name);
        let found =
            found.filter(|object| !spec::is_foreign(object) && !spec::is_finished(&object.value()["status"]));
        let Some(object) = found else {
            self.records.remove(key);
            self.writing.remove(key);
            return Err(Plan::nothing());
        };
        let job = Job::read(object.clone()).map_err(|error| Plan::unreadable(&object, &error))?;
        if !job.has_known_mode() {
            let message = "Skipped Job sync because completion mode is unknown";
            return Err(Plan::nothing().event(Event::warning(&object, "UnknownCompletionMode", message)));
        }
        Ok(job)
    }

    fn record(&self, key: &Key, job: &Job) -> Record {
        let known = self.records.get(key).filter(|(uid, _)| *uid == job.object.meta.uid);
        known.map(|(_, record)| *record).unwrap_or_default()
    }
}

fn is_status(act: &Act) -> bool {
    matches!(act, Act::Update { target, .. } if target.resource == JOBS)
}

/// Takes the finalizer of this Pod away.
fn untrack(pod: &Arc<Object>) -> Act {
    let metadata = json!({"uid": pod.meta.uid, "$deleteFromPrimitiveList/finalizers": [JOB_TRACKING]});
    Act::patch(pod, PatchKind::Strategic, &json!({ "metadata": metadata }))
}

#[cfg(test)]
mod tests;
