//! Pods that took more of the node's disk than they may.

use std::collections::BTreeMap;

use base::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource;

use super::{AT_ONCE, Candidate, Eviction, Layout, is_protected, uid};

const STORAGE: &str = "ephemeral-storage";

/// Whether the Pod has any limit on disk: only then somebody has to measure what it uses.
#[must_use]
pub fn has_any(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let sized = spec.volumes.iter().flatten().any(|v| size_limit(v.empty_dir.as_ref()).is_some());
    sized || pod_limit(pod).is_some()
}

/// The eviction of every Pod that is over a limit of its own. No threshold is asked.
#[must_use]
pub fn exceeded(candidates: &[Candidate<'_>], layout: Layout) -> Vec<Eviction> {
    let over = |c: &Candidate<'_>| {
        let (signal, message) = empty_dir(c).or_else(|| of_pod(c)).or_else(|| of_container(c, layout))?;
        Some(Eviction {
            uid: uid(c.pod),
            message,
            grace: AT_ONCE,
            signal,
            disrupts: false,
            annotations: BTreeMap::new(),
        })
    };
    candidates.iter().filter(|c| !is_protected(c.pod)).filter_map(over).collect()
}

type Verdict = Option<(&'static str, String)>;

fn empty_dir(candidate: &Candidate<'_>) -> Verdict {
    let (spec, stats) = (candidate.pod.spec.as_ref()?, candidate.stats?);
    spec.volumes.iter().flatten().find_map(|volume| {
        let limit = size_limit(volume.empty_dir.as_ref())?;
        let used = stats.volumes.get(&volume.name)?.used.bytes;
        let message = format!("Usage of EmptyDir volume {:?} exceeds the limit \"{limit}\". ", volume.name);
        exceeds(used, limit).then_some(("emptydirfs.limit", message))
    })
}

/// Everything together: writable layers, logs, local volumes, and what the kubelet made for it, /etc/hosts among it.
fn of_pod(candidate: &Candidate<'_>) -> Verdict {
    let limit = pod_limit(candidate.pod)?;
    let used = candidate.stats?.ephemeral?.bytes;
    let message =
        format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ");
    exceeds(used, limit).then_some(("ephemeralpodfs.limit", message))
}

fn of_container(candidate: &Candidate<'_>, layout: Layout) -> Verdict {
    let (spec, stats) = (candidate.pod.spec.as_ref()?, candidate.stats?);
    stats.containers.iter().find_map(|container| {
        let own = spec.containers.iter().find(|c| c.name == container.name)?;
        let limit = container_limit(own).filter(|q| !q.is_zero())?;
        let layer = container.rootfs.filter(|_| !layout.image_disk).map_or(0, |(_, usage)| usage.bytes);
        let used = layer.saturating_add(container.logs.map_or(0, |l| l.bytes));
        let message =
            format!("Container {} exceeded its local ephemeral storage limit \"{limit}\". ", container.name);
        exceeds(used, limit).then_some(("ephemeralcontainerfs.limit", message))
    })
}

fn exceeds(used: u64, limit: Quantity) -> bool {
    Quantity::from_bytes(i64::try_from(used).unwrap_or(i64::MAX)) > limit
}

fn size_limit(dir: Option<&k8s_openapi::api::core::v1::EmptyDirVolumeSource>) -> Option<Quantity> {
    read(dir?.size_limit.as_ref()?).filter(|q| !q.is_zero() && !q.is_negative())
}

fn container_limit(container: &Container) -> Option<Quantity> {
    read(container.resources.as_ref()?.limits.as_ref()?.get(STORAGE)?)
}

fn read(quantity: &resource::Quantity) -> Option<Quantity> {
    quantity.0.parse().ok()
}

/// The limits of all containers together, or the largest need while it initialises, in the words of the first that has
/// one. A container without a limit adds nothing, which is upstream's way.
fn pod_limit(pod: &Pod) -> Option<Quantity> {
    let spec = pod.spec.as_ref()?;
    let plus = |sum: Option<Quantity>, more: Option<Quantity>| match (sum, more) {
        (Some(a), Some(b)) => Some(a.plus(b)),
        (a, b) => a.or(b),
    };
    let mut running = spec.containers.iter().map(container_limit).fold(None, plus);
    let (mut sidecars, mut peak) = (None, None);
    for container in spec.init_containers.iter().flatten() {
        let mut now = container_limit(container);
        if container.restart_policy.as_deref() == Some("Always") {
            running = plus(running, now);
            sidecars = plus(sidecars, now);
            now = sidecars;
        } else {
            now = plus(now, sidecars);
        }
        peak = peak.max(now);
    }
    let limit = running.max(peak)?;
    let cost = spec.overhead.as_ref().and_then(|o| read(o.get(STORAGE)?));
    plus(Some(limit), cost)
}
