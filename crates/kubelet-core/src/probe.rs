//! One probe of one container, as a state machine without a clock.
//!
//! The prober wakes a [`Worker`] with [`Worker::tick`] and does what the [`Tick`] says; a probe it
//! ran comes back through [`Worker::outcome`]. Verdicts leave as [`Change`]s.

use std::time::Duration;

use base::ids::ContainerId;
use base::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Container, Probe};

use crate::pod::{ContainerKind, Verdict};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

/// The numbers of a probe, with the API's defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    pub kind: ProbeKind,
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

/// The container as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub id: ContainerId,
    pub running: bool,
    pub started_at: Option<Wall>,
    /// Its startup probe has succeeded, or it has none, or its status said so before this agent was
    /// started. Until then only the startup probe runs.
    pub started: bool,
}

/// What one probe said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// Success that deserves a ProbeWarning event.
    Warning,
    Failure,
    /// The probe itself could not be carried out: that says nothing about the container.
    Error,
}

/// What to do now, and when to tick again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    pub probe: bool,
    pub change: Option<Change>,
    /// Until the next tick, unless the container changes first.
    pub next: Duration,
}

/// What came of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub change: Option<Change>,
    /// The probe could not be carried out; try once more right away.
    pub again: bool,
}

/// A new verdict of this kind for this instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub id: ContainerId,
    pub kind: ProbeKind,
    pub good: bool,
}

/// The memory of one probe of one container name, over all its instances.
#[derive(Clone, Debug)]
pub struct Worker {
    spec: ProbeSpec,
    current: Option<Current>,
}

/// What is known of the present instance. A new one starts with a clean slate.
#[derive(Clone, Debug)]
struct Current {
    id: ContainerId,
    /// When it started, on the monotonic clock, fixed at first sight.
    since: Mono,
    verdict: Option<bool>,
    last: Option<bool>,
    run: u32,
    errors: u32,
    on_hold: bool,
}

/// How often a probe that cannot be carried out is tried before the sample is given up.
const TRIES: u32 = 3;

/// The probes of a container that are configured.
#[must_use]
pub fn probes_of(container: &Container) -> Vec<(ProbeSpec, &Probe)> {
    let all = [
        (ProbeKind::Startup, container.startup_probe.as_ref()),
        (ProbeKind::Liveness, container.liveness_probe.as_ref()),
        (ProbeKind::Readiness, container.readiness_probe.as_ref()),
    ];
    all.into_iter().filter_map(|(kind, p)| p.map(|p| (ProbeSpec::new(kind, p), p))).collect()
}

/// Whether a probe goes on while the Pod is being stopped: nobody may be restarted any more, but
/// traffic must still learn who is ready. Sidecars keep all of theirs.
#[must_use]
pub fn goes_on_in_termination(kind: ProbeKind, of: ContainerKind) -> bool {
    kind == ProbeKind::Readiness || of == ContainerKind::Sidecar
}

/// Right after a start of the agent all probes would fire at once. Until it has been up for one
/// period, the first tick is delayed by a random part of this.
#[must_use]
pub fn first_tick_spread(period: Duration, agent_up: Duration) -> Option<Duration> {
    (period > agent_up).then_some(period)
}

// === impl ProbeSpec ===

impl ProbeSpec {
    #[must_use]
    pub fn new(kind: ProbeKind, probe: &Probe) -> Self {
        let number = |n: Option<i32>, default: u32| {
            n.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).unwrap_or(default)
        };
        let seconds = |n, default| Duration::from_secs(u64::from(number(n, default)));
        Self {
            kind,
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }
}

// === impl Worker ===

impl Worker {
    #[must_use]
    pub fn new(spec: ProbeSpec) -> Self {
        Self { spec, current: None }
    }

    #[must_use]
    pub fn spec(&self) -> &ProbeSpec {
        &self.spec
    }

    /// Decides whether to probe now. `seen` is the newest instance of the container, if any.
    pub fn tick(&mut self, seen: Option<&Seen>, now: Now) -> Tick {
        let ProbeSpec { kind, period, initial_delay, .. } = self.spec;
        let idle = Tick { probe: false, change: None, next: period };
        let Some(seen) = seen else { return idle };
        if self.current.as_ref().is_none_or(|c| c.id != seen.id) {
            self.current = Some(Current::new(seen, now));
        }
        let Some(current) = &mut self.current else { return idle };
        if !seen.running {
            // What does not run is not ready. Its liveness is judged by its exit.
            let change = if kind == ProbeKind::Readiness { current.set(kind, false) } else { None };
            return Tick { change, ..idle };
        }
        let gated = match kind {
            ProbeKind::Startup => seen.started,
            _ => !seen.started,
        };
        if current.on_hold || gated {
            return idle;
        }
        let wait = initial_delay.saturating_sub(now.mono.since(current.since));
        if wait > Duration::ZERO {
            return Tick { next: wait.min(period), ..idle };
        }
        Tick { probe: true, ..idle }
    }

    /// Takes in what a probe of instance `id` said. Words about an instance that was replaced in the
    /// meantime are ignored.
    pub fn outcome(&mut self, id: &ContainerId, outcome: Outcome) -> Answer {
        let spec = self.spec;
        let Some(current) = self.current.as_mut().filter(|c| c.id == *id) else { return Answer::default() };
        let good = match outcome {
            Outcome::Success | Outcome::Warning => true,
            Outcome::Failure => false,
            Outcome::Error => {
                current.errors += 1;
                let again = current.errors < TRIES;
                if !again {
                    current.errors = 0;
                }
                return Answer { change: None, again };
            }
        };
        current.errors = 0;
        current.run = if current.last == Some(good) { current.run.saturating_add(1) } else { 1 };
        current.last = Some(good);
        let threshold = if good { spec.success_threshold } else { spec.failure_threshold };
        if current.run < threshold {
            return Answer::default();
        }
        // A verdict of the startup probe, or a bad one of the liveness probe, is the last word about
        // this instance: probing one that is being stopped only does harm.
        current.on_hold = spec.kind == ProbeKind::Startup || (spec.kind == ProbeKind::Liveness && !good);
        Answer { change: current.set(spec.kind, good), again: false }
    }
}

// === impl Current ===

impl Current {
    fn new(seen: &Seen, now: Now) -> Self {
        let ago = seen.started_at.map_or(Duration::ZERO, |at| now.wall.since(at));
        Self {
            id: seen.id.clone(),
            since: now.mono - ago,
            verdict: None,
            last: None,
            run: 0,
            errors: 0,
            on_hold: false,
        }
    }

    fn set(&mut self, kind: ProbeKind, good: bool) -> Option<Change> {
        if self.verdict == Some(good) {
            return None;
        }
        self.verdict = Some(good);
        Some(Change { id: self.id.clone(), kind, good })
    }
}

// === impl Verdict ===

impl Verdict {
    /// Takes in a probe's new word.
    pub fn apply(&mut self, change: &Change) {
        let slot = match change.kind {
            ProbeKind::Startup => &mut self.startup,
            ProbeKind::Liveness => &mut self.liveness,
            ProbeKind::Readiness => &mut self.readiness,
        };
        *slot = Some(change.good);
    }
}

#[cfg(test)]
mod tests;
