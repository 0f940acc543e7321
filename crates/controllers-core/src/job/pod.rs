//! What a Job asks of a Pod that has failed: what a rule says of it, how often its index failed, and when it ended.

use base::time::Wall;
use k8s_openapi::api::batch::v1::{PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement};
use serde_json::Value;

use super::spec::Job;
use crate::object::{Object, wall};
use crate::terms::Phase;

pub(super) const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
pub(super) const IGNORED: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// What a podFailurePolicy says of a Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// None matches: it counts.
    Count,
    Ignore,
    FailIndex,
    /// With what is told.
    FailJob(String),
}

/// The first rule that matches.
pub(super) fn rule(policy: Option<&PodFailurePolicy>, pod: &Object) -> Rule {
    let Some(policy) = policy else { return Rule::Count };
    let status = pod.value()["status"].take();
    let said = format!("{}/{}", pod.meta.namespace, pod.meta.name);
    for (index, rule) in policy.rules.iter().enumerate() {
        let matched = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
            (Some(codes), _) => exit(&status, codes).map(|(container, code)| {
                format!("Container {container} for pod {said} failed with exit code {code} matching FailJob rule at index {index}")
            }),
            (None, Some(patterns)) => {
                let mut conditions = status["conditions"].as_array().into_iter().flatten();
                let is_meant = |c: &&Value| {
                    let status = |s: &Option<String>| s.clone().unwrap_or_else(|| "True".to_owned());
                    patterns.iter().any(|p| c["type"] == *p.type_ && c["status"] == *status(&p.status))
                };
                conditions.find(is_meant).map(|c| {
                    let kind = c["type"].as_str().unwrap_or_default();
                    format!("Pod {said} has condition {kind} matching FailJob rule at index {index}")
                })
            }
            (None, None) => None,
        };
        match (matched, rule.action.as_str()) {
            (Some(_), "Ignore") => return Rule::Ignore,
            (Some(_), "FailIndex") => return Rule::FailIndex,
            (Some(message), "FailJob") => return Rule::FailJob(message),
            (Some(_), "Count") => return Rule::Count,
            // A rule of a later version says nothing to us.
            _ => {}
        }
    }
    Rule::Count
}

/// The first container that ended with a code that is meant. Zero never is.
fn exit(status: &Value, codes: &PodFailurePolicyOnExitCodesRequirement) -> Option<(String, i64)> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let all = lists.into_iter().flat_map(|list| status[list].as_array().into_iter().flatten());
    all.into_iter().find_map(|container| {
        let name = container["name"].as_str().unwrap_or_default();
        let code = container["state"]["terminated"]["exitCode"].as_i64().filter(|code| *code != 0)?;
        let is_named = codes.container_name.as_ref().is_none_or(|wanted| wanted == name);
        let is_listed = codes.values.iter().any(|value| i64::from(*value) == code);
        let is_meant = match codes.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            _ => false,
        };
        (is_named && is_meant).then(|| (name.to_owned(), code))
    })
}

/// When it ended: its last container, or since when it is not ready, or when it was to be deleted.
pub(super) fn ended(pod: &Object) -> Wall {
    let value = pod.value();
    let status = &value["status"];
    let containers = status["containerStatuses"].as_array().filter(|list| !list.is_empty());
    let times = containers.map(|list| list.iter().map(|c| time(&c["state"]["terminated"]["finishedAt"])));
    let by_containers = times.and_then(|times| times.collect::<Option<Vec<Wall>>>()?.into_iter().max());
    let unready = || {
        let mut all = status["conditions"].as_array()?.iter();
        time(&all.find(|c| c["type"] == "Ready" && c["status"] == "False")?["lastTransitionTime"])
    };
    let deleted = || {
        let grace = value["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        Some(Wall(pod.meta.deleted?.0.saturating_sub(grace.saturating_mul(1_000_000_000))))
    };
    by_containers.or_else(unready).or_else(deleted).or(pod.meta.created).unwrap_or_default()
}

/// How often its index had failed when it was made: counted, and ignored by a rule.
pub(super) fn failures(pod: &Object) -> (u32, u32) {
    let annotations = pod.value()["metadata"]["annotations"].take();
    let number = |key: &str| annotations[key].as_str().and_then(|n| n.parse().ok()).unwrap_or(0);
    (number(FAILURES), number(IGNORED))
}

/// All restarts of its containers.
pub(super) fn restarts(pod: &Object) -> i64 {
    let status = pod.value()["status"].take();
    let lists = ["containerStatuses", "initContainerStatuses"];
    let all = lists.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
    all.filter_map(|container| container["restartCount"].as_i64()).sum()
}

pub(super) fn phase(pod: &Object) -> Phase {
    pod.pod().map(|terms| terms.phase).unwrap_or_default()
}

pub(super) fn is_tracked(pod: &Object) -> bool {
    pod.pod().is_some_and(|terms| terms.is_tracked)
}

pub(super) fn is_active(pod: &Object) -> bool {
    pod.pod().is_some_and(|terms| terms.is_active())
}

// === impl Job ===

impl Job {
    /// The place of a Pod, if it is one of the Job's.
    pub(super) fn index(&self, pod: &Object) -> Option<u32> {
        pod.pod()?.completion_index.filter(|index| *index < self.completions.unwrap_or(0))
    }

    pub(super) fn rule(&self, pod: &Object) -> Rule {
        rule(self.spec.pod_failure_policy.as_ref(), pod)
    }
}

fn time(value: &Value) -> Option<Wall> {
    value.as_str().and_then(wall)
}
