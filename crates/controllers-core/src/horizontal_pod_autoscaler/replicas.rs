//! From what Pods use to how many there should be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::config::controllers::Tuning;
use base::quantity::Quantity;
use base::time::Wall;
use serde_json::Value;

use super::spec::Tolerances;
use crate::conditions;
use crate::object::{Object, wall};

/// What a Pod used, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) value: i64,
    pub(super) at: Option<Wall>,
    pub(super) window: Duration,
}

pub(super) type Usage = BTreeMap<String, Used>;

/// The Pods that a scale selects.
#[derive(Debug)]
pub(super) struct Pods(Vec<(String, Value)>);

/// What is asked about them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) current: i32,
    pub(super) tolerances: Tolerances,
    pub(super) tuning: &'a Tuning,
    pub(super) now: Wall,
}

/// How many, and the average of what they use: a percentage where there are requests, and thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    pub(super) replicas: i32,
    pub(super) percent: Option<i32>,
    pub(super) average: i64,
}

/// A target for each Pod: a share of its requests, or an amount in thousandths.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Percent(i32, BTreeMap<String, i64>),
    Amount(i64),
}

/// Pods by what their usage is good for.
#[derive(Debug, Default)]
struct Groups {
    ready: usize,
    /// Not to be counted.
    unready: BTreeSet<String>,
    /// Nobody knows what they use.
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

// === impl Pods ===

impl Pods {
    pub(super) fn of(pods: &[Arc<Object>]) -> Pods {
        Pods(pods.iter().map(|pod| (pod.meta.name.to_string(), pod.value())).collect())
    }

    /// By what each Pod uses. With a resource, the first minutes of a Pod's CPU do not count.
    pub(super) fn advice(
        &self,
        mut usage: Usage,
        target: &Target,
        is_cpu: bool,
        asked: Asked<'_>,
    ) -> Result<Advice, String> {
        if self.0.is_empty() {
            return Err(NO_PODS.to_owned());
        }
        let groups = self.groups(&usage, is_cpu, asked);
        usage.retain(|pod, _| !groups.ignored.contains(pod) && !groups.unready.contains(pod));
        if usage.is_empty() {
            return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
        }
        let (ratio, percent, average) = target.ratio(&usage)?;
        let advice = |replicas| Advice { replicas, percent, average };
        let is_up_with_unready = !groups.unready.is_empty() && ratio > 1.0;
        if !is_up_with_unready && groups.missing.is_empty() {
            if asked.tolerances.has(ratio) {
                return Ok(advice(asked.current));
            }
            return Ok(advice((ratio * groups.ready as f64).ceil() as i32));
        }
        // Who is not known is taken to use what speaks against a change.
        for pod in &groups.missing {
            let value = match () {
                () if ratio < 1.0 => target.full(pod),
                () if ratio > 1.0 => 0,
                () => continue,
            };
            usage.insert(pod.clone(), Used::guessed(value));
        }
        if is_up_with_unready {
            usage.extend(groups.unready.iter().map(|pod| (pod.clone(), Used::guessed(0))));
        }
        let (again, ..) = target.ratio(&usage)?;
        let turns = (ratio < 1.0 && again > 1.0) || (ratio > 1.0 && again < 1.0);
        if asked.tolerances.has(again) || turns {
            return Ok(advice(asked.current));
        }
        let replicas = (again * usage.len() as f64).ceil() as i32;
        let turns = (again < 1.0 && replicas > asked.current) || (again > 1.0 && replicas < asked.current);
        Ok(advice(if turns { asked.current } else { replicas }))
    }

    /// By one number for all of them.
    pub(super) fn advice_of_ratio(&self, ratio: f64, asked: Asked<'_>) -> Result<i32, String> {
        if asked.current == 0 {
            return Ok(ratio.ceil() as i32);
        }
        if asked.tolerances.has(ratio) {
            return Ok(asked.current);
        }
        if self.0.is_empty() {
            return Err(format!("unable to calculate ready pods: {NO_PODS}"));
        }
        let is_ready = |pod: &Value| {
            pod["status"]["phase"] == "Running"
                && conditions::find(&pod["status"], "Ready").is_some_and(|ready| ready["status"] == "True")
        };
        let ready = self.0.iter().filter(|(_, pod)| is_ready(pod)).count();
        Ok((ratio * ready as f64).ceil() as i32)
    }

    fn groups(&self, usage: &Usage, is_cpu: bool, asked: Asked<'_>) -> Groups {
        let mut groups = Groups::default();
        for (name, pod) in &self.0 {
            let phase = pod["status"]["phase"].as_str().unwrap_or("Pending");
            if !pod["metadata"]["deletionTimestamp"].is_null() || phase == "Failed" {
                groups.ignored.insert(name.clone());
            } else if phase == "Pending" {
                groups.unready.insert(name.clone());
            } else {
                match usage.get(name) {
                    None => _ = groups.missing.insert(name.clone()),
                    Some(used) if is_cpu && is_unready(&pod["status"], *used, asked) => {
                        groups.unready.insert(name.clone());
                    }
                    Some(_) => groups.ready += 1,
                }
            }
        }
        groups
    }

    /// What each Pod requests, in thousandths; with a container, what that one does.
    pub(super) fn requests(
        &self,
        resource: &str,
        container: Option<&str>,
    ) -> Result<BTreeMap<String, i64>, String> {
        self.0
            .iter()
            .map(|(name, pod)| Ok((name.clone(), request(name, pod, resource, container)?)))
            .collect()
    }
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";

fn is_unready(status: &Value, used: Used, asked: Asked<'_>) -> bool {
    let ready = conditions::find(status, "Ready");
    let (Some(ready), Some(started)) = (ready, status["startTime"].as_str().and_then(wall)) else {
        return true;
    };
    let since = ready["lastTransitionTime"].as_str().and_then(wall).unwrap_or_default();
    let is_false = ready["status"] == "False";
    if after(started, asked.tuning.hpa_cpu_initialization_period) > asked.now {
        // Of a Pod that is new, a sample counts once it is wholly from after it became ready.
        return is_false || used.at.unwrap_or_default() < after(since, used.window);
    }
    // One that has never been ready is still starting.
    is_false && after(started, asked.tuning.hpa_initial_readiness_delay) > since
}

fn after(time: Wall, period: Duration) -> Wall {
    Wall(time.0.saturating_add(i64::try_from(period.as_nanos()).unwrap_or(i64::MAX)))
}

fn request(name: &str, pod: &Value, resource: &str, container: Option<&str>) -> Result<i64, String> {
    let spec = &pod["spec"];
    let amount = |resources: &Value| quantity(&resources["requests"][resource]);
    let for_all = spec["resources"]["requests"].as_object().is_some_and(|requests| !requests.is_empty());
    if container.is_none()
        && for_all
        && let Some(request) = amount(&spec["resources"])
    {
        return Ok(request);
    }
    let inits = spec["initContainers"].as_array().into_iter().flatten();
    let sidecars = inits.filter(|init| init["restartPolicy"] == "Always");
    let containers = spec["containers"].as_array().into_iter().flatten().chain(sidecars);
    let mut sum = 0i64;
    for one in containers {
        let said = one["name"].as_str().unwrap_or_default();
        if container.is_some_and(|container| container != said) {
            continue;
        }
        match amount(&one["resources"]) {
            Some(request) => sum = sum.saturating_add(request),
            None if for_all && container.is_none() => {
                return Err(format!("missing pod-level request for {resource} in Pod {name}"));
            }
            None => return Err(format!("missing request for {resource} in container {said} of Pod {name}")),
        }
        if container.is_some() {
            return Ok(sum);
        }
    }
    match container {
        Some(container) => Err(format!("container {container} not found in Pod {name}")),
        None => Ok(sum),
    }
}

/// A quantity in thousandths.
pub(super) fn quantity(value: &Value) -> Option<i64> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    text.parse::<Quantity>().ok().map(Quantity::milli_value)
}

// === impl Target ===

impl Target {
    /// How far the average is from the target: the ratio, the percentage, and the average.
    fn ratio(&self, usage: &Usage) -> Result<(f64, Option<i32>, i64), String> {
        let mut sum = 0i128;
        match self {
            Target::Amount(target) => {
                usage.values().for_each(|used| sum += i128::from(used.value));
                let average = narrow(sum / usage.len().max(1) as i128);
                Ok((average as f64 / *target as f64, None, average))
            }
            Target::Percent(target, requests) => {
                let (mut requested, mut count) = (0i128, 0i128);
                for (pod, used) in usage {
                    let Some(request) = requests.get(pod) else { continue };
                    sum += i128::from(used.value);
                    requested += i128::from(*request);
                    count += 1;
                }
                if requested == 0 {
                    return Err("no metrics returned matched known pods".to_owned());
                }
                let percent = i32::try_from(sum * 100 / requested).unwrap_or(i32::MAX);
                Ok((f64::from(percent) / f64::from(*target), Some(percent), narrow(sum / count)))
            }
        }
    }

    /// What a Pod uses that is at its target, or uses all that it requests.
    fn full(&self, pod: &str) -> i64 {
        match self {
            Target::Amount(target) => *target,
            Target::Percent(target, requests) => {
                let request = requests.get(pod).copied().unwrap_or(0);
                request.saturating_mul(i64::from(*target.max(&100))) / 100
            }
        }
    }
}

fn narrow(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

// === impl Used ===

impl Used {
    fn guessed(value: i64) -> Used {
        Used { value, at: None, window: Duration::ZERO }
    }
}
