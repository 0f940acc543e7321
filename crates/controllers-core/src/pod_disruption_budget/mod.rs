//! PodDisruptionBudget: how many Pods may be taken away at this moment, for the eviction API to ask.

mod scale;
mod stale;

use std::sync::Arc;
use std::time::Duration;

use api::selector::LabelSelector;
use base::time::{Now, Wall};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

pub(crate) use self::stale::STALE_POD_DISRUPTION;
use crate::cache::Change;
use crate::conditions;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::kinds::Missing;
use crate::object::{Object, wall};
use crate::plan::{Act, Done, Event, Plan, Step};
use crate::resource::{
    DEPLOYMENTS, POD_DISRUPTION_BUDGETS, PODS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS,
};
use crate::terms::{PodTerms, Round, scaled, timestamp};
use crate::view::View;

pub(crate) const DISRUPTION: Row = Row {
    name: "disruption-controller",
    aliases: &["disruption"],
    identity: "disruption-controller",
    event_source: "controllermanager",
    queue: "disruption",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: WATCHES,
    reads: &[DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS, STATEFUL_SETS],
    is_single: false,
    make: |_| Box::new(Budgets),
};

const WATCHES: &[Watch] =
    &[Watch::itself(POD_DISRUPTION_BUDGETS), Watch { resource: PODS, keys: budgets_of }];

const ALLOWED: &str = "DisruptionAllowed";
/// How long an eviction may take until its Pod counts again.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Debug)]
struct Budgets;

/// What a budget asks for.
#[derive(Debug, Default)]
struct Count {
    expected: i32,
    desired: i32,
    has_unmanaged: bool,
}

/// Evictions that have been granted and whose Pods are not going yet.
#[derive(Debug, Default)]
struct Disrupted {
    pods: Map<String, Value>,
    recheck: Option<Duration>,
    events: Vec<Event>,
}

// === impl Budgets ===

impl Controller for Budgets {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        sync(view, key, now, &Done::default())
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let is_answer = |(act, _): &(Act, _)| matches!(act, Act::Get { .. });
        if done.last().iter().any(is_answer) { sync(view, key, now, done) } else { Plan::nothing() }
    }
}

/// A Pod wakes the budgets that take it, and those that did.
fn budgets_of(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(object) = change.object() else { return };
    let takes = |budget: &Object| {
        let selector = selector(&budget.value());
        let pods = [&change.old, &change.new].into_iter().flatten();
        selector.is_some_and(|selector| pods.into_iter().any(|pod| pod.is_selected(&selector)))
    };
    let budgets = view.list(POD_DISRUPTION_BUDGETS, &object.meta.namespace);
    wakes.extend(budgets.iter().filter(|budget| takes(budget)).map(|budget| Key::of(budget)));
}

/// An empty selector takes every Pod, none takes no Pod.
fn selector(budget: &Value) -> Option<LabelSelector> {
    let selector = &budget["spec"]["selector"];
    selector.is_object().then(|| LabelSelector::from_object(selector))
}

fn sync(view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
    let Some(object) = view.get(POD_DISRUPTION_BUDGETS, &key.namespace, &key.name) else {
        return Plan::nothing();
    };
    let budget = object.value();
    let pods = selector(&budget).map(|selector| view.selected(PODS, &key.namespace, &selector));
    let pods = pods.unwrap_or_default();
    let count = match count(view, &budget["spec"], &pods, done) {
        Ok(count) => count,
        Err(Missing::Answers(acts)) => return Plan::of(Step::at_once(acts)),
        Err(Missing::Nothing(why)) => return fail_safe(&object, &budget["status"], &why, now),
    };
    let disrupted = disrupted(&object, &budget["status"], &pods, now);
    let status = status(&object, &budget["status"], &count, &disrupted, &pods, now);
    let mut plan = Plan { events: disrupted.events, ..Plan::nothing() }.wake(disrupted.recheck);
    if status != budget["status"] {
        plan.events.extend(told(view, &object, &budget, &pods, &count));
        plan = plan.then(Step::in_turn([Act::update_status(&object, status)]));
    }
    plan
}

/// How many Pods there should be, and how many of them healthy.
fn count(view: &dyn View, spec: &Value, pods: &[Arc<Object>], done: &Done) -> Result<Count, Missing> {
    let (least, most) = (&spec["minAvailable"], &spec["maxUnavailable"]);
    if most.is_null() && least.is_null() {
        return Ok(Count::default());
    }
    let said = if most.is_null() { least } else { most };
    let nonsense = || Missing::Nothing(format!("invalid value for IntOrString: {said}"));
    let share: IntOrString = serde_json::from_value(said.clone()).map_err(|_| nonsense())?;
    if let (true, IntOrString::Int(desired)) = (most.is_null(), &share) {
        let expected = i32::try_from(pods.len()).unwrap_or(i32::MAX);
        return Ok(Count { expected, desired: *desired, has_unmanaged: false });
    }
    let (expected, has_unmanaged) = scale::expected(view, pods, done)?;
    let share = scaled(&share, expected, Round::Up).ok_or_else(nonsense)?;
    let desired = if most.is_null() { share } else { expected.saturating_sub(share).max(0) };
    Ok(Count { expected, desired, has_unmanaged })
}

/// Those whose Pods are still there; the others are over, or came to nothing.
fn disrupted(budget: &Object, status: &Value, pods: &[Arc<Object>], now: Now) -> Disrupted {
    let mut disrupted = Disrupted::default();
    for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
        let Some(since) = status["disruptedPods"].get(&*pod.meta.name) else { continue };
        let left = since.as_str().and_then(wall).map(|since| until_end(since, now)).unwrap_or_default();
        if left.is_zero() {
            let told = format!(
                "Pod was expected by PDB {}/{} to be deleted but it wasn't",
                budget.meta.namespace, budget.meta.name
            );
            disrupted.events.push(Event::warning(pod, "NotDeleted", told));
            continue;
        }
        disrupted.recheck = Some(disrupted.recheck.map_or(left, |known| known.min(left)));
        disrupted.pods.insert(pod.meta.name.to_string(), since.clone());
    }
    disrupted
}

fn until_end(since: Wall, now: Now) -> Duration {
    let timeout = i64::try_from(DELETION_TIMEOUT.as_nanos()).unwrap_or(i64::MAX);
    Wall(since.0.saturating_add(timeout)).since(now.wall)
}

fn status(
    budget: &Object,
    known: &Value,
    count: &Count,
    disrupted: &Disrupted,
    pods: &[Arc<Object>],
    now: Now,
) -> Value {
    let is_healthy = |pod: &&Arc<Object>| {
        let stays = !pod.is_deleting() && !disrupted.pods.contains_key(&*pod.meta.name);
        stays && pod.pod().is_some_and(PodTerms::is_ready)
    };
    let healthy = i32::try_from(pods.iter().filter(is_healthy).count()).unwrap_or(i32::MAX);
    // A budget that has met no Pod yet allows nothing, so that its first Pods are safe.
    let allowed = if count.expected <= 0 { 0 } else { healthy.saturating_sub(count.desired).max(0) };
    let mut status = json!({"observedGeneration": budget.meta.generation, "disruptionsAllowed": allowed,
        "currentHealthy": healthy, "desiredHealthy": count.desired, "expectedPods": count.expected});
    if !disrupted.pods.is_empty() {
        status["disruptedPods"] = Value::Object(disrupted.pods.clone());
    }
    if !known["conditions"].is_null() {
        status["conditions"] = known["conditions"].clone();
    }
    let (word, reason) = if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    set_condition(&mut status, word, reason, "", now);
    status
}

/// Nobody knows how many there should be: nothing may go.
fn fail_safe(budget: &Object, known: &Value, why: &str, now: Now) -> Plan {
    let mut status = known.clone();
    if !status.is_object() {
        status = json!({"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0});
    }
    status["disruptionsAllowed"] = json!(0);
    set_condition(&mut status, "False", "SyncFailed", why, now);
    if status == *known {
        return Plan::nothing();
    }
    let told = format!("Failed to calculate the number of expected pods: {why}");
    Plan::of(Step::in_turn([Act::update_status(budget, status)])).event(Event::warning(
        budget,
        "CalculateExpectedPodCountFailed",
        told,
    ))
}

/// In its place in the list; the last transition stays while the status stays.
fn set_condition(status: &mut Value, word: &str, reason: &str, message: &str, now: Now) {
    let known = conditions::find(status, ALLOWED);
    let kept = known.filter(|known| known["status"] == word).map(|known| known["lastTransitionTime"].clone());
    let mut condition = json!({"type": ALLOWED, "status": word, "reason": reason, "message": message,
        "lastTransitionTime": kept.filter(Value::is_string).unwrap_or_else(|| timestamp(now.wall).into())});
    if let Some(generation) = status["observedGeneration"].as_i64() {
        condition["observedGeneration"] = json!(generation);
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(list) = status["conditions"].as_array_mut() else { return };
    match list.iter_mut().find(|known| known["type"] == ALLOWED) {
        Some(known) => *known = condition,
        None => list.push(condition),
    }
}

/// What users should know of a budget whose status changes.
fn told(view: &dyn View, object: &Object, budget: &Value, pods: &[Arc<Object>], count: &Count) -> Vec<Event> {
    let mut events = Vec::new();
    if pods.is_empty() {
        events.push(Event::normal(object, "NoPods", "No matching pods found"));
    }
    if count.has_unmanaged {
        let told = format!(
            "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status of \
             the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please \
             set \".spec.minAvailable\" field of the PDB to an integer value.",
            budget["spec"]["selector"]
        );
        events.push(Event::warning(object, "UnmanagedPods", told));
    }
    let budgets = view.list(POD_DISRUPTION_BUDGETS, &object.meta.namespace);
    if budgets.len() < 2 {
        return events;
    }
    let selectors: Vec<_> =
        budgets.iter().filter_map(|one| Some((&*one.meta.name, selector(&one.value())?))).collect();
    for pod in pods {
        let mut takers = selectors.iter().filter(|(_, selector)| pod.is_selected(selector));
        // The first by name tells it.
        if takers.next().is_some_and(|(name, _)| *name == &*object.meta.name) && takers.next().is_some() {
            let told = format!(
                "Pod {:?}/{:?} matches multiple PodDisruptionBudgets.  Chose {:?} arbitrarily.",
                pod.meta.namespace, pod.meta.name, object.meta.name
            );
            events.push(Event::warning(pod, "MultiplePodDisruptionBudgets", told));
        }
    }
    events
}

#[cfg(test)]
mod tests;
