//! One status per container: the current instance, and the one before it.

use k8s_openapi::api::core::v1::{
    Container, ContainerState as State, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus, VolumeMountStatus,
};

use super::super::policy::{is_sidecar, restarts_all};
use super::{Stage, View, some_list, time};
use crate::cri_config::recursive_read_only;
use crate::observed::{self, ContainerState};
use crate::pod::ContainerKind;

pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
const UNKNOWN: &str = "ContainerStatusUnknown";
const REMOVED_TEXT: &str = "The container is removed because RestartAllContainers in place";
const LOST_TEXT: &str = "The container could not be located when the pod was terminated";
const VANISHED_TEXT: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
const ASSUMED_TEXT: &str = "Unable to get init container status from container runtime and pod has been \
                            initialized, treat it as exited normally";
/// All termination messages of a Pod share this many bytes.
const MESSAGE_BYTES_PER_POD: usize = 12 * 1024;
const MESSAGE_BYTES: usize = 4096;

/// The status of the container with this name.
pub(super) fn find<'s>(statuses: Option<&'s [ContainerStatus]>, name: &str) -> Option<&'s ContainerStatus> {
    statuses?.iter().find(|s| s.name == name)
}

/// Exit code and reason of a container that stopped: of its current instance, or of the last one
/// while it waits for the next.
pub(super) fn exit_of(status: &ContainerStatus) -> Option<(i32, &str)> {
    let state = status.state.as_ref();
    let now = state.and_then(|s| s.terminated.as_ref());
    let waits = state.is_none_or(|s| s.running.is_none());
    let before = status.last_state.as_ref().and_then(|s| s.terminated.as_ref()).filter(|_| waits);
    let t = now.or(before)?;
    Some((t.exit_code, t.reason.as_deref().unwrap_or_default()))
}

impl View<'_> {
    pub(super) fn container_statuses(self, out: &mut PodStatus) {
        let p = self.input.previous;
        let init = self.spec.init_containers.iter().flatten();
        let of_init = init.map(|c| {
            let kind = if is_sidecar(c) { ContainerKind::Sidecar } else { ContainerKind::Init };
            self.one(c, kind, find(p.init_container_statuses.as_deref(), &c.name))
        });
        let regular = self
            .spec
            .containers
            .iter()
            .map(|c| self.one(c, ContainerKind::Regular, find(p.container_statuses.as_deref(), &c.name)));
        let ephemeral = self.spec.ephemeral_containers.iter().flatten().map(|e| {
            let c = Container {
                name: e.name.clone(),
                image: e.image.clone(),
                volume_mounts: e.volume_mounts.clone(),
                ..Default::default()
            };
            let old = find(p.ephemeral_container_statuses.as_deref(), &c.name);
            self.one(&c, ContainerKind::Ephemeral, old)
        });
        out.init_container_statuses = some_list(of_init);
        out.container_statuses = some_list(regular);
        out.ephemeral_container_statuses = some_list(ephemeral);
        for list in [&mut out.container_statuses, &mut out.ephemeral_container_statuses] {
            list.iter_mut().for_each(|l| l.sort_by(|a, b| a.name.cmp(&b.name)));
        }
        self.cut_messages(out);
    }

    fn one(self, c: &Container, kind: ContainerKind, old: Option<&ContainerStatus>) -> ContainerStatus {
        let mut instances = self.input.observed.containers.iter().filter(|i| i.name == c.name);
        let Some(newest) = instances.next() else { return self.without_instance(c, kind, old) };
        let mut status = self.of_instance(c, newest, old);
        if let Some(before) = instances.next().filter(|i| i.state == ContainerState::Exited) {
            status.last_state =
                Some(State { terminated: Some(self.terminated(before)), ..Default::default() });
        }
        let again = match newest.state {
            ContainerState::Running => false,
            _ if self.ending() || kind == ContainerKind::Ephemeral => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited if kind == ContainerKind::Init && newest.exit_code == 0 => false,
            ContainerState::Exited => self.comes_back(c, newest),
        };
        if again {
            self.overlay_waiting(&mut status);
        }
        status
    }

    /// A start that failed or is held back says so; what ended before becomes the last state.
    fn overlay_waiting(self, status: &mut ContainerStatus) {
        let Some(w) = self.input.waiting.get(&status.name) else { return };
        if let Some(ended) = status.state.take().filter(|s| s.terminated.is_some()) {
            status.last_state = Some(ended);
        }
        let text = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        status.state = waiting(text(&w.reason), text(&w.message));
    }

    fn of_instance(
        self,
        c: &Container,
        i: &observed::Container,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let id = format!("{}://{}", self.input.runtime_name, i.id);
        let was_running = old.is_some_and(|o| o.state.as_ref().is_some_and(|s| s.running.is_some()));
        let old_count = old.map_or(0, |o| o.restart_count);
        let count = i32::try_from(i.restart_count).unwrap_or(i32::MAX);
        let mut status = ContainerStatus {
            restart_count: count.max(old_count),
            image: i.image.clone(),
            image_id: i.image_ref.clone(),
            last_state: old.and_then(|o| ended_before(o, &id)),
            container_id: Some(id),
            user: i.user.as_ref().map(user),
            resources: Some(super::resources::in_force(c, i, self.input.actuated, old)),
            allocated_resources: c.resources.as_ref().and_then(|r| r.requests.clone()),
            ..self.blank(c)
        };
        status.state = match i.state {
            ContainerState::Running => {
                let ended =
                    old.is_some_and(|o| exit_now(o).is_some() && o.container_id != status.container_id);
                if ended && old_count > count {
                    status.restart_count = old_count + 1;
                }
                let started_at = i.started_at.and_then(time);
                Some(State { running: Some(ContainerStateRunning { started_at }), ..Default::default() })
            }
            ContainerState::Exited => {
                Some(State { terminated: Some(self.terminated(i)), ..Default::default() })
            }
            ContainerState::Unknown if was_running => {
                status.restart_count = old_count + 1;
                let reason = if self.asks_restart_of_all() { RESTARTING_ALL } else { UNKNOWN };
                lost(reason, LOST_TEXT)
            }
            ContainerState::Unknown
                if old.is_some_and(|o| is_lost(o) && o.container_id == status.container_id) =>
            {
                old.and_then(|o| o.state.clone())
            }
            ContainerState::Created | ContainerState::Unknown => waiting(Some(self.default_reason()), None),
        };
        status
    }

    /// The runtime knows nothing of this container: never made, collected, or vanished.
    fn without_instance(
        self,
        c: &Container,
        kind: ContainerKind,
        old: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let mut status =
            ContainerStatus { state: waiting(Some(self.default_reason()), None), ..self.blank(c) };
        if let Some(old) = old {
            let ran = old.state.as_ref().is_some_and(|s| s.running.is_some());
            let waited = old.state.as_ref().is_some_and(|s| s.waiting.is_some());
            if self.restarting_all() && !waited && kind != ContainerKind::Ephemeral {
                status.restart_count = old.restart_count + 1;
                status.last_state = lost(RESTARTING_ALL, REMOVED_TEXT);
                status.state = waiting(Some(RESTARTING_ALL.into()), Some(REMOVED_TEXT.into()));
                return status;
            }
            if exit_now(old).is_some() {
                return old.clone();
            }
            status.restart_count = old.restart_count;
            status.last_state = old.last_state.clone();
            if ran && exit_of(&status).is_none() {
                status.last_state = lost(UNKNOWN, VANISHED_TEXT);
                status.restart_count += i32::from(!self.ending());
            }
        }
        if kind == ContainerKind::Init && self.any_regular_created() {
            let done = ContainerStateTerminated {
                exit_code: 0,
                reason: Some("Completed".into()),
                message: Some(ASSUMED_TEXT.into()),
                ..Default::default()
            };
            status.state = Some(State { terminated: Some(done), ..Default::default() });
        } else if !self.ending() {
            self.overlay_waiting(&mut status);
        }
        status
    }

    /// At the very end every container that was ever started has ended, known how or not.
    pub(super) fn end_all(self, out: &mut PodStatus) {
        if self.input.stage != Stage::Terminated {
            return;
        }
        let begun = |s: &ContainerStatus| {
            s.state.as_ref().is_none_or(|s| s.waiting.is_none()) || exit_of(s).is_some()
        };
        let no_init = self.spec.init_containers.as_deref().unwrap_or_default().is_empty();
        let regular = out.container_statuses.as_deref().unwrap_or_default();
        let init = out.init_container_statuses.as_deref().unwrap_or_default();
        let last_done = init.last().is_some_and(|s| exit_of(s).is_some_and(|(code, _)| code == 0));
        let initialised = no_init || last_done || regular.iter().any(begun);
        let reached = init.iter().rposition(begun).map_or(1, |at| at + 1);
        let end = |s: &mut ContainerStatus| {
            if exit_now(s).is_none() {
                s.state = lost(UNKNOWN, LOST_TEXT);
            }
        };
        if initialised {
            out.container_statuses.iter_mut().flatten().for_each(end);
        }
        out.init_container_statuses.iter_mut().flatten().take(reached).for_each(end);
    }

    fn terminated(self, i: &observed::Container) -> ContainerStateTerminated {
        let words = [i.message.as_str(), i.termination_message.as_str()];
        let message = words.into_iter().filter(|w| !w.is_empty()).collect::<Vec<_>>().join(": ");
        ContainerStateTerminated {
            exit_code: i.exit_code,
            reason: (!i.reason.is_empty()).then(|| i.reason.clone()),
            message: (!message.is_empty()).then_some(message),
            // One that could not be started began and ended, for all that upstream shows, with the epoch.
            started_at: time(i.started_at.unwrap_or_default()),
            finished_at: time(i.finished_at.unwrap_or_default()),
            container_id: Some(format!("{}://{}", self.input.runtime_name, i.id)),
            signal: None,
        }
    }

    /// The messages of all containers fit into one budget, split evenly.
    fn cut_messages(self, out: &mut PodStatus) {
        let s = self.spec;
        let count = s.containers.len()
            + s.init_containers.as_ref().map_or(0, Vec::len)
            + s.ephemeral_containers.as_ref().map_or(0, Vec::len);
        let limit = (MESSAGE_BYTES_PER_POD / count.max(1)).min(MESSAGE_BYTES);
        let lists = [
            &mut out.container_statuses,
            &mut out.init_container_statuses,
            &mut out.ephemeral_container_statuses,
        ];
        for status in lists.into_iter().flatten().flatten() {
            for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
                if let Some(message) = state.terminated.as_mut().and_then(|t| t.message.as_mut()) {
                    message.truncate(message.floor_char_boundary(limit));
                }
            }
        }
    }

    /// Probe semantics: liveness good, readiness bad and startup unknown until they have spoken. An
    /// instance known from before (the agent was restarted) keeps what it had.
    pub(super) fn set_readiness(self, out: &mut PodStatus) {
        let p = self.input.previous;
        for s in out.container_statuses.iter_mut().flatten() {
            let spec = self.spec.containers.iter().find(|c| c.name == s.name);
            let old = find(p.container_statuses.as_deref(), &s.name);
            s.started = Some(self.started(s) == Some(true));
            s.ready = s.started == Some(true) && self.ready_now(s, spec, old);
        }
        for s in out.init_container_statuses.iter_mut().flatten() {
            let spec = self.spec.init_containers.iter().flatten().find(|c| c.name == s.name);
            let old = find(p.init_container_statuses.as_deref(), &s.name);
            s.started = Some(self.started(s) == Some(true));
            s.ready = if spec.is_some_and(is_sidecar) {
                s.started == Some(true) && self.ready_now(s, spec, old)
            } else {
                exit_now(s) == Some(0)
            };
        }
    }

    /// Whether a container counts as started; none if it does not run.
    pub(super) fn started(self, s: &ContainerStatus) -> Option<bool> {
        s.state.as_ref()?.running.as_ref()?;
        let newest = self.input.observed.newest(&s.name)?;
        let spec = self.spec.init_containers.iter().flatten().chain(&self.spec.containers);
        if spec.into_iter().find(|c| c.name == s.name).is_none_or(|c| c.startup_probe.is_none()) {
            return Some(true);
        }
        let verdict = self.input.verdicts.get(&newest.id).and_then(|v| v.startup);
        let p = self.input.previous;
        let old = find(p.container_statuses.as_deref(), &s.name)
            .or_else(|| find(p.init_container_statuses.as_deref(), &s.name));
        let kept = old.is_some_and(|o| o.container_id == s.container_id && o.started == Some(true));
        Some(verdict.unwrap_or(kept))
    }

    fn ready_now(self, s: &ContainerStatus, spec: Option<&Container>, old: Option<&ContainerStatus>) -> bool {
        if spec.is_none_or(|c| c.readiness_probe.is_none()) {
            return true;
        }
        let newest = self.input.observed.newest(&s.name);
        let verdict = newest.and_then(|i| self.input.verdicts.get(&i.id)).and_then(|v| v.readiness);
        verdict.unwrap_or_else(|| old.is_some_and(|o| o.container_id == s.container_id && o.ready))
    }

    fn any_regular_created(self) -> bool {
        let newest = self.spec.containers.iter().filter_map(|c| self.input.observed.newest(&c.name));
        newest.into_iter().any(|i| i.state != ContainerState::Unknown)
    }

    fn default_reason(self) -> String {
        let init = self.spec.init_containers.as_deref().unwrap_or_default();
        if init.is_empty() { "ContainerCreating" } else { "PodInitializing" }.to_owned()
    }

    fn blank(self, c: &Container) -> ContainerStatus {
        let mounts = c.volume_mounts.iter().flatten().map(|m| {
            let read_only = m.read_only.unwrap_or(false);
            let recursive = recursive_read_only(m, self.input.recursive_read_only);
            let recursive = if recursive == Ok(true) { "Enabled" } else { "Disabled" };
            VolumeMountStatus {
                name: m.name.clone(),
                mount_path: m.mount_path.clone(),
                read_only: read_only.then_some(true),
                recursive_read_only: read_only.then(|| recursive.to_owned()),
                volume_status: None,
            }
        });
        ContainerStatus {
            name: c.name.clone(),
            image: c.image.clone().unwrap_or_default(),
            volume_mounts: some_list(mounts),
            ..Default::default()
        }
    }

    pub(super) fn ending(self) -> bool {
        self.input.stage != Stage::Run || self.input.pod.metadata.deletion_timestamp.is_some()
    }

    /// A container exited in a way that restarts the whole Pod, and is still there.
    pub(super) fn asks_restart_of_all(self) -> bool {
        let all = self.spec.init_containers.iter().flatten().chain(&self.spec.containers);
        all.into_iter().any(|c| {
            let newest = self.input.observed.newest(&c.name);
            newest.is_some_and(|i| i.state == ContainerState::Exited && restarts_all(c, i.exit_code))
        })
    }

    fn restarting_all(self) -> bool {
        let mut before = self.input.previous.conditions.iter().flatten();
        self.asks_restart_of_all()
            || before.any(|c| c.type_ == "AllContainersRestarting" && c.status == "True")
    }
}

fn exit_now(s: &ContainerStatus) -> Option<i32> {
    s.state.as_ref()?.terminated.as_ref().map(|t| t.exit_code)
}

/// What the status already knew of an earlier instance, should the runtime have forgotten it.
fn ended_before(old: &ContainerStatus, id: &str) -> Option<State> {
    let ended = old.state.as_ref().filter(|s| s.terminated.is_some());
    match ended {
        Some(state) if old.container_id.as_deref() != Some(id) => Some(state.clone()),
        _ => old.last_state.clone().filter(|s| s.terminated.is_some()),
    }
}

fn waiting(reason: Option<String>, message: Option<String>) -> Option<State> {
    Some(State { waiting: Some(ContainerStateWaiting { reason, message }), ..Default::default() })
}

/// It ran and nobody knows how it ended: that is an error.
fn lost(reason: &str, message: &str) -> Option<State> {
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some(reason.into()),
        message: Some(message.into()),
        ..Default::default()
    };
    Some(State { terminated: Some(terminated), ..Default::default() })
}

fn is_lost(s: &ContainerStatus) -> bool {
    let reason = exit_of(s).map(|(_, reason)| reason);
    exit_now(s).is_some() && reason.is_some_and(|r| [UNKNOWN, RESTARTING_ALL].contains(&r))
}

fn user(u: &observed::User) -> ContainerUser {
    let groups = (!u.supplemental_groups.is_empty()).then(|| u.supplemental_groups.clone());
    ContainerUser { linux: Some(LinuxContainerUser { uid: u.uid, gid: u.gid, supplemental_groups: groups }) }
}
