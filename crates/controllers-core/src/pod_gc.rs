//! Pod garbage collection: Pods that nobody will ever end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Mono, Now};
use serde_json::json;

use crate::conditions;
use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::disruption;
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, PatchKind, Plan, Step, Why};
use crate::resource::{NODES, PODS};
use crate::terms::PodTerms;
use crate::view::View;

pub(crate) const POD_GC: Row = Row {
    name: "pod-garbage-collector-controller",
    aliases: &["podgc"],
    identity: "pod-garbage-collector",
    event_source: "pod-garbage-collector-controller",
    queue: "orphaned_pods_nodes",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch { resource: PODS, keys: |_, _, _| () }, Watch { resource: NODES, keys: |_, _, _| () }],
    reads: &[],
    is_single: true,
    make: |tuning| {
        Box::new(PodGc {
            keeps: usize::try_from(tuning.terminated_pod_gc_threshold).ok().filter(|n| *n > 0),
            missing: HashMap::new(),
        })
    },
};

const PERIOD: Duration = Duration::from_secs(20);
/// A Node that is not there may only be late.
const QUARANTINE: Duration = Duration::from_secs(40);

#[derive(Debug)]
struct PodGc {
    /// How many Pods that have ended may lie around; None: all of them.
    keeps: Option<usize>,
    /// Nodes that Pods name and nobody knows, and since when.
    missing: HashMap<Box<str>, Mono>,
}

// === impl PodGc ===

impl Controller for PodGc {
    fn reconcile(&mut self, view: &dyn View, _key: &Key, now: Now) -> Plan {
        let pods = view.list(PODS, "");
        let mut acts: Vec<Act> =
            self.surplus(&pods).iter().map(|pod| Act::delete(pod).with_grace(0)).collect();
        let lost = pods
            .iter()
            .filter(|pod| pod.is_deleting() && (pod.meta.node.is_empty() || is_out_of_service(pod, view)));
        acts.extend(lost.map(|pod| end(pod, None)));
        let asked = self.overdue(&pods, view, now).into_iter();
        let asked = asked.map(|node| Act::Get { path: NODES.object_path("", &node) });
        planned(acts.into_iter().chain(asked).collect())
    }

    /// Only a Node that the API server itself does not know is gone.
    fn settle(&mut self, view: &dyn View, _key: &Key, now: Now, done: &Done) -> Plan {
        let is_gone = |node: &str| match done.answer(&NODES.object_path("", node)) {
            Some(Outcome::Failed(refusal)) => refusal.why == Why::NotFound,
            _ => false,
        };
        if done.rounds > 1 {
            return Plan::nothing();
        }
        let nodes: Vec<Box<str>> = self.missing.keys().filter(|node| is_gone(node)).cloned().collect();
        let pods = nodes.iter().flat_map(|node| view.on_node(node));
        planned(pods.map(|pod| end(&pod, Some(now))).collect())
    }
}

impl PodGc {
    /// Ended Pods beyond what is kept: evicted ones first, then the oldest.
    fn surplus(&self, pods: &[Arc<Object>]) -> Vec<Arc<Object>> {
        let Some(keeps) = self.keeps else { return Vec::new() };
        let ended =
            pods.iter().filter(|pod| pod.pod().is_some_and(PodTerms::is_terminal) && !pod.is_deleting());
        let mut ended: Vec<Arc<Object>> = ended.cloned().collect();
        let count = ended.len().saturating_sub(keeps);
        if count == 0 {
            return Vec::new();
        }
        ended.sort_by_cached_key(|pod| {
            let is_evicted = pod.value()["status"]["reason"] == "Evicted";
            (!is_evicted, pod.meta.created, pod.meta.name.clone())
        });
        ended.truncate(count);
        ended
    }

    /// Nodes that have been missing for long enough to be asked for.
    fn overdue(&mut self, pods: &[Arc<Object>], view: &dyn View, now: Now) -> Vec<Box<str>> {
        let names = pods.iter().map(|pod| &pod.meta.node).filter(|node| !node.is_empty());
        let unknown: HashMap<Box<str>, Mono> = names
            .filter(|node| view.get(NODES, "", node).is_none())
            .map(|node| (node.clone(), self.missing.get(node).copied().unwrap_or(now.mono)))
            .collect();
        self.missing = unknown;
        let overdue = self.missing.iter().filter(|(_, since)| now.mono.since(**since) >= QUARANTINE);
        let mut overdue: Vec<Box<str>> = overdue.map(|(node, _)| node.clone()).collect();
        overdue.sort_unstable();
        overdue
    }
}

/// Each on its own: what fails for one Pod holds up no other. What was only said to have failed goes in the next round.
fn planned(acts: Vec<Act>) -> Plan {
    let has_more = acts.iter().any(|act| matches!(act, Act::Patch { .. }));
    let plan = Plan::nothing().then(Step::at_once(acts)).wake(Some(PERIOD));
    if has_more { plan.again() } else { plan }
}

/// Its phase first, so that whoever counts it knows how it ended; then the object. `now`: its Node is gone, which is told.
fn end(pod: &Object, now: Option<Now>) -> Act {
    if pod.pod().is_some_and(PodTerms::is_terminal) {
        return Act::delete(pod).with_grace(0);
    }
    let mut patch = json!({"metadata": {"uid": pod.meta.uid}, "status": {"phase": "Failed"}});
    if let Some(now) = now {
        let condition = disruption::condition("DeletionByPodGC", "PodGC: node no longer exists", now);
        patch["status"]["conditions"] = json!([condition]);
    }
    Act::patch_status(pod, PatchKind::Strategic, &patch)
}

/// Somebody said that the Node is off and will not come back by itself.
fn is_out_of_service(pod: &Object, view: &dyn View) -> bool {
    let Some(node) = view.get(NODES, "", &pod.meta.node) else { return false };
    let node = node.value();
    let ready = conditions::find(&node["status"], "Ready").map(|condition| condition["status"].clone());
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    ready.is_none_or(|ready| ready != "True")
        && taints.any(|taint| taint["key"] == "node.kubernetes.io/out-of-service")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::WriteError;
    use crate::testing::{World, at, draft, pod, said};

    fn gc(keeps: usize) -> PodGc {
        PodGc { keeps: Some(keeps), missing: HashMap::new() }
    }

    fn look(gc: &mut PodGc, world: &World, seconds: u64) -> Plan {
        gc.reconcile(&world.cache, &Key::all(), at(seconds))
    }

    #[test]
    fn ended_pods_are_kept_up_to_a_number_evicted_ones_go_first() {
        let ended = |name: &str, created: i64| pod(name).on("n").phase("Succeeded").created(created);
        let evicted = ended("evicted", 9).phase("Failed").set("/status/reason", json!("Evicted"));
        let world = World::new([
            draft(NODES, "n"),
            ended("old", 1),
            ended("new", 5),
            evicted,
            pod("runs").on("n").running(),
        ]);
        assert_eq!(said(&look(&mut gc(3), &world, 1)), [""; 0]);
        assert_eq!(said(&look(&mut gc(2), &world, 1)), ["delete pods ns/evicted"]);
        assert_eq!(said(&look(&mut gc(1), &world, 1)), ["delete pods ns/evicted", "delete pods ns/old"]);
    }

    #[test]
    fn a_pod_that_is_deleted_without_a_node_ends() {
        let mut world = World::new([pod("a").deleting(true), pod("b")]);
        let plan = look(&mut gc(9), &world, 1);
        assert_eq!((said(&plan), plan.again), (vec!["patch pods/status ns/a".to_owned()], true));
        world.put(pod("a").deleting(true).phase("Failed"));
        let plan = look(&mut gc(9), &world, 1);
        assert_eq!((said(&plan), plan.again), (vec!["delete pods ns/a".to_owned()], false));
    }

    #[test]
    fn pods_of_a_node_that_is_off_for_good_end_once_they_are_deleted() {
        let node = draft(NODES, "n").set(
            "/spec/taints",
            json!([{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]),
        );
        let world = World::new([node, pod("a").on("n").running().deleting(true), pod("b").on("n").running()]);
        assert_eq!(said(&look(&mut gc(9), &world, 1)), ["patch pods/status ns/a"]);
    }

    #[test]
    fn pods_of_a_node_that_is_gone_end_when_the_api_server_says_so_too() {
        let world = World::new([pod("a").on("gone").running()]);
        let mut gc = gc(9);
        assert_eq!(said(&look(&mut gc, &world, 100)), [""; 0]);
        assert_eq!(said(&look(&mut gc, &world, 139)), [""; 0]);
        let plan = look(&mut gc, &world, 140);
        assert_eq!(said(&plan), ["get /api/v1/nodes/gone"]);
        let settle = |gc: &mut PodGc, outcome: Outcome| {
            let done = Done { acts: vec![(plan.steps[0].acts[0].clone(), outcome)], last: 0, rounds: 1 };
            gc.settle(&world.cache, &Key::all(), at(140), &done)
        };
        let there = settle(&mut gc, Outcome::Done(bytes::Bytes::new()));
        assert_eq!(said(&there), [""; 0], "the cache was late");
        let gone = settle(&mut gc, Outcome::Failed(WriteError::new(Why::NotFound, "not found")));
        assert_eq!(said(&gone), ["patch pods/status ns/a"]);
        let body = gone.acts().next().map(Act::body).unwrap_or_default();
        assert_eq!(
            (&body["status"]["phase"], &body["status"]["conditions"][0]["reason"]),
            (&json!("Failed"), &json!("DeletionByPodGC"))
        );
    }
}
