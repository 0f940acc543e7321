//! The resources a container has in force.

use std::collections::BTreeMap;

use api::pod::Amount;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::observed::{self, ContainerState};

/// The spec's resources, with what the runtime reports to have applied where that differs. The
/// user's spelling of an amount is kept while the amounts are equal.
pub(super) fn in_force(c: &Container, i: &observed::Container) -> Option<ResourceRequirements> {
    let mut out = c.resources.clone()?;
    let (ContainerState::Running, Some(applied)) = (i.state, &i.resources) else { return Some(out) };
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
    Some(out)
}

/// What an instance was given at its start is what it has, whatever its spec says by now.
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

/// Whether the spec asks for other resources than the running instance has.
pub(super) fn wants_resize(c: &Container, status: &ContainerStatus) -> bool {
    let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
    let wanted = c.resources.as_ref();
    let has = status.resources.as_ref().and_then(|r| r.limits.as_ref());
    runs && (!same_amounts(wanted.and_then(|r| r.requests.as_ref()), status.allocated_resources.as_ref())
        || !same_amounts(wanted.and_then(|r| r.limits.as_ref()), has))
}

fn same_amounts(a: Option<&BTreeMap<String, Quantity>>, b: Option<&BTreeMap<String, Quantity>>) -> bool {
    let resizable = |list: Option<&BTreeMap<String, Quantity>>| -> Vec<(String, Option<Amount>)> {
        let list = list.into_iter().flatten().filter(|(k, _)| ["cpu", "memory"].contains(&k.as_str()));
        list.map(|(k, v)| (k.clone(), Amount::parse(&v.0).ok())).collect()
    };
    resizable(a) == resizable(b)
}

fn stated(list: &BTreeMap<String, Quantity>, name: &str) -> Option<Amount> {
    list.get(name).and_then(|q| Amount::parse(&q.0).ok())
}

/// Replaces an amount the spec names if the applied one is another.
fn correct(list: &mut BTreeMap<String, Quantity>, name: &str, applied: String) {
    let differs = stated(list, name).is_some_and(|a| Amount::parse(&applied).is_ok_and(|b| a != b));
    if differs {
        list.insert(name.into(), Quantity(applied));
    }
}
