//! The next step of a running Pod.

mod init;
mod regular;
mod sandbox;
#[cfg(test)]
mod tests;

use std::time::Duration;

use base::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::policy::{kind_of, restarts_all, will_restart};
use super::{ContainerKind, KillContainer, KillPod, KillReason, NewSandbox, Plan, PlanInput, Start, Waiting};
use crate::observed::{self, ContainerState};
use crate::resize;
pub(super) use sandbox::sandbox_change;

/// Decides the next step of a Pod that is wanted.
///
/// The rules are upstream's, in upstream's order: whole-Pod restarts, the sandbox, ephemeral
/// containers, init containers, regular containers, completion.
#[must_use]
pub fn plan(input: &PlanInput<'_>) -> Plan {
    let mut out = Plan::default();
    let Some(spec) = &input.pod.spec else { return out };
    let step = Step { spec, input };
    if step.restart_all(&mut out) {
        return out;
    }
    if let Some(change) = sandbox_change(input.pod, input.observed) {
        step.replace_sandbox(&mut out, change.attempt);
        return out;
    }
    step.kill_strays(&mut out);
    step.start_ephemeral(&mut out);
    match step.init_containers(&mut out) {
        init::Progress::Initialised => step.regular_containers(&mut out),
        init::Progress::Running => {}
        init::Progress::Failed => step.complete(&mut out),
    }
    step.prune_init(&mut out);
    step.resize(&mut out);
    out
}

/// When the Pod's activeDeadlineSeconds run out, on the monotonic clock. Ask once, when the Pod
/// starts being handled, and keep the answer: then a jump of the wall clock changes nothing.
#[must_use]
pub fn deadline(pod: &Pod, start_time: Option<&Time>, now: Now) -> Option<Mono> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let allowed = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let since = start_time.map_or(now.wall, |t| Wall::from_secs(t.0.as_second()));
    Some(now.mono + allowed.saturating_sub(now.wall.since(since)))
}

/// One planning step: the input with the spec at hand.
#[derive(Clone, Copy)]
struct Step<'a> {
    spec: &'a PodSpec,
    input: &'a PlanInput<'a>,
}

impl<'a> Step<'a> {
    /// A container whose exit restarts the whole Pod: everything is killed at once and removed, the
    /// container that asked for it last. As long as it is there, the next plan says the same; once
    /// all are gone, the Pod starts from its first init container.
    fn restart_all(self, out: &mut Plan) -> bool {
        let asked = self.with_init().any(|c| {
            self.newest(&c.name)
                .is_some_and(|i| i.state == ContainerState::Exited && restarts_all(c, i.exit_code))
        });
        if !asked || self.deleted() {
            return false;
        }
        if self.hold_back(out) {
            return true;
        }
        let regular = self.instances(&self.spec.containers);
        let init = self.instances(self.spec.init_containers.as_deref().unwrap_or_default());
        let (first, last): (Vec<_>, Vec<_>) = regular
            .into_iter()
            .chain(init)
            .partition(|(c, i)| i.state != ContainerState::Exited || !restarts_all(c, i.exit_code));
        for (_, i) in first.iter().filter(|(_, i)| is_live(i)) {
            out.kill.push(KillContainer {
                id: i.id.clone(),
                name: i.name.clone(),
                reason: KillReason::RestartAll,
                message: format!("Container {} will be restarted with all containers of the pod", i.name),
                grace: Some(0),
            });
        }
        out.remove.extend(first.into_iter().chain(last).map(|(_, i)| i.id.clone()));
        out.keep_logs = true;
        true
    }

    /// The container that asks for a restart of all backs off like any other that keeps ending: else a
    /// Pod that ends at once would be made anew as fast as the runtime can.
    fn hold_back(self, out: &mut Plan) -> bool {
        let PlanInput { pod, crash_loop, now, .. } = *self.input;
        for c in self.with_init() {
            let Some(i) = self.newest(&c.name) else { continue };
            if i.state != ContainerState::Exited || !restarts_all(c, i.exit_code) {
                continue;
            }
            if let Some((until, delay)) = crash_loop.blocked(c, &i.id, now.mono) {
                out.wait(pod, c, until, delay);
            }
        }
        !out.waiting.is_empty()
    }

    /// Live containers that must not run: names the Pod does not list, older twins, and instances
    /// left alive in a sandbox that was replaced.
    fn kill_strays(self, out: &mut Plan) {
        let observed = self.input.observed;
        for (at, c) in observed.containers.iter().enumerate().filter(|(_, c)| is_live(c)) {
            let (reason, message) = if kind_of(self.input.pod, &c.name).is_none() {
                (KillReason::NotWanted, format!("Container {} is no longer part of the pod", c.name))
            } else if observed.containers[..at].iter().any(|n| n.name == c.name) {
                (KillReason::Duplicate, format!("Container {} has a newer instance", c.name))
            } else if !self.is_active(c) {
                (KillReason::Duplicate, format!("Container {} runs in a replaced sandbox", c.name))
            } else {
                continue;
            };
            out.kill.push(KillContainer {
                id: c.id.clone(),
                name: c.name.clone(),
                reason,
                message,
                grace: None,
            });
        }
    }

    /// Ephemeral containers start as soon as there is a sandbox, and only ever once.
    fn start_ephemeral(self, out: &mut Plan) {
        for c in self.spec.ephemeral_containers.iter().flatten() {
            if self.newest(&c.name).is_none() && !self.deleted() {
                out.start.push(Start {
                    name: c.name.clone(),
                    kind: ContainerKind::Ephemeral,
                    restart_count: 0,
                });
            }
        }
    }

    /// Nothing will be started any more. What still serves (sidecars, ephemeral containers, the
    /// sandbox) is stopped once no other container is left alive.
    fn complete(self, out: &mut Plan) {
        out.start.clear();
        out.waiting.clear();
        out.wake_at = None;
        let observed = self.input.observed;
        let working = observed.containers.iter().filter(|c| is_live(c)).any(|c| {
            matches!(kind_of(self.input.pod, &c.name), Some(ContainerKind::Init | ContainerKind::Regular))
        });
        if working && !out.kill.is_empty() {
            return;
        }
        out.finished = !working;
        if observed.sandboxes.iter().any(|s| s.ready) || observed.containers.iter().any(is_live) {
            out.kill.clear();
            out.kill_pod = Some(KillPod { message: "every container has finished".into() });
        }
    }

    /// Only the last execution of each init container is kept.
    fn prune_init(self, out: &mut Plan) {
        for c in self.spec.init_containers.iter().flatten() {
            let dead = |i: &&observed::Container| i.name == c.name && i.state == ContainerState::Exited;
            let old = self.input.observed.containers.iter().filter(dead).skip(1);
            out.remove.extend(old.map(|i| i.id.clone()));
        }
    }

    /// Asks for a start, or records the wait if the container must back off. False while it waits.
    fn start(self, out: &mut Plan, container: &Container, kind: ContainerKind) -> bool {
        let PlanInput { pod, observed, crash_loop, now, .. } = *self.input;
        if self.deleted() {
            return false;
        }
        let exited = observed.last_exit(&container.name);
        let blocked = exited.and_then(|e| crash_loop.blocked(container, &e.id, now.mono));
        if let Some((until, delay)) = blocked {
            out.wait(pod, container, until, delay);
            return false;
        }
        let newest = self.newest(&container.name);
        if let Some(stuck) = newest.filter(|i| i.state == ContainerState::Created) {
            out.remove.push(stuck.id.clone());
        }
        out.start.push(Start {
            name: container.name.clone(),
            kind,
            restart_count: newest.map_or(0, |i| i.restart_count.saturating_add(1)),
        });
        true
    }

    /// Other resources for what runs on, once nothing is left to stop: then it is known what does.
    fn resize(self, out: &mut Plan) {
        let PlanInput { pod, observed, actuated, .. } = *self.input;
        let Some(actuated) = actuated.filter(|_| !self.deleted() && !out.finished) else { return };
        let leaving = |id: &_| out.kill.iter().any(|k| k.id == *id);
        let starting = |name: &str| out.start.iter().any(|s| s.name == name);
        out.resize = resize::due(pod, observed, actuated, leaving, starting);
    }

    /// Whether the container has to be started again to get the resources it was granted.
    fn resized(self, c: &Container) -> bool {
        !self.deleted() && self.input.actuated.is_some_and(|a| resize::restarts(self.spec, c, a))
    }

    fn kill(self, out: &mut Plan, instance: &observed::Container, reason: KillReason, message: String) {
        if out.kill.iter().any(|k| k.id == instance.id) {
            return;
        }
        let grace = self.probe_grace(&instance.name, reason);
        out.kill.push(KillContainer {
            id: instance.id.clone(),
            name: instance.name.clone(),
            reason,
            message,
            grace,
        });
    }

    /// The grace a failed probe asks for. A grace set by a deletion counts more.
    fn probe_grace(self, name: &str, reason: KillReason) -> Option<i64> {
        if self.input.pod.metadata.deletion_grace_period_seconds.is_some() {
            return None;
        }
        let c = self.with_init().find(|c| c.name == name)?;
        let probe = match reason {
            KillReason::LivenessFailed => c.liveness_probe.as_ref(),
            KillReason::StartupFailed => c.startup_probe.as_ref(),
            _ => None,
        };
        probe?.termination_grace_period_seconds
    }

    /// Nothing starts any more in a Pod that is being deleted.
    fn deleted(self) -> bool {
        self.input.pod.metadata.deletion_timestamp.is_some()
    }

    fn is_active(self, c: &observed::Container) -> bool {
        self.input.observed.sandboxes.first().is_some_and(|s| s.ready && s.id == c.sandbox)
    }

    /// The newest instance in the current sandbox.
    fn active(self, name: &str) -> Option<&'a observed::Container> {
        self.input.observed.containers.iter().find(|c| c.name == name && self.is_active(c))
    }

    fn newest(self, name: &str) -> Option<&'a observed::Container> {
        self.input.observed.newest(name)
    }

    /// Whether this exited instance is to run again.
    fn comes_back(self, c: &Container, exited: &observed::Container) -> bool {
        let replaced = self.input.replaced.contains(&exited.id);
        will_restart(c, self.spec, exited, self.verdict(exited), replaced)
    }

    fn verdict(self, instance: &observed::Container) -> super::Verdict {
        self.input.verdicts.get(&instance.id).copied().unwrap_or_default()
    }

    fn with_init(self) -> impl Iterator<Item = &'a Container> {
        self.spec.init_containers.iter().flatten().chain(&self.spec.containers)
    }

    fn instances(self, specs: &'a [Container]) -> Vec<(&'a Container, &'a observed::Container)> {
        let all = &self.input.observed.containers;
        specs.iter().flat_map(|c| all.iter().filter(|i| i.name == c.name).map(move |i| (c, i))).collect()
    }
}

impl Plan {
    /// The container waits out its crashes.
    fn wait(&mut self, pod: &Pod, container: &Container, until: Mono, delay: Duration) {
        let waiting = Waiting { reason: "CrashLoopBackOff".into(), message: back_off(pod, container, delay) };
        self.waiting.insert(container.name.clone(), waiting);
        self.wake_at = Some(self.wake_at.map_or(until, |at| at.min(until)));
    }
}

/// It runs, or may run for all we know.
fn is_live(c: &observed::Container) -> bool {
    matches!(c.state, ContainerState::Running | ContainerState::Unknown)
}

fn definition_changed(spec: &Container, instance: &observed::Container) -> bool {
    instance.hash != Some(crate::hash::container_hash(spec))
}

fn back_off(pod: &Pod, container: &Container, delay: Duration) -> String {
    let m = &pod.metadata;
    format!(
        "back-off {} restarting failed container={} pod={}_{}({})",
        crate::text::go_duration(delay),
        container.name,
        m.name.as_deref().unwrap_or_default(),
        m.namespace.as_deref().unwrap_or_default(),
        m.uid.as_deref().unwrap_or_default(),
    )
}
