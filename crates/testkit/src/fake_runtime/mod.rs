//! A container runtime in memory, for running the real kubelet under paused time.
//!
//! It imitates containerd where that matters to the one who calls it: names are reserved per attempt,
//! a failed start leaves an exited container, stopping a sandbox kills its containers, an abandoned
//! stop kills nobody. Everything random is drawn from one seed. It lives in an `Arc`: drop the
//! kubelet's tasks and start new ones with a clone, and an agent has crashed and come back.
//!
//! There are no tasks inside: exits happen when somebody looks ([`state::State::settle`]), and a call
//! that waits knows when to look again.

mod containers;
mod events;
mod faults;
mod images;
mod journal;
mod port;
mod sandboxes;
mod script;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rng::Rng;
use base::time::Clock;
use cri::v1;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

pub use faults::Faults;
pub use images::Pull;
pub use journal::{Entry, Journal, Op};
pub use script::{Behaviour, Exec, ExecScript};

use state::State;

/// A handle on the runtime; clones share it.
#[derive(Clone)]
pub struct FakeRuntime {
    shared: Arc<Shared>,
}

/// How runtimes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// GetContainerEvents exists.
    pub events: bool,
    /// StopContainer of an unknown container succeeds.
    pub stop_missing_is_ok: bool,
    /// RuntimeConfig exists.
    pub runtime_config: bool,
    /// CreateContainer in a stopped sandbox succeeds; only the start fails.
    pub creates_in_dead_sandbox: bool,
    /// RunPodSandbox is answered only by its deadline, and makes nothing.
    pub sandboxes_hang: bool,
    /// The code with which a name that is taken is refused.
    pub reserved: Code,
}

struct Shared {
    /// Held for a few map operations, never across an await.
    state: Mutex<State>,
    changed: watch::Sender<u64>,
}

// === impl Quirks ===

impl Quirks {
    pub const CONTAINERD_2_1: Self = Self {
        events: true,
        stop_missing_is_ok: true,
        runtime_config: true,
        creates_in_dead_sandbox: true,
        sandboxes_hang: false,
        reserved: Code::FailedPrecondition,
    };
    pub const CONTAINERD_1_6: Self = Self {
        events: false,
        stop_missing_is_ok: false,
        runtime_config: false,
        creates_in_dead_sandbox: false,
        sandboxes_hang: false,
        reserved: Code::Unknown,
    };
}

// === impl FakeRuntime ===

impl FakeRuntime {
    /// A runtime where nothing goes wrong until [`FakeRuntime::set_faults`]. `clock` stamps what it reports.
    #[must_use]
    pub fn new(seed: u64, clock: Arc<dyn Clock>) -> Self {
        let state = State {
            clock,
            origin: Instant::now(),
            rng: Rng::new(seed),
            faults: Faults::default(),
            quirks: Quirks::CONTAINERD_2_1,
            scripts: script::Scripts::default(),
            images: images::Images::default(),
            journal: Journal::default(),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            backlog: state::Queue::new(),
            version: 0,
            epoch: 0,
            down_until: None,
            network_ready: true,
            serial: 0,
        };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(0) }) }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.with(|s, _| s.faults = faults);
    }

    pub fn set_quirks(&self, quirks: Quirks) {
        self.with(|s, _| s.quirks = quirks);
    }

    /// The instances of a container of a Pod (both by name) behave like this, one after the other; the
    /// last one repeats.
    pub fn script(&self, pod: &str, container: &str, behaviours: impl Into<Vec<Behaviour>>) {
        self.with(|s, _| s.scripts.set(pod, container, behaviours.into()));
    }

    /// Answers execs in a container of a Pod; without a script they exit with 0.
    pub fn script_exec(
        &self,
        pod: &str,
        container: &str,
        script: impl Fn(&[String], Duration) -> Exec + Send + Sync + 'static,
    ) {
        self.with(|s, _| s.scripts.set_exec(pod, container, Arc::new(script)));
    }

    /// The image is here without a pull.
    pub fn add_image(&self, name: &str) {
        self.with(|s, _| s.images.add(name));
    }

    /// How pulls of an image go from now on.
    pub fn script_pull(&self, name: &str, pull: Pull) {
        self.with(|s, _| s.images.script(name, pull));
    }

    pub fn set_network_ready(&self, ready: bool) {
        self.with(|s, _| s.network_ready = ready);
    }

    /// The runtime dies and comes back after `down`. Calls and streams break, containers live on.
    pub fn restart(&self, down: Duration) {
        self.with(|s, now| {
            s.epoch += 1;
            s.version += 1;
            s.down_until = Some(now + down);
            s.subscribers.clear();
            s.backlog.clear();
        });
    }

    /// The machine goes down: everything that ran is dead, and the runtime does not know how it ended.
    pub fn reboot(&self, down: Duration) {
        self.with(|s, now| {
            for id in s.containers.keys().cloned().collect::<Vec<_>>() {
                s.exit(&id, 255, "Unknown", "", now, now);
            }
            for id in s.sandboxes.keys().cloned().collect::<Vec<_>>() {
                s.stop_sandbox(&id, now);
            }
        });
        self.restart(down);
    }

    /// The runtime loses its memory of dead containers, as after somebody else's clean-up.
    pub fn forget_dead(&self) {
        self.with(|s, now| {
            let dead = |c: &&state::Container| matches!(c.life, state::Life::Exited(_));
            let ids: Vec<String> = s.containers.values().filter(dead).map(|c| c.id.clone()).collect();
            for id in ids {
                s.remove_container(&id, now);
            }
        });
    }

    /// The running instance of a container ends by itself, now. False if none runs.
    pub fn crash(&self, pod: &str, container: &str, code: i32, reason: &'static str) -> bool {
        self.with(|s, now| {
            let Some(id) = s.running_id(pod, container) else { return false };
            s.exit(&id, code, reason, "", now, now);
            true
        })
    }

    /// The sandbox of a Pod dies with everything in it. False if it has none.
    pub fn crash_sandbox(&self, pod: &str) -> bool {
        self.with(|s, now| {
            let ready = |b: &&state::Sandbox| b.ready && b.pod().0 == pod;
            let Some(id) = s.sandboxes.values().find(ready).map(|b| b.id.clone()) else { return false };
            s.stop_sandbox(&id, now);
            true
        })
    }

    /// What has really happened so far.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.with(|s, _| s.journal.clone())
    }

    /// What must never happen, and did.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.with(|s, _| s.journal.violations())
    }

    /// The truth about all sandboxes, past every fault.
    #[must_use]
    pub fn sandboxes(&self) -> Vec<v1::PodSandbox> {
        self.with(|s, _| s.list_sandboxes(None))
    }

    /// The truth about all containers, past every fault.
    #[must_use]
    pub fn containers(&self) -> Vec<v1::ContainerStatus> {
        self.with(|s, _| {
            let ids = s.list_containers(None);
            ids.iter().filter_map(|c| s.containers.get(&c.id)).map(state::Container::status).collect()
        })
    }

    /// The time of the journal.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.with(|s, now| now - s.origin)
    }

    /// How a command ends in a container of this age; a hung one as its timeout ends it.
    #[must_use]
    pub fn exec_code(&self, pod: &str, container: &str, age: Duration) -> i32 {
        self.with(|s, _| match s.scripts.exec(pod, container, &[], age) {
            Exec::Exit { code, .. } => code,
            Exec::Hang => 137,
        })
    }

    /// Whether a container of a Pod runs right now.
    #[must_use]
    pub fn is_running(&self, pod: &str, container: &str) -> bool {
        self.with(|s, _| s.running_id(pod, container).is_some())
    }

    /// What each running container of a Pod may use: shares, quota and bytes of memory.
    #[must_use]
    pub fn resources(&self, pod: &str) -> BTreeMap<String, serde_json::Value> {
        self.with(|s, _| {
            let ours = s.containers.values().filter(|c| {
                c.running().is_some() && s.sandboxes.get(&c.sandbox).is_some_and(|s| s.pod().0 == pod)
            });
            let of = |c: &state::Container| {
                let r = c.config.linux.clone().and_then(|l| l.resources).unwrap_or_default();
                let told = serde_json::json!({
                    "shares": r.cpu_shares, "quota": r.cpu_quota, "memory": r.memory_limit_in_bytes,
                });
                (c.name().to_owned(), told)
            };
            ours.map(of).collect()
        })
    }

    /// Whether nothing is left of any Pod.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.with(|s, _| s.sandboxes.is_empty() && s.containers.is_empty())
    }

    /// Acts on the state as it is at this moment, and wakes those who wait for a change.
    fn with<T>(&self, act: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let before = state.version;
        state.settle(now);
        let result = act(&mut state, now);
        if state.version != before {
            self.shared.changed.send_replace(state.version);
        }
        result
    }
}

impl fmt::Debug for FakeRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeRuntime")
    }
}
