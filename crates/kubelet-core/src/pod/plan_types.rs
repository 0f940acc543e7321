//! The vocabulary of a plan: what goes into the decision and what comes out.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::ContainerId;
use base::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::Verdicts;
use crate::container_spec::ContainerKind;
use crate::observed::Observed;
use crate::resize::{Due, PodResources};

/// Everything [`super::plan`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub verdicts: &'a Verdicts,
    /// Instances that the executor stopped because a plan said that their definition changed.
    pub replaced: &'a BTreeSet<ContainerId>,
    /// Crash-loop memory of this Pod; `plan` reads it, the executor records failures in it.
    pub crash_loop: &'a super::CrashLoop,
    /// What the cgroups were last told; none where nobody keeps a record of it, and nothing is resized.
    pub actuated: Option<&'a PodResources>,
    pub now: Now,
}

/// The next step of a running Pod. Executed top to bottom; no choice is left to the executor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Stop every container and every sandbox first.
    pub kill_pod: Option<KillPod>,
    /// Containers to stop; ignored when `kill_pod` is set (that stops all).
    pub kill: Vec<KillContainer>,
    /// Dead containers to remove from the runtime (rerun init containers, RestartAllContainers).
    pub remove: Vec<ContainerId>,
    /// Whether the logs of the removed containers stay: their numbers carry the restart counts on.
    pub keep_logs: bool,
    /// What has to get other resources before anything starts.
    pub resize: Option<Due>,
    /// A sandbox to create before anything starts.
    pub sandbox: Option<NewSandbox>,
    /// Containers to start, in this order, one after the other.
    pub start: Vec<Start>,
    /// Containers that wait out a crash-loop back-off, for the status.
    pub waiting: BTreeMap<String, Waiting>,
    /// When to look again even if nothing happens (the earliest back-off expiry or deadline).
    pub wake_at: Option<Mono>,
    /// Nothing will ever be started again: the Pod is complete. At most sidecars and ephemeral
    /// containers still run; `kill_pod` or the Pod's termination stops them.
    pub finished: bool,
}

/// Everything stops. Ordered also when only dead sandboxes are left and a new one follows: until it
/// is stopped, a dead sandbox may still hold its address and host ports.
#[derive(Clone, Debug, PartialEq)]
pub struct KillPod {
    /// Shown in the log, and as the event SandboxChanged when a sandbox follows.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct KillContainer {
    pub id: ContainerId,
    pub name: String,
    pub reason: KillReason,
    /// The text of the Killing event.
    pub message: String,
    /// Seconds; overrides the Pod's grace (probe-level grace, or 0 for RestartAllContainers).
    pub grace: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    SpecChanged,
    /// It gets other resources, and its resizePolicy is to start it again for that.
    Resized,
    LivenessFailed,
    StartupFailed,
    UnknownState,
    RestartAll,
    /// Two live instances of one container: the older one goes.
    Duplicate,
    /// The Pod no longer lists it.
    NotWanted,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NewSandbox {
    pub attempt: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub name: String,
    pub kind: ContainerKind,
    pub restart_count: u32,
}

/// One container to stop at the Pod's end. All stops run in parallel.
#[derive(Clone, Debug, PartialEq)]
pub struct Stop {
    pub id: ContainerId,
    pub name: String,
    pub kind: ContainerKind,
    /// StopContainer is sent only after these have stopped, or when the grace is used up (sidecars
    /// outlive the regular containers and the sidecars declared after them). The preStop hook does not wait.
    pub after: Vec<String>,
}

/// `state.waiting` of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}
