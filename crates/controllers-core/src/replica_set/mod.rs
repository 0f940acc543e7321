//! ReplicaSet and ReplicationController: as many Pods as are asked for. One loop for both.

mod status;
mod watches;

use std::sync::Arc;

use api::selector::LabelSelector;
use base::time::Now;
use serde_json::Value;

use crate::claim::Claimant;
use crate::controller::{Controller, Key, Retry, Row};
use crate::object::{Object, Unreadable};
use crate::plan::{Act, Done, Plan, Step};
use crate::rank;
use crate::resource::{PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, Resource};
use crate::template;
use crate::terms::PodTerms;
use crate::view::View;

pub(crate) const REPLICA_SET: Row = Row {
    name: "replicaset-controller",
    aliases: &["replicaset"],
    identity: "replicaset-controller",
    event_source: "replicaset-controller",
    queue: "replicaset",
    workers: |tuning| tuning.syncs("replicaset", 5),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: watches::REPLICA_SET,
    reads: &[],
    is_single: false,
    make: |_| Box::new(Sets { resource: REPLICA_SETS }),
};

pub(crate) const REPLICATION_CONTROLLER: Row = Row {
    name: "replicationcontroller-controller",
    aliases: &["replicationcontroller"],
    identity: "replication-controller",
    event_source: "replication-controller",
    queue: "replicationmanager",
    workers: |tuning| tuning.syncs("rc", 5),
    watches: watches::REPLICATION_CONTROLLER,
    make: |_| Box::new(Sets { resource: REPLICATION_CONTROLLERS }),
    ..REPLICA_SET
};

/// Pods made or deleted at a time.
const BURST: usize = 500;

#[derive(Debug)]
struct Sets {
    resource: Resource,
}

/// A set as both kinds have it.
#[derive(Debug)]
struct Set {
    object: Arc<Object>,
    replicas: i32,
    min_ready_seconds: i32,
    selector: LabelSelector,
    template: Value,
    status: Value,
}

/// The Pods of a set.
#[derive(Debug)]
struct Pods {
    active: Vec<Arc<Object>>,
    terminating: usize,
}

// === impl Sets ===

impl Controller for Sets {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(object) = view.get(self.resource, &key.namespace, &key.name) else { return Plan::nothing() };
        let set = match Set::read(object.clone()) {
            Ok(set) => set,
            Err(error) => return Plan::unreadable(&object, &error),
        };
        let all = view.pods_of(&key.namespace, &object.meta.uid);
        let claimant = Claimant::new(&object, &set.selector);
        let claim = claimant.claim(all.iter().filter(|pod| is(pod, PodTerms::is_active)).cloned());
        if !claim.is_settled() {
            // What is claimed is counted once the cache shows it: the set never counts a Pod that may not be its own.
            return Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() };
        }
        let pods = Pods { terminating: terminating(&set, &all), active: claim.owned };
        let manage =
            if object.is_deleting() { Ok(Step::default()) } else { set.manage(view, &pods.active, now) };
        match manage {
            // The status follows when it is known what became of them.
            Ok(step) if !step.acts.is_empty() => Plan::of(step),
            Ok(_) => set.settled(&pods, None, now),
            Err(error) => Plan::unreadable(&object, &error),
        }
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let is_pods_work = |act: &Act| matches!(act, Act::Create { .. } | Act::Delete { .. });
        if !done.last().iter().any(|(act, _)| is_pods_work(act)) {
            return Plan::nothing();
        }
        let Some(object) = view.get(self.resource, &key.namespace, &key.name) else { return Plan::nothing() };
        let Ok(set) = Set::read(object.clone()) else { return Plan::nothing() };
        let all = view.pods_of(&key.namespace, &object.meta.uid);
        let active = all.iter().filter(|pod| is(pod, PodTerms::is_active)).cloned();
        let active = Claimant::new(&object, &set.selector).claim(active).owned;
        let pods = Pods { terminating: terminating(&set, &all), active };
        let failure = done.failure().map(|refusal| refusal.message.clone());
        let mut plan = set.settled(&pods, failure.as_deref(), now);
        plan.events = template::pod_events(&object, done.last());
        plan
    }
}

// === impl Set ===

impl Set {
    fn read(object: Arc<Object>) -> Result<Set, Unreadable> {
        let mut value = object.value();
        let spec = &mut value["spec"];
        let number = |value: &Value, default: i32| match value {
            Value::Null => Some(default),
            value => value.as_i64().and_then(|n| i32::try_from(n).ok()),
        };
        let (replicas, min_ready) = (number(&spec["replicas"], 1), number(&spec["minReadySeconds"], 0));
        let selector = match object.meta.resource {
            REPLICA_SETS => LabelSelector::from_object(&spec["selector"]),
            _ => LabelSelector::from_object(&serde_json::json!({"matchLabels": spec["selector"]})),
        };
        let template = spec["template"].take();
        // Neither takes every Pod of its namespace: the API server refuses it, a hand-edited store may have it.
        let why = match (replicas, min_ready) {
            (None, _) => Some("spec.replicas is no number"),
            (_, None) => Some("spec.minReadySeconds is no number"),
            _ if selector.is_empty() => Some("spec.selector takes everything"),
            _ if !template.is_object() => Some("spec.template is not there"),
            _ => None,
        };
        if let Some(why) = why {
            return Err(object.unreadable(why));
        }
        let status = value["status"].take();
        let (replicas, min_ready_seconds) = (replicas.unwrap_or(1), min_ready.unwrap_or(0));
        Ok(Set { object, replicas, min_ready_seconds, selector, template, status })
    }

    fn wanted(&self) -> usize {
        usize::try_from(self.replicas).unwrap_or(0)
    }

    /// What makes the number right.
    fn manage(&self, view: &dyn View, active: &[Arc<Object>], now: Now) -> Result<Step, Unreadable> {
        let (have, want) = (active.len(), self.wanted());
        if have < want {
            let unlabelled = || self.object.unreadable("unable to create pods, no labels");
            let pod = template::pod(&self.object, &self.template).ok_or_else(unlabelled)?;
            let create = Act::create(PODS, &self.object.meta.namespace, pod);
            return Ok(Step::slow_start(std::iter::repeat_n(create, (want - have).min(BURST))));
        }
        let surplus = (have - want).min(BURST);
        if surplus == 0 {
            return Ok(Step::default());
        }
        let related = self.related(view);
        let go = rank::first_to_go(active, &related, surplus, now);
        Ok(Step::at_once(go.iter().map(|pod| Act::delete(pod))))
    }

    /// Pods of all sets that have the same owner: those of a Deployment's other ReplicaSets count on a Node too.
    fn related(&self, view: &dyn View) -> Vec<Arc<Object>> {
        let meta = &self.object.meta;
        let sets = match &meta.controller {
            Some(owner) => view.owned_by(meta.resource, &meta.namespace, &owner.uid),
            None => vec![self.object.clone()],
        };
        sets.iter().flat_map(|set| view.owned_by(PODS, &meta.namespace, &set.meta.uid)).collect()
    }
}

fn is(pod: &Object, what: fn(&PodTerms) -> bool) -> bool {
    pod.pod().is_some_and(what)
}

fn terminating(set: &Set, all: &[Arc<Object>]) -> usize {
    let own =
        |pod: &&Arc<Object>| pod.is_controlled_by(&set.object.meta.uid) && pod.is_selected(&set.selector);
    all.iter().filter(|pod| is(pod, PodTerms::is_terminating)).filter(own).count()
}

#[cfg(test)]
mod tests;
