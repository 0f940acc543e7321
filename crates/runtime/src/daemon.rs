//! What all verbs stand on.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cri::v1;
use images::Store;
use runtime_core::resources::Driver;
use runtime_core::seccomp::{self, Arch};
use sys::cgroup::Hierarchies;
use tonic::Status;

use crate::attempts::Attempts;
use crate::books::{Books, Container, Sandbox};
use crate::events::Events;
use crate::ids;
use crate::keeper::Program;
use crate::metrics::Metrics;
use crate::network::Networks;
use crate::records::{Kind, Records, SandboxRecord};
use crate::samples::Samples;
use crate::status;

#[cfg(target_arch = "x86_64")]
pub(crate) const ARCH: Arch = Arch::X86_64;
#[cfg(target_arch = "aarch64")]
pub(crate) const ARCH: Arch = Arch::Aarch64;

/// Filters kept compiled; a profile is a few kilobytes.
const FILTERS_MAX: usize = 64;

pub(crate) type Filter = (Vec<u64>, u64);

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) root_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    pub(crate) hierarchies: Hierarchies,
    pub(crate) driver: Driver,
    pub(crate) handlers: Vec<String>,
    pub(crate) version: String,
    pub(crate) networks: Networks,
    /// Later ones win; none for no CDI.
    pub(crate) cdi_dirs: Vec<PathBuf>,
    pub(crate) program: Program,
    pub(crate) store: Store,
    pub(crate) records: Records,
    pub(crate) books: Books,
    pub(crate) attempts: Attempts,
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
    pub(crate) samples: Samples,
    /// Why Pods cannot have user namespaces here, if they cannot; empty until it was tried.
    pub(crate) no_user_namespaces: OnceLock<Option<String>>,
    /// The capabilities that we have and can give.
    pub(crate) capabilities: u64,
    /// By the bounding set that the profile was made for.
    pub(crate) filters: Mutex<HashMap<u64, Arc<Filter>>>,
}

// === impl Daemon ===

impl Daemon {
    pub(crate) fn sandbox_dir(&self, id: &str) -> PathBuf {
        self.state_dir.join("sandboxes").join(id)
    }

    pub(crate) fn containers_dir(&self) -> PathBuf {
        self.root_dir.join("containers")
    }

    pub(crate) fn write_sandbox(&self, sandbox: &Sandbox) -> Result<(), Status> {
        let mut record = SandboxRecord::new(sandbox.config.clone(), &sandbox.handler, sandbox.created_at);
        (record.phase, record.network) = sandbox.state(|state| (state.phase, state.network.clone()));
        self.records
            .write(Kind::Sandbox, &sandbox.id, &record)
            .map_err(failed(format!("write down sandbox {}", sandbox.id)))
    }

    pub(crate) fn write_container(&self, container: &Container) -> Result<(), Status> {
        self.records
            .write(Kind::Container, &container.id, &container.record())
            .map_err(failed(format!("write down container {}", container.id)))
    }

    /// The default profile for a container with these capabilities.
    pub(crate) fn default_filter(&self, capabilities: u64) -> Result<Arc<Filter>, Status> {
        let known = || self.filters.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(filter) = known().get(&capabilities) {
            return Ok(filter.clone());
        }
        let profile = seccomp::default_profile(ARCH, capabilities);
        let program = seccomp::compile(&profile).map_err(failed("compile the default seccomp profile"))?;
        let filter = Arc::new((program, profile.flags));
        let mut known = known();
        if known.len() < FILTERS_MAX {
            known.insert(capabilities, filter.clone());
        }
        Ok(filter)
    }

    pub(crate) fn publish_container(&self, container: &Container, kind: v1::ContainerEventType) {
        self.publish(&container.id, &container.sandbox, kind);
    }

    pub(crate) fn publish_sandbox(&self, sandbox: &Sandbox, kind: v1::ContainerEventType) {
        self.publish(&sandbox.id, sandbox, kind);
    }

    fn publish(&self, id: &str, sandbox: &Sandbox, kind: v1::ContainerEventType) {
        let of_sandbox = self.books.containers_of(&sandbox.id);
        self.events.publish(v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: ids::now(),
            pod_sandbox_status: Some(status::sandbox(sandbox)),
            containers_statuses: of_sandbox.iter().map(|container| status::container(container)).collect(),
        });
    }
}

/// Runs what may take its time with disks and mounts on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Status::internal(format!("a thread ended early: {error}"))),
    }
}

/// Goes on to its end even when the caller has gone away.
pub(crate) async fn to_its_end<T: Send + 'static>(
    name: &'static str,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    match supervise::spawn(name, work).await {
        Ok(Some(done)) => done,
        _ => Err(Status::internal(format!("{name} ended early"))),
    }
}

/// As with every runtime, a failure without a class of its own is `Unknown`; its words say what was done, and to what.
pub(crate) fn failed<E: Display>(what: impl Display) -> impl FnOnce(E) -> Status {
    move |error| Status::unknown(format!("{what}: {error}"))
}

pub(crate) fn invalid(what: impl Display) -> Status {
    Status::invalid_argument(what.to_string())
}
