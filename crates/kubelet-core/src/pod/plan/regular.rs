//! Regular containers, and the Pod's natural end.

use k8s_openapi::api::core::v1::Container;

use super::{ContainerKind, ContainerState, KillReason, Plan, Step, definition_changed};
use crate::observed;
use crate::pod::policy::restarts_after_kill;

impl Step<'_> {
    pub(super) fn regular_containers(self, out: &mut Plan) {
        let mut going_on = false;
        for c in &self.spec.containers {
            going_on |= self.regular(out, c);
        }
        if !going_on {
            self.complete(out);
        }
    }

    /// True if the container runs on or will run (again).
    fn regular(self, out: &mut Plan, c: &Container) -> bool {
        let Some(instance) = self.newest(&c.name) else {
            self.start(out, c, ContainerKind::Regular);
            return !self.deleted();
        };
        match instance.state {
            ContainerState::Running => self.running(out, c, instance),
            _ if self.deleted() => false,
            ContainerState::Exited if !self.comes_back(c, instance) => false,
            ContainerState::Unknown => {
                self.kill_unknown(out, instance, "Container");
                self.start(out, c, ContainerKind::Regular);
                true
            }
            ContainerState::Exited | ContainerState::Created => {
                self.start(out, c, ContainerKind::Regular);
                true
            }
        }
    }

    fn running(self, out: &mut Plan, c: &Container, instance: &observed::Container) -> bool {
        if out.kill.iter().any(|k| k.id == instance.id) {
            // A stray in a replaced sandbox: once it is dead, its exit decides.
            return true;
        }
        let verdict = self.verdict(instance);
        let (reason, what, again) = if definition_changed(c, instance) {
            (KillReason::SpecChanged, "definition changed", true)
        } else if c.liveness_probe.is_some() && verdict.liveness == Some(false) {
            (KillReason::LivenessFailed, "failed liveness probe", restarts_after_kill(c, self.spec))
        } else if c.startup_probe.is_some() && verdict.startup == Some(false) {
            (KillReason::StartupFailed, "failed startup probe", restarts_after_kill(c, self.spec))
        } else if self.resized(c) {
            self.kill(
                out,
                instance,
                KillReason::Resized,
                format!("Container {} resize requires restart", c.name),
            );
            self.start(out, c, ContainerKind::Regular);
            return true;
        } else {
            return true;
        };
        let again = again && !self.deleted();
        let then = if again { ", will be restarted" } else { "" };
        self.kill(out, instance, reason, format!("Container {} {what}{then}", c.name));
        if again {
            self.start(out, c, ContainerKind::Regular);
        }
        again
    }
}
