//! Horizontal Pod autoscaler: as many replicas as the metrics ask for.
//!
//! A look is one run of [`Autoscalers::look`], again and again until everything that it asks the API server for is answered: the
//! scale, and the metrics. Only the last of these runs writes and remembers.

mod history;
mod metrics;
mod replicas;
mod spec;

use std::collections::BTreeMap;
use std::time::Duration;

use api::config::controllers::Tuning;
use api::selector::LabelSelector;
use base::time::{Mono, Now, Wall};
use serde_json::{Value, json};

use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::kinds::{self, Kind, Missing};
use crate::plan::{Act, Done, Event, Outcome, Plan, Step, Why};
use crate::resource::{HORIZONTAL_POD_AUTOSCALERS, PODS};
use crate::terms::timestamp;
use crate::view::View;
use history::{History, Wanted};
use metrics::{Asker, Bad, Not};
use replicas::{Asked, Pods};
use spec::Hpa;

pub(crate) const HORIZONTAL_POD_AUTOSCALER: Row = Row {
    name: "horizontal-pod-autoscaler-controller",
    aliases: &["horizontalpodautoscaling"],
    identity: "horizontal-pod-autoscaler",
    event_source: "horizontal-pod-autoscaler",
    queue: "horizontalpodautoscaler",
    workers: |tuning| tuning.syncs("horizontal-pod-autoscaler", 5),
    retry: Retry { first: PERIOD, last: PERIOD, gives_up_after: None },
    is_on_by_default: true,
    watches: &[Watch::itself(HORIZONTAL_POD_AUTOSCALERS)],
    reads: &[PODS],
    is_single: false,
    make: |tuning| Box::new(Autoscalers { tuning: tuning.clone(), known: BTreeMap::new() }),
};

const PERIOD: Duration = Duration::from_secs(15);

/// How often a scale that somebody else changed meanwhile is read again.
const CONFLICTS: usize = 5;

#[derive(Debug)]
struct Autoscalers {
    tuning: Tuning,
    known: BTreeMap<Key, Known>,
}

/// What is remembered of one autoscaler.
#[derive(Debug, Default)]
struct Known {
    history: History,
    /// Its Pods: two autoscalers must not have the same.
    selector: Option<LabelSelector>,
    /// Not looked at before.
    next: Option<Mono>,
    /// Waits for the scale to be written.
    pending: Option<Pending>,
}

/// A decision of which the scale is still to be written.
#[derive(Clone, Debug)]
struct Pending {
    path: String,
    current: i32,
    desired: i32,
    reason: String,
    status: Value,
    failure: Option<String>,
}

/// `/scale` of the target.
#[derive(Debug)]
struct Scale {
    value: Value,
    wanted: i32,
    running: i32,
    selector: String,
}

/// What the metrics together come to.
#[derive(Debug)]
struct Sum {
    replicas: i32,
    metric: String,
    /// Of each, in their order.
    statuses: Vec<Value>,
    /// Some said nothing, and the others are enough.
    failure: Option<String>,
}

// === impl Autoscalers ===

impl Controller for Autoscalers {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        if view.get(HORIZONTAL_POD_AUTOSCALERS, &key.namespace, &key.name).is_none() {
            self.known.remove(key);
            return Plan::nothing();
        }
        let known = self.known.entry(key.clone()).or_default();
        if let Some(next) = known.next.filter(|next| now.mono < *next) {
            return Plan::nothing().wake(Some(next.since(now.mono)));
        }
        known.next = Some(now.mono + self.tuning.hpa_sync_period);
        known.pending = None;
        self.look(view, key, now, &Done::default()).wake(Some(self.tuning.hpa_sync_period))
    }

    fn settle(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let Some((act, outcome)) = done.last().last() else { return Plan::nothing() };
        let pending = self.known.get(key).and_then(|known| known.pending.clone());
        match (act, pending) {
            (Act::Update { .. }, _) => self.wrote(view, key, outcome),
            (Act::Put { .. }, Some(pending)) => self.scaled(view, key, now, done, outcome, pending),
            (Act::Get { .. }, Some(pending)) => pending.put_again(outcome),
            _ => self.look(view, key, now, done),
        }
    }
}

impl Autoscalers {
    fn look(&mut self, view: &dyn View, key: &Key, now: Now, done: &Done) -> Plan {
        let Some(object) = view.get(HORIZONTAL_POD_AUTOSCALERS, &key.namespace, &key.name) else {
            return Plan::nothing();
        };
        let hpa = match Hpa::read(object.clone(), &self.tuning) {
            Ok(hpa) => hpa,
            Err(error) => return Plan::unreadable(&object, &error),
        };
        let (path, scale) = match scale_of(&hpa, done) {
            Ok(found) => found,
            Err(Missing::Answers(acts)) => return Plan::of(Step::at_once(acts)),
            Err(Missing::Nothing(why)) => return no_scale(&hpa, &why, now.wall),
        };
        let mut status = hpa.status.clone();
        let message = "the HPA controller was able to get the target's current scale";
        set(&mut status, now.wall, ("AbleToScale", "True", "SucceededGetScale"), message);
        let current = scale.wanted;
        let selector = LabelSelector::parse(&scale.selector);
        let by_metrics = (hpa.min..=hpa.max).contains(&current) && current != 0;
        let mut pending =
            Pending { path, current, desired: current, reason: String::new(), status, failure: None };
        if !by_metrics {
            self.remember(key, current, now);
            let bound = match () {
                () if current == 0 => {
                    let message = "scaling is disabled since the replica count of the target is zero";
                    set(
                        &mut pending.status,
                        now.wall,
                        ("ScalingActive", "False", "ScalingDisabled"),
                        message,
                    );
                    return hpa.write(finished(pending.status, current, current, Vec::new(), None));
                }
                () if current > hpa.max => (hpa.max, "Current number of replicas above Spec.MaxReplicas"),
                () => (hpa.min, "Current number of replicas below Spec.MinReplicas"),
            };
            (pending.desired, pending.reason) = (bound.0, bound.1.to_owned());
            return self.rescale(key, pending, &scale, Vec::new());
        }
        let selector =
            match self.checked(view, key, &scale.selector, selector.as_ref().map_err(ToString::to_string)) {
                Ok(selector) => selector,
                Err((event, reason, message, why)) => {
                    self.remember(key, current, now);
                    set(&mut pending.status, now.wall, ("ScalingActive", "False", reason), &message);
                    let events = vec![Event::warning(&object, event, &*why)];
                    return self.failed(&hpa, pending.status, current, Vec::new(), &why, events);
                }
            };
        let pods = Pods::of(&view.selected(PODS, &key.namespace, &selector));
        let asked = Asked { current, tolerances: hpa.tolerances, tuning: &self.tuning, now: now.wall };
        let asker =
            Asker { hpa: &hpa, done, pods: &pods, selector: &scale.selector, asked, running: scale.running };
        let mut events = Vec::new();
        let sum = match judged(&asker, &mut pending.status, &mut events, now.wall) {
            Ok(sum) => sum,
            Err(Ok(questions)) => return Plan::of(Step::at_once(questions)),
            Err(Err((why, statuses))) => {
                self.remember(key, current, now);
                return self.failed(&hpa, pending.status, current, statuses, &why, events);
            }
        };
        self.remember(key, current, now);
        pending.failure = sum.failure;
        self.bounded(key, &hpa, sum.replicas, &sum.metric, &mut pending, now);
        if pending.desired != current {
            return Plan { events, ..self.rescale(key, pending, &scale, sum.statuses) };
        }
        let failure = pending.failure.take();
        let status = finished(pending.status, current, current, sum.statuses, None);
        Plan { events, failure, ..hpa.write(status) }
    }

    /// Within bounds, windows and rates.
    fn bounded(&mut self, key: &Key, hpa: &Hpa, advised: i32, metric: &str, pending: &mut Pending, now: Now) {
        let current = pending.current;
        match () {
            () if advised > current => pending.reason = format!("{metric} above target"),
            () if advised < current => pending.reason = "All metrics below target".to_owned(),
            () => {}
        }
        let history = &mut self.known.entry(key.clone()).or_default().history;
        let wanted = Wanted { current, desired: advised, min: hpa.min, max: hpa.max };
        let (stable, able, (desired, limited)) = match &hpa.behavior {
            None => {
                let (stable, able) =
                    history.stabilize(advised, self.tuning.hpa_downscale_stabilization, now.mono);
                (stable, able, history::limit(Wanted { desired: stable, ..wanted }))
            }
            Some(behavior) => {
                let (stable, able) = history.stabilize_with(wanted, behavior, now.mono);
                (stable, able, history.limit(Wanted { desired: stable, ..wanted }, behavior, now.mono))
            }
        };
        let status = &mut pending.status;
        set(status, now.wall, ("AbleToScale", "True", able.0), able.1);
        let is_limited = if desired == stable { "False" } else { "True" };
        set(status, now.wall, ("ScalingLimited", is_limited, limited.0), limited.1);
        pending.desired = desired;
    }

    fn remember(&mut self, key: &Key, current: i32, now: Now) {
        self.known.entry(key.clone()).or_default().history.begin(current, now.mono);
    }

    /// The selector of the scale, if it is good and nobody else has its Pods. Else the reasons of event and condition, the
    /// condition's message, and why.
    fn checked(
        &mut self,
        view: &dyn View,
        key: &Key,
        text: &str,
        parsed: Result<&LabelSelector, String>,
    ) -> Result<LabelSelector, (&'static str, &'static str, String, String)> {
        if text.is_empty() {
            let message = "the HPA target's scale is missing a selector".to_owned();
            return Err(("SelectorRequired", "InvalidSelector", message, "selector is required".into()));
        }
        let selector = parsed.cloned().map_err(|why| {
            let why =
                format!("couldn't convert selector into a corresponding internal selector object: {why}");
            ("InvalidSelector", "InvalidSelector", why.clone(), why)
        })?;
        self.known.entry(key.clone()).or_default().selector = Some(selector.clone());
        let pods = view.selected(PODS, &key.namespace, &selector);
        let has = |known: &Known| {
            known.selector.as_ref().is_some_and(|selector| pods.iter().any(|pod| pod.is_selected(selector)))
        };
        let same = self.known.iter().filter(|(other, _)| other.namespace == key.namespace);
        let who: Vec<String> = same
            .filter(|(_, known)| has(known))
            .map(|(other, _)| format!("{{{} {}}}", other.name, other.namespace))
            .collect();
        if who.len() > 1 {
            let why = format!("pods by selector {text} are controlled by multiple HPAs: [{}]", who.join(" "));
            return Err(("AmbiguousSelector", "AmbiguousSelector", why.clone(), why));
        }
        Ok(selector)
    }

    fn failed(
        &self,
        hpa: &Hpa,
        status: Value,
        current: i32,
        statuses: Vec<Value>,
        why: &str,
        mut events: Vec<Event>,
    ) -> Plan {
        let desired = hpa.status["desiredReplicas"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
        events.push(Event::warning(&hpa.object, "FailedComputeMetricsReplicas", why));
        let reference = hpa.reference();
        let failure = format!(
            "failed to compute desired number of replicas based on listed metrics for {reference}: {why}"
        );
        let plan = hpa.write(finished(status, current, desired, statuses, None));
        Plan { events, failure: Some(failure), ..plan }
    }

    /// Writes the scale. What follows is kept until the answer is there.
    fn rescale(&mut self, key: &Key, mut pending: Pending, scale: &Scale, statuses: Vec<Value>) -> Plan {
        pending.status["currentMetrics"] = json!(statuses);
        let act = pending.put(scale.value.clone());
        self.known.entry(key.clone()).or_default().pending = Some(pending);
        Plan::of(Step::in_turn([act]))
    }

    fn scaled(
        &mut self,
        view: &dyn View,
        key: &Key,
        now: Now,
        done: &Done,
        outcome: &Outcome,
        pending: Pending,
    ) -> Plan {
        let Some(object) = view.get(HORIZONTAL_POD_AUTOSCALERS, &key.namespace, &key.name) else {
            return Plan::nothing();
        };
        let Ok(hpa) = Hpa::read(object, &self.tuning) else { return Plan::nothing() };
        let tries = done.acts.iter().filter(|(act, _)| matches!(act, Act::Put { .. })).count();
        if tries < CONFLICTS && outcome.error().is_some_and(|refusal| refusal.why == Why::Conflict) {
            return Plan::of(Step::in_turn([Act::Get { path: pending.path }]));
        }
        let known = self.known.entry(key.clone()).or_default();
        known.pending = None;
        let Pending { current, desired, reason, mut status, failure, .. } = pending;
        let statuses = status["currentMetrics"].as_array().cloned().unwrap_or_default();
        if let Some(refusal) = outcome.error() {
            let message = format!("New size: {desired}; reason: {reason}; error: {refusal}");
            let event = Event::warning(&hpa.object, "FailedRescale", message);
            let message = format!("the HPA controller was unable to update the target scale: {refusal}");
            set(&mut status, now.wall, ("AbleToScale", "False", "FailedUpdateScale"), &message);
            let before =
                hpa.status["desiredReplicas"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
            return hpa.write(finished(status, current, before, statuses, None)).event(event);
        }
        let message = format!("the HPA controller was able to update the target scale to {desired}");
        set(&mut status, now.wall, ("AbleToScale", "True", "SucceededRescale"), &message);
        known.history.changed(current, desired, hpa.behavior.as_ref(), now.mono);
        let message = format!("New size: {desired}; reason: {reason}");
        let event = Event::normal(&hpa.object, "SuccessfulRescale", message);
        let status = finished(status, current, desired, statuses, Some(now.wall));
        Plan { failure, ..hpa.write(status).event(event) }
    }

    fn wrote(&self, view: &dyn View, key: &Key, outcome: &Outcome) -> Plan {
        match (view.get(HORIZONTAL_POD_AUTOSCALERS, &key.namespace, &key.name), outcome.error()) {
            (Some(object), Some(refusal)) if refusal.why != Why::Conflict => {
                Plan::nothing().event(Event::warning(&object, "FailedUpdateStatus", refusal.message.clone()))
            }
            _ => Plan::nothing(),
        }
    }
}

// === impl Pending ===

impl Pending {
    fn put(&self, mut scale: Value) -> Act {
        if !scale["spec"].is_object() {
            scale = json!({"metadata": scale["metadata"], "spec": {}});
        }
        scale["spec"]["replicas"] = json!(self.desired);
        Act::Put { path: self.path.clone(), body: scale.to_string().into() }
    }

    /// Somebody changed the object meanwhile: the same number, on what it is now.
    fn put_again(&self, live: &Outcome) -> Plan {
        match live {
            Outcome::Done(answer) => {
                let scale = serde_json::from_slice(answer).unwrap_or_default();
                Plan::of(Step::in_turn([self.put(scale)]))
            }
            _ => Plan::failed("the scale could not be read again after a conflict"),
        }
    }
}

// === impl Hpa ===

impl Hpa {
    fn write(&self, status: Value) -> Plan {
        if status == self.status {
            return Plan::nothing();
        }
        Plan::of(Step::in_turn([Act::update_status(&self.object, status)]))
    }
}

/// The scale of the target, and where it is.
fn scale_of(hpa: &Hpa, done: &Done) -> Result<(String, Scale), Missing> {
    let api_version = if hpa.api_version.is_empty() { "v1" } else { &hpa.api_version };
    if api_version.matches('/').count() > 1 {
        return Err(Missing::Nothing(format!("unexpected GroupVersion string: {api_version}")));
    }
    let at = Kind { api_version, kind: &hpa.kind };
    let path = kinds::scale_path(at, &hpa.object.meta.namespace, &hpa.target, done)?;
    match done.answer(&path) {
        None => Err(Missing::Answers(vec![Act::Get { path }])),
        Some(Outcome::Done(answer)) => {
            let value: Value = serde_json::from_slice(answer).unwrap_or_default();
            let number = |value: &Value| value.as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
            let scale = Scale {
                wanted: number(&value["spec"]["replicas"]),
                running: number(&value["status"]["replicas"]),
                selector: value["status"]["selector"].as_str().unwrap_or_default().to_owned(),
                value,
            };
            Ok((path, scale))
        }
        Some(Outcome::Failed(refusal)) => Err(Missing::Nothing(refusal.message.clone())),
        Some(Outcome::Skipped) => Err(Missing::Nothing("the scale was not asked for".to_owned())),
    }
}

fn no_scale(hpa: &Hpa, why: &str, now: Wall) -> Plan {
    let mut status = hpa.status.clone();
    let message = format!("the HPA controller was unable to get the target's current scale: {why}");
    set(&mut status, now, ("AbleToScale", "False", "FailedGetScale"), &message);
    let failure = format!("failed to query scale subresource for {}: {why}", hpa.reference());
    let plan = hpa.write(status).event(Event::warning(&hpa.object, "FailedGetScale", why));
    Plan { failure: Some(failure), ..plan }
}

/// The most that a metric asks for. Err: questions, or why nothing can be said, with what was found for each.
#[allow(clippy::type_complexity)]
fn judged(
    asker: &Asker<'_>,
    status: &mut Value,
    events: &mut Vec<Event>,
    now: Wall,
) -> Result<Sum, Result<Vec<Act>, (String, Vec<Value>)>> {
    let mut sum = Sum { replicas: 0, metric: String::new(), statuses: Vec::new(), failure: None };
    let (mut questions, mut bad): (Vec<Act>, Vec<Bad>) = (Vec::new(), Vec::new());
    for spec in &asker.hpa.metrics {
        match asker.metric(spec) {
            Ok(metric) => {
                if sum.replicas == 0 || metric.replicas > sum.replicas {
                    (sum.replicas, sum.metric) = (metric.replicas, metric.name);
                }
                sum.statuses.push(metric.status);
            }
            Err(Not::Yet(acts)) => {
                questions.extend(acts.into_iter().filter(|act| !questions.contains(act)).collect::<Vec<_>>());
            }
            Err(Not::Good(one)) => {
                bad.push(one);
                // Every metric keeps its place.
                sum.statuses.push(json!({"type": ""}));
            }
        }
    }
    if !questions.is_empty() {
        return Err(Ok(questions));
    }
    events.extend(bad.iter().map(|bad| Event::warning(&asker.hpa.object, bad.reason, &*bad.message)));
    let all = asker.hpa.metrics.len();
    let failure = bad.first().map(|first| {
        format!("invalid metrics ({} invalid out of {all}), first error is: {}", bad.len(), first.story)
    });
    if let (Some(first), Some(why)) = (bad.first(), &failure)
        && (bad.len() >= all || sum.replicas < asker.asked.current)
    {
        let message = format!("the HPA was unable to compute the replica count: {}", first.message);
        set(status, now, ("ScalingActive", "False", first.reason), &message);
        return Err(Err((why.clone(), sum.statuses)));
    }
    let message = format!("the HPA was able to successfully calculate a replica count from {}", sum.metric);
    set(status, now, ("ScalingActive", "True", "ValidMetricFound"), &message);
    Ok(Sum { failure, ..sum })
}

/// The status with its numbers. What is zero or empty is left out where upstream leaves it out.
fn finished(old: Value, current: i32, desired: i32, metrics: Vec<Value>, scaled: Option<Wall>) -> Value {
    let mut status = json!({"desiredReplicas": desired});
    if current != 0 {
        status["currentReplicas"] = json!(current);
    }
    if !metrics.is_empty() {
        status["currentMetrics"] = json!(metrics);
    }
    let last = scaled.map_or_else(|| old["lastScaleTime"].clone(), |at| timestamp(at).into());
    for (key, value) in [("lastScaleTime", last), ("conditions", old["conditions"].clone())] {
        if !value.is_null() {
            status[key] = value;
        }
    }
    status
}

/// A condition keeps its place; its time moves with its status only.
fn set(status: &mut Value, now: Wall, (kind, value, reason): (&str, &str, &str), message: &str) {
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(conditions) = status["conditions"].as_array_mut() else { return };
    let known = conditions.iter().position(|known| known["type"] == kind).unwrap_or_else(|| {
        conditions.push(json!({"type": kind}));
        conditions.len() - 1
    });
    let known = &mut conditions[known];
    if known["status"] != value {
        known["lastTransitionTime"] = timestamp(now).into();
    }
    known["status"] = value.into();
    known["reason"] = reason.into();
    known["message"] = message.into();
}

#[cfg(test)]
mod tests;
