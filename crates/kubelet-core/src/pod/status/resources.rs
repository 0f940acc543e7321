//! The resources a container, and a Pod as a whole, has in force.

use std::collections::BTreeMap;

use api::pod::Amount;
use api::pod::resources::{aggregate_limits, aggregate_requests, is_pod_level};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed::{self, ContainerState, Resources};
use crate::resize::PodResources;

type List = BTreeMap<String, Quantity>;

/// What the container was granted, with what the runtime reports to have applied where that differs; what no runtime
/// knows is as it was last told. The user's spelling of an amount is kept while the amounts are equal.
pub(super) fn in_force(
    c: &Container,
    i: &observed::Container,
    actuated: Option<&PodResources>,
    old: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut out = c.resources.clone().unwrap_or_default();
    if i.state != ContainerState::Running {
        return out;
    }
    let told = actuated.and_then(|a| a.containers.get(&c.name));
    let applied = i.resources.as_ref();
    if let Some(limits) = &mut out.limits {
        match applied.map(cpu_limit) {
            Some(Some(milli)) => correct(limits, "cpu", milli, FLOOR_OF_QUOTA),
            Some(None) => {}
            None => follow(limits, told.and_then(|t| t.limits.as_ref()), "cpu"),
        }
        match applied.map(|a| a.memory_limit) {
            Some(bytes) if bytes > 0 => replace(limits, "memory", bytes.to_string()),
            Some(_) => {}
            None => follow(limits, told.and_then(|t| t.limits.as_ref()), "memory"),
        }
    }
    if let Some(requests) = &mut out.requests {
        match applied.map(cpu_request) {
            Some(Some(milli)) => correct(requests, "cpu", milli, FLOOR_OF_SHARES),
            Some(None) => {}
            None => follow(requests, told.and_then(|t| t.requests.as_ref()), "cpu"),
        }
        let told = told.and_then(|t| t.requests.as_ref());
        // Where no record is kept, what was shown stays: nobody can have changed it.
        let shown = || old?.resources.as_ref()?.requests.as_ref();
        follow(requests, told.or_else(shown), "memory");
    }
    out
}

/// The kernel takes no quota below 10 thousandths of a CPU, and no fewer shares than 2; those floors are not shown.
const FLOOR_OF_QUOTA: i64 = 10;
const FLOOR_OF_SHARES: i64 = 2;

fn cpu_limit(applied: &Resources) -> Option<i64> {
    let is_bounded = applied.cpu_quota > 0 && applied.cpu_period > 0;
    is_bounded.then(|| applied.cpu_quota.saturating_mul(1000) / applied.cpu_period)
}

fn cpu_request(applied: &Resources) -> Option<i64> {
    (applied.cpu_shares > 0).then(|| (applied.cpu_shares.saturating_mul(1000) + 1023) / 1024)
}

/// What the kernel has, unless both it and what was granted are at the kernel's floor.
fn correct(list: &mut List, name: &str, milli: i64, floor: i64) {
    if milli > floor || stated(list, name).is_none_or(|a| a.milli() > floor) {
        replace(list, name, format!("{milli}m"));
    }
}

/// As it was last told, if it was told anything.
fn follow(list: &mut List, told: Option<&List>, name: &str) {
    if let Some(amount) = told.and_then(|t| t.get(name)) {
        replace(list, name, amount.0.clone());
    }
}

/// What the Pod as a whole was given: of the amounts its containers have, or of those it states for all of them.
pub(super) fn set_of_pod(spec: &PodSpec, actuated: Option<&PodResources>, out: &mut PodStatus) {
    // Of the spec, what the sums look at.
    let slim = |c: &Container| Container {
        name: c.name.clone(),
        resources: c.resources.clone(),
        restart_policy: c.restart_policy.clone(),
        ..Container::default()
    };
    let mut now = PodSpec {
        containers: spec.containers.iter().map(slim).collect(),
        init_containers: spec.init_containers.as_ref().map(|all| all.iter().map(slim).collect()),
        ..PodSpec::default()
    };
    let statuses = out.container_statuses.iter().chain(&out.init_container_statuses).flatten();
    for status in statuses {
        let mut all = now.containers.iter_mut().chain(now.init_containers.iter_mut().flatten());
        if let (Some(resources), Some(container)) = (&status.resources, all.find(|c| c.name == status.name)) {
            container.resources = Some(resources.clone());
        }
    }
    let (granted, overhead) = (spec.resources.clone().unwrap_or_default(), spec.overhead.as_ref());
    out.allocated_resources = whole(aggregate_requests(spec), granted.requests.as_ref(), overhead, true);
    // Of a Pod that runs, upstream shows what its cgroup bounds and what is stated for all containers.
    let is_running = out.phase.as_deref() == Some("Running");
    let told = actuated.and_then(|a| a.pod.clone()).filter(|_| is_running && spec.resources.is_some());
    let stated = told.map_or(granted.clone(), |told| as_told(granted, &told));
    let requests = whole(aggregate_requests(&now), stated.requests.as_ref(), overhead, true);
    let limits = whole(aggregate_limits(&now), stated.limits.as_ref(), overhead, false);
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

/// What was granted to all containers together, with the amounts that the Pod's cgroup was last told.
fn as_told(mut granted: ResourceRequirements, told: &ResourceRequirements) -> ResourceRequirements {
    for (list, told) in [(&mut granted.requests, &told.requests), (&mut granted.limits, &told.limits)] {
        let Some(list) = list else { continue };
        for name in ["cpu", "memory"] {
            follow(list, told.as_ref(), name);
        }
    }
    granted
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

fn stated(list: &List, name: &str) -> Option<Amount> {
    list.get(name).and_then(|q| Amount::parse(&q.0).ok())
}

/// Replaces an amount that is stated if the applied one is another.
fn replace(list: &mut List, name: &str, applied: String) {
    let differs = stated(list, name).is_some_and(|a| Amount::parse(&applied).is_ok_and(|b| a != b));
    if differs {
        list.insert(name.into(), Quantity(applied));
    }
}
