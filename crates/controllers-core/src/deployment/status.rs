//! What a Deployment says of itself.

use std::time::Duration;

use base::time::{Now, Wall};
use serde_json::{Value, json};

use super::sets::Set;
use super::{Deployment, PROGRESSING, Sets, put};
use crate::conditions::{self, Condition};
use crate::object::wall;

const REPLICA_FAILURE: &str = "ReplicaFailure";

impl Deployment {
    /// The counts and the condition Available. What others wrote stays.
    pub(super) fn count(&self, sets: &Sets, status: &mut Value, now: Now) {
        let sum = |what: &str| sets.all().map(|set| set.count(what)).sum::<i32>();
        let available = sum("availableReplicas");
        let updated = sets.new.as_ref().map_or(0, |new| new.count("replicas"));
        for (key, number) in [
            ("replicas", sum("replicas")),
            ("updatedReplicas", updated),
            ("readyReplicas", sum("readyReplicas")),
            ("availableReplicas", available),
            ("unavailableReplicas", (sets.size() - available).max(0)),
        ] {
            put(status, key, json!(number));
            if number == 0
                && let Some(status) = status.as_object_mut()
            {
                status.remove(key);
            }
        }
        put(status, "observedGeneration", json!(self.object.meta.generation));
        match terminating(sets) {
            Some(number) => put(status, "terminatingReplicas", json!(number)),
            None => _ = status.as_object_mut().and_then(|status| status.remove("terminatingReplicas")),
        }
        let (value, reason, message) = if available >= self.replicas - self.max_unavailable {
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
        } else {
            ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        };
        let condition = Condition { kind: "Available", status: value, reason, message };
        conditions::set_updated(status, &condition, now.wall);
    }

    /// The same during a rollout, with how it gets on. Says when to look again for a lack of progress.
    pub(super) fn rollout_status(&self, sets: &Sets, status: &mut Value, now: Now) -> Option<Duration> {
        self.count(sets, status, now);
        if self.deadline.is_none() {
            conditions::remove(status, PROGRESSING);
        }
        let known = conditions::find(&self.status, PROGRESSING);
        let is_over = status.get("replicas") == status.get("updatedReplicas")
            && known.is_some_and(|known| known["reason"] == "NewReplicaSetAvailable");
        let who = sets.new.as_ref().map_or_else(
            || format!("Deployment \"{}\"", self.object.meta.name),
            |new| format!("ReplicaSet \"{}\"", new.name()),
        );
        if self.deadline.is_some() && !is_over {
            if self.is_complete(status) {
                let message = format!("{who} has successfully progressed.");
                self.progress(status, "True", "NewReplicaSetAvailable", &message, now);
            } else if self.has_progressed(status) {
                let message = format!("{who} is progressing.");
                let condition = Condition {
                    kind: PROGRESSING,
                    status: "True",
                    reason: "ReplicaSetUpdated",
                    message: &message,
                };
                // Written anew although it says the same: the time of the last progress moves.
                conditions::put(status, &condition, now.wall, true);
            } else if self.has_timed_out(status, now) {
                let message = format!("{who} has timed out progressing.");
                self.progress(status, "False", "ProgressDeadlineExceeded", &message, now);
            }
        }
        self.report_failure(sets, status, now);
        self.next_look(status, now)
    }

    /// Everything is of the present template, and available.
    pub(super) fn is_complete(&self, status: &Value) -> bool {
        let count = |what: &str| status[what].as_i64().unwrap_or(0);
        let observed = count("observedGeneration");
        ["updatedReplicas", "replicas", "availableReplicas"]
            .iter()
            .all(|what| count(what) == i64::from(self.replicas))
            && observed >= self.object.meta.generation
    }

    fn has_progressed(&self, status: &Value) -> bool {
        let count = |status: &Value, what: &str| status[what].as_i64().unwrap_or(0);
        let old = |status: &Value| count(status, "replicas") - count(status, "updatedReplicas");
        let is_more = |what: &str| count(status, what) > count(&self.status, what);
        is_more("updatedReplicas")
            || old(status) < old(&self.status)
            || is_more("readyReplicas")
            || is_more("availableReplicas")
    }

    fn has_timed_out(&self, status: &Value, now: Now) -> bool {
        let Some(condition) = conditions::find(status, PROGRESSING) else { return false };
        match condition["reason"].as_str() {
            Some("NewReplicaSetAvailable") => false,
            Some("ProgressDeadlineExceeded") => true,
            _ => self.deadline_of(condition).is_some_and(|at| at < now.wall),
        }
    }

    fn deadline_of(&self, condition: &Value) -> Option<Wall> {
        let seconds = i64::from(self.deadline?);
        let since = condition["lastUpdateTime"].as_str().and_then(wall)?;
        Some(Wall(since.0.saturating_add(seconds.saturating_mul(1_000_000_000))))
    }

    fn next_look(&self, status: &Value, now: Now) -> Option<Duration> {
        let condition = conditions::find(status, PROGRESSING)?;
        if self.is_complete(status) || condition["reason"] == "ProgressDeadlineExceeded" {
            return None;
        }
        Some(self.deadline_of(condition)?.since(now.wall) + Duration::from_secs(1))
    }

    /// The failure of the new set, else of any.
    fn report_failure(&self, sets: &Sets, status: &mut Value, now: Now) {
        let failure = |set: &Set| conditions::find(&set.status, REPLICA_FAILURE).cloned();
        let found = sets.new.as_ref().and_then(failure).or_else(|| sets.all().find_map(failure));
        let Some(found) = found else { return conditions::remove(status, REPLICA_FAILURE) };
        let text = |key: &str| found[key].as_str().unwrap_or_default();
        let condition = Condition {
            kind: REPLICA_FAILURE,
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
        };
        conditions::set_updated(status, &condition, now.wall);
    }
}

/// None while a set that was looked at does not say it.
fn terminating(sets: &Sets) -> Option<i64> {
    let mut sum = 0;
    for set in sets.all() {
        let is_observed = set.status["observedGeneration"].as_i64().unwrap_or(0) > 0;
        match set.status["terminatingReplicas"].as_i64() {
            Some(number) => sum += number,
            None if is_observed => return None,
            None => {}
        }
    }
    Some(sum)
}
