//! There is no such Pod: somebody may fail to make it.

use api::pod::Amount;
use k8s_openapi::api::core::v1 as core;

use super::{Chart, Facts, said};

/// What controllers say when the API server does not take a Pod of theirs.
const FAILED_TO_MAKE: &[&str] = &["FailedCreate"];

pub(super) fn examine(chart: &mut Chart, facts: &Facts) {
    let Facts { namespace, name, .. } = facts;
    let Some(phase) = &facts.namespace_phase else {
        chart.wrong(
            format!("there is no namespace {namespace:?}"),
            "look for the right one with `kubectl get pods -A`",
        );
        return;
    };
    if phase == "Terminating" {
        chart.wrong(
            format!("namespace {namespace:?} is being deleted: nothing new is made in it"),
            &format!("look at what holds it with `kubectl get namespace {namespace} -o yaml`"),
        );
    }
    let failed = facts.events.iter().filter(|e| {
        let owner = e.involved_object.name.as_deref().unwrap_or_default();
        e.reason.as_deref().is_some_and(|r| FAILED_TO_MAKE.contains(&r)) && is_owner(owner, name)
    });
    if let Some(event) = failed.max_by_key(|e| super::told_at(e)) {
        let kind = event.involved_object.kind.as_deref().unwrap_or("its owner");
        let owner = event.involved_object.name.as_deref().unwrap_or_default();
        full_quotas(chart, facts);
        chart.wrong(
            format!("there is no Pod {namespace}/{name}: {kind} {owner:?} cannot make it: {}", said(event)),
            &format!("look at it with `kubectl describe {} -n {namespace} {owner}`", kind.to_lowercase()),
        );
        return;
    }
    chart.wrong(
        format!("there is no Pod {namespace}/{name}"),
        "look for its name and namespace with `kubectl get pods -A`",
    );
}

/// Whether an object of this name makes Pods of that one: `web` and `web-6d9f` make `web-6d9f-x2x4z`.
fn is_owner(owner: &str, pod: &str) -> bool {
    owner == pod || pod.strip_prefix(owner).is_some_and(|rest| rest.starts_with('-'))
}

/// Quotas of which nothing is left.
fn full_quotas(chart: &mut Chart, facts: &Facts) {
    for quota in &facts.quotas {
        let full = full(quota);
        if !full.is_empty() {
            let name = quota.metadata.name.as_deref().unwrap_or_default();
            chart.note(format!("quota {name:?} is used up: {}", full.join(", ")));
        }
    }
}

fn full(quota: &core::ResourceQuota) -> Vec<String> {
    let status = quota.status.clone().unwrap_or_default();
    let used = status.used.unwrap_or_default();
    let amount = |text: &str| Amount::parse(text).unwrap_or_default();
    let hard = status.hard.unwrap_or_default();
    let is_full = |(name, limit): &(&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
        used.get(*name).is_some_and(|used| amount(&used.0) >= amount(&limit.0))
    };
    let all = hard.iter().filter(is_full);
    all.map(|(name, limit)| format!("{name} {} of {}", used[name].0, limit.0)).collect()
}
