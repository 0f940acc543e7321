//! What a DaemonSet says of itself.

use base::time::Now;
use serde_json::{Value, json};

use super::fit::Place;
use super::manage::oldest_first;
use super::{ByNode, DaemonSet, Site};
use crate::plan::{Act, Plan, Step};
use crate::view::View;

#[derive(Debug, Default)]
struct Counts {
    desired: usize,
    current: usize,
    misscheduled: usize,
    ready: usize,
    updated: usize,
    available: usize,
}

impl DaemonSet {
    /// The status by what the view shows now.
    pub(super) fn counted(&self, view: &dyn View, now: Now) -> Plan {
        let Ok(pods) = self.claim(view) else { return Plan::nothing() };
        let Ok(history) = self.history(view, &pods) else { return Plan::nothing() };
        self.status_plan(&self.sites(view), &self.by_node(&pods), &history.hash(), now)
    }

    /// The status, if it is to be written, and when the next Pod becomes available.
    pub(super) fn status_plan(&self, sites: &[Site], by_node: &ByNode, hash: &str, now: Now) -> Plan {
        let counts = self.count(sites, by_node, hash, now);
        let mut status = if self.status.is_object() { self.status.clone() } else { json!({}) };
        status["desiredNumberScheduled"] = json!(counts.desired);
        status["currentNumberScheduled"] = json!(counts.current);
        status["numberMisscheduled"] = json!(counts.misscheduled);
        status["numberReady"] = json!(counts.ready);
        put(&mut status, "updatedNumberScheduled", counts.updated);
        put(&mut status, "numberAvailable", counts.available);
        put(&mut status, "numberUnavailable", counts.desired.saturating_sub(counts.available));
        status["observedGeneration"] = json!(self.object.meta.generation);
        let mut plan = Plan::nothing();
        if status != self.status {
            plan = plan.then(Step::in_turn([Act::update_status(&self.object, status)]));
        }
        let pods = by_node.values().flatten();
        let waits = pods.filter_map(|pod| pod.pod()?.available_in(self.min_ready_seconds, now));
        plan.wake(waits.filter(|wait| !wait.is_zero()).min())
    }

    /// Of several Pods on a Node the oldest speaks.
    fn count(&self, sites: &[Site], by_node: &ByNode, hash: &str, now: Now) -> Counts {
        let mut counts = Counts::default();
        for site in sites {
            let mut pods = by_node.get(&site.name).cloned().unwrap_or_default();
            oldest_first(&mut pods);
            if site.place != Place::Run {
                counts.misscheduled += usize::from(!pods.is_empty());
                continue;
            }
            counts.desired += 1;
            let Some(pod) = pods.first() else { continue };
            counts.current += 1;
            counts.ready += usize::from(pod.pod().is_some_and(|terms| terms.is_ready()));
            counts.available += usize::from(self.is_available(pod, now));
            counts.updated += usize::from(self.is_updated(pod, hash));
        }
        counts
    }
}

/// A zero is not written, as upstream leaves it out.
fn put(status: &mut Value, key: &str, number: usize) {
    match status.as_object_mut() {
        Some(status) if number == 0 => _ = status.remove(key),
        Some(status) => _ = status.insert(key.to_owned(), json!(number)),
        None => {}
    }
}
