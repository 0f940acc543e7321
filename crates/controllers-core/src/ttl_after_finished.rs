//! TTL after finished: a Job that has ended is deleted `ttlSecondsAfterFinished` later, and its Pods before it.

use std::time::Duration;

use base::time::{Now, Wall};
use serde_json::Value;

use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::object::{Object, wall};
use crate::plan::{Act, Done, Outcome, Plan, Propagation, Step, Target, Why};
use crate::resource::JOBS;
use crate::view::View;

pub(crate) const TTL_AFTER_FINISHED: Row = Row {
    name: "ttl-after-finished-controller",
    aliases: &["ttl-after-finished"],
    identity: "ttl-after-finished-controller",
    event_source: "ttl-after-finished-controller",
    queue: "ttl_jobs_to_delete",
    workers: |tuning| tuning.syncs("ttl-after-finished", 5),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: WATCHES,
    reads: &[],
    is_single: false,
    make: |_| Box::new(TtlAfterFinished),
};

const WATCHES: &[Watch] = &[Watch {
    resource: JOBS,
    keys: |change, _, wakes| {
        let ended = change.new.as_ref().filter(|job| end(job).is_some());
        wakes.extend(ended.map(|job| Key::of(job)));
    },
}];

#[derive(Debug)]
struct TtlAfterFinished;

// === impl TtlAfterFinished ===

impl Controller for TtlAfterFinished {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(job) = view.get(JOBS, &key.namespace, &key.name) else { return Plan::nothing() };
        match left(&job, now) {
            None => Plan::nothing(),
            // What the cache knows may be old: somebody may have given the Job more time.
            Some(Duration::ZERO) => Plan::of(Step::in_turn([Act::Get { path: Target::of(&job).path() }])),
            Some(left) => Plan::nothing().wake(Some(left)),
        }
    }

    fn settle(&mut self, _view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let Some((Act::Get { .. }, outcome)) = done.last().last() else { return Plan::nothing() };
        let job = match outcome {
            Outcome::Failed(refusal) if refusal.why == Why::NotFound => return Plan::nothing(),
            Outcome::Failed(refusal) => return Plan::failed(format!("reading Job {key}: {refusal}")),
            outcome => outcome.object(JOBS),
        };
        let Some(job) = job else { return Plan::failed(format!("reading Job {key}: no Job was answered")) };
        match left(&job, now) {
            None => Plan::nothing(),
            Some(Duration::ZERO) => {
                Plan::of(Step::in_turn([Act::delete(&job).with_propagation(Propagation::Foreground)]))
            }
            Some(left) => Plan::nothing().wake(Some(left)),
        }
    }
}

/// How long the Job may stay. None: as long as it likes.
fn left(job: &Object, now: Now) -> Option<Duration> {
    Some(end(job)?.since(now.wall))
}

/// When its time is over, if it has ended and has a time.
fn end(job: &Object) -> Option<Wall> {
    if job.is_deleting() {
        return None;
    }
    let value = job.value();
    let seconds = value["spec"]["ttlSecondsAfterFinished"].as_i64()?;
    let since = finished(&value["status"])?;
    Some(Wall(since.0.saturating_add(seconds.saturating_mul(1_000_000_000))))
}

/// Since when it is Complete or Failed. One that does not say since when is left alone.
fn finished(status: &Value) -> Option<Wall> {
    let mut conditions = status["conditions"].as_array()?.iter();
    let is_end = |c: &&Value| c["status"] == "True" && (c["type"] == "Complete" || c["type"] == "Failed");
    conditions.find(is_end)?["lastTransitionTime"].as_str().and_then(wall)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Draft, World, at, draft, refused, said};

    /// A Job that came to this end 900 seconds after the beginning of 1970.
    fn job(ttl: Value, condition: &str) -> Draft {
        let end =
            json!([{"type": condition, "status": "True", "lastTransitionTime": "1970-01-01T00:15:00Z"}]);
        draft(JOBS, "j").set("/spec/ttlSecondsAfterFinished", ttl).set("/status/conditions", end)
    }

    #[test]
    fn a_job_stays_for_its_time_after_its_end() {
        let rows = [
            ("not ended", job(json!(5), "Suspended"), 2000, false, None),
            ("about to end", job(json!(5), "FailureTarget"), 2000, false, None),
            ("no time given", job(json!(null), "Complete"), 2000, false, None),
            ("being deleted", job(json!(5), "Complete").deleting(true), 2000, false, None),
            ("not yet", job(json!(60), "Complete"), 930, false, Some(30)),
            ("over", job(json!(60), "Complete"), 960, true, None),
            ("failed, and over", job(json!(60), "Failed"), 961, true, None),
            ("at once", job(json!(0), "Complete"), 900, true, None),
        ];
        for (row, job, now, asks, wake) in rows {
            let plan = World::new(job).reconcile(&mut TtlAfterFinished, "j", at(now));
            assert_eq!(plan.has_acts(), asks, "{row}");
            assert_eq!(plan.wake, wake.map(Duration::from_secs), "{row}");
        }
    }

    #[test]
    fn the_live_job_decides_and_only_that_one_goes() {
        let world = World::new(job(json!(60), "Complete"));
        let asked = world.reconcile(&mut TtlAfterFinished, "j", at(1000));
        let path = "/apis/batch/v1/namespaces/ns/jobs/j".to_owned();
        assert_eq!(asked.acts().collect::<Vec<_>>(), [&Act::Get { path }]);
        let answered = |live: Draft| {
            let live = Outcome::Done(live.value.to_string().into());
            world.settle(&mut TtlAfterFinished, "j", at(1000), &asked, &live)
        };
        let plan = answered(job(json!(60), "Complete").uid("u-live"));
        assert_eq!(said(&plan), ["delete jobs.batch ns/j"]);
        let body = plan.steps[0].acts[0].body();
        assert_eq!((&body["uid"], &body["propagationPolicy"]), (&json!("u-live"), &json!("Foreground")));
        let longer = answered(job(json!(160), "Complete"));
        assert_eq!((longer.has_acts(), longer.wake), (false, Some(Duration::from_secs(60))));
        assert_eq!(answered(job(json!(null), "Complete")), Plan::nothing());
    }

    #[test]
    fn who_is_gone_needs_nothing_and_who_cannot_be_asked_is_asked_again() {
        let world = World::new(job(json!(0), "Complete"));
        let asked = world.reconcile(&mut TtlAfterFinished, "j", at(1000));
        let after = |why| world.settle(&mut TtlAfterFinished, "j", at(1000), &asked, &refused(why, "no"));
        assert_eq!(after(Why::NotFound), Plan::nothing());
        assert_eq!(after(Why::Lost).failure.as_deref(), Some("reading Job ns/j: no"));
    }

    #[test]
    fn only_jobs_with_an_end_and_a_time_wake_it() {
        let world = World::new([]);
        let wakes = |job: &Draft| world.wakes(WATCHES, None, Some(job)).concat();
        assert_eq!(wakes(&job(json!(5), "Complete")), "ns/j");
        assert_eq!(wakes(&job(json!(5), "Suspended")), "");
        assert_eq!(wakes(&job(json!(null), "Complete")), "");
    }
}
