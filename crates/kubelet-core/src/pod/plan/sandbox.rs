//! When a Pod needs another sandbox, and what starts in it.

use k8s_openapi::api::core::v1::Pod;

use super::{ContainerState, KillPod, NewSandbox, Plan, Step};
use crate::observed::Observed;
use crate::pod::ContainerKind;
use crate::pod::policy::is_sidecar;

/// A sandbox has to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pod) struct SandboxChange {
    pub(in crate::pod) attempt: u32,
    /// For the condition PodReadyToStartContainers and the log.
    pub(in crate::pod) why: &'static str,
}

/// Whether the Pod needs a new sandbox, and why.
pub(in crate::pod) fn sandbox_change(pod: &Pod, observed: &Observed) -> Option<SandboxChange> {
    let Some(newest) = observed.sandboxes.first() else {
        return Some(SandboxChange { attempt: 0, why: "no pod sandbox exists" });
    };
    let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
    let why = if observed.sandboxes.iter().filter(|s| s.ready).count() > 1 {
        "multiple pod sandboxes are ready and need to be reconciled"
    } else if !newest.ready {
        "pod sandbox is not ready"
    } else if newest.host_network != host_network {
        "network namespace mode changed and sandbox needs to be recreated"
    } else if !host_network && newest.ips.is_empty() {
        "pod sandbox has no IP address"
    } else {
        return None;
    };
    Some(SandboxChange { attempt: newest.attempt.saturating_add(1), why })
}

impl Step<'_> {
    /// Everything is killed and starts over in a new sandbox, unless the Pod has had its run.
    pub(super) fn replace_sandbox(self, out: &mut Plan, attempt: u32) {
        let observed = self.input.observed;
        let had_its_run = self.spec.restart_policy.as_deref() == Some("Never")
            && attempt != 0
            && !observed.containers.is_empty();
        let unfinished: Vec<_> = self
            .spec
            .containers
            .iter()
            .filter(|c| match self.newest(&c.name) {
                Some(i) if i.state == ContainerState::Exited => self.comes_back(c, i),
                _ => true,
            })
            .collect();
        let initialised = self
            .spec
            .containers
            .iter()
            .any(|c| self.newest(&c.name).is_some_and(|i| i.state != ContainerState::Unknown));
        if had_its_run || self.deleted() || (unfinished.is_empty() && initialised) {
            return self.end_of_run(out);
        }

        if !observed.sandboxes.is_empty() || observed.containers.iter().any(super::is_live) {
            let message = "Pod sandbox changed, it will be killed and re-created.".into();
            out.kill_pod = Some(KillPod { message });
        }
        let init = self.spec.init_containers.as_deref().unwrap_or_default();
        let purged = self.instances(init).into_iter().map(|(_, i)| i.id.clone());
        out.remove.extend(purged);
        out.sandbox = Some(NewSandbox { attempt });
        if let Some(first) = init.first() {
            let kind = if is_sidecar(first) { ContainerKind::Sidecar } else { ContainerKind::Init };
            self.start(out, first, kind);
        } else {
            for c in unfinished {
                self.start(out, c, ContainerKind::Regular);
            }
        }
        out.remove.sort_unstable();
        out.remove.dedup();
    }

    /// The sandbox is gone and not to be replaced: what may still run in it goes too.
    fn end_of_run(self, out: &mut Plan) {
        let observed = self.input.observed;
        let live = observed.containers.iter().any(super::is_live);
        out.finished = !live;
        if live || observed.sandboxes.iter().any(|s| s.ready) {
            out.kill_pod = Some(KillPod { message: "the pod will not be restarted".into() });
        }
    }
}
