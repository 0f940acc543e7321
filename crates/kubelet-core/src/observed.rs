//! What the runtime was seen doing for one Pod, in the core's own words.

use std::net::IpAddr;

use base::ids::{ContainerId, PodUid, SandboxId};
use base::time::Wall;

/// One Pod as the runtime holds it. Newest sandbox and newest container of each name come first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Grows with every observation. An effect at revision `n` needs an observation made after it
    /// before the next plan.
    pub revision: u64,
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<Container>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sandbox {
    pub id: SandboxId,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: Wall,
    pub host_network: bool,
    pub ips: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Container {
    pub id: ContainerId,
    pub sandbox: SandboxId,
    pub name: String,
    /// The restart count it was created with (annotation `io.kubernetes.container.restartCount`).
    pub restart_count: u32,
    pub state: ContainerState,
    /// Annotation `io.kubernetes.container.hash`; absent on containers somebody else made.
    pub hash: Option<u32>,
    /// The image as the user wrote it.
    pub image: String,
    /// The image as the runtime resolved it (CRI `image_ref`).
    pub image_ref: String,
    /// The image id (CRI `image_id`), where the runtime reports it.
    pub image_id: String,
    pub created_at: Wall,
    pub started_at: Option<Wall>,
    pub finished_at: Option<Wall>,
    pub exit_code: i32,
    /// CRI's words, passed through: Completed, Error, OOMKilled, ContainerCannotRun, ...
    pub reason: String,
    pub message: String,
    /// The termination message read from its file or from the logs when the exit was first seen.
    pub termination_message: String,
    /// What the runtime applied, where it reports it.
    pub resources: Option<Resources>,
    pub user: Option<User>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// Linux resources as CRI reports them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resources {
    pub cpu_shares: i64,
    pub cpu_quota: i64,
    pub cpu_period: i64,
    pub memory_limit: i64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct User {
    pub uid: i64,
    pub gid: i64,
    pub supplemental_groups: Vec<i64>,
}

/// One Pod found in the runtime, whoever made it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundPod {
    pub uid: PodUid,
    pub name: String,
    pub namespace: String,
    pub observed: Observed,
}

// === impl Observed ===

impl Observed {
    /// The newest instance of a container.
    #[must_use]
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// The newest instance of a container that has exited: the one back-off counts from.
    #[must_use]
    pub fn last_exit(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| c.name == name && c.state == ContainerState::Exited)
    }

    #[must_use]
    pub fn container(&self, id: &ContainerId) -> Option<&Container> {
        self.containers.iter().find(|c| c.id == *id)
    }

    #[must_use]
    pub fn ready_sandbox(&self) -> Option<&Sandbox> {
        self.sandboxes.iter().find(|s| s.ready)
    }

    #[must_use]
    pub fn any_running(&self) -> bool {
        self.containers.iter().any(|c| c.state == ContainerState::Running)
    }
}
