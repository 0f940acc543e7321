//! Deployment: ReplicaSets for templates, and the way from one to the next.

mod rollout;
mod sets;
mod status;
mod watches;

use std::collections::HashMap;
use std::sync::Arc;

use api::selector::LabelSelector;
use base::time::Now;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use self::sets::{REVISION, Set};
use crate::claim::Claimant;
use crate::conditions::{self, Condition};
use crate::controller::{Controller, Key, Retry, Row};
use crate::object::{Object, Unreadable};
use crate::plan::{Act, Done, Event, Outcome, Plan, Step, Why};
use crate::resource::{DEPLOYMENTS, PODS, REPLICA_SETS};
use crate::template;
use crate::terms::{Round, scaled};
use crate::view::View;

pub(crate) const DEPLOYMENT: Row = Row {
    name: "deployment-controller",
    aliases: &["deployment"],
    identity: "deployment-controller",
    event_source: "deployment-controller",
    queue: "deployment",
    workers: |tuning| tuning.syncs("deployment", 5),
    retry: Retry::DEFAULT.gives_up_after(15),
    is_on_by_default: true,
    watches: watches::WATCHES,
    reads: &[PODS],
    is_single: false,
    make: |_| Box::<Deployments>::default(),
};

const PROGRESSING: &str = "Progressing";
/// A limit that is none.
const UNLIMITED: i32 = i32::MAX;

#[derive(Debug, Default)]
struct Deployments {
    /// What is told of each act of the plan under way, if it succeeds. Taken when it is settled.
    told: HashMap<Key, Vec<Option<Event>>>,
}

#[derive(Debug)]
struct Deployment {
    object: Arc<Object>,
    annotations: Value,
    replicas: i32,
    min_ready_seconds: i32,
    selector: Value,
    template: Value,
    is_paused: bool,
    is_rolling: bool,
    max_surge: i32,
    max_unavailable: i32,
    history_limit: i32,
    /// None: progress is nobody's business.
    deadline: Option<i32>,
    status: Value,
}

/// The ReplicaSets of a Deployment.
#[derive(Debug)]
struct Sets {
    /// That of the present template.
    new: Option<Set>,
    /// The others, oldest first.
    old: Vec<Set>,
}

/// What is to be done, as it comes together: ReplicaSets first, the status last.
#[derive(Debug)]
struct Work {
    acts: Vec<(Act, Option<Event>)>,
    status: Value,
    /// The revision that the Deployment is to carry.
    revision: Option<String>,
}

// === impl Deployments ===

impl Controller for Deployments {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        self.told.remove(key);
        let Some(object) = view.get(DEPLOYMENTS, &key.namespace, &key.name) else { return Plan::nothing() };
        let deployment = match Deployment::read(object.clone()) {
            Ok(deployment) => deployment,
            Err(error) => return Plan::unreadable(&object, &error),
        };
        if deployment.selector == json!({}) {
            return deployment.selects_all();
        }
        let (sets, first) = match deployment.sets(view) {
            Ok(found) => found,
            Err(plan) => return plan,
        };
        if let Some(plan) = first {
            return plan;
        }
        let mut work = Work { acts: Vec::new(), status: deployment.status.clone(), revision: None };
        let wake = deployment.decide(&sets, view, &mut work, now);
        let (plan, told) = work.plan(&deployment);
        self.told.insert(key.clone(), told);
        plan.wake(wake)
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let told = self.told.remove(key).unwrap_or_default();
        let Some(object) = view.get(DEPLOYMENTS, &key.namespace, &key.name) else { return Plan::nothing() };
        let Ok(deployment) = Deployment::read(object) else { return Plan::nothing() };
        let mut plan = Plan::nothing();
        for ((act, outcome), told) in done.last().iter().zip(told.into_iter().chain(std::iter::repeat(None)))
        {
            if outcome.is_done() {
                plan.events.extend(told);
            }
            if matches!(act, Act::Create { resource, .. } if *resource == REPLICA_SETS) {
                plan = deployment.created(view, act, outcome, plan, now);
            }
        }
        plan
    }
}

// === impl Deployment ===

impl Deployment {
    fn read(object: Arc<Object>) -> Result<Deployment, Unreadable> {
        let mut value = object.value();
        let status = value["status"].take();
        let annotations = value["metadata"]["annotations"].take();
        let spec = &mut value["spec"];
        let number = |name: &str, default: i32| match &spec[name] {
            Value::Null => Ok(default),
            value => value
                .as_i64()
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| object.unreadable(format!("spec.{name} is no number"))),
        };
        let replicas = number("replicas", 1)?;
        let (min_ready_seconds, history_limit) =
            (number("minReadySeconds", 0)?, number("revisionHistoryLimit", 10)?);
        let deadline = Some(number("progressDeadlineSeconds", 600)?).filter(|seconds| *seconds != UNLIMITED);
        let is_rolling = match spec["strategy"]["type"].as_str() {
            None | Some("RollingUpdate") => true,
            Some("Recreate") => false,
            Some(_) => return Err(object.unreadable("unexpected deployment strategy type")),
        };
        let share = |name: &str, round| {
            let usual = IntOrString::String("25%".into());
            let said = match &spec["strategy"]["rollingUpdate"][name] {
                Value::Null => Some(usual),
                said => serde_json::from_value(said.clone()).ok(),
            };
            said.and_then(|said| scaled(&said, replicas, round))
                .ok_or_else(|| object.unreadable(format!("spec.strategy.rollingUpdate.{name}")))
        };
        let (mut max_surge, mut max_unavailable) = (0, 0);
        if is_rolling {
            (max_surge, max_unavailable) =
                (share("maxSurge", Round::Up)?, share("maxUnavailable", Round::Down)?);
            if max_surge == 0 && max_unavailable == 0 {
                max_unavailable = 1;
            }
            max_unavailable = max_unavailable.min(replicas);
        }
        let (selector, template) = (spec["selector"].take(), spec["template"].take());
        if !selector.is_object() || !template.is_object() {
            return Err(object.unreadable("spec.selector and spec.template must be there"));
        }
        let is_paused = spec["paused"] == true;
        Ok(Deployment {
            object,
            annotations,
            replicas,
            min_ready_seconds,
            selector,
            template,
            is_paused,
            is_rolling,
            max_surge,
            max_unavailable,
            history_limit,
            deadline,
            status,
        })
    }

    fn selects_all(&self) -> Plan {
        let message = "This deployment is selecting all pods. A non-empty selector is required.";
        let plan = Plan::nothing().event(Event::warning(&self.object, "SelectingAll", message));
        if self.status["observedGeneration"].as_i64().unwrap_or(0) >= self.object.meta.generation {
            return plan;
        }
        let mut status = self.status.clone();
        status["observedGeneration"] = json!(self.object.meta.generation);
        plan.then(Step::in_turn([Act::update_status(&self.object, status)]))
    }

    /// Its ReplicaSets, and what has to be done before they can be counted: adopting, and keeping the new one's annotations.
    fn sets(&self, view: &dyn View) -> Result<(Sets, Option<Plan>), Plan> {
        let meta = &self.object.meta;
        let selector = LabelSelector::from_object(&self.selector);
        let mut all = view.owned_by(REPLICA_SETS, &meta.namespace, &meta.uid);
        all.extend(view.owned_by(REPLICA_SETS, &meta.namespace, ""));
        let claimant = Claimant::new(&self.object, &selector);
        let claim = claimant.claim(all);
        if !claim.is_settled() {
            return Err(Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() });
        }
        let mut sets = Vec::with_capacity(claim.owned.len());
        for object in claim.owned {
            sets.push(Set::read(object.clone()).map_err(|error| Plan::unreadable(&object, &error))?);
        }
        sets.sort_by(|a, b| a.age().cmp(&b.age()));
        let at = sets.iter().position(|set| template::is_same(&set.template, &self.template));
        let new = at.map(|at| sets.remove(at));
        let sets = Sets { new, old: sets };
        let is_deleting = self.object.is_deleting();
        let first =
            sets.new.as_ref().filter(|_| !is_deleting).and_then(|new| self.keep_annotations(new, &sets.old));
        Ok((sets, first.map(|act| Plan::of(Step::in_turn([act])).again())))
    }

    /// What became of the new ReplicaSet.
    fn created(&self, view: &dyn View, act: &Act, outcome: &Outcome, plan: Plan, now: Now) -> Plan {
        let made = act.body();
        let name = made["metadata"]["name"].as_str().unwrap_or_default();
        let mut work = Work { acts: Vec::new(), status: self.status.clone(), revision: None };
        match outcome {
            Outcome::Done(_) => {
                work.revision = made["metadata"]["annotations"][REVISION].as_str().map(str::to_owned);
                let message = format!("Created new replica set \"{name}\"");
                self.progress(&mut work.status, "True", "NewReplicaSetCreated", &message, now);
            }
            Outcome::Failed(refusal) if refusal.why == Why::AlreadyExists => {
                // Ours, and only the cache does not know: then it is found as soon as it does.
                let Some(known) = view.get(REPLICA_SETS, &self.object.meta.namespace, name) else {
                    return plan;
                };
                let template = &known.value()["spec"]["template"];
                if known.is_controlled_by(&self.object.meta.uid)
                    && template::is_same(template, &self.template)
                {
                    return plan;
                }
                let count = work.status["collisionCount"].as_i64().unwrap_or(0);
                put(&mut work.status, "collisionCount", json!(count + 1));
            }
            Outcome::Failed(refusal) if refusal.why != Why::NamespaceTerminating => {
                let message = format!("Failed to create new replica set \"{name}\": {refusal}");
                self.progress(&mut work.status, "False", "ReplicaSetCreateError", &message, now);
                let event = Event::warning(&self.object, "ReplicaSetCreateError", message);
                return with(plan.event(event), work.plan(self).0);
            }
            _ => return plan,
        }
        with(plan, work.plan(self).0)
    }

    /// Sets the condition Progressing, if somebody cares.
    fn progress(&self, status: &mut Value, value: &str, reason: &str, message: &str, now: Now) {
        if self.deadline.is_some() {
            let condition = Condition { kind: PROGRESSING, status: value, reason, message };
            conditions::set_updated(status, &condition, now.wall);
        }
    }
}

// === impl Work ===

impl Work {
    /// The plan, and what is told of each act that succeeds.
    fn plan(self, deployment: &Deployment) -> (Plan, Vec<Option<Event>>) {
        let (acts, mut told): (Vec<Act>, Vec<Option<Event>>) = self.acts.into_iter().unzip();
        let revision = self.revision.filter(|revision| deployment.annotations[REVISION] != revision.as_str());
        let mut plan = Plan::nothing().then(Step::in_turn(acts));
        if revision.is_some() || self.status != deployment.status {
            let mut value = deployment.object.value();
            value["status"] = self.status;
            if let Some(revision) = revision {
                value["metadata"]["annotations"][REVISION] = json!(revision);
            }
            // Through /status annotations may change, and the generation does not.
            plan = plan.then(Step::in_turn([Act::replace_status(&deployment.object, &value)]));
            told.push(None);
        }
        (plan, told)
    }
}

fn with(mut plan: Plan, other: Plan) -> Plan {
    plan.steps.extend(other.steps);
    plan
}

fn put(status: &mut Value, key: &str, to: Value) {
    if !status.is_object() {
        *status = json!({});
    }
    status[key] = to;
}

#[cfg(test)]
mod tests;
