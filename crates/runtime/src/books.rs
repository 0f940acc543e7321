//! What there is: sandboxes and containers, by id.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cri::v1;
use images::Held;
use runtime_core::cdi::Edits;
use runtime_core::container::namespace;
use runtime_core::userns::Mapping;
use tokio::sync::watch;
use tonic::Status;

use crate::jobs::Jobs;
use crate::keeper::Keeper;
use crate::records::{ContainerRecord, ImageFacts, NetworkRecord, Phase, SandboxPhase, UserFacts};
use crate::userns;

/// The cgroup of those who are told none, as with every runtime.
pub(crate) const NO_PARENT: &str = "k8s.io";

/// All there is. Answers come from here, not from the disk.
#[derive(Debug, Default)]
pub(crate) struct Books(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    sandboxes: BTreeMap<String, Arc<Sandbox>>,
    containers: BTreeMap<String, Arc<Container>>,
}

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) config: v1::PodSandboxConfig,
    pub(crate) handler: String,
    pub(crate) created_at: i64,
    /// Its socket, its namespaces and its files.
    pub(crate) dir: PathBuf,
    pub(crate) jobs: Jobs,
    /// One verb at a time changes it.
    pub(crate) turn: tokio::sync::Mutex<()>,
    state: Mutex<SandboxState>,
}

#[derive(Debug, Default)]
pub(crate) struct SandboxState {
    pub(crate) phase: SandboxPhase,
    pub(crate) network: Option<NetworkRecord>,
    pub(crate) keeper: Option<Keeper>,
    /// The first process of the PID namespace that its containers share.
    pub(crate) init: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) config: v1::ContainerConfig,
    pub(crate) image: ImageFacts,
    /// Layers of the images that it mounts, by place in its mounts.
    pub(crate) image_mounts: BTreeMap<usize, Vec<String>>,
    pub(crate) user: UserFacts,
    /// What its CDI devices change in it.
    pub(crate) cdi: Edits,
    pub(crate) created_at: i64,
    pub(crate) job: u32,
    /// Below the roots of the hierarchies.
    pub(crate) cgroup: String,
    /// What it writes, and the overlay's own place.
    pub(crate) dir: PathBuf,
    /// One verb at a time changes it. Its end comes by itself.
    pub(crate) turn: tokio::sync::Mutex<()>,
    /// It was asked to stop; once is enough.
    pub(crate) is_signalled: AtomicBool,
    pub(crate) state: watch::Sender<ContainerState>,
    /// Its layers stay while it does.
    pub(crate) held: Mutex<Option<Held>>,
    /// What it prints, complains and hears, for the case that its keeper is killed.
    pub(crate) spare: Mutex<Option<[Option<OwnedFd>; 3]>>,
    /// Its root, from when it is created until it is started, unless the daemon is another by then.
    pub(crate) root: Mutex<Option<OwnedFd>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ContainerState {
    pub(crate) phase: Phase,
    pub(crate) resources: v1::LinuxContainerResources,
    pub(crate) pidfd: Option<Arc<OwnedFd>>,
    pub(crate) is_removed: bool,
}

// === impl Books ===

impl Books {
    pub(crate) fn add_sandbox(&self, sandbox: Arc<Sandbox>) {
        self.all().sandboxes.insert(sandbox.id.clone(), sandbox);
    }

    pub(crate) fn add_container(&self, container: Arc<Container>) {
        self.all().containers.insert(container.id.clone(), container);
    }

    pub(crate) fn remove_sandbox(&self, id: &str) {
        self.all().sandboxes.remove(id);
    }

    pub(crate) fn remove_container(&self, id: &str) {
        self.all().containers.remove(id);
    }

    /// By its id, or by the first digits of it if they are nobody else's.
    pub(crate) fn find_sandbox(&self, id: &str) -> Option<Arc<Sandbox>> {
        by_prefix(&self.all().sandboxes, id)
    }

    pub(crate) fn find_container(&self, id: &str) -> Option<Arc<Container>> {
        by_prefix(&self.all().containers, id)
    }

    pub(crate) fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, Status> {
        self.find_sandbox(id).ok_or_else(|| Status::not_found(format!("sandbox {id:?} is not found")))
    }

    pub(crate) fn container(&self, id: &str) -> Result<Arc<Container>, Status> {
        self.find_container(id).ok_or_else(|| Status::not_found(format!("container {id:?} is not found")))
    }

    /// The oldest first.
    pub(crate) fn sandboxes(&self) -> Vec<Arc<Sandbox>> {
        let mut all: Vec<_> = self.all().sandboxes.values().cloned().collect();
        all.sort_by_key(|sandbox| sandbox.created_at);
        all
    }

    pub(crate) fn containers(&self) -> Vec<Arc<Container>> {
        let mut all: Vec<_> = self.all().containers.values().cloned().collect();
        all.sort_by_key(|container| container.created_at);
        all
    }

    pub(crate) fn containers_of(&self, sandbox: &str) -> Vec<Arc<Container>> {
        let mut all = self.containers();
        all.retain(|container| container.sandbox.id == sandbox);
        all
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_prefix<T: Clone>(all: &BTreeMap<String, T>, id: &str) -> Option<T> {
    if id.is_empty() {
        return None;
    }
    let mut found = all.range(id.to_owned()..).take_while(|(key, _)| key.starts_with(id));
    match (found.next(), found.next()) {
        (Some((key, one)), next) if key == id || next.is_none() => Some(one.clone()),
        _ => None,
    }
}

// === impl Sandbox ===

impl Sandbox {
    pub(crate) fn new(
        id: &str,
        config: v1::PodSandboxConfig,
        handler: &str,
        created_at: i64,
        dir: PathBuf,
    ) -> Self {
        Self {
            id: id.to_owned(),
            config,
            handler: handler.to_owned(),
            created_at,
            dir,
            jobs: Jobs::default(),
            turn: tokio::sync::Mutex::default(),
            state: Mutex::default(),
        }
    }

    pub(crate) fn state<T>(&self, look: impl FnOnce(&mut SandboxState) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn phase(&self) -> SandboxPhase {
        self.state(|state| state.phase)
    }

    pub(crate) fn keeper(&self) -> Option<Keeper> {
        self.state(|state| state.keeper.clone())
    }

    /// Of the whole Pod, as its configuration says.
    pub(crate) fn namespaces(&self) -> v1::NamespaceOption {
        let linux = self.config.linux.as_ref();
        let context = linux.and_then(|linux| linux.security_context.as_ref());
        context.and_then(|context| context.namespace_options.clone()).unwrap_or_default()
    }

    pub(crate) fn is_privileged(&self) -> bool {
        let linux = self.config.linux.as_ref();
        linux.and_then(|linux| linux.security_context.as_ref()).is_some_and(|context| context.privileged)
    }

    pub(crate) fn is_host_network(&self) -> bool {
        self.namespaces().network() == v1::NamespaceMode::Node
    }

    pub(crate) fn is_host_ipc(&self) -> bool {
        self.namespaces().ipc() == v1::NamespaceMode::Node
    }

    pub(crate) fn cgroup_parent(&self) -> &str {
        let parent = self.config.linux.as_ref().map(|linux| linux.cgroup_parent.as_str());
        parent.filter(|parent| !parent.is_empty()).unwrap_or(NO_PARENT)
    }

    /// Namespaces that are pinned, by flag of clone and name of the file.
    pub(crate) fn pinned(&self) -> Vec<(u32, &'static str)> {
        let mut all = Vec::new();
        if !self.is_host_network() {
            all.extend([(namespace::NETWORK, "net"), (namespace::UTS, "uts")]);
        }
        if !self.is_host_ipc() {
            all.push((namespace::IPC, "ipc"));
        }
        if self.mapping().is_some() {
            all.push((namespace::USER, userns::NAME));
        }
        all
    }

    /// Open, for a Pod that has one.
    pub(crate) fn user_namespace(&self) -> io::Result<Option<OwnedFd>> {
        self.mapping().map(|_| userns::open(&self.dir)).transpose()
    }

    /// Of a Pod in a user namespace; what cannot be mapped was refused when it was made.
    pub(crate) fn mapping(&self) -> Option<Mapping> {
        userns::mapping(&self.namespaces()).ok().flatten()
    }

    /// The network namespace, where plugins find it.
    pub(crate) fn network_path(&self) -> Option<PathBuf> {
        (!self.is_host_network()).then(|| self.dir.join("net"))
    }

    pub(crate) fn meta(&self) -> v1::PodSandboxMetadata {
        self.config.metadata.clone().unwrap_or_default()
    }

    /// By which the caller knows it.
    pub(crate) fn name(&self) -> String {
        name_of_sandbox(&self.meta())
    }
}

pub(crate) fn name_of_sandbox(m: &v1::PodSandboxMetadata) -> String {
    format!("{}_{}_{}_{}", m.name, m.namespace, m.uid, m.attempt)
}

pub(crate) fn name_of_container(sandbox: &str, m: &v1::ContainerMetadata) -> String {
    format!("{}_{sandbox}_{}", m.name, m.attempt)
}

// === impl Container ===

impl Container {
    /// A new keeper will not get the writing end of its input: the last of those is somebody else's to close.
    pub(crate) fn forget_spare_input(&self) {
        if let Some([.., input]) = &mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner) {
            *input = None;
        }
    }

    pub(crate) fn of_record(
        id: &str,
        record: ContainerRecord,
        sandbox: Arc<Sandbox>,
        (cgroup, dir): (String, &Path),
    ) -> Self {
        let state = ContainerState {
            phase: record.phase,
            resources: record.resources.0,
            ..ContainerState::default()
        };
        Self {
            id: id.to_owned(),
            sandbox,
            config: record.config.0,
            image: record.image,
            image_mounts: record.image_mounts,
            user: record.user,
            cdi: record.cdi,
            created_at: record.created_at,
            job: record.job,
            cgroup,
            dir: dir.join(id),
            turn: tokio::sync::Mutex::default(),
            is_signalled: AtomicBool::new(false),
            state: watch::Sender::new(state),
            held: Mutex::default(),
            spare: Mutex::default(),
            root: Mutex::default(),
        }
    }

    /// As it is to be written down.
    pub(crate) fn record(&self) -> ContainerRecord {
        let state = self.state.borrow();
        let mut record = ContainerRecord::new(
            &self.sandbox.id,
            self.config.clone(),
            self.image.clone(),
            self.user.clone(),
            self.created_at,
            self.job,
        );
        record.image_mounts = self.image_mounts.clone();
        record.cdi = self.cdi.clone();
        record.phase = state.phase.clone();
        record.resources.0 = state.resources.clone();
        record
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state.borrow().phase.clone()
    }

    pub(crate) fn cri_state(&self) -> v1::ContainerState {
        match self.state.borrow().phase {
            Phase::Created | Phase::Starting => v1::ContainerState::ContainerCreated,
            Phase::Running { .. } => v1::ContainerState::ContainerRunning,
            Phase::Exited(_) => v1::ContainerState::ContainerExited,
        }
    }

    /// While it runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self.state.borrow().phase {
            Phase::Running { pid, .. } => Some(pid),
            _ => None,
        }
    }

    pub(crate) fn security(&self) -> v1::LinuxContainerSecurityContext {
        let linux = self.config.linux.as_ref();
        linux.and_then(|linux| linux.security_context.clone()).unwrap_or_default()
    }

    pub(crate) fn meta(&self) -> v1::ContainerMetadata {
        self.config.metadata.clone().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> String {
        name_of_container(&self.sandbox.id, &self.meta())
    }

    /// Empty when nobody wants a log.
    pub(crate) fn log_path(&self) -> PathBuf {
        let (dir, file) = (&self.sandbox.config.log_directory, &self.config.log_path);
        if dir.is_empty() || file.is_empty() { PathBuf::new() } else { Path::new(dir).join(file) }
    }

    pub(crate) fn pid_mode(&self) -> v1::NamespaceMode {
        self.security().namespace_options.map_or(v1::NamespaceMode::Pod, |options| options.pid())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_digits_are_a_name_if_they_are_nobody_elses() {
        let all: BTreeMap<String, u8> = [("aa1".into(), 1), ("aa12".into(), 2), ("b3".into(), 3)].into();
        let rows =
            [("aa1", Some(1)), ("aa12", Some(2)), ("aa", None), ("b", Some(3)), ("", None), ("c", None)];
        for (id, want) in rows {
            assert_eq!(by_prefix(&all, id), want, "{id:?}");
        }
    }
}
