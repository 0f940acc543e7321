//! Probes: one task per probe, waking by its own clock and when its container changes.
//!
//! The Pod's task tells the prober what it observed ([`Prober::sync`]) and hears verdicts through a
//! watch channel ([`Prober::subscribe`]). What a verdict is, the state machine of
//! [`kubelet_core::probe`] says; the tasks only carry probes out. A probe that hangs holds up itself alone.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::ids::PodUid;
use base::rng::Rng;
use base::time::{Clock, Mono, Now};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec};
use kubelet_core::observed::{ContainerState, Observed};
use kubelet_core::pod::policy::is_sidecar;
use kubelet_core::pod::{ContainerKind, Verdicts};
use kubelet_core::probe::{Change, ProbeKind, Seen, goes_on_in_termination, probes_of};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::events::Recorder;
use crate::metrics::ProbeMetrics;
use crate::pods::host_ips::HostIps;
use crate::ports::{Net, Runtime};

mod attempt;
mod worker;

use attempt::Target;
pub(crate) use attempt::port as resolve_port;

/// A container that was running this long before the agent started was in the care of an earlier one.
const BEFORE_US: Duration = Duration::from_secs(10);

/// The node's probes.
#[derive(Debug)]
pub struct Prober {
    hands: Arc<Hands>,
    /// A plain lock: held for map operations only, never across an await.
    pods: Mutex<HashMap<PodUid, PodProbes>>,
}

/// What a probe task works with.
pub struct Hands {
    pub runtime: Arc<dyn Runtime>,
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn Clock>,
    pub recorder: Recorder,
    pub metrics: Arc<ProbeMetrics>,
    /// The address of Pods in the host's network.
    pub host_ips: HostIps,
    /// Seed of the spread of first probes.
    pub seed: u64,
    /// When the agent started.
    pub started: Now,
}

/// The probes of one Pod.
#[derive(Debug)]
struct PodProbes {
    board: Arc<Board>,
    /// Ends the tasks that do not go on in termination.
    running: CancellationToken,
    /// Ends all of them.
    alive: CancellationToken,
    /// Set by the first sync. Probes of a Pod never change afterwards.
    pod: Option<Arc<Pod>>,
}

/// What the tasks of one Pod see, and what they say.
#[derive(Debug)]
struct Board {
    seen: watch::Sender<SeenPod>,
    verdicts: watch::Sender<Verdicts>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct SeenPod {
    revision: u64,
    ip: Option<String>,
    containers: BTreeMap<String, Seen>,
}

// === impl Prober ===

impl Prober {
    #[must_use]
    pub fn new(hands: Hands) -> Self {
        Self { hands: Arc::new(hands), pods: Mutex::default() }
    }

    /// A prober with metrics of its own and no host address.
    #[must_use]
    pub fn for_test(
        runtime: Arc<dyn Runtime>,
        net: Arc<dyn Net>,
        clock: Arc<dyn Clock>,
        recorder: Recorder,
    ) -> Self {
        let started = clock.now();
        let metrics = Arc::default();
        Self::new(Hands {
            runtime,
            net,
            clock,
            recorder,
            metrics,
            host_ips: HostIps::fixed(Vec::new()),
            seed: 0,
            started,
        })
    }

    /// The Pod's verdicts, now and from now on.
    #[must_use]
    pub fn subscribe(&self, uid: &PodUid) -> watch::Receiver<Verdicts> {
        self.lock().entry(uid.clone()).or_default().board.verdicts.subscribe()
    }

    /// How many Pods it knows now.
    #[must_use]
    pub fn pods(&self) -> usize {
        self.lock().len()
    }

    /// Takes in what was observed of the Pod; the first call starts its probes. Cheap when nothing
    /// changed.
    pub fn sync(&self, pod: &Pod, observed: &Observed) {
        let Some(uid) = pod.metadata.uid.as_deref() else { return };
        let mut pods = self.lock();
        let probes = pods.entry(PodUid::from(uid)).or_default();
        probes.board.verdicts.send_if_modified(|verdicts| {
            let before = verdicts.len();
            verdicts.retain(|id, _| observed.container(id).is_some());
            let forgot = verdicts.len() != before;
            self.take_over(pod, observed, verdicts) || forgot
        });
        let seen = self.see(pod, observed, &probes.board.verdicts.borrow());
        probes.board.seen.send_if_modified(|old| {
            let changed = *old != seen;
            *old = seen;
            changed
        });
        if probes.pod.is_none() {
            let pod = Arc::new(outline(pod));
            probes.pod = Some(pod.clone());
            self.start(uid, &pod, probes);
        }
    }

    /// The Pod is being stopped: from now on nobody is restarted for a failed probe.
    pub fn terminating(&self, uid: &PodUid) {
        self.lock().entry(uid.clone()).or_default().running.cancel();
    }

    /// The Pod is gone.
    pub fn remove(&self, uid: &PodUid) {
        let Some(probes) = self.lock().remove(uid) else { return };
        probes.alive.cancel();
        if let Some(pod) = probes.pod {
            let meta = &pod.metadata;
            let text = |s: &Option<String>| s.clone().unwrap_or_default();
            self.hands.metrics.forget(uid.as_str(), &text(&meta.namespace), &text(&meta.name));
        }
    }

    fn start(&self, uid: &str, pod: &Arc<Pod>, probes: &PodProbes) {
        let mut rng = Rng::new(self.hands.seed ^ u64::from(base::fnv::fnv1a32(uid.as_bytes())));
        for (container, kind) in probed(pod) {
            for (spec, probe) in probes_of(container) {
                let token =
                    if goes_on_in_termination(spec.kind, kind) { &probes.alive } else { &probes.running };
                worker::spawn(worker::Task {
                    spec,
                    target: Arc::new(Target::new(pod.clone(), container, spec, probe)),
                    board: probes.board.clone(),
                    hands: self.hands.clone(),
                    rng: rng.child(),
                    token: token.clone(),
                });
            }
        }
    }

    fn see(&self, pod: &Pod, observed: &Observed, verdicts: &Verdicts) -> SeenPod {
        let on_host = pod.spec.as_ref().is_some_and(|s| s.host_network == Some(true));
        let ip = match observed.ready_sandbox().and_then(|s| s.ips.first()) {
            Some(ip) => Some(ip.to_string()),
            None if on_host => self.hands.host_ips.now().first().map(ToString::to_string),
            None => None,
        };
        let mut containers = BTreeMap::new();
        for (spec, _) in probed(pod) {
            let Some(newest) = observed.newest(&spec.name) else { continue };
            let verdict = verdicts.get(&newest.id).and_then(|v| v.startup);
            let started = spec.startup_probe.is_none() || verdict == Some(true);
            let seen = Seen {
                id: newest.id.clone(),
                running: newest.state == ContainerState::Running,
                started_at: newest.started_at,
                started,
            };
            containers.insert(spec.name.clone(), seen);
        }
        SeenPod { revision: observed.revision, ip, containers }
    }

    /// What an earlier agent saw start has started: no startup probe asks it again, so nobody else would ever say so.
    /// True if there was any.
    fn take_over(&self, pod: &Pod, observed: &Observed, verdicts: &mut Verdicts) -> bool {
        let mut any = false;
        for (spec, _) in probed(pod).filter(|(c, _)| c.startup_probe.is_some()) {
            let Some(newest) = observed.newest(&spec.name) else { continue };
            let unheard = verdicts.get(&newest.id).is_none_or(|v| v.startup.is_none());
            if unheard && self.was_started(pod, newest) {
                verdicts.entry(newest.id.clone()).or_default().startup = Some(true);
                any = true;
            }
        }
        any
    }

    /// Whether the Pod's last known status calls this very instance started, from before our time.
    fn was_started(&self, pod: &Pod, newest: &kubelet_core::observed::Container) -> bool {
        let old = newest.started_at.is_some_and(|at| self.hands.started.wall.since(at) > BEFORE_US);
        let of = |s: &ContainerStatus| {
            let id = s.container_id.as_deref().and_then(|id| id.rsplit_once("://")).map(|(_, id)| id);
            s.name == newest.name && s.started == Some(true) && id == Some(newest.id.as_str())
        };
        let Some(status) = pod.status.as_ref().filter(|_| old) else { return false };
        status.container_statuses.iter().chain(&status.init_container_statuses).flatten().any(of)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, PodProbes>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        for probes in self.lock().values() {
            probes.alive.cancel();
        }
    }
}

// === impl Hands ===

impl Hands {
    fn up_for(&self) -> Duration {
        self.mono().since(self.started.mono)
    }

    fn mono(&self) -> Mono {
        self.clock.now().mono
    }
}

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hands")
    }
}

// === impl PodProbes ===

impl Default for PodProbes {
    fn default() -> Self {
        let alive = CancellationToken::new();
        let board = Board { seen: watch::Sender::default(), verdicts: watch::Sender::default() };
        Self { board: Arc::new(board), running: alive.child_token(), alive, pod: None }
    }
}

// === impl Board ===

impl Board {
    fn publish(&self, change: &Change, container: &str) {
        self.verdicts.send_modify(|verdicts| verdicts.entry(change.id.clone()).or_default().apply(change));
        if change.kind == ProbeKind::Startup && change.good {
            self.seen.send_if_modified(|seen| match seen.containers.get_mut(container) {
                Some(seen) if seen.id == change.id => !std::mem::replace(&mut seen.started, true),
                _ => false,
            });
        }
    }
}

/// The containers that may have probes.
fn probed(pod: &Pod) -> impl Iterator<Item = (&Container, ContainerKind)> {
    let spec = pod.spec.iter();
    let sidecars = spec.clone().flat_map(|s| s.init_containers.iter().flatten()).filter(|c| is_sidecar(c));
    let regular = spec.flat_map(|s| &s.containers).map(|c| (c, ContainerKind::Regular));
    sidecars.map(|c| (c, ContainerKind::Sidecar)).chain(regular)
}

/// The Pod without what probes never look at: it is kept for as long as the Pod lives.
fn outline(pod: &Pod) -> Pod {
    let slim = |c: &Container| Container {
        name: c.name.clone(),
        env: c.env.clone(),
        ports: c.ports.clone(),
        restart_policy: c.restart_policy.clone(),
        startup_probe: c.startup_probe.clone(),
        liveness_probe: c.liveness_probe.clone(),
        readiness_probe: c.readiness_probe.clone(),
        ..Container::default()
    };
    let mut out = Pod::default();
    out.metadata.name.clone_from(&pod.metadata.name);
    out.metadata.namespace.clone_from(&pod.metadata.namespace);
    out.metadata.uid.clone_from(&pod.metadata.uid);
    out.spec = pod.spec.as_ref().map(|spec| PodSpec {
        containers: spec.containers.iter().map(slim).collect(),
        init_containers: spec.init_containers.as_ref().map(|all| all.iter().map(slim).collect()),
        ..PodSpec::default()
    });
    out
}

#[cfg(test)]
mod tests;
