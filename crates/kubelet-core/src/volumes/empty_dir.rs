//! emptyDir: a directory that lives as long as the Pod, on disk, in memory or on huge pages.

use std::collections::BTreeSet;

use base::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::{Context, Source};
use crate::downward::{self, Allocatable};
use crate::pod_resources;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// tmpfs; without a size the kernel's own limit holds.
    Memory {
        size: Option<u64>,
    },
    HugePages {
        page_size: u64,
        size: Option<u64>,
    },
}

pub(super) fn read(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let empty = volume.empty_dir.as_ref()?;
    let limit = empty.size_limit.as_ref().and_then(|q| positive(downward::count(q, "memory")));
    let medium = match empty.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory { size: memory_size(context.pod, context.node, limit) }),
        medium => match medium.strip_prefix("HugePages") {
            Some(suffix) => page_size(context.pod, medium, suffix)
                .map(|s| Medium::HugePages { page_size: s, size: limit }),
            None => Err(format!("unknown storage medium {medium:?}")),
        },
    };
    Some(medium.map(Source::EmptyDir))
}

/// The least of the volume's limit, the Pod's memory limit and what the node has for Pods.
pub(super) fn memory_size(pod: &Pod, node: &Allocatable, limit: Option<u64>) -> Option<u64> {
    [limit, pod_memory_limit(pod), positive(Some(node.memory))].into_iter().flatten().min()
}

/// What the Pod's cgroup would get: only when every container, or the Pod itself, has a limit.
fn pod_memory_limit(pod: &Pod) -> Option<u64> {
    let spec = pod.spec.as_ref()?;
    let has = |r: Option<_>| downward::limits(r, "memory").is_some_and(|v| v > 0);
    if !has(spec.resources.as_ref()) && !containers(pod).all(|c| has(c.resources.as_ref())) {
        return None;
    }
    let sum = *pod_resources::pod_limits(pod).get("memory")?;
    let overhead = pod_resources::overhead(pod).get("memory").copied().unwrap_or(0);
    positive(sum.checked_add(overhead))
}

/// The page size of the medium, which some container must have asked for.
fn page_size(pod: &Pod, medium: &str, suffix: &str) -> Result<u64, String> {
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let lists = containers(pod).map(|c| c.resources.as_ref()).chain([of_pod]);
    let names = lists.flatten().filter_map(|r| r.requests.as_ref()).flat_map(|r| r.keys());
    let mut sizes = BTreeSet::new();
    for name in names {
        if let Some(size) = name.strip_prefix("hugepages-") {
            sizes.insert(bytes(size).ok_or_else(|| format!("{name:?} names no page size"))?);
        }
    }
    if suffix.is_empty() {
        let mut sizes = sizes.into_iter();
        return match (sizes.next(), sizes.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(format!("medium {medium} needs a container that requests huge pages")),
            _ => {
                Err(format!("medium: {medium} can't be used if container requests multiple huge page sizes"))
            }
        };
    }
    let size = suffix.strip_prefix('-').and_then(bytes);
    let size = size.ok_or_else(|| format!("unknown storage medium {medium:?}"))?;
    match sizes.contains(&size) {
        true => Ok(size),
        false => Err(format!("medium {medium} needs a container that requests huge pages of that size")),
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()))
}

fn bytes(text: &str) -> Option<u64> {
    positive(Some(text.parse::<Quantity>().ok()?.value()))
}

fn positive(value: Option<i64>) -> Option<u64> {
    value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0)
}
