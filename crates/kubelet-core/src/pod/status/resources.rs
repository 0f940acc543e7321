//! The resources a container has in force.

use std::collections::BTreeMap;

use api::pod::Amount;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
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
