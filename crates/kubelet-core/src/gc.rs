//! Which dead containers, sandboxes and log directories go.
//!
//! Nothing of a Pod counts as left over before every source has reported once: a Pod that is merely
//! not known yet must find its containers, and its logs, as it left them.

pub mod shims;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::ids::{ContainerId, PodUid, SandboxId};
use base::time::Wall;

use crate::observed::{Container, ContainerState, FoundPod};

/// How many dead containers may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcPolicy {
    /// Younger ones are left alone.
    pub min_age: Duration,
    /// Per Pod and container name; none is no limit.
    pub max_per_container: Option<usize>,
    /// On the whole node; none is no limit.
    pub max_total: Option<usize>,
}

/// Everything the collector looks at.
#[derive(Clone, Copy, Debug)]
pub struct GcInput<'a> {
    pub found: &'a [FoundPod],
    /// Pods that somebody still wants or still has to end.
    pub known: &'a BTreeSet<PodUid>,
    /// Every source has reported at least once.
    pub sources_ready: bool,
    pub policy: GcPolicy,
    pub now: Wall,
}

/// One container to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removal {
    pub id: ContainerId,
    /// Its state is unknown, so it may run: stop it first.
    pub stop_first: bool,
}

/// Dead containers to remove, oldest first.
///
/// The newest instance of each container stays while its Pod exists, whatever the limits say: its
/// exit code is all that keeps a finished container from being run again.
#[must_use]
pub fn containers_to_remove(input: &GcInput<'_>) -> Vec<Removal> {
    let mut gone: Vec<&Container> = Vec::new();
    let mut kept: BTreeMap<(&PodUid, &str), Vec<&Container>> = BTreeMap::new();
    for pod in input.found {
        for c in pod.observed.containers.iter().filter(|c| is_collectable(c, input)) {
            if is_gone(&pod.uid, input) {
                gone.push(c);
            } else {
                kept.entry((&pod.uid, c.name.as_str())).or_default().push(c);
            }
        }
    }
    for group in kept.values_mut() {
        group.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| a.id.cmp(&b.id)));
    }
    let newest: BTreeSet<&ContainerId> = newest_instances(input.found);
    if let Some(max) = input.policy.max_per_container {
        trim(&mut kept, max, &newest, &mut gone);
    }
    if let Some(max) = input.policy.max_total {
        trim_total(&mut kept, max, &newest, &mut gone);
    }
    gone.sort_by(|a, b| a.created_at.cmp(&b.created_at).then_with(|| a.id.cmp(&b.id)));
    let removal =
        |c: &Container| Removal { id: c.id.clone(), stop_first: c.state == ContainerState::Unknown };
    gone.into_iter().map(removal).collect()
}

/// Sandboxes to remove: not ready and empty. The newest one stays while its Pod exists, because its
/// attempt number counts on.
#[must_use]
pub fn sandboxes_to_remove(input: &GcInput<'_>) -> Vec<SandboxId> {
    let mut out = Vec::new();
    for pod in input.found {
        let keep = usize::from(!is_gone(&pod.uid, input));
        let mut sandboxes: Vec<_> = pod.observed.sandboxes.iter().collect();
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.attempt, s.created_at)));
        let empty = |id: &SandboxId| pod.observed.containers.iter().all(|c| c.sandbox != *id);
        let dead = sandboxes.into_iter().skip(keep).rev().filter(|s| !s.ready && empty(&s.id));
        out.extend(dead.map(|s| s.id.clone()));
    }
    out
}

/// Pod log directories (`<namespace>_<name>_<uid>`) without a Pod.
#[must_use]
pub fn log_directories_to_remove<'d>(directories: &'d [String], input: &GcInput<'_>) -> Vec<&'d str> {
    let orphaned = |name: &&str| {
        name.rsplit_once('_').is_some_and(|(_, uid)| !uid.is_empty() && is_gone(&PodUid::from(uid), input))
    };
    directories.iter().map(String::as_str).filter(orphaned).collect()
}

/// The container a link `<pod>_<namespace>_<container>-<id>.log` belongs to.
#[must_use]
pub fn container_of_log_link(file_name: &str) -> Option<ContainerId> {
    let (_, id) = file_name.strip_suffix(".log")?.rsplit_once('-')?;
    (!id.is_empty()).then(|| id.into())
}

/// Whether a log link goes. A log that is being rotated is missing for a moment, so the link of a
/// container that still lives stays.
#[must_use]
pub fn is_dead_link(target_exists: bool, container: Option<ContainerState>) -> bool {
    !target_exists && matches!(container, None | Some(ContainerState::Exited))
}

fn is_collectable(c: &Container, input: &GcInput<'_>) -> bool {
    c.state != ContainerState::Running && input.now.since(c.created_at) >= input.policy.min_age
}

fn is_gone(uid: &PodUid, input: &GcInput<'_>) -> bool {
    input.sources_ready && !input.known.contains(uid)
}

/// Orders the instances of one container: the wall clock may have been set back between two of them.
fn age(c: &Container) -> (u32, Wall) {
    (c.restart_count, c.created_at)
}

fn newest_instances(found: &[FoundPod]) -> BTreeSet<&ContainerId> {
    let mut newest: BTreeMap<(&PodUid, &str), &Container> = BTreeMap::new();
    for pod in found {
        for c in &pod.observed.containers {
            let slot = newest.entry((&pod.uid, c.name.as_str())).or_insert(c);
            if age(c) > age(slot) {
                *slot = c;
            }
        }
    }
    newest.into_values().map(|c| &c.id).collect()
}

/// Moves what exceeds `max` in each group from `kept` to `gone`, oldest first.
fn trim<'a, K: Ord>(
    kept: &mut BTreeMap<K, Vec<&'a Container>>,
    max: usize,
    newest: &BTreeSet<&ContainerId>,
    gone: &mut Vec<&'a Container>,
) {
    for group in kept.values_mut() {
        let surplus = group.split_off(max.min(group.len()));
        let (stay, go): (Vec<_>, Vec<_>) = surplus.into_iter().partition(|c| newest.contains(&c.id));
        group.extend(stay);
        gone.extend(go);
    }
}

/// Too many on the node: an equal share for every group, then the oldest ones.
fn trim_total<'a, K: Ord>(
    kept: &mut BTreeMap<K, Vec<&'a Container>>,
    max: usize,
    newest: &BTreeSet<&ContainerId>,
    gone: &mut Vec<&'a Container>,
) {
    let total = |kept: &BTreeMap<K, Vec<&'a Container>>| kept.values().map(Vec::len).sum::<usize>();
    if kept.is_empty() || total(kept) <= max {
        return;
    }
    let share = (max / kept.len()).max(1);
    trim(kept, share, newest, gone);
    let surplus = total(kept).saturating_sub(max);
    let mut rest: Vec<&Container> =
        kept.values().flatten().copied().filter(|c| !newest.contains(&c.id)).collect();
    rest.sort_by_key(|c| c.created_at);
    gone.extend(rest.into_iter().take(surplus));
}

#[cfg(test)]
mod tests;
