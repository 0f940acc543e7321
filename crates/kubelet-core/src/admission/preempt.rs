//! Who makes way for a critical Pod: as few Pods as possible, the least protected classes first.

use api::pod::{QosClass, qos_class};
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

use super::fit::requests;
use crate::cri_config::is_critical;

/// Resources still missing, by name.
type Missing = Vec<(String, i64)>;

/// The Pods to end so that `missing` is freed, or why there are none.
pub(super) fn victims(pod: &Pod, others: &[&Pod], missing: Missing) -> Result<Vec<PodUid>, String> {
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let of = |class| -> Vec<&Pod> {
        others.iter().copied().filter(|p| may_displace(pod, p) && qos_class(p) == class).collect()
    };
    let (best_effort, burstable, guaranteed) =
        (of(QosClass::BestEffort), of(QosClass::Burstable), of(QosClass::Guaranteed));
    let all: Vec<&Pod> = [&best_effort[..], &burstable, &guaranteed].concat();
    let never = without(&missing, &all);
    if !never.is_empty() {
        return Err(nobody(&never));
    }
    // Each class gives only what the others cannot: the guaranteed ones come last.
    let guaranteed = nearest(guaranteed, without(&missing, &[&best_effort[..], &burstable].concat()))?;
    let burstable = nearest(burstable, without(&missing, &[&best_effort[..], &guaranteed].concat()))?;
    let best_effort = nearest(best_effort, without(&missing, &[&burstable[..], &guaranteed].concat()))?;
    let chosen = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Ok(chosen.map(|p| PodUid::from(p.metadata.uid.as_deref().unwrap_or_default())).collect())
}

fn may_displace(pod: &Pod, other: &Pod) -> bool {
    let priority = |p: &Pod| p.spec.as_ref().and_then(|s| s.priority);
    (is_critical(pod) && !is_critical(other))
        || matches!((priority(pod), priority(other)), (Some(a), Some(b)) if a > b)
}

/// Takes Pod by Pod the one that frees most of what is missing; of equals, the smaller one.
fn nearest(mut pods: Vec<&Pod>, mut missing: Missing) -> Result<Vec<&Pod>, String> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let key = |p: &Pod| (distance(p, &missing), request(p, "memory"), request(p, "cpu"));
        let best = (0..pods.len()).min_by(|a, b| {
            let (a, b) = (key(pods[*a]), key(pods[*b]));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2))
        });
        let Some(best) = best else { return Err(nobody(&missing)) };
        let pod = pods.swap_remove(best);
        missing = without(&missing, &[pod]);
        chosen.push(pod);
    }
    Ok(chosen)
}

/// How much would still be missing, each resource weighing the same.
fn distance(pod: &Pod, missing: &Missing) -> f64 {
    let rest = missing.iter().map(|(name, q)| (*q as f64 - request(pod, name) as f64).max(0.0) / *q as f64);
    rest.map(|r| r * r).sum()
}

fn without(missing: &Missing, pods: &[&Pod]) -> Missing {
    let rest = missing.iter().map(|(name, q)| {
        let freed = pods.iter().fold(0i64, |sum, p| sum.saturating_add(request(p, name)));
        (name.clone(), q.saturating_sub(freed))
    });
    rest.filter(|(_, q)| *q > 0).collect()
}

fn request(pod: &Pod, name: &str) -> i64 {
    if name == "pods" { 1 } else { requests(pod).get(name).copied().unwrap_or(0) }
}

fn nobody(missing: &Missing) -> String {
    let list: String = missing.iter().map(|(name, q)| format!("(res: {name}, q: {q}), ")).collect();
    format!("no set of running pods found to reclaim resources: [{list}]")
}
