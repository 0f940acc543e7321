//! CronJob: Jobs by the clock.
//!
//! A sync has up to three rounds: Jobs that history has no room for are deleted, and those that the status names but the cache
//! does not know are asked for; then the Job that is due is made; then the status is written.

mod history;
mod when;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::cron::{Schedule, time_zone};
use base::time::{Now, Wall};
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::claim::owned_metadata;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::{Object, Unreadable, wall};
use crate::plan::{Act, Done, Event, Outcome, Plan, Propagation, Step, Target, Why};
use crate::resource::{CRON_JOBS, JOBS};
use crate::terms::timestamp;
use crate::view::View;
use history::{Children, End};
use when::Clock;

pub(crate) const CRON_JOB: Row = Row {
    name: "cronjob-controller",
    aliases: &["cronjob"],
    identity: "cronjob-controller",
    event_source: "cronjob-controller",
    queue: "cronjob",
    workers: |tuning| tuning.syncs("cron-job", 5),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: WATCHES,
    reads: &[],
    is_single: false,
    make: |tuning| Box::new(CronJobs { zone: tuning.time_zone.clone(), not_before: BTreeMap::new() }),
};

const WATCHES: &[Watch] = &[Watch::itself(CRON_JOBS), Watch { resource: JOBS, keys: owners }];

/// When the Job was due, in the words of the CronJob's zone.
const SCHEDULED: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// The clocks of server and controller differ a little.
const DELTA: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct CronJobs {
    /// Where nothing else is said: that of the process.
    zone: TimeZone,
    /// A new schedule has missed nothing: it begins with its next time.
    not_before: BTreeMap<Key, Wall>,
}

/// A CronJob as it is read.
#[derive(Debug)]
struct CronJob {
    object: Arc<Object>,
    schedule: String,
    zone: Option<String>,
    deadline: Option<i64>,
    policy: String,
    is_suspended: bool,
    /// For successful Jobs, and for failed ones. None: all may stay.
    limits: [Option<usize>; 2],
    template: Value,
    status: Value,
}

/// What was found before anything is started.
#[derive(Debug)]
struct Found {
    status: Value,
    events: Vec<Event>,
}

fn owners(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let jobs = [change.old.as_ref(), change.new.as_ref()].into_iter().flatten();
    wakes.extend(jobs.filter_map(|job| view.controller_of(job, CRON_JOBS)).map(|owner| Key::of(&owner)));
}

// === impl CronJobs ===

impl Controller for CronJobs {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(object) = view.get(CRON_JOBS, &key.namespace, &key.name) else { return Plan::nothing() };
        let cron = match CronJob::read(object.clone()) {
            Ok(cron) => cron,
            Err(error) => return Plan::unreadable(&object, &error),
        };
        let children = Children::of(&cron.object, view);
        let mut first: Vec<Act> = children.surplus(cron.limits).map(|job| delete(&job.object)).collect();
        first.extend(children.unknown(&cron.status).map(|job| Act::Get { path: job.path() }));
        if first.is_empty() {
            return self.decide(&cron, view, now, &Done::default());
        }
        Plan::of(Step::at_once(first))
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let Some(object) = view.get(CRON_JOBS, &key.namespace, &key.name) else { return Plan::nothing() };
        let Ok(cron) = CronJob::read(object) else { return Plan::nothing() };
        if done.last().iter().any(|(act, _)| matches!(act, Act::Update { .. })) {
            return Plan::nothing();
        }
        let created = done.acts.iter().find(|(act, _)| matches!(act, Act::Create { .. }));
        match created {
            None => self.decide(&cron, view, now, done),
            Some((act, outcome)) => self.started(&cron, view, now, done, act, outcome),
        }
    }

    fn observe(&mut self, change: &Change, now: Now) {
        let Some(object) = change.object().filter(|object| object.meta.resource == CRON_JOBS) else { return };
        let key = Key::of(object);
        let (Some(old), Some(new)) = (&change.old, &change.new) else {
            self.not_before.remove(&key);
            return;
        };
        let [old, new] = [old, new].map(|object| CronJob::read(object.clone()));
        let (Ok(old), Ok(new)) = (old, new) else { return };
        if (&old.schedule, &old.zone) == (&new.schedule, &new.zone) {
            return;
        }
        let next = Clock::of(&new, &self.zone).ok().and_then(|clock| clock.after(now.wall));
        match next {
            Some(next) => _ = self.not_before.insert(key, next),
            None => _ = self.not_before.remove(&key),
        }
    }
}

impl CronJobs {
    /// What is due, once it is known what runs.
    fn decide(&mut self, cron: &CronJob, view: &dyn View, now: Now, done: &Done) -> Plan {
        let Found { status, mut events } = match cron.found(view, done) {
            Ok(found) => found,
            Err(why) => return Plan::failed(why),
        };
        let start = self.due(cron, &status, now, &mut events);
        let plan = match start {
            Ok(time) => cron.start(&status, time, &self.zone),
            Err(wake) => cron.write(&status).wake(wake),
        };
        Plan { events, ..plan }
    }

    /// The time whose Job is to be made now, or when to look again.
    fn due(
        &mut self,
        cron: &CronJob,
        status: &Value,
        now: Now,
        events: &mut Vec<Event>,
    ) -> Result<Wall, Option<Duration>> {
        if cron.object.is_deleting() {
            return Err(None);
        }
        let object = &*cron.object;
        let mut warn = |reason: &str, message: String| events.push(Event::warning(object, reason, message));
        let clock = match Clock::of(cron, &self.zone) {
            Ok(clock) => clock,
            Err((reason, message)) => {
                warn(reason, message);
                return Err(None);
            }
        };
        if cron.is_suspended {
            return Err(None);
        }
        if cron.schedule.contains("TZ") {
            warn("UnsupportedSchedule", when::unsupported(&cron.schedule));
        }
        let key = Key::of(object);
        if let Some(first) = self.not_before.get(&key).copied() {
            if now.wall < first {
                return Err(Some(first.since(now.wall) + DELTA));
            }
            self.not_before.remove(&key);
        }
        let again = Err(clock.wake(cron, status, now));
        let missed = match clock.missed(cron, status, now, cron.deadline) {
            Ok(missed) => missed,
            Err(why) => {
                warn("InvalidSchedule", format!("invalid schedule: {} : {why}", cron.schedule));
                return Err(None);
            }
        };
        let Some(time) = missed.latest else { return again };
        if missed.is_too_many() {
            warn("TooManyMissedTimes", when::TOO_MANY.to_owned());
        }
        let late = now.wall.since(time);
        if cron.deadline.is_some_and(|most| late > Duration::from_secs(most.unsigned_abs())) {
            warn("MissSchedule", format!("Missed scheduled time to start a job: {}", when::mail_date(time)));
            return again;
        }
        let is_known = active(status).any(|job| job["name"] == cron.job_name(time));
        if is_known || when::last(status) == Some(time) {
            return again;
        }
        if cron.policy == "Forbid" && active(status).next().is_some() {
            let message =
                "Not starting job because prior execution is running and concurrency policy is Forbid";
            events.push(Event::normal(object, "JobAlreadyActive", message));
            return again;
        }
        Ok(time)
    }

    /// The status after a Job was made, or was not.
    fn started(
        &self,
        cron: &CronJob,
        view: &dyn View,
        now: Now,
        done: &Done,
        act: &Act,
        outcome: &Outcome,
    ) -> Plan {
        let object = &*cron.object;
        let body = act.body();
        let Some(name) = body["metadata"]["name"].as_str() else { return Plan::nothing() };
        let mut status = match cron.found(view, done) {
            Ok(found) => found.status,
            Err(why) => return Plan::failed(why),
        };
        let mut events = Vec::new();
        let has_asked_again = matches!(done.last(), [(Act::Get { .. }, _)]);
        if !has_asked_again {
            events = deletions(object, done.last());
            cron.forget_replaced(&mut status, done);
        }
        let path = Target { resource: JOBS, ..Target::of(object) };
        let path = Target { name: name.to_owned(), ..path }.path();
        let job = match outcome {
            Outcome::Failed(refusal) if refusal.why == Why::AlreadyExists => match done.answer(&path) {
                // Somebody made it before: perhaps this controller, which could not write it down.
                None => return Plan { events, ..Plan::of(Step::in_turn([Act::Get { path }])) },
                Some(Outcome::Failed(refusal)) => {
                    return Plan::failed(format!("reading Job {name}: {refusal}"));
                }
                Some(live) => live.object(JOBS).filter(|job| job.is_controlled_by(&object.meta.uid)),
            },
            Outcome::Failed(refusal) => {
                if refusal.why != Why::NamespaceTerminating {
                    let message = format!("Error creating job: {refusal}");
                    events.push(Event::warning(object, "FailedCreate", message));
                }
                None
            }
            outcome => {
                let job = outcome.object(JOBS);
                if job.is_some() {
                    events.push(Event::normal(object, "SuccessfulCreate", format!("Created job {name}")));
                }
                job
            }
        };
        let time = body["metadata"]["annotations"][SCHEDULED].as_str().and_then(wall);
        if let (Some(job), Some(time)) = (job, time) {
            add_active(&mut status, &job);
            status["lastScheduleTime"] = timestamp(time).into();
        }
        let wake = Clock::of(cron, &self.zone).ok().and_then(|clock| clock.wake(cron, &status, now));
        Plan { events, ..cron.write(&status).wake(wake) }
    }
}

// === impl CronJob ===

impl CronJob {
    fn read(object: Arc<Object>) -> Result<CronJob, Unreadable> {
        let mut value = object.value();
        let status = value["status"].take();
        let spec = &mut value["spec"];
        if !spec.is_object() {
            return Err(object.unreadable("spec is not there"));
        }
        let number = |key: &str| match &spec[key] {
            Value::Null => Ok(None),
            value => {
                value.as_i64().map(Some).ok_or_else(|| object.unreadable(format!("spec.{key} is no number")))
            }
        };
        let deadline = number("startingDeadlineSeconds")?;
        let limits = [number("successfulJobsHistoryLimit")?, number("failedJobsHistoryLimit")?];
        let limits = limits.map(|limit| limit.map(|limit| usize::try_from(limit).unwrap_or(0)));
        let text = |key: &str| spec[key].as_str().map(str::to_owned);
        let (schedule, zone) = (text("schedule").unwrap_or_default(), text("timeZone"));
        let policy = text("concurrencyPolicy").unwrap_or_default();
        let is_suspended = spec["suspend"] == true;
        let template = spec["jobTemplate"].take();
        if !template["spec"].is_object() {
            return Err(object.unreadable("spec.jobTemplate.spec is not there"));
        }
        let status = if status.is_object() { status } else { json!({}) };
        Ok(CronJob { object, schedule, zone, deadline, policy, is_suspended, limits, template, status })
    }

    fn job_name(&self, time: Wall) -> String {
        format!("{}-{}", self.object.meta.name, time.secs().div_euclid(60))
    }

    /// Brings the status up to date with the Jobs that are there. Err: it is not known what is there.
    fn found(&self, view: &dyn View, done: &Done) -> Result<Found, String> {
        let object = &*self.object;
        let mut status = self.status.clone();
        let surplus: Vec<(Act, Outcome)> =
            done.acts.iter().take_while(|(act, _)| !is_start(act)).cloned().collect();
        let mut events = deletions(object, &surplus);
        let deleted =
            |uid: &str| surplus.iter().any(|(act, outcome)| outcome.is_done() && is_deletion_of(act, uid));
        let children = Children::of(object, view);
        for job in &children.0 {
            let (name, uid) = (&*job.object.meta.name, &*job.object.meta.uid);
            if deleted(uid) {
                remove_active(&mut status, uid);
            }
            let is_active = active(&status).any(|job| job["uid"] == uid);
            match job.end {
                None if is_active => {}
                None => {
                    let message = format!("Saw a job that the controller did not create or forgot: {name}");
                    events.push(Event::warning(object, "UnexpectedJob", message));
                }
                Some(end) => {
                    if is_active {
                        let message = format!("Saw completed job: {name}, condition: {}", end.word());
                        events.push(Event::normal(object, "SawCompletedJob", message));
                        remove_active(&mut status, uid);
                    }
                    let last = status["lastSuccessfulTime"].as_str().and_then(wall);
                    if end == End::Complete && job.completed > last {
                        status["lastSuccessfulTime"] = json!(job.completed.map(timestamp));
                    }
                }
            }
        }
        for job in children.unknown(&self.status) {
            if deleted(&job.uid) {
                remove_active(&mut status, &job.uid);
                continue;
            }
            match done.answer(&job.path()) {
                Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => {
                    let message = format!("Active job went missing: {}", job.target.name);
                    events.push(Event::normal(object, "MissingJob", message));
                    remove_active(&mut status, &job.uid);
                }
                Some(Outcome::Failed(refusal)) => {
                    return Err(format!("reading Job {}: {refusal}", job.target.name));
                }
                _ => {}
            }
        }
        Ok(Found { status, events })
    }

    /// Makes the Job of this time, after those that it replaces are gone.
    fn start(&self, status: &Value, time: Wall, zone: &TimeZone) -> Plan {
        let mut acts = Vec::new();
        if self.policy == "Replace" {
            let running = active(status).filter_map(|job| history::Unknown::read(job, &self.object));
            acts.extend(running.map(|job| Act::Delete {
                target: job.target,
                uid: Some(job.uid),
                grace: None,
                propagation: Some(Propagation::Background),
            }));
        }
        let named = self.zone.as_deref().and_then(time_zone);
        let from = &self.template["metadata"];
        let mut metadata = json!({"name": self.job_name(time), "annotations": {}});
        for key in ["labels", "annotations"] {
            if from[key].is_object() {
                metadata[key] = from[key].clone();
            }
        }
        metadata["annotations"][SCHEDULED] = when::local_time(time, named.as_ref().unwrap_or(zone)).into();
        let job = json!({"metadata": owned_metadata(&self.object, metadata), "spec": self.template["spec"]});
        acts.push(Act::create(JOBS, &self.object.meta.namespace, job));
        Plan::of(Step::in_turn(acts))
    }

    fn write(&self, status: &Value) -> Plan {
        if *status == self.status {
            return Plan::nothing();
        }
        Plan::of(Step::in_turn([Act::update_status(&self.object, status.clone())]))
    }

    fn forget_replaced(&self, status: &mut Value, done: &Done) {
        for (act, outcome) in done.last() {
            if let (Act::Delete { uid: Some(uid), .. }, true) = (act, outcome.is_done()) {
                remove_active(status, uid);
            }
        }
    }
}

/// Belongs to the round that starts a Job: the round before only deletes by history and asks.
fn is_start(act: &Act) -> bool {
    matches!(act, Act::Create { .. })
}

fn is_deletion_of(act: &Act, wanted: &str) -> bool {
    matches!(act, Act::Delete { uid: Some(uid), .. } if uid == wanted)
}

fn delete(job: &Object) -> Act {
    Act::delete(job).with_propagation(Propagation::Background)
}

fn deletions(object: &Object, done: &[(Act, Outcome)]) -> Vec<Event> {
    let event = |(act, outcome): &(Act, Outcome)| match (act, outcome) {
        (Act::Delete { target, .. }, Outcome::Done(_)) => {
            Some(Event::normal(object, "SuccessfulDelete", format!("Deleted job {}", target.name)))
        }
        (Act::Delete { .. }, Outcome::Failed(refusal)) => {
            Some(Event::warning(object, "FailedDelete", format!("Deleted job: {refusal}")))
        }
        _ => None,
    };
    done.iter().filter_map(event).collect()
}

fn active(status: &Value) -> impl Iterator<Item = &Value> {
    status["active"].as_array().into_iter().flatten()
}

fn add_active(status: &mut Value, job: &Object) {
    let meta = &job.meta;
    if active(status).any(|known| known["uid"] == *meta.uid) {
        return;
    }
    let reference = json!({
        "apiVersion": JOBS.api_version(), "kind": JOBS.kind, "namespace": &*meta.namespace, "name": &*meta.name,
        "uid": &*meta.uid, "resourceVersion": meta.resource_version.to_string(),
    });
    match status["active"].as_array_mut() {
        Some(list) => list.push(reference),
        None => status["active"] = json!([reference]),
    }
}

fn remove_active(status: &mut Value, uid: &str) {
    let Some(list) = status.get_mut("active").and_then(Value::as_array_mut) else { return };
    list.retain(|job| job["uid"] != uid);
    if list.is_empty()
        && let Some(status) = status.as_object_mut()
    {
        status.remove("active");
    }
}

#[cfg(test)]
mod tests;
