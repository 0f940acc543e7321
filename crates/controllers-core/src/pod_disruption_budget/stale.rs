//! A Pod that was said to be taken away, and was not: the condition DisruptionTarget is taken back after two minutes.

use std::time::Duration;

use base::time::Now;
use serde_json::{Value, json};

use super::until_end;
use crate::conditions;
use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::object::{Object, wall};
use crate::plan::{Act, Plan, Step};
use crate::resource::PODS;
use crate::terms::{PodTerms, timestamp};
use crate::view::View;

pub(crate) const STALE_POD_DISRUPTION: Row = Row {
    name: "disruption-controller",
    aliases: &["disruption"],
    identity: "disruption-controller",
    event_source: "controllermanager",
    queue: "stale_pod_disruption",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: WATCHES,
    reads: &[],
    is_single: false,
    make: |_| Box::new(StaleDisruptions),
};

pub(super) const WATCHES: &[Watch] = &[Watch {
    resource: PODS,
    keys: |change, _, wakes| {
        // Most Pods have no such condition: they cost a search in their text and no more.
        let has = |pod: &&std::sync::Arc<Object>| {
            pod.json().windows(TARGET.len()).any(|at| at == TARGET.as_bytes())
        };
        wakes.extend(change.new.as_ref().filter(has).map(|pod| Key::of(pod)));
    },
}];

const TARGET: &str = "DisruptionTarget";

#[derive(Debug)]
pub(super) struct StaleDisruptions;

// === impl StaleDisruptions ===

impl Controller for StaleDisruptions {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(pod) = view.get(PODS, &key.namespace, &key.name) else { return Plan::nothing() };
        match left(&pod, now) {
            None => Plan::nothing(),
            Some(Duration::ZERO) => {
                let mut status = pod.value()["status"].take();
                let list = status["conditions"].as_array_mut().into_iter().flatten();
                for condition in list.filter(|condition| condition["type"] == TARGET) {
                    let generation = condition["observedGeneration"].take();
                    *condition =
                        json!({"type": TARGET, "status": "False", "lastTransitionTime": timestamp(now.wall)});
                    if generation.is_i64() {
                        condition["observedGeneration"] = generation;
                    }
                }
                Plan::of(Step::in_turn([Act::update_status(&pod, status)]))
            }
            left => Plan::nothing().wake(left),
        }
    }
}

/// How long it may still stand there. None: as long as it likes; what the kubelet said of a Pod that it ends stays.
fn left(pod: &Object, now: Now) -> Option<Duration> {
    if pod.is_deleting() || pod.pod().is_none_or(PodTerms::is_terminal) {
        return None;
    }
    let status: Value = pod.value()["status"].take();
    let known = conditions::find(&status, TARGET)?;
    if known["status"] != "True" || known["reason"] == "TerminationByKubelet" {
        return None;
    }
    Some(
        known["lastTransitionTime"]
            .as_str()
            .and_then(wall)
            .map_or(Duration::ZERO, |since| until_end(since, now)),
    )
}
