//! The runtime's memory. Nothing here waits: time only enters through [`State::settle`].

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::time::{Clock, Wall};
use cri::v1;
use tokio::time::Instant;

use super::faults::Faults;
use super::images::Images;
use super::journal::{Entry, Journal, Op};
use super::script::{Behaviour, Scripts};

pub(super) struct State {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) origin: Instant,
    pub(super) rng: Rng,
    pub(super) faults: Faults,
    pub(super) quirks: super::Quirks,
    pub(super) scripts: Scripts,
    pub(super) images: Images,
    pub(super) journal: Journal,
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
    pub(super) subscribers: BTreeMap<u64, Subscriber>,
    /// Events that nobody has heard yet.
    pub(super) backlog: Queue,
    /// Grows with every change; waiting calls look again.
    pub(super) version: u64,
    /// Grows with every restart; calls of an earlier life fail.
    pub(super) epoch: u64,
    pub(super) down_until: Option<Instant>,
    pub(super) network_ready: bool,
    pub(super) serial: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) config: v1::PodSandboxConfig,
    pub(super) handler: String,
    pub(super) ready: bool,
    pub(super) created_at: Wall,
    pub(super) ip: Option<String>,
    pub(super) serial: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) config: v1::ContainerConfig,
    pub(super) image_ref: String,
    pub(super) log_path: String,
    pub(super) behaviour: Behaviour,
    pub(super) created_at: Wall,
    pub(super) serial: u64,
    pub(super) life: Life,
}

#[derive(Clone, Debug)]
pub(super) enum Life {
    Created,
    Running(Running),
    Exited(Exited),
}

#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) since: Instant,
    pub(super) started_at: Wall,
    /// Exits by itself then.
    pub(super) natural: Option<(Instant, i32)>,
    /// Exits then because it was asked to.
    pub(super) termed: Option<(Instant, i32)>,
    /// Each stop in progress kills it when its grace is over; one that was abandoned does not.
    pub(super) kills: BTreeMap<u64, Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct Exited {
    pub(super) started_at: Wall,
    pub(super) finished_at: Wall,
    pub(super) code: i32,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// One reader of the event stream.
#[derive(Debug, Default)]
pub(super) struct Subscriber {
    pub(super) queue: Queue,
}

// === impl State ===

impl State {
    /// Lets everything happen that is due by `now`, in the order of time.
    pub(super) fn settle(&mut self, now: Instant) {
        if self.down_until.is_some_and(|until| until <= now) {
            self.down_until = None;
            self.version += 1;
        }
        loop {
            let due = |c: &Container| {
                c.running().and_then(|r| r.due()).map(|(at, code, killed)| (at, c.serial, code, killed))
            };
            let next = self.containers.values().filter_map(|c| Some((due(c)?, c.id.clone()))).min();
            let Some(((at, _, code, killed), id)) = next.filter(|((at, ..), _)| *at <= now) else { return };
            if killed {
                self.note_container(&id, Op::Killed, at);
            }
            self.exit(&id, code, reason_of(code), "", at, now);
        }
    }

    /// When [`State::settle`] will next have something to do.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let exits = self.containers.values().filter_map(|c| Some(c.running()?.due()?.0));
        exits.chain(self.down_until).min()
    }

    pub(super) fn exit(
        &mut self,
        id: &str,
        code: i32,
        reason: &'static str,
        message: &str,
        at: Instant,
        now: Instant,
    ) {
        let finished_at = self.wall(at, now);
        let Some(container) = self.containers.get_mut(id) else { return };
        let Life::Running(running) = &container.life else { return };
        container.life = Life::Exited(Exited {
            started_at: running.started_at,
            finished_at,
            code,
            reason,
            message: message.to_owned(),
        });
        self.note_container(id, Op::Exit { code }, at);
        self.container_event(id, v1::ContainerEventType::ContainerStoppedEvent, now);
    }

    /// The wall clock as it was at `at`.
    pub(super) fn wall(&self, at: Instant, now: Instant) -> Wall {
        let ago = i64::try_from(now.saturating_duration_since(at).as_nanos()).unwrap_or(i64::MAX);
        Wall(self.clock.now().wall.0.saturating_sub(ago))
    }

    /// A fresh id in the shape runtimes use: 64 hexadecimal digits.
    pub(super) fn fresh_id(&mut self) -> (String, u64) {
        self.serial += 1;
        let mut noise = Rng::new(self.serial);
        let mut word = || noise.next_u64();
        (format!("{:016x}{:016x}{:016x}{:016x}", word(), word(), word(), self.serial), self.serial)
    }

    pub(super) fn note_sandbox(&mut self, id: &str, op: Op, at: Instant) {
        let Some(sandbox) = self.sandboxes.get(id) else { return };
        let (pod, pod_uid) = sandbox.pod();
        let entry =
            Entry { at: at - self.origin, op, pod, pod_uid, container: String::new(), id: id.to_owned() };
        self.journal.push(entry);
        self.version += 1;
    }

    pub(super) fn note_container(&mut self, id: &str, op: Op, at: Instant) {
        let Some(container) = self.containers.get(id) else { return };
        let (pod, pod_uid) = self.sandboxes.get(&container.sandbox).map(Sandbox::pod).unwrap_or_default();
        let container = container.name().to_owned();
        let entry = Entry { at: at - self.origin, op, pod, pod_uid, container, id: id.to_owned() };
        self.journal.push(entry);
        self.version += 1;
    }

    /// A container that was not made.
    pub(super) fn note_refusal(&mut self, sandbox: &str, container: &str, at: Instant) {
        let (pod, pod_uid) = self.sandboxes.get(sandbox).map(Sandbox::pod).unwrap_or_default();
        let (at, container, id) = (at - self.origin, container.to_owned(), String::new());
        self.journal.push(Entry { at, op: Op::CreateFailed, pod, pod_uid, container, id });
    }

    pub(super) fn note_image(&mut self, image: &str, op: Op, at: Instant) {
        let (pod, pod_uid, container) = Default::default();
        let entry = Entry { at: at - self.origin, op, pod, pod_uid, container, id: image.to_owned() };
        self.journal.push(entry);
        self.version += 1;
    }

    /// An address no live sandbox has.
    pub(super) fn free_ip(&self) -> Option<String> {
        let taken: Vec<&str> = self.sandboxes.values().filter_map(|s| s.ip.as_deref()).collect();
        (2u32..65_000)
            .map(|n| format!("10.88.{}.{}", n >> 8, n & 255))
            .find(|ip| !taken.contains(&ip.as_str()))
    }
}

fn reason_of(code: i32) -> &'static str {
    if code == 0 { "Completed" } else { "Error" }
}

// === impl Sandbox ===

impl Sandbox {
    pub(super) fn pod(&self) -> (String, String) {
        self.config.metadata.as_ref().map(|m| (m.name.clone(), m.uid.clone())).unwrap_or_default()
    }

    pub(super) fn host_network(&self) -> bool {
        let options = self.namespace_options();
        options.is_some_and(|o| o.network() == v1::NamespaceMode::Node)
    }

    pub(super) fn namespace_options(&self) -> Option<&v1::NamespaceOption> {
        self.config.linux.as_ref()?.security_context.as_ref()?.namespace_options.as_ref()
    }

    pub(super) fn state(&self) -> v1::PodSandboxState {
        if self.ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready }
    }

    pub(super) fn summary(&self) -> v1::PodSandbox {
        v1::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at.0,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }

    pub(super) fn status(&self) -> v1::PodSandboxStatus {
        let namespaces = Some(v1::Namespace { options: self.namespace_options().cloned() });
        let network = v1::PodSandboxNetworkStatus {
            ip: self.ip.clone().unwrap_or_default(),
            additional_ips: Vec::new(),
        };
        v1::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at.0,
            network: Some(network),
            linux: Some(v1::LinuxPodSandboxStatus { namespaces }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }
}

// === impl Container ===

impl Container {
    pub(super) fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |m| &m.name)
    }

    pub(super) fn running(&self) -> Option<&Running> {
        if let Life::Running(running) = &self.life { Some(running) } else { None }
    }

    pub(super) fn running_mut(&mut self) -> Option<&mut Running> {
        if let Life::Running(running) = &mut self.life { Some(running) } else { None }
    }

    pub(super) fn state(&self) -> v1::ContainerState {
        match self.life {
            Life::Created => v1::ContainerState::ContainerCreated,
            Life::Running(_) => v1::ContainerState::ContainerRunning,
            Life::Exited(_) => v1::ContainerState::ContainerExited,
        }
    }

    pub(super) fn summary(&self) -> v1::Container {
        v1::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image_ref.clone(),
            state: self.state().into(),
            created_at: self.created_at.0,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image_ref.clone(),
        }
    }

    pub(super) fn status(&self) -> v1::ContainerStatus {
        let mut status = v1::ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at.0,
            image: self.config.image.clone(),
            image_ref: self.image_ref.clone(),
            image_id: self.image_ref.clone(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log_path.clone(),
            resources: self
                .config
                .linux
                .as_ref()
                .and_then(|l| l.resources.clone())
                .map(|linux| v1::ContainerResources { linux: Some(linux) }),
            ..v1::ContainerStatus::default()
        };
        match &self.life {
            Life::Created => {}
            Life::Running(running) => status.started_at = running.started_at.0,
            Life::Exited(exited) => {
                status.started_at = exited.started_at.0;
                status.finished_at = exited.finished_at.0;
                status.exit_code = exited.code;
                status.reason = exited.reason.to_owned();
                status.message.clone_from(&exited.message);
            }
        }
        status
    }
}

// === impl Running ===

impl Running {
    /// When it will exit, with which code, and whether that is a kill.
    fn due(&self) -> Option<(Instant, i32, bool)> {
        let kill = self.kills.values().min().map(|at| (*at, 137, true));
        let natural = self.natural.map(|(at, code)| (at, code, false));
        let termed = self.termed.map(|(at, code)| (at, code, false));
        [natural, termed, kill].into_iter().flatten().min_by_key(|(at, ..)| *at)
    }

    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// A bounded queue of events for one stream, ordered by the moment of delivery.
pub(super) type Queue = VecDeque<(Instant, v1::ContainerEventResponse)>;
