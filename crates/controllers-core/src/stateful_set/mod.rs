//! StatefulSet: Pods with names and claims of their own, one after the other.

mod claims;
mod history;
mod identity;
mod order;
mod status;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::selector::LabelSelector;
use base::time::Now;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use self::claims::Retention;
use self::history::Revisions;
use crate::claim::Claimant;
use crate::controller::{Controller, Key, Retry, Row};
use crate::object::{Object, Unreadable};
use crate::plan::{Act, Done, Event, Plan, Step};
use crate::resource::{CONTROLLER_REVISIONS, STATEFUL_SETS};
use crate::revision;
use crate::terms::{Round, scaled};
use crate::view::View;

pub(crate) const STATEFUL_SET: Row = Row {
    name: "statefulset-controller",
    aliases: &["statefulset"],
    identity: "statefulset-controller",
    event_source: "statefulset-controller",
    queue: "statefulset",
    workers: |tuning| tuning.syncs("statefulset", 5),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: watches::WATCHES,
    reads: &[CONTROLLER_REVISIONS],
    is_single: false,
    make: |_| Box::new(StatefulSets),
};

/// On Pods: the name of the revision they are of.
const REVISION: &str = "controller-revision-hash";
/// Pods made at a time.
const BURST: usize = 500;

#[derive(Debug)]
struct StatefulSets;

#[derive(Debug)]
struct StatefulSet {
    object: Arc<Object>,
    selector: LabelSelector,
    match_labels: Value,
    template: Value,
    claim_templates: Vec<Value>,
    service_name: String,
    replicas: i32,
    /// The first ordinal.
    start: i32,
    min_ready_seconds: i32,
    history_limit: i32,
    /// One after the other.
    is_ordered: bool,
    update: Update,
    retention: Retention,
    status: Value,
}

/// How Pods come to a new template.
#[derive(Debug)]
enum Update {
    OnDelete,
    Rolling {
        /// Only Pods from here on; None: nobody said anything.
        partition: Option<i32>,
        /// None: one at a time, in order.
        max_unavailable: Option<i32>,
    },
}

/// The Pods of a set.
#[derive(Debug)]
struct Pods {
    all: Vec<Arc<Object>>,
    /// By ordinal, from the first; those that are missing too.
    replicas: Vec<(i32, Option<Arc<Object>>)>,
    /// Outside of the range, highest ordinal first.
    condemned: Vec<Arc<Object>>,
}

/// What is to be done.
#[derive(Debug, Default)]
struct Work {
    claims: Vec<Act>,
    create: Vec<Act>,
    change: Vec<Act>,
    events: Vec<Event>,
    /// Why something has to wait.
    failure: Option<String>,
}

// === impl StatefulSets ===

impl Controller for StatefulSets {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(object) = view.get(STATEFUL_SETS, &key.namespace, &key.name) else { return Plan::nothing() };
        match StatefulSet::read(object.clone()) {
            Ok(set) => set.sync(view, now).unwrap_or_else(|plan| plan),
            Err(error) => Plan::unreadable(&object, &error),
        }
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let Some(object) = view.get(STATEFUL_SETS, &key.namespace, &key.name) else { return Plan::nothing() };
        let Ok(set) = StatefulSet::read(object.clone()) else { return Plan::nothing() };
        if let Some(create) = revision::refused_name(done.last()) {
            return revision::name_taken(&object, &set.status, view, create);
        }
        let events: Vec<Event> =
            done.last().iter().filter_map(|(act, outcome)| set.event(act, outcome)).collect();
        if events.is_empty() {
            return Plan::nothing();
        }
        let status = set.found(view).map(|(pods, revisions)| set.status_plan(&pods, &revisions, now));
        Plan { events, ..status.unwrap_or_default() }
    }
}

// === impl StatefulSet ===

impl StatefulSet {
    fn read(object: Arc<Object>) -> Result<StatefulSet, Unreadable> {
        let mut value = object.value();
        let status = value["status"].take();
        let spec = &mut value["spec"];
        let number = |at: &str, default: i32| match spec.pointer(at) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| object.unreadable(format!("spec{} is no number", at.replace('/', ".")))),
        };
        let replicas = number("/replicas", 1)?;
        let (start, min_ready_seconds) = (number("/ordinals/start", 0)?, number("/minReadySeconds", 0)?);
        let history_limit = number("/revisionHistoryLimit", 10)?;
        let rolling = &spec["updateStrategy"]["rollingUpdate"];
        let update = match spec["updateStrategy"]["type"].as_str() {
            Some("OnDelete") => Update::OnDelete,
            None | Some("RollingUpdate") => {
                let partition = number("/updateStrategy/rollingUpdate/partition", 0)?;
                let partition = rolling.is_object().then_some(partition);
                let share = |said: &Value| {
                    let said: Option<IntOrString> = serde_json::from_value(said.clone()).ok();
                    said.and_then(|said| scaled(&said, replicas, Round::Down)).ok_or_else(|| {
                        object.unreadable("spec.updateStrategy.rollingUpdate.maxUnavailable is no share")
                    })
                };
                let most = &rolling["maxUnavailable"];
                let most = if most.is_null() { None } else { Some(share(most)?.max(1)) };
                Update::Rolling { partition, max_unavailable: most }
            }
            Some(_) => return Err(object.unreadable("unexpected update strategy type")),
        };
        let retention = Retention::read(&spec["persistentVolumeClaimRetentionPolicy"]);
        let is_ordered = spec["podManagementPolicy"] != "Parallel";
        let service_name = spec["serviceName"].as_str().unwrap_or_default().to_owned();
        let claim_templates = spec["volumeClaimTemplates"].as_array().cloned().unwrap_or_default();
        let (selector, template) = (spec["selector"].take(), spec["template"].take());
        let match_labels = selector["matchLabels"].clone();
        let selector = LabelSelector::from_object(&selector);
        if selector.is_empty() || !template.is_object() {
            return Err(object.unreadable("spec.selector and spec.template must be there"));
        }
        Ok(StatefulSet {
            object,
            selector,
            match_labels,
            template,
            claim_templates,
            service_name,
            replicas,
            start,
            min_ready_seconds,
            history_limit,
            is_ordered,
            update,
            retention,
            status,
        })
    }

    /// What is in the way comes as an error: the plan that clears it.
    fn sync(&self, view: &dyn View, now: Now) -> Result<Plan, Plan> {
        let (pods, revisions) = self.found(view)?;
        if self.object.is_deleting() {
            return Ok(self.status_plan(&pods, &revisions, now));
        }
        self.keep_claims(view, &pods)?;
        let work = self.work(view, &pods, &revisions, now)?;
        let Work { claims, create, change, events, failure } = work;
        let mut plan = Plan::nothing().then(Step::at_once(claims)).then(Step::slow_start(create));
        plan = plan.then(Step::at_once(change));
        if !plan.has_acts() {
            plan = self.status_plan(&pods, &revisions, now);
            plan = plan.then(Step::at_once(self.clean_up(&pods, &revisions)));
        }
        Ok(Plan { events, failure, ..plan })
    }

    /// Its Pods and its revisions.
    fn found(&self, view: &dyn View) -> Result<(Pods, Revisions), Plan> {
        let pods = self.pods(view)?;
        let revisions = self.revisions(view)?;
        Ok((pods, revisions))
    }

    fn pods(&self, view: &dyn View) -> Result<Pods, Plan> {
        let meta = &self.object.meta;
        let is_ours = |pod: &Object| self.ordinal(&pod.meta.name).is_some();
        let claimant = Claimant { filter: &is_ours, ..Claimant::new(&self.object, &self.selector) };
        let claim = claimant.claim(view.pods_of(&meta.namespace, &meta.uid));
        if !claim.is_settled() {
            return Err(Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() });
        }
        let by_ordinal: BTreeMap<i32, &Arc<Object>> =
            claim.owned.iter().filter_map(|pod| Some((self.ordinal(&pod.meta.name)?, pod))).collect();
        let slot = |ordinal: i32| (ordinal, by_ordinal.get(&ordinal).map(|pod| (*pod).clone()));
        // Whoever lacks more than that has enough to do.
        let replicas = self.range().take(claim.owned.len() + BURST).map(slot).collect();
        let mut condemned = claim.owned.clone();
        condemned.retain(|pod| self.is_condemned(pod));
        condemned.sort_by_key(|pod| std::cmp::Reverse(self.ordinal(&pod.meta.name)));
        Ok(Pods { all: claim.owned, replicas, condemned })
    }

    fn range(&self) -> std::ops::Range<i32> {
        self.start..self.start.saturating_add(self.replicas)
    }

    fn is_condemned(&self, pod: &Object) -> bool {
        self.ordinal(&pod.meta.name).is_some_and(|ordinal| !self.range().contains(&ordinal))
    }

    /// The number at the end of the name of one of its Pods.
    fn ordinal(&self, pod: &str) -> Option<i32> {
        let (parent, number) = pod.rsplit_once('-')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse().ok().filter(|_| is_number && parent == &*self.object.meta.name)
    }
}

#[cfg(test)]
mod tests;
