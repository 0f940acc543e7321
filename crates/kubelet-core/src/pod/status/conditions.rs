//! The conditions the kubelet owns.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodStatus};

use super::super::news::{BY_KUBELET, OWN_CONDITIONS};
use super::super::plan::sandbox_change;
use super::super::policy::{is_sidecar, may_restart_all};
use super::containers::find;
use super::{KillCause, View, is_terminal, time};

/// A condition before it gets its times.
struct Draft {
    kind: &'static str,
    reason: &'static str,
    message: String,
    holds: bool,
}

impl View<'_> {
    pub(super) fn set_conditions(self, out: &mut PodStatus) {
        let mut all = self.foreign_conditions();
        if let Some(disruption) = self.disruption(out) {
            all.retain(|c| c.type_ != disruption.kind);
            all.push(self.finish(disruption));
        }
        let containers_ready = self.containers_ready(out);
        let ready = self.ready(&containers_ready, &all);
        let drafts = [self.ready_to_start(), self.initialized(out), ready, containers_ready];
        all.extend(drafts.into_iter().map(|d| self.finish(d)));
        all.push(self.finish(yes("PodScheduled")));
        if may_restart_all(self.spec) {
            all.push(self.finish(self.restarting_condition(out)));
        }
        all.extend(self.resize_conditions(out));
        out.conditions = Some(all);
    }

    /// Only the conditions that follow the probes; a status without any has nothing to follow.
    pub(super) fn refresh_readiness(self, out: &mut PodStatus) {
        let Some(mut all) = out.conditions.take() else { return };
        let containers_ready = self.containers_ready(out);
        let ready = self.ready(&containers_ready, &self.foreign_conditions());
        for fresh in [ready, containers_ready] {
            if let Some(old) = all.iter_mut().find(|c| c.type_ == fresh.kind) {
                *old = self.finish(fresh);
            }
        }
        out.conditions = Some(all);
    }

    /// Conditions that somebody else sets stay as they are.
    pub(super) fn foreign_conditions(self) -> Vec<PodCondition> {
        let api = self.input.pod.status.as_ref().and_then(|s| s.conditions.as_ref());
        let known = api.or(self.input.previous.conditions.as_ref());
        let ours = |c: &&PodCondition| !OWN_CONDITIONS.contains(&c.type_.as_str());
        let mut all: Vec<PodCondition> = known.into_iter().flatten().filter(ours).cloned().collect();
        // What we wrote ourselves stays until the API server has it; another's word is the API server's to keep.
        let ours =
            |c: &&PodCondition| c.type_ == "DisruptionTarget" && c.reason.as_deref() == Some(BY_KUBELET);
        if let Some(old) = self.input.previous.conditions.iter().flatten().find(ours) {
            all.retain(|c| c.type_ != old.type_);
            all.push(old.clone());
        }
        all
    }

    /// The node ended the Pod; said together with the terminal phase.
    fn disruption(self, out: &PodStatus) -> Option<Draft> {
        let Some(KillCause::Node { reason, message, disrupts }) = self.input.kill else { return None };
        if !disrupts || !is_terminal(out.phase.as_deref()) {
            return None;
        }
        let (kind, why) = ("DisruptionTarget", BY_KUBELET);
        let message = match reason.as_str() {
            "Preempting" => "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
            _ => message.clone(),
        };
        Some(Draft { kind, reason: why, message, holds: true })
    }

    fn ready_to_start(self) -> Draft {
        const KIND: &str = "PodReadyToStartContainers";
        match sandbox_change(self.input.pod, self.input.observed) {
            None => yes(KIND),
            // Upstream gives no reason.
            Some(_) => no(KIND, "", String::new()),
        }
    }

    fn initialized(self, out: &PodStatus) -> Draft {
        const KIND: &str = "Initialized";
        let init = self.spec.init_containers.as_deref().unwrap_or_default();
        let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
        for c in init {
            match find(out.init_container_statuses.as_deref(), &c.name) {
                None => unknown.push(c.name.as_str()),
                Some(s) if is_sidecar(c) && s.started == Some(true) => {}
                Some(s) if !is_sidecar(c) && s.ready => {}
                Some(_) => incomplete.push(c.name.as_str()),
            }
        }
        if out.phase.as_deref() == Some("Succeeded") && unknown.is_empty() {
            return Draft { reason: "PodCompleted", ..yes(KIND) };
        }
        let message = texts("incomplete", &unknown, &incomplete);
        let before = self.input.previous.conditions.iter().flatten();
        let was = before.into_iter().any(|c| c.type_ == KIND && c.status == "True");
        // Once it is, it stays so, whatever has to run again.
        if message.is_empty() || any_started(out) || was {
            return yes(KIND);
        }
        no(KIND, "ContainersNotInitialized", message)
    }

    fn containers_ready(self, out: &PodStatus) -> Draft {
        const KIND: &str = "ContainersReady";
        let sidecars = self.spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
        let of_sidecars = sidecars.map(|c| (c, find(out.init_container_statuses.as_deref(), &c.name)));
        let regular = self.spec.containers.iter();
        let of_regular = regular.map(|c| (c, find(out.container_statuses.as_deref(), &c.name)));
        let all: Vec<(&Container, Option<&ContainerStatus>)> = of_sidecars.chain(of_regular).collect();
        let names = |pick: fn(&Option<&ContainerStatus>) -> bool| -> Vec<&str> {
            all.iter().filter(|(_, s)| pick(s)).map(|(c, _)| c.name.as_str()).collect()
        };
        let unknown = names(|s| s.is_none());
        let unready = names(|s| s.is_some_and(|s| !s.ready));
        match out.phase.as_deref() {
            Some("Succeeded") if unknown.is_empty() => return no(KIND, "PodCompleted", String::new()),
            Some("Failed") => return no(KIND, "PodFailed", String::new()),
            _ => {}
        }
        let message = texts("unready", &unknown, &unready);
        if message.is_empty() { yes(KIND) } else { no(KIND, "ContainersNotReady", message) }
    }

    /// Ready needs ready containers and every readiness gate.
    fn ready(self, containers: &Draft, conditions: &[PodCondition]) -> Draft {
        const KIND: &str = "Ready";
        if !containers.holds {
            return no(KIND, containers.reason, containers.message.clone());
        }
        let gates = self.spec.readiness_gates.iter().flatten().map(|g| g.condition_type.as_str());
        let shut: Vec<String> = gates
            .filter_map(|gate| match conditions.iter().find(|c| c.type_ == gate) {
                None => {
                    Some(format!("corresponding condition of pod readiness gate \"{gate}\" does not exist."))
                }
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{gate}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            })
            .collect();
        if shut.is_empty() { yes(KIND) } else { no(KIND, "ReadinessGatesNotReady", shut.join(", ")) }
    }

    fn restarting_condition(self, out: &PodStatus) -> Draft {
        const KIND: &str = "AllContainersRestarting";
        match out.phase.as_deref() {
            Some("Succeeded") => no(KIND, "PodCompleted", String::new()),
            Some("Failed") => no(KIND, "PodFailed", String::new()),
            _ if self.asks_restart_of_all() => Draft {
                kind: KIND,
                reason: "RestartAllContainersStarted",
                message: "container exited with restart policy rule".into(),
                holds: true,
            },
            _ => no(KIND, "", String::new()),
        }
    }

    /// What became of a resize; nothing once the Pod is over.
    fn resize_conditions(self, out: &PodStatus) -> Vec<PodCondition> {
        if is_terminal(out.phase.as_deref()) {
            return Vec::new();
        }
        let pending = self.input.pending.map(|p| {
            self.resize_condition("PodResizePending", p.reason.as_str(), Some(&p.message), p.generation)
        });
        let in_progress = self.input.resizing.map(|r| {
            let reason = if r.error.is_some() { "Error" } else { "" };
            self.resize_condition("PodResizeInProgress", reason, r.error.as_deref(), r.generation)
        });
        pending.into_iter().chain(in_progress).collect()
    }

    /// It speaks of the version of the Pod that asked, and is as old as its reason.
    fn resize_condition(
        self,
        kind: &'static str,
        reason: &'static str,
        message: Option<&str>,
        generation: Option<i64>,
    ) -> PodCondition {
        let draft = Draft { kind, reason, message: message.unwrap_or_default().to_owned(), holds: true };
        let fresh = self.finish(draft);
        let old = self.input.previous.conditions.iter().flatten().find(|c| c.type_ == kind);
        let since = old.filter(|c| c.reason == fresh.reason).and_then(|c| c.last_transition_time.clone());
        PodCondition {
            observed_generation: generation,
            last_transition_time: since.or_else(|| time(self.input.now)),
            ..fresh
        }
    }

    /// The transition time moves only when the status flips.
    fn finish(self, draft: Draft) -> PodCondition {
        let status = if draft.holds { "True" } else { "False" };
        let old = self.input.previous.conditions.iter().flatten().find(|c| c.type_ == draft.kind);
        let since = old.filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
        let text = |s: String| (!s.is_empty()).then_some(s);
        PodCondition {
            type_: draft.kind.into(),
            status: status.into(),
            reason: text(draft.reason.into()),
            message: text(draft.message),
            observed_generation: self.input.pod.metadata.generation,
            last_transition_time: since.or_else(|| time(self.input.now)),
            last_probe_time: None,
        }
    }
}

fn yes(kind: &'static str) -> Draft {
    Draft { kind, reason: "", message: String::new(), holds: true }
}

fn no(kind: &'static str, reason: &'static str, message: String) -> Draft {
    Draft { kind, reason, message, holds: false }
}

fn texts(what: &str, unknown: &[&str], others: &[&str]) -> String {
    let part = |what: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("containers with {what} status: [{}]", names.join(" ")))
    };
    let parts: Vec<String> = [part("unknown", unknown), part(what, others)].into_iter().flatten().collect();
    parts.join(", ")
}

fn any_started(out: &PodStatus) -> bool {
    let states = out.container_statuses.iter().flatten().filter_map(|s| s.state.as_ref());
    states.into_iter().any(|s| s.running.is_some() || s.terminated.is_some())
}
