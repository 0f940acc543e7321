//! DaemonSet: one Pod on every Node that fits, and the way from one template to the next.

mod fit;
mod history;
mod manage;
mod rollout;
mod status;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::selector::LabelSelector;
use base::backoff::Backoff;
use base::time::Now;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use self::fit::{Fit, Place};
use crate::claim::Claimant;
use crate::controller::{Controller, Key, Retry, Row};
use crate::object::{Object, Unreadable};
use crate::plan::{Act, Done, Event, Plan, Step};
use crate::resource::{DAEMON_SETS, NODES, PODS};
use crate::revision;
use crate::template;
use crate::view::View;

pub(crate) const DAEMON_SET: Row = Row {
    name: "daemonset-controller",
    aliases: &["daemonset"],
    identity: "daemon-set-controller",
    event_source: "daemonset-controller",
    queue: "daemonset",
    workers: |tuning| tuning.syncs("daemonset", 2),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: watches::WATCHES,
    reads: &[],
    is_single: false,
    make: |_| Box::<DaemonSets>::default(),
};

/// On Pods and revisions: which template they are of.
const HASH: &str = "controller-revision-hash";
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
const POD_TEMPLATE_GENERATION: &str = "pod-template-generation";
/// Pods made or deleted at a time.
const BURST: usize = 250;

#[derive(Debug)]
struct DaemonSets {
    /// Pods that fail again and again: by DaemonSet, the generation it has seen, and Node.
    failed: Backoff<FailedAt>,
}

type FailedAt = (Box<str>, i64, Box<str>);

#[derive(Debug)]
struct DaemonSet {
    object: Arc<Object>,
    selector: LabelSelector,
    takes_everything: bool,
    template: Value,
    fit: Fit,
    min_ready_seconds: i32,
    history_limit: i32,
    /// None: Pods are replaced when somebody deletes them.
    rolling: Option<Rolling>,
    /// `deprecated.daemonset.template.generation`, if it is a number.
    generation: Option<String>,
    status: Value,
}

#[derive(Debug)]
struct Rolling {
    max_surge: IntOrString,
    max_unavailable: IntOrString,
}

/// The Pods of a DaemonSet by Node; those that have ended and are being deleted are nobody's business but the history's.
type ByNode = BTreeMap<String, Vec<Arc<Object>>>;

/// A Node, and whether the DaemonSet belongs there.
#[derive(Debug)]
struct Site {
    name: String,
    place: Place,
}

/// What is to be done about Pods.
#[derive(Debug, Default)]
struct Work {
    delete: Vec<Arc<Object>>,
    /// On these Nodes.
    create: Vec<String>,
    events: Vec<Event>,
    wake: Option<Duration>,
}

// === impl DaemonSets ===

impl Default for DaemonSets {
    fn default() -> Self {
        DaemonSets { failed: Backoff::new(Duration::from_secs(1), Duration::from_secs(15 * 60)) }
    }
}

impl Controller for DaemonSets {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(object) = view.get(DAEMON_SETS, &key.namespace, &key.name) else { return Plan::nothing() };
        let set = match DaemonSet::read(object.clone()) {
            Ok(set) => set,
            Err(error) => return Plan::unreadable(&object, &error),
        };
        if set.takes_everything {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.";
            return Plan::nothing().event(Event::warning(&object, "SelectingAll", message));
        }
        if object.is_deleting() {
            return Plan::nothing();
        }
        self.failed.forget_idle(now.mono);
        self.sync(&set, view, now).unwrap_or_else(|plan| plan)
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let Some(object) = view.get(DAEMON_SETS, &key.namespace, &key.name) else { return Plan::nothing() };
        let Ok(set) = DaemonSet::read(object.clone()) else { return Plan::nothing() };
        let is_pods_work = |act: &Act| {
            matches!(act, Act::Create { resource, .. } if *resource == PODS)
                || matches!(act, Act::Delete { target, .. } if target.resource == PODS)
        };
        if done.last().iter().any(|(act, _)| is_pods_work(act)) {
            let mut plan = set.counted(view, now);
            plan.events = template::pod_events(&object, done.last());
            return plan;
        }
        match revision::refused_name(done.last()) {
            Some(create) => revision::name_taken(&object, &set.status, view, create),
            None => Plan::nothing(),
        }
    }
}

impl DaemonSets {
    /// What is in the way comes as an error: the plan that clears it.
    fn sync(&mut self, set: &DaemonSet, view: &dyn View, now: Now) -> Result<Plan, Plan> {
        let pods = set.claim(view)?;
        let history = set.history(view, &pods)?;
        let (hash, by_node) = (history.hash(), set.by_node(&pods));
        let sites = set.sites(view);
        let mut work = set.manage(&sites, &by_node, &hash, &mut self.failed, now);
        if work.is_empty() {
            let events = std::mem::take(&mut work.events);
            let wake = work.wake;
            work = Work { events, wake, ..set.roll(&sites, &by_node, &hash, now) };
        }
        if !work.is_empty() {
            return Ok(set.carry_out(work, &hash));
        }
        let old = set.clean_up(&history, &pods);
        let counts = set.status_plan(&sites, &by_node, &hash, now);
        let plan = Plan::nothing().then(Step::at_once(old)).wake(work.wake).wake(counts.wake);
        Ok(counts.steps.into_iter().fold(Plan { events: work.events, ..plan }, Plan::then))
    }
}

// === impl DaemonSet ===

impl DaemonSet {
    fn read(object: Arc<Object>) -> Result<DaemonSet, Unreadable> {
        let mut value = object.value();
        let status = value["status"].take();
        let generation = value["metadata"]["annotations"][TEMPLATE_GENERATION].as_str().map(str::to_owned);
        let spec = &mut value["spec"];
        let number = |name: &str, default: i32| match &spec[name] {
            Value::Null => Ok(default),
            value => value
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| object.unreadable(format!("spec.{name} is no number"))),
        };
        let (min_ready_seconds, history_limit) =
            (number("minReadySeconds", 0)?, number("revisionHistoryLimit", 10)?);
        let share = |name: &str, usual: i32| match &spec["updateStrategy"]["rollingUpdate"][name] {
            Value::Null => Ok(IntOrString::Int(usual)),
            said => serde_json::from_value(said.clone())
                .map_err(|_| object.unreadable(format!("spec.updateStrategy.rollingUpdate.{name}"))),
        };
        let rolling = match spec["updateStrategy"]["type"].as_str() {
            None | Some("RollingUpdate") => Some(Rolling {
                max_surge: share("maxSurge", 0)?,
                max_unavailable: share("maxUnavailable", 1)?,
            }),
            Some("OnDelete") => None,
            Some(_) => return Err(object.unreadable("unexpected update strategy type")),
        };
        let (selector, template) = (spec["selector"].take(), spec["template"].take());
        if !selector.is_object() || !template.is_object() {
            return Err(object.unreadable("spec.selector and spec.template must be there"));
        }
        let fit = Fit::read(&object, &template)?;
        Ok(DaemonSet {
            takes_everything: selector == json!({}),
            selector: LabelSelector::from_object(&selector),
            generation: generation.filter(|text| text.parse::<i64>().is_ok()),
            object,
            template,
            fit,
            min_ready_seconds,
            history_limit,
            rolling,
            status,
        })
    }

    /// Its Pods, all of them.
    fn claim(&self, view: &dyn View) -> Result<Vec<Arc<Object>>, Plan> {
        let meta = &self.object.meta;
        let claimant = Claimant::new(&self.object, &self.selector);
        let claim = claimant.claim(view.pods_of(&meta.namespace, &meta.uid));
        match claim.is_settled() {
            true => Ok(claim.owned),
            false => Err(Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() }),
        }
    }

    fn by_node(&self, pods: &[Arc<Object>]) -> ByNode {
        let mut by_node = ByNode::new();
        let is_over = |pod: &Object| pod.is_deleting() && pod.pod().is_some_and(|terms| terms.is_terminal());
        for pod in pods.iter().filter(|pod| !is_over(pod)) {
            if let Some(node) = fit::node_of(pod) {
                by_node.entry(node).or_default().push(pod.clone());
            }
        }
        by_node
    }

    fn sites(&self, view: &dyn View) -> Vec<Site> {
        let nodes = view.list(NODES, "");
        nodes
            .iter()
            .map(|node| Site { name: node.meta.name.to_string(), place: self.fit.place(node) })
            .collect()
    }

    /// Whether a Pod is of the present template.
    fn is_updated(&self, pod: &Object, hash: &str) -> bool {
        let is_generation =
            || self.generation.is_some() && pod.label(POD_TEMPLATE_GENERATION) == self.generation.as_deref();
        (!hash.is_empty() && pod.label(HASH) == Some(hash)) || is_generation()
    }

    fn is_available(&self, pod: &Object, now: Now) -> bool {
        pod.pod().is_some_and(|terms| terms.is_available(self.min_ready_seconds, now))
    }
}

// === impl Work ===

impl Work {
    fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.create.is_empty()
    }
}

#[cfg(test)]
mod tests;
