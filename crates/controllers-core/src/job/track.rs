//! Counting Pods, and what a Job says of itself.

use std::sync::Arc;

use serde_json::{Value, json};

use super::look::{Finish, Look};
use super::pod::{self, Rule};
use super::spec;
use super::{BURST, untrack};
use crate::conditions;
use crate::object::Object;
use crate::plan::{Act, Event, Plan, Step};
use crate::terms::{Phase, PodTerms, timestamp};

/// UIDs on their way into the counts.
struct Count {
    succeeded: Vec<String>,
    failed: Vec<String>,
    indexes: Vec<u32>,
    free: Vec<Arc<Object>>,
}

impl Look<'_> {
    /// Writes down what has ended, then frees those Pods. What was freed is counted when the cache shows it.
    pub(super) fn track(&self) -> Plan {
        let finish = self.finish();
        let mut status = if self.job.status.is_object() { self.job.status.clone() } else { json!({}) };
        let count = self.count(&mut status, finish.as_ref());
        let (mut again, is_deleting) = (!count.free.is_empty(), self.job.object.is_deleting());
        self.put_counts(&mut status, &count);
        if status["startTime"].is_null() && !self.job.is_suspended() {
            status["startTime"] = json!(timestamp(self.now.wall));
        }
        match &finish {
            Some(finish) if !finish.is_known => {
                let kind = if finish.is_success { "SuccessCriteriaMet" } else { "FailureTarget" };
                self.put_condition(&mut status, kind, "True", &finish.reason, &finish.message);
                again = true;
            }
            Some(finish) if self.is_over(&count) => self.end(&mut status, finish),
            None if !is_deleting => self.say_suspended(&mut status),
            _ => {}
        }
        if let Some(status) = status.as_object_mut() {
            status.retain(|_, value| !value.is_null());
        }
        let write = (status != self.job.status).then(|| Act::update_status(&self.job.object, status));
        let plan = Plan::nothing().then(Step::in_turn(write));
        let plan = plan.then(Step::at_once(count.free.iter().map(untrack)));
        Plan { again: again && plan.has_acts(), ..plan }
    }

    /// Moves freed UIDs into the counts, and finds who is to be written down and freed.
    fn count(&self, status: &mut Value, finish: Option<&Finish>) -> Count {
        let mut known = ["succeeded", "failed"].map(|what| {
            let uids = self.job.uncounted(what);
            let is_held =
                |uid: &String| self.pods.iter().any(|pod| *pod.meta.uid == **uid && self.is_held(pod));
            let (held, freed): (Vec<String>, Vec<String>) = uids.into_iter().partition(is_held);
            put(status, what, self.job.number(what) + freed.len());
            held
        });
        let (failed, succeeded) = (std::mem::take(&mut known[1]), std::mem::take(&mut known[0]));
        let mut count = Count { succeeded, failed, indexes: Vec::new(), free: Vec::new() };
        let (last, done) = (self.last_failed(), self.known_indexes("completedIndexes"));
        for pod in self.pods.iter().filter(|pod| self.is_held(pod)) {
            let (uid, has_failed) = (pod.meta.uid.to_string(), self.is_failed(pod));
            let has_succeeded = pod::phase(pod) == Phase::Succeeded && !count.failed.contains(&uid);
            let is_last = last.values().any(|last| last.meta.uid == pod.meta.uid);
            let ends = finish.is_some() && !self.is_active(pod);
            let goes = self.job.object.is_deleting() || ends || has_succeeded || (has_failed && !is_last);
            if !goes {
                continue;
            }
            if has_succeeded {
                let index = self.job.index(pod).filter(|index| !done.has(*index));
                match self.job.is_indexed() {
                    true => count.indexes.extend(index),
                    false => add(&mut count.succeeded, uid),
                }
            } else if (has_failed || finish.is_some_and(|finish| !finish.is_success))
                && self.is_placed(pod)
                && self.job.rule(pod) != Rule::Ignore
            {
                add(&mut count.failed, uid);
            }
            count.free.push(pod.clone());
            if count.indexes.len() + count.succeeded.len() + count.failed.len() >= BURST {
                break;
            }
        }
        count
    }

    fn put_counts(&self, status: &mut Value, count: &Count) {
        let mut uncounted = json!({});
        for (what, uids) in [("succeeded", &count.succeeded), ("failed", &count.failed)] {
            if !uids.is_empty() {
                uncounted[what] = json!(uids);
            }
        }
        status["uncountedTerminatedPods"] = uncounted;
        if self.job.is_indexed() {
            let done = self.known_indexes("completedIndexes").with(count.indexes.iter().copied());
            put(status, "succeeded", done.total());
            status["completedIndexes"] = Some(done.to_string()).filter(|text| !text.is_empty()).into();
            if self.job.per_index().is_some() {
                status["failedIndexes"] = json!(self.failed_indexes().to_string());
            }
        }
        let active = self.active();
        let ready = active.iter().filter(|pod| pod.pod().is_some_and(PodTerms::is_ready)).count();
        put(status, "active", active.len());
        status["ready"] = json!(ready);
        status["terminating"] = json!(self.terminating());
    }

    /// Nobody is left who runs, who is on the way out, or who is not in the counts.
    fn is_over(&self, count: &Count) -> bool {
        let is_counted = count.free.is_empty() && count.succeeded.is_empty() && count.failed.is_empty();
        is_counted && self.terminating() == 0 && self.active().is_empty()
    }

    fn end(&self, status: &mut Value, finish: &Finish) {
        let kind = if finish.is_success { "Complete" } else { "Failed" };
        self.put_condition(status, kind, "True", &finish.reason, &finish.message);
        if finish.is_success {
            status["completionTime"] = json!(timestamp(self.now.wall));
        }
    }

    /// A Job that was never suspended does not say that it is not.
    fn say_suspended(&self, status: &mut Value) {
        let known = conditions::find(status, "Suspended").map(|c| c["status"] == "True");
        match (self.job.is_suspended(), known) {
            (true, None | Some(false)) => {
                self.put_condition(status, "Suspended", "True", "JobSuspended", "Job suspended");
                status["startTime"] = Value::Null;
            }
            (false, Some(true)) => {
                self.put_condition(status, "Suspended", "False", "JobResumed", "Job resumed");
            }
            _ => {}
        }
    }

    fn put_condition(&self, status: &mut Value, kind: &str, value: &str, reason: &str, message: &str) {
        let condition = conditions::Condition { kind, status: value, reason, message };
        conditions::put(status, &condition, self.now.wall, false);
        let last = status["conditions"].as_array_mut().and_then(|list| list.last_mut());
        if let Some(last) = last {
            last["lastProbeTime"] = json!(timestamp(self.now.wall));
        }
    }
}

/// What is told of a Job whose status was written.
pub(super) fn told(before: &Object, new: &Object) -> Vec<Event> {
    let (old, value) = (before.value(), new.value());
    let (old, status) = (&old["status"], &value["status"]);
    let turned = |kind: &str| spec::is_true(status, kind) && !spec::is_true(old, kind);
    let mut events = Vec::new();
    if turned("Suspended") {
        events.push(Event::normal(before, "Suspended", "Job suspended"));
    }
    if spec::is_true(old, "Suspended") && !spec::is_true(status, "Suspended") {
        events.push(Event::normal(before, "Resumed", "Job resumed"));
    }
    if turned("Complete") {
        let completions = value["spec"]["completions"].as_u64();
        if completions.is_some_and(|completions| status["succeeded"].as_u64().unwrap_or(0) > completions) {
            let message = "Too many succeeded pods running after completion count reached";
            events.push(Event::warning(before, "TooManySucceededPods", message));
        }
        events.push(Event::normal(before, "Completed", "Job completed"));
    }
    if turned("Failed") {
        let condition = conditions::find(status, "Failed").cloned().unwrap_or_default();
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        events.push(Event::warning(before, text("reason"), text("message")));
    }
    events
}

fn add(uids: &mut Vec<String>, uid: String) {
    if !uids.contains(&uid) {
        uids.push(uid);
    }
}

/// A zero is not written, as upstream leaves it out.
fn put(status: &mut Value, key: &str, number: usize) {
    status[key] = if number == 0 { Value::Null } else { json!(number) };
}
