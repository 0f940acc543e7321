//! The phase, and the reason and message that go with it.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use super::super::policy::{is_sidecar, restarts_after_exit};
use super::containers::{RESTARTING_ALL, exit_of, find};
use super::{KillCause, View, is_terminal};
use crate::observed::{Container as Instance, ContainerState};

/// Regular containers and sidecars by state.
#[derive(Default)]
struct Tally {
    running: u32,
    waiting: u32,
    unknown: u32,
    stopped: u32,
    stopped_for_good: u32,
    succeeded: u32,
}

impl View<'_> {
    pub(super) fn set_phase(self, out: &mut PodStatus) {
        let api = self.input.pod.status.as_ref();
        let previous = self.input.previous;
        // Nobody leaves a terminal phase, also not one that somebody else wrote.
        let ended = api.filter(|s| is_terminal(s.phase.as_deref()));
        let known = ended.into_iter().chain([previous]).chain(api);
        let old = known.into_iter().find_map(|s| s.phase.as_deref());
        let fresh = self.phase(out);
        let mut phase = match old.filter(|p| is_terminal(Some(p))) {
            Some(sticky) => sticky,
            None => fresh,
        };
        if old == Some(phase) {
            let said = [Some(previous), api].into_iter().flatten().filter(|s| s.phase.as_deref() == old);
            out.reason = said.clone().find_map(|s| s.reason.clone());
            out.message = said.into_iter().find_map(|s| s.message.clone());
        }
        if !is_terminal(old) {
            if let Some((reason, message)) = self.verdict_of_kill() {
                phase = "Failed";
                out.reason = Some(reason);
                out.message = Some(message);
            } else if self.is_final() && !self.is_static() && !is_terminal(Some(phase)) {
                phase = "Failed";
            }
            if is_terminal(Some(phase)) && self.something_may_run() {
                // A terminal phase frees what the Pod holds: not while a container may hold it.
                phase = if is_terminal(Some(fresh)) { old.unwrap_or("Running") } else { fresh };
                out.reason = previous.reason.clone();
                out.message = previous.message.clone();
            }
        }
        out.phase = Some(phase.to_owned());
    }

    fn verdict_of_kill(self) -> Option<(String, String)> {
        match self.input.kill? {
            KillCause::DeadlineExceeded => Some((
                "DeadlineExceeded".into(),
                "Pod was active on the node longer than the specified deadline".into(),
            )),
            KillCause::Rejected { reason, message } | KillCause::Node { reason, message, .. } => {
                Some((reason.clone(), message.clone()))
            }
            _ => None,
        }
    }

    fn phase(self, out: &PodStatus) -> &'static str {
        let (pending_init, failed_init) = self.init_progress(out);
        let (tally, pending_sidecars) = self.tally(out);
        if failed_init {
            return "Failed";
        }
        if pending_init || (pending_sidecars && !self.has_initialised()) || tally.waiting > 0 {
            return "Pending";
        }
        let comes_back = !self.is_final() || self.is_static();
        match tally {
            Tally { unknown: 1.., .. } => "Pending",
            Tally { running: 1.., .. } => "Running",
            Tally { stopped: 0, .. } => "Pending",
            t if comes_back && t.stopped != t.stopped_for_good => "Running",
            t if t.stopped == t.succeeded => "Succeeded",
            _ => "Failed",
        }
    }

    /// Whether an init container is still to complete, and whether one failed for good.
    fn init_progress(self, out: &PodStatus) -> (bool, bool) {
        let (mut pending, mut failed) = (false, false);
        for c in self.spec.init_containers.iter().flatten().filter(|c| !is_sidecar(c)) {
            let status = find(out.init_container_statuses.as_deref(), &c.name);
            match status.and_then(exit_of) {
                Some((0, _)) => {}
                Some((code, reason)) => failed |= !self.restartable(c, code, reason),
                None => pending = true,
            }
        }
        (pending, failed)
    }

    /// Counts regular containers and sidecars; says also whether a sidecar has yet to start.
    fn tally(self, out: &PodStatus) -> (Tally, bool) {
        let (mut t, mut pending) = (Tally::default(), false);
        for c in self.spec.init_containers.iter().flatten().filter(|c| is_sidecar(c)) {
            let Some(status) = find(out.init_container_statuses.as_deref(), &c.name) else {
                t.unknown += 1;
                continue;
            };
            if is_running(status) {
                t.running += 1;
                pending |= self.started(status) != Some(true);
            } else if exit_of(status).is_none() {
                t.waiting += 1;
                pending = true;
            }
        }
        for c in &self.spec.containers {
            match find(out.container_statuses.as_deref(), &c.name) {
                None => t.unknown += 1,
                Some(s) if is_running(s) => t.running += 1,
                Some(s) => match exit_of(s) {
                    None => t.waiting += 1,
                    Some((code, reason)) => {
                        t.stopped += 1;
                        t.stopped_for_good += u32::from(!self.restartable(c, code, reason));
                        t.succeeded += u32::from(code == 0 && is_terminated(s));
                    }
                },
            }
        }
        (t, pending)
    }

    fn restartable(self, c: &Container, exit_code: i32, reason: &str) -> bool {
        let is_to_run = |i: &Instance| match i.state {
            ContainerState::Running => false,
            ContainerState::Exited => self.comes_back(c, i),
            // It will be started, whatever became of the one before it.
            ContainerState::Created | ContainerState::Unknown => !self.ending(),
        };
        restarts_after_exit(c, self.spec, exit_code)
            || reason == RESTARTING_ALL
            // Those that were killed to be restarted with the one that asked for it have no rule of their own.
            || (!self.ending() && self.asks_restart_of_all())
            || self.input.observed.newest(&c.name).is_some_and(is_to_run)
    }
}

fn is_running(s: &ContainerStatus) -> bool {
    s.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn is_terminated(s: &ContainerStatus) -> bool {
    s.state.as_ref().is_some_and(|s| s.terminated.is_some())
}
