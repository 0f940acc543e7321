//! What a set says of itself.

use base::time::Now;
use serde_json::{Value, json};

use super::{Pods, Set};
use crate::conditions::{self, Condition};
use crate::object::Object;
use crate::plan::{Act, Plan, Step};
use crate::resource::REPLICA_SETS;
use crate::terms::PodTerms;

const REPLICA_FAILURE: &str = "ReplicaFailure";

impl Set {
    /// The status, if it is to be written, and when the next Pod becomes available.
    pub(super) fn settled(&self, pods: &Pods, failure: Option<&str>, now: Now) -> Plan {
        let status = self.new_status(pods, failure, now);
        let mut plan = Plan::nothing();
        if status != self.status {
            plan = plan.then(Step::in_turn([Act::update_status(&self.object, status)]));
        }
        let waits = pods.active.iter().filter_map(|pod| pod.pod()?.available_in(self.min_ready_seconds, now));
        plan.wake(waits.filter(|wait| !wait.is_zero()).min())
    }

    /// Fields and conditions that are not ours stay.
    fn new_status(&self, pods: &Pods, failure: Option<&str>, now: Now) -> Value {
        let active = &pods.active;
        let count = |what: &dyn Fn(&PodTerms) -> bool| {
            active.iter().filter(|pod| pod.pod().is_some_and(what)).count()
        };
        let mut status = if self.status.is_object() { self.status.clone() } else { json!({}) };
        put(
            &mut status,
            "fullyLabeledReplicas",
            active.iter().filter(|pod| self.is_fully_labelled(pod)).count(),
        );
        put(&mut status, "readyReplicas", count(&PodTerms::is_ready));
        put(&mut status, "availableReplicas", count(&|pod| pod.is_available(self.min_ready_seconds, now)));
        status["replicas"] = json!(active.len());
        if self.object.meta.resource == REPLICA_SETS {
            status["terminatingReplicas"] = json!(pods.terminating);
        }
        status["observedGeneration"] = json!(self.object.meta.generation);
        match failure {
            Some(_) if conditions::find(&status, REPLICA_FAILURE).is_some() => {}
            Some(message) => {
                let reason = if active.len() < self.wanted() { "FailedCreate" } else { "FailedDelete" };
                let failure = Condition { kind: REPLICA_FAILURE, status: "True", reason, message };
                conditions::set(&mut status, &failure, now.wall);
            }
            None => conditions::remove(&mut status, REPLICA_FAILURE),
        }
        status
    }

    fn is_fully_labelled(&self, pod: &Object) -> bool {
        let labels = self.template["metadata"]["labels"].as_object().into_iter().flatten();
        labels.into_iter().all(|(key, value)| pod.label(key) == value.as_str())
    }
}

/// A zero is not written, as upstream leaves it out.
fn put(status: &mut Value, key: &str, number: usize) {
    let Some(status) = status.as_object_mut() else { return };
    if number == 0 {
        status.remove(key);
    } else {
        status.insert(key.to_owned(), json!(number));
    }
}
