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

    /// The first wait, where it is not the usual ten seconds.
    #[must_use]
    pub fn starting_with(self, initial: Duration) -> Self {
        Self { initial: initial.min(self.max), ..self }
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
        self.entries.insert(spec.name.clone(), Entry { key, delay, updated: now });
    }
}

fn key(spec: &Container) -> u32 {
    let text = serde_json::to_vec(&(&spec.image, &spec.resources)).unwrap_or_default();
    base::fnv::fnv1a32(&text)
}

#[cfg(test)]
mod tests {
    use base::time::Wall;

    use super::*;
    use crate::testing::exited;

    fn at(secs: u64) -> Now {
        Now { mono: Mono(Duration::from_secs(10_000 + secs)), wall: Wall::from_secs(secs as i64) }
    }

    fn spec(image: &str) -> Container {
        Container { name: "app".into(), image: Some(image.into()), ..Default::default() }
    }

    /// Exit number `n` of the container, at `secs`.
    fn exit(n: u32, secs: u64) -> Observed {
        let finished_at = Some(Wall::from_secs(secs as i64));
        let c = crate::observed::Container { id: format!("app-{n}").into(), finished_at, ..exited("app", 1) };
        Observed { containers: vec![c], ..Default::default() }
    }

    /// Lives through one exit and the restart after its wait; returns that wait in seconds.
    fn crash(c: &mut CrashLoop, n: u32, secs: u64) -> u64 {
        c.note_exits(&exit(n, secs), at(secs));
        let id = format!("app-{n}").as_str().into();
        let delay = c.blocked(&spec("a"), &id, at(secs).mono).map_or(0, |(until, delay)| {
            assert_eq!(until, at(secs).mono + delay, "counts from the exit");
            delay.as_secs()
        });
        assert!(c.blocked(&spec("a"), &id, at(secs + delay).mono).is_none());
        c.restarted(&spec("a"), &id, at(secs + delay).mono);
        delay
    }

    #[test]
    fn waits_double_to_the_cap_and_a_good_run_is_forgiven() {
        let mut c = CrashLoop::new(Duration::from_secs(300));
        let mut now = 100;
        for (n, want) in [0, 10, 20, 40, 80, 160, 300, 300].into_iter().enumerate() {
            let delay = crash(&mut c, n as u32, now);
            assert_eq!(delay, want, "restart {n}");
            now += delay + 1;
        }
        // Ten minutes count from the restart, not from the exit before it.
        assert_eq!(crash(&mut c, 20, now + 400), 300);
        now += 400 + 300;
        assert_eq!(crash(&mut c, 21, now + 601), 0);
        assert_eq!(crash(&mut c, 22, now + 602), 10);
    }

    #[test]
    fn an_edit_starts_afresh_and_a_small_cap_caps_the_first_wait_too() {
        let mut c = CrashLoop::new(Duration::from_secs(4));
        crash(&mut c, 0, 100);
        c.note_exits(&exit(1, 101), at(101));
        let id = "app-1".into();
        let wait = |s: &Container| c.blocked(s, &id, at(101).mono).map(|(_, d)| d.as_secs());
        assert_eq!(wait(&spec("a")), Some(4));
        assert_eq!(wait(&spec("b")), None);
    }

    #[test]
    fn the_first_wait_may_be_shorter() {
        let mut c = CrashLoop::new(Duration::from_secs(60)).starting_with(Duration::from_secs(1));
        let mut now = 100;
        for (n, want) in [0, 1, 2, 4, 8, 16, 32, 60, 60].into_iter().enumerate() {
            assert_eq!(crash(&mut c, n as u32, now), want, "restart {n}");
            now += want + 1;
        }
    }

    #[test]
    fn a_jump_of_the_wall_clock_changes_no_wait() {
        let mut c = CrashLoop::new(Duration::from_secs(300));
        crash(&mut c, 0, 100);
        let jumped = Now { mono: at(101).mono, wall: Wall::from_secs(9_999_999) };
        c.note_exits(&exit(1, 101), at(101));
        c.note_exits(&exit(1, 101), jumped);
        assert!(c.blocked(&spec("a"), &"app-1".into(), at(102).mono).is_some());
    }
}
