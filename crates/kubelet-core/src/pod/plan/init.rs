//! Init containers, one after the other, and sidecars, which stay.

use k8s_openapi::api::core::v1::Container;

use super::{ContainerKind, ContainerState, KillReason, Plan, Step, definition_changed};
use crate::observed;
use crate::pod::policy::{is_sidecar, restarts_after_exit, restarts_after_kill, was_called_off};

/// How far initialisation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The regular containers may run.
    Initialised,
    Running,
    /// An init container failed for good.
    Failed,
}

/// What one existing init container tells about the sequence.
enum Found {
    /// It is done (or, as a sidecar, started): the next one may start.
    Done,
    /// It has to be started again.
    Again,
    /// It is at work.
    Busy,
    /// It failed and nothing may restart it.
    Fatal,
}

impl Step<'_> {
    /// Looks at the init containers from the last to the first, because the runtime may have
    /// forgotten those that completed: the last one found tells where the sequence stands. Before
    /// it, only sidecars matter, and those are kept running.
    pub(super) fn init_containers(self, out: &mut Plan) -> Progress {
        let init = self.spec.init_containers.as_deref().unwrap_or_default();
        let past_init = self.spec.containers.iter().any(|c| self.active(&c.name).is_some());
        let mut initialised = init.is_empty() || past_init;
        let mut reached = past_init;
        let mut start: Vec<usize> = Vec::new();
        for (at, c) in init.iter().enumerate().rev() {
            let sidecar = is_sidecar(c);
            let Some(instance) = self.active(&c.name) else {
                if reached && sidecar {
                    start.push(at);
                }
                continue;
            };
            if reached && !sidecar {
                continue;
            }
            match if sidecar { self.sidecar(out, c, instance) } else { self.init(out, c, instance) } {
                Found::Done if at + 1 == init.len() => initialised = true,
                Found::Done if !reached => start.push(at + 1),
                Found::Done | Found::Busy => {}
                Found::Again => start.push(at),
                Found::Fatal => return Progress::Failed,
            }
            reached = true;
        }
        if !reached && !init.is_empty() {
            start.push(0);
        }
        for at in start.into_iter().rev() {
            let kind = if is_sidecar(&init[at]) { ContainerKind::Sidecar } else { ContainerKind::Init };
            let waits = !self.start(out, &init[at], kind);
            if waits && kind == ContainerKind::Init {
                break;
            }
        }
        if initialised { Progress::Initialised } else { Progress::Running }
    }

    fn init(self, out: &mut Plan, c: &Container, instance: &observed::Container) -> Found {
        match instance.state {
            ContainerState::Running => Found::Busy,
            ContainerState::Created => Found::Again,
            ContainerState::Exited if instance.exit_code == 0 => Found::Done,
            ContainerState::Exited if self.deleted() => Found::Fatal,
            ContainerState::Exited if restarts_after_exit(c, self.spec, instance.exit_code) => Found::Again,
            ContainerState::Exited if was_called_off(instance) => Found::Again,
            ContainerState::Unknown if restarts_after_kill(c, self.spec) => {
                self.kill_unknown(out, instance, "Init container");
                Found::Again
            }
            ContainerState::Exited | ContainerState::Unknown => Found::Fatal,
        }
    }

    fn sidecar(self, out: &mut Plan, c: &Container, instance: &observed::Container) -> Found {
        let verdict = self.verdict(instance);
        let (reason, what) = match instance.state {
            ContainerState::Created | ContainerState::Exited => return Found::Again,
            ContainerState::Unknown => {
                self.kill_unknown(out, instance, "Init container");
                return Found::Again;
            }
            ContainerState::Running if definition_changed(c, instance) => {
                (KillReason::SpecChanged, "definition changed")
            }
            ContainerState::Running if c.startup_probe.is_some() && verdict.startup != Some(true) => {
                if verdict.startup.is_none() {
                    return Found::Busy;
                }
                (KillReason::StartupFailed, "failed startup probe")
            }
            ContainerState::Running if c.liveness_probe.is_some() && verdict.liveness == Some(false) => {
                (KillReason::LivenessFailed, "failed liveness probe")
            }
            ContainerState::Running if self.resized(c) => (KillReason::Resized, "resize requires restart"),
            ContainerState::Running => return Found::Done,
        };
        let kind = if reason == KillReason::Resized { "Container" } else { "Init container" };
        self.kill(out, instance, reason, format!("{kind} {} {what}", c.name));
        Found::Again
    }

    pub(super) fn kill_unknown(self, out: &mut Plan, instance: &observed::Container, what: &str) {
        let message = format!("{what} is in \"unknown\" state, try killing it before restart");
        self.kill(out, instance, KillReason::UnknownState, message);
    }
}
