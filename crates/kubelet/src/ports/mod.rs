//! What the kubelet needs from the world. The adapters sit beside it, the fakes in `testkit`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use api::pod::QosClass;
use async_trait::async_trait;
use base::class::{Class, Classify};
use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_core::cgroup::Limits;

mod objects;
mod runtime;
mod storage;

pub use objects::{Account, Accounts, NoObjects, Objects};
pub use runtime::{EventStream, Runtime};
pub use storage::{NoStorage, Storage};

/// Volumes of Pods on this node: everything between a Pod's `spec.volumes` and a host path.
#[async_trait]
pub trait Volumes: Send + Sync + 'static {
    /// Makes every volume of the Pod ready (idempotent; also refreshes what files show) and says where
    /// each one is. Called before every start of a container and on each periodic sync. An error if one
    /// of them cannot be had; one that was ready before and only cannot be brought up to date stays.
    async fn mount(&self, pod: &Pod) -> Result<Mounted, VolumeError>;
    /// Prepares the subPath bind mount of one volumeMount and returns its host path.
    /// `sub_path` is already expanded. `index` is the position of the volumeMount in the container.
    async fn sub_path(
        &self,
        pod: &Pod,
        container: &str,
        index: usize,
        volume: &str,
        sub_path: &str,
    ) -> Result<PathBuf, VolumeError>;
    /// Unmounts and removes the volumes of a Pod that no longer runs. Its directory stays, and with it
    /// its last status and messages, for as long as somebody lists the Pod. Idempotent.
    async fn unmount(&self, uid: &PodUid) -> Result<(), VolumeError>;
    /// Removes the directory of a Pod that nobody lists any more, with whatever is in it. Idempotent.
    async fn remove(&self, uid: &PodUid) -> Result<(), VolumeError>;
    /// Pods that still have a directory under the root, from whatever earlier life.
    async fn known(&self) -> Result<Vec<PodUid>, VolumeError>;
}

/// What came of making a Pod's volumes ready.
#[derive(Clone, Debug, Default)]
pub struct Mounted {
    pub places: MountedVolumes,
    /// Why some of them are only as they were.
    pub stale: Vec<VolumeError>,
    /// Groups that the volumes say their users are in.
    pub groups: Vec<i64>,
}

/// Host paths by volume name.
pub type MountedVolumes = BTreeMap<String, MountedVolume>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountedVolume {
    /// A path on the host.
    Host { path: PathBuf, read_only: bool },
    /// An OCI image, mounted by the runtime.
    Image { reference: String },
    /// A block device on the host.
    Device { path: PathBuf, read_only: bool },
}

/// What is tried with a volume. Events are worded by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeAct {
    SetUp,
    /// What a claim is bound to is found out before anything is set up.
    Process,
    CheckNode,
    SubPath,
    Attach,
    /// The driver can attach no more to this node.
    FindRoom,
    Stage,
    StageDevice,
    Map,
    Unmount,
    Unmap,
    Unstage,
    /// The Pods that have volumes are looked for.
    List,
}

/// A volume that could not be made ready, or taken away.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{act} volume {volume:?}: {message}")]
pub struct VolumeError {
    /// What was tried.
    pub act: VolumeAct,
    pub volume: String,
    pub message: String,
    pub class: Class,
}

impl std::fmt::Display for VolumeAct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SetUp => "set up",
            Self::Process => "process",
            Self::CheckNode => "check node of",
            Self::SubPath => "prepare subPath of",
            Self::Attach => "attach",
            Self::FindRoom => "find room for",
            Self::Stage => "stage",
            Self::StageDevice => "stage device of",
            Self::Map => "map device of",
            Self::Unmount => "unmount",
            Self::Unmap => "unmap device of",
            Self::Unstage => "unstage",
            Self::List => "list",
        })
    }
}

impl Classify for VolumeError {
    fn class(&self) -> Class {
        self.class
    }
}

/// Pod-level cgroups.
#[async_trait]
pub trait Cgroups: Send + Sync + 'static {
    /// Makes the Pod's cgroup and returns what goes into `cgroup_parent` (empty: the runtime decides).
    async fn ensure(&self, pod: &Pod) -> std::io::Result<String>;
    /// What it holds the Pod to, and what it should; none where Pods have none of their own.
    async fn bounds(&self, pod: &Pod) -> std::io::Result<Option<PodBounds>>;
    /// Holds the Pod to these.
    async fn bound(&self, pod: &Pod, limits: &Limits) -> std::io::Result<()>;
    /// Removes it, with whatever of the Pod still runs in it.
    async fn remove(&self, uid: &PodUid) -> std::io::Result<()>;
    /// Pods that have one, from whatever earlier life.
    async fn known(&self) -> std::io::Result<Vec<PodUid>>;
    /// Holds all Pods of a class to this; where classes have no cgroups of their own there is nothing to hold.
    async fn hold_class(&self, _: QosClass, _: &Limits) -> std::io::Result<()> {
        Ok(())
    }
}

/// What the cgroup of a Pod says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodBounds {
    pub now: Limits,
    /// By the Pod's spec.
    pub next: Limits,
    /// Bytes of memory in use.
    pub memory_used: Option<u64>,
}

/// Small files that belong to a Pod: directories, /etc/hosts, termination messages, log directories.
/// Every path below a Pod's directory is opened relative to a file descriptor, symlinks refused.
#[async_trait]
pub trait PodFiles: Send + Sync + 'static {
    /// Creates the Pod's directory and its log directory.
    async fn prepare(&self, pod: &Pod) -> std::io::Result<()>;
    /// Writes the hosts file and returns its path.
    async fn write_hosts(&self, pod: &Pod, content: &str) -> std::io::Result<PathBuf>;
    /// The node's own /etc/hosts.
    async fn node_hosts(&self) -> std::io::Result<String>;
    /// The resolver file that Pods inherit, as it is now; none if they shall inherit none.
    async fn node_resolver(&self) -> std::io::Result<Option<String>>;
    /// Creates the log directory of a container and a fresh termination-message file (0666); returns
    /// the host path of the latter.
    async fn prepare_container(&self, pod: &Pod, container: &str) -> std::io::Result<PathBuf>;
    /// The highest `N.log` on disk plus one, when the runtime has forgotten earlier instances.
    async fn restart_count_from_logs(&self, pod: &Pod, container: &str) -> std::io::Result<Option<u32>>;
    /// `<podLogsDir>/<ns>_<name>_<uid>`.
    fn log_directory(&self, pod: &Pod) -> PathBuf;
    /// The last bytes of the termination message file at `path` (at most 4096), empty if none.
    async fn termination_message(&self, path: &str) -> std::io::Result<String>;
    /// The last lines of a log for FallbackToLogsOnError (80 lines, 2048 bytes).
    async fn log_tail(&self, path: &str) -> std::io::Result<String>;
    /// Remembers the Pod's status across restarts of the agent, if the Pod's directory exists.
    async fn save_status(&self, uid: &PodUid, status: &PodStatus) -> std::io::Result<()>;
    /// What an earlier life of the agent remembered; none if nothing readable is there.
    async fn load_status(&self, uid: &PodUid) -> std::io::Result<Option<PodStatus>>;
    /// Writes a file of what the node keeps of all Pods, whole or not at all.
    async fn save_checkpoint(&self, name: &'static str, text: String) -> std::io::Result<()>;
    /// Reads it; none if there is none.
    async fn load_checkpoint(&self, name: &'static str) -> std::io::Result<Option<String>>;
    /// The `/var/log/containers` symlink of a container.
    async fn link_log(&self, pod: &Pod, container: &str, id: &str, log_path: &str) -> std::io::Result<()>;
    /// Removes the log of a container, what was rotated away of it, and its link.
    async fn remove_logs(&self, dead: &cri::v1::ContainerStatus) -> std::io::Result<()>;
}

/// Network probes and hooks; exec goes through [`Runtime::exec_sync`].
#[async_trait]
pub trait Net: Send + Sync + 'static {
    /// One HTTP GET. Returns the status code and a bounded piece of the body.
    async fn http_get(&self, request: HttpGet) -> Result<HttpAnswer, NetError>;
    async fn tcp_connect(&self, host: &str, port: u16, timeout: Duration) -> Result<(), NetError>;
    /// gRPC health v1 Check; true when SERVING.
    async fn grpc_health(
        &self,
        host: &str,
        port: u16,
        service: &str,
        timeout: Duration,
    ) -> Result<GrpcHealth, NetError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub timeout: Duration,
    /// Follow redirects to the same host, at most ten.
    pub follow_redirects: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: u16,
    pub body: String,
    /// The answer was a redirect to another host, which was not followed.
    pub foreign_redirect: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrpcHealth {
    Serving,
    /// The status it answered with.
    NotServing(String),
    /// The server does not speak the health protocol; its own words.
    Unimplemented(String),
}

/// The other side refused, hung or answered nonsense.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NetError(pub String);

impl Classify for NetError {
    fn class(&self) -> Class {
        Class::Retry
    }
}
