//! Crash-loop back-off of one Pod's containers, on the monotonic clock.

use std::collections::BTreeMap;
use std::time::Duration;

use base::ids::ContainerId;
use base::time::{Mono, Now};
use k8s_openapi::api::core::v1::Container;

use crate::observed::{ContainerState, Observed};

/// Remembers when containers exited and how long each must wait before its next start.
#[derive(Clone, Debug)]
pub struct CrashLoop {
    initial: Duration,
    max: Duration,
    entries: BTreeMap<String, Entry>,
    exits: BTreeMap<ContainerId, Mono>,
}

#[derive(Clone, Debug)]
struct Entry {
    /// Image and resources: editing either starts afresh.
    key: u32,
    delay: Duration,
    updated: Mono,
}

/// A container ran well if it lived this long past the last restart: its back-off starts afresh.
const FORGIVEN_AFTER: Duration = Duration::from_secs(600);

impl CrashLoop {
    /// `max` is crashLoopBackOff.maxContainerRestartPeriod.
    #[must_use]
    pub fn new(max: Duration) -> Self {
        Self {
            initial: Duration::from_secs(10).min(max),
            max,
            entries: BTreeMap::new(),
            exits: BTreeMap::new(),
        }
    }

    /// Stamps exits seen for the first time. The wall clock is consulted once per exit, to place an
    /// exit that happened while the agent was down; a jump can only shorten that estimate to zero.
    pub fn note_exits(&mut self, observed: &Observed, now: Now) {
        self.exits.retain(|id, _| observed.container(id).is_some());
        for c in observed.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            self.exits.entry(c.id.clone()).or_insert_with(|| {
                let ago = c.finished_at.map_or(Duration::ZERO, |at| now.wall.since(at));
                now.mono - ago.min(self.max)
            });
        }
    }

    /// Until when the next start of `spec` must wait after `exited`, and the delay in force.
    #[must_use]
    pub fn blocked(&self, spec: &Container, exited: &ContainerId, now: Mono) -> Option<(Mono, Duration)> {
        let e = self.entries.get(&spec.name).filter(|e| e.key == key(spec))?;
        let exit = *self.exits.get(exited)?;
        if exit.since(e.updated) > FORGIVEN_AFTER {
            return None;
        }
        let until = exit + e.delay;
        (until > now).then_some((until, e.delay))
    }

    /// Records a restart after `exited`: the next one will wait longer.
    pub fn restarted(&mut self, spec: &Container, exited: &ContainerId, now: Mono) {
        let exit = self.exits.get(exited).copied().unwrap_or(now);
        let key = key(spec);
        let delay = match self.entries.get(&spec.name) {
            Some(e) if e.key == key && exit.since(e.updated) <= FORGIVEN_AFTER => (e.delay * 2).min(self.max),
            _ => self.initial,
        };
        self.entries.insert(spec.name.clone(), Entry { key, delay, updated: exit.max(now - self.max) });
    }
}

fn key(spec: &Container) -> u32 {
    let text = serde_json::to_vec(&(&spec.image, &spec.resources)).unwrap_or_default();
    base::fnv::fnv1a32(&text)
}
