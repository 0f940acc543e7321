//! The resources a container, and a Pod as a whole, has in force.

use std::collections::BTreeMap;

use api::pod::Amount;
use api::pod::resources::{aggregate_limits, aggregate_requests, is_pod_level};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed::{self, ContainerState};

type List = BTreeMap<String, Quantity>;

/// The spec's resources, with what the runtime reports to have applied where that differs. The
/// user's spelling of an amount is kept while the amounts are equal.
pub(super) fn in_force(c: &Container, i: &observed::Container) -> ResourceRequirements {
    let mut out = c.resources.clone().unwrap_or_default();
    let (ContainerState::Running, Some(applied)) = (i.state, &i.resources) else { return out };
    if let Some(limits) = &mut out.limits {
        if applied.cpu_quota > 0 && applied.cpu_period > 0 {
            let milli = applied.cpu_quota.saturating_mul(1000) / applied.cpu_period;
            // The kernel takes no quota below 10 thousandths of a CPU; do not show that floor.
            if milli > 10 || stated(limits, "cpu").is_none_or(|a| a.milli() > 10) {
                correct(limits, "cpu", format!("{milli}m"));
            }
        }
        if applied.memory_limit > 0 {
            correct(limits, "memory", applied.memory_limit.to_string());
        }
    }
    if let Some(requests) = &mut out.requests
        && applied.cpu_shares > 2
    {
        let milli = (applied.cpu_shares.saturating_mul(1000) + 1023) / 1024;
        correct(requests, "cpu", format!("{milli}m"));
    }
    out
}

/// What the Pod as a whole was given: of the amounts its containers have, or of those it states for all of them.
pub(super) fn set_of_pod(spec: &PodSpec, out: &mut PodStatus) {
    // Of the spec, what the sums look at.
    let slim = |c: &Container| Container {
        name: c.name.clone(),
        resources: c.resources.clone(),
        restart_policy: c.restart_policy.clone(),
        ..Container::default()
    };
    let mut granted = PodSpec {
        containers: spec.containers.iter().map(slim).collect(),
        init_containers: spec.init_containers.as_ref().map(|all| all.iter().map(slim).collect()),
        ..PodSpec::default()
    };
    let statuses = out.container_statuses.iter().chain(&out.init_container_statuses).flatten();
    for status in statuses {
        let all = granted.containers.iter_mut().chain(granted.init_containers.iter_mut().flatten());
        let (Some(resources), Some(container)) =
            (&status.resources, all.into_iter().find(|c| c.name == status.name))
        else {
            continue;
        };
        let requests = status.allocated_resources.clone();
        container.resources = Some(ResourceRequirements { requests, ..resources.clone() });
    }
    let (stated, overhead) = (spec.resources.clone().unwrap_or_default(), spec.overhead.as_ref());
    let requests = whole(aggregate_requests(&granted), stated.requests.as_ref(), overhead, true);
    let limits = whole(aggregate_limits(&granted), stated.limits.as_ref(), overhead, false);
    out.allocated_resources.clone_from(&requests);
    // Of a Pod that runs, upstream shows what its cgroup bounds and what is stated for all containers.
    let is_running = out.phase.as_deref() == Some("Running");
    let shown = |list: Option<List>, stated: Option<&List>| {
        let mut list = list?;
        let is_stated = |name: &str| stated.is_some_and(|s| s.contains_key(name));
        list.retain(|name, _| !is_running || matches!(name.as_str(), "cpu" | "memory") || is_stated(name));
        Some(list).filter(|l| !l.is_empty())
    };
    out.resources = Some(ResourceRequirements {
        requests: shown(requests, stated.requests.as_ref()),
        limits: shown(limits, stated.limits.as_ref()),
        claims: stated.claims,
    });
}

/// What is stated for all replaces the sum. What running the Pod costs comes on top, but is no limit where there is none.
fn whole(
    mut sum: BTreeMap<String, Amount>,
    stated: Option<&List>,
    overhead: Option<&List>,
    may_add: bool,
) -> Option<List> {
    let amounts = |list: Option<&List>| -> Vec<(String, Amount)> {
        let list = list.into_iter().flatten();
        list.filter_map(|(name, q)| Some((name.clone(), Amount::parse(&q.0).ok()?))).collect()
    };
    sum.extend(amounts(stated).into_iter().filter(|(name, _)| is_pod_level(name)));
    for (name, more) in amounts(overhead) {
        match sum.get_mut(&name) {
            Some(amount) => *amount = *amount + more,
            None if may_add => _ = sum.insert(name, more),
            None => {}
        }
    }
    let out: BTreeMap<_, _> = sum.into_iter().map(|(name, a)| (name, Quantity(a.to_string()))).collect();
    (!out.is_empty()).then_some(out)
}

/// The Pod with what its containers were given at their first start, where its spec asks for something else by now.
/// None if it does not. Nobody grants more on this node, so whoever starts again gets what it had.
#[must_use]
pub fn granted(pod: &Pod, status: &PodStatus) -> Option<Pod> {
    let statuses = || status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let old = |c: &Container| statuses().find(|s| s.name == c.name).filter(|s| wants_resize(c, s));
    let spec = pod.spec.as_ref()?;
    if !spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|c| old(c).is_some()) {
        return None;
    }
    let mut granted = pod.clone();
    let spec = granted.spec.as_mut()?;
    for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let Some(old) = old(c) else { continue };
        let has = old.resources.clone().unwrap_or_default();
        let claims = c.resources.as_ref().and_then(|r| r.claims.clone());
        let requests = old.allocated_resources.clone();
        c.resources = Some(ResourceRequirements { requests, limits: has.limits, claims });
    }
    Some(granted)
}

/// What a container was given at its first start is what it has, whatever its spec says by now.
pub(super) fn keep_granted(status: &mut ContainerStatus, old: &ContainerStatus) {
    if old.allocated_resources.is_some() && old.allocated_resources != status.allocated_resources {
        status.allocated_resources.clone_from(&old.allocated_resources);
        status.resources.clone_from(&old.resources);
    }
    let limits = |r: &Option<ResourceRequirements>| r.as_ref().and_then(|r| r.limits.clone());
    let (has, had) = (limits(&status.resources), limits(&old.resources));
    if had.is_some() && !same_amounts(has.as_ref(), had.as_ref()) {
        status.resources.clone_from(&old.resources);
    }
}

/// The next instance gets what those before it had, also when none of them is left.
pub(super) fn carry_granted(status: &mut ContainerStatus, old: &ContainerStatus) {
    status.allocated_resources.clone_from(&old.allocated_resources);
    status.resources.clone_from(&old.resources);
}

/// Whether the spec asks for other resources than the container was given when it was first started.
pub(super) fn wants_resize(c: &Container, status: &ContainerStatus) -> bool {
    let was_started = status.resources.is_some();
    let wanted = c.resources.as_ref();
    let has = status.resources.as_ref().and_then(|r| r.limits.as_ref());
    was_started
        && (!same_amounts(wanted.and_then(|r| r.requests.as_ref()), status.allocated_resources.as_ref())
            || !same_amounts(wanted.and_then(|r| r.limits.as_ref()), has))
}

fn same_amounts(a: Option<&List>, b: Option<&List>) -> bool {
    let resizable = |list: Option<&List>| -> Vec<(String, Option<Amount>)> {
        let list = list.into_iter().flatten().filter(|(k, _)| ["cpu", "memory"].contains(&k.as_str()));
        list.map(|(k, v)| (k.clone(), Amount::parse(&v.0).ok())).collect()
    };
    resizable(a) == resizable(b)
}

fn stated(list: &List, name: &str) -> Option<Amount> {
    list.get(name).and_then(|q| Amount::parse(&q.0).ok())
}

/// Replaces an amount the spec names if the applied one is another.
fn correct(list: &mut List, name: &str, applied: String) {
    let differs = stated(list, name).is_some_and(|a| Amount::parse(&applied).is_ok_and(|b| a != b));
    if differs {
        list.insert(name.into(), Quantity(applied));
    }
}
