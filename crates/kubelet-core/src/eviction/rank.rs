//! Who goes first: who uses more than was asked for, then who matters least, then who uses most beyond it.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::{Pod, Volume};

use super::layout::Measures;
use super::{Candidate, Layout, Resource, Signal, priority};
use crate::pod_resources::{overhead, pod_requests};
use crate::stats::{PodStats, Usage};

/// Why a Pod stands where it stands. Smaller goes earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// For process ids, priority counts before all else.
    first_priority: i32,
    is_measured: bool,
    keeps_to_request: bool,
    priority: i32,
    beyond: Reverse<i64>,
}

/// The candidates in the order in which they would go, by their index. Of equals, the one named first.
#[must_use]
pub fn rank(signal: Signal, layout: Layout, candidates: &[Candidate<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    let places: Vec<Place> = candidates.iter().map(|c| place(signal, layout, *c)).collect();
    order.sort_by_key(|at| places[*at]);
    order
}

/// Where a Pod stands.
#[must_use]
pub fn place(signal: Signal, layout: Layout, candidate: Candidate<'_>) -> Place {
    let Candidate { pod, stats } = candidate;
    let is_pids = signal.resource() == Resource::Pids;
    let first_priority = if is_pids { priority(pod) } else { 0 };
    let Some(stats) = stats else {
        let beyond = Reverse(0);
        return Place {
            first_priority,
            is_measured: false,
            keeps_to_request: false,
            priority: priority(pod),
            beyond,
        };
    };
    let (used, asked, beyond) = use_of(signal, layout, pod, stats);
    Place {
        first_priority,
        is_measured: true,
        keeps_to_request: !is_pids && used <= asked,
        priority: priority(pod),
        beyond: Reverse(beyond),
    }
}

/// What the Pod uses, what it asked for, and by how much it is said to be beyond that.
#[must_use]
pub fn use_of(signal: Signal, layout: Layout, pod: &Pod, stats: &PodStats) -> (i64, i64, i64) {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let disk = |of: fn(Usage) -> u64| number(of(disk_use(layout.measures(signal), pod, stats)));
    match signal.resource() {
        Resource::Memory => {
            let used = number(stats.memory.and_then(|m| m.working_set).unwrap_or(0));
            let asked = request(pod, "memory");
            (used, asked, used.saturating_sub(asked))
        }
        Resource::EphemeralStorage => {
            let (used, asked) = (disk(|u| u.bytes), request(pod, "ephemeral-storage"));
            (used, asked, used.saturating_sub(asked))
        }
        // Nobody can ask for inodes. Upstream takes the request of bytes from their number all the same.
        Resource::Inodes => {
            let used = disk(|u| u.inodes);
            (used, 0, used.saturating_sub(request(pod, "ephemeral-storage")))
        }
        Resource::Pids => {
            let used = number(stats.processes.unwrap_or(0));
            (used, 0, used)
        }
    }
}

fn disk_use(measures: Measures, pod: &Pod, stats: &PodStats) -> Usage {
    let mut sum = Usage::default();
    for container in &stats.containers {
        if measures.layers {
            sum = sum + container.rootfs.map(|(_, usage)| usage).unwrap_or_default();
        }
        if measures.logs {
            sum = sum + container.logs.unwrap_or_default();
        }
    }
    if measures.volumes {
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        let local = volumes.filter(|v| is_local(v)).filter_map(|v| stats.volumes.get(&v.name));
        sum = sum + local.map(|v| v.used).sum();
    }
    sum
}

/// A volume on the node's disk. As upstream: what a hostPath holds counts, as far as anybody measured it.
fn is_local(volume: &Volume) -> bool {
    volume.host_path.is_some() || is_ephemeral(volume)
}

/// A volume on the node's disk that goes with the Pod.
#[must_use]
pub fn is_ephemeral(volume: &Volume) -> bool {
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    volume.empty_dir.as_ref().is_some_and(|e| on_disk(&e.medium))
        || volume.config_map.is_some()
        || volume.git_repo.is_some()
}

/// What the Pod asks for, with its overhead where it asks at all.
fn request(pod: &Pod, name: &str) -> i64 {
    match pod_requests(pod).get(name).copied().unwrap_or(0) {
        0 => 0,
        asked => asked.saturating_add(overhead(pod).get(name).copied().unwrap_or(0)),
    }
}
