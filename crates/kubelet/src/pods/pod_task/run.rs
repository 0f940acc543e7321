//! The running Pod: one pass of the loop, and the wait between passes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::time::Mono;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::cri_config::spec_of;
use kubelet_core::observed::ContainerState;
use kubelet_core::pod::policy::restarts_all;
use kubelet_core::pod::{Intent, KillCause, KillReason, Plan, PlanInput, Stage, Waiting};
use kubelet_core::resize::Due;

use super::{PodTask, Step, has_devices, is_terminal, name};
use crate::events::EventType;

/// The waiting reason of a container that crashed too often to be started again at once.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// What follows a pass.
enum Next {
    /// Something was done: look and plan again at once.
    Again,
    /// Nothing to do before this moment, unless something happens.
    Wait(Option<Mono>),
}

/// What became of a resize that is due.
enum Resized {
    Now,
    /// It failed, now or a moment ago.
    Later(Option<Mono>),
}

impl PodTask {
    /// Keeps the Pod as its spec wants it, until it is to end.
    pub(super) async fn live(&mut self) {
        let mut known = self.intent.borrow().pod.clone();
        self.find_place().await;
        loop {
            let intent = self.current_intent();
            if intent.stage > Stage::Run {
                return;
            }
            if is_edited(&known, &intent.pod) {
                // What kept it from starting may be what was changed.
                self.retry.not_before = None;
            }
            known.clone_from(&intent.pod);
            let begun = self.node.now().mono;
            if self.step == Step::Create {
                let waited = begun.since(self.first_seen).as_secs_f64();
                self.node.metrics.pod_worker_start_duration_seconds.observe([], waited);
            }
            let next = self.pass(&intent).await;
            if self.step == Step::Create && self.took_over {
                // Files may have become old while nobody was here.
                self.refresh_volumes().await;
            }
            self.measure_step(begun);
            self.step = Step::Sync;
            match next {
                Next::Again => {}
                Next::Wait(until) => self.wait(until).await,
            }
        }
    }

    /// CPUs and memory of its own, before anything of it starts. A Pod that cannot have what it asks for fails, so that its
    /// owner makes another one where it can.
    async fn find_place(&mut self) {
        let intent = self.current_intent();
        if intent.stage > Stage::Run || is_terminal(&self.status) {
            return;
        }
        let given = intent.pod.clone();
        // Only devices depend on what runs already: their plugins may not be there yet.
        if self.took_over && has_devices(&given) {
            self.look().await;
        }
        let running = self.observed.containers.iter().filter(|c| c.state == ContainerState::Running);
        let running: BTreeSet<String> = running.map(|c| c.name.clone()).collect();
        let admitted =
            self.unless_ending(self.node.places.admit(&given, |name| running.contains(name))).await;
        let Some(Err(rejection)) = admitted else { return };
        self.node.reject(&intent.pod, &rejection);
        let message = format!("Pod was rejected: {}", rejection.message);
        self.end_by_itself(KillCause::Rejected { reason: rejection.reason, message });
    }

    async fn pass(&mut self, intent: &Intent) -> Next {
        if !self.look().await {
            self.publish_unseen(intent).await;
            return Next::Wait(None);
        }
        if !self.keep_allocation(intent).await {
            return Next::Wait(self.retry.not_before);
        }
        self.follow_resize(&intent.pod);
        self.node.prober.sync(&self.pod_with_status(&intent.pod), &self.observed);
        let now = self.node.now();
        let deadline = self.deadline(&intent.pod);
        if deadline.is_some_and(|d| d <= now.mono) {
            self.node.recorder.pod(
                &intent.pod,
                EventType::Normal,
                "DeadlineExceeded",
                "Pod was active on the node longer than the specified deadline",
            );
            self.end_by_itself(KillCause::DeadlineExceeded);
            return Next::Again;
        }
        let plan = self.plan(&intent.pod);
        self.tell_back_off(&intent.pod, &plan.waiting);
        self.publish(intent, &plan.waiting).await;
        // A Pod that once ended, in this life of the agent or before, does not begin again.
        if plan.finished || is_terminal(&self.status) {
            self.end_by_itself(KillCause::Completed);
            return Next::Again;
        }
        let until = earliest(plan.wake_at, deadline);
        self.execute(intent, plan, until).await
    }

    /// An event for every wait, when it begins.
    fn tell_back_off(&self, pod: &Pod, waiting: &BTreeMap<String, Waiting>) {
        for container in waiting.iter().filter(|(_, w)| w.reason == CRASH_LOOP).map(|(name, _)| name) {
            let lists = [&self.status.container_statuses, &self.status.init_container_statuses];
            let mut known = lists.into_iter().flatten().flatten().filter(|c| c.name == *container);
            let told = known.any(|c| {
                let waiting = c.state.as_ref().and_then(|s| s.waiting.as_ref());
                waiting.and_then(|w| w.reason.as_deref()) == Some(CRASH_LOOP)
            });
            if !told {
                let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
                let whose = format!("{}_{namespace}({})", name(pod), self.uid);
                let message = format!("Back-off restarting failed container {container} in pod {whose}");
                self.node.recorder.container(pod, container, EventType::Warning, "BackOff", message);
            }
        }
    }

    fn deadline(&mut self, pod: &Pod) -> Option<Mono> {
        let start_time = self.status.start_time.as_ref()?;
        let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
        if let Some((_, at)) = self.deadline.filter(|(of, _)| *of == seconds) {
            return Some(at);
        }
        let at = kubelet_core::pod::deadline(pod, Some(start_time), self.node.now())?;
        self.deadline = Some((seconds, at));
        Some(at)
    }

    fn plan(&self, pod: &Pod) -> Plan {
        kubelet_core::pod::plan(&PlanInput {
            pod,
            observed: &self.observed,
            verdicts: &self.heard,
            replaced: &self.replaced,
            crash_loop: &self.crash_loop,
            actuated: Some(&self.actuated),
            now: self.node.now(),
        })
    }

    /// Carries a plan out, one kind of effect per pass: what is to go goes first, and only an
    /// observation of that lets the rest happen.
    async fn execute(&mut self, intent: &Intent, mut plan: Plan, mut until: Option<Mono>) -> Next {
        if let Some(kill) = &plan.kill_pod
            && self.anything_lives()
        {
            tracing::info!(pod = name(&intent.pod), pod_uid = %self.uid, why = kill.message, "stopping the Pod");
            let stopped = self.stop_everything(intent).await;
            return self.after(stopped);
        }
        if !plan.kill.is_empty() {
            let again = [KillReason::SpecChanged, KillReason::Resized];
            let edited = plan.kill.iter().filter(|k| again.contains(&k.reason));
            self.replaced.extend(edited.map(|k| k.id.clone()));
            // Whether they died is for the next look to say; only then is anything removed.
            let killed = self.kill_some(intent, &plan.kill).await;
            return self.after(killed);
        }
        if !plan.remove.is_empty() {
            self.note_restart_of_all(&intent.pod.clone(), &plan);
            let removed = self.remove_dead(&plan.remove, plan.keep_logs).await;
            return self.after(removed);
        }
        let by_record = plan.resize.take();
        let needs_room = by_record.as_ref().is_some_and(|due| due.restarts);
        if let Some(due) = self.due_by_all(&intent.pod, by_record).await {
            let starts = plan.sandbox.is_some() || !plan.start.is_empty();
            match self.resize_in_time(intent, due).await {
                Resized::Now if !starts => return Next::Again,
                Resized::Now => {}
                Resized::Later(at) => until = earliest(until, at),
            }
            // What cannot be changed now is worth waiting for; what others of the Pod use may be in use for ever.
            if needs_room && self.resize_failed {
                return Next::Wait(until);
            }
        }
        if plan.sandbox.is_none() && plan.start.is_empty() {
            self.retry.failures = 0;
            self.retry.not_before = None;
            return Next::Wait(until);
        }
        let now = self.node.now().mono;
        if let Some(at) = self.retry.not_before.filter(|at| *at > now) {
            // One that crashed does not wait because another cannot be started.
            plan.start.retain(|s| !self.failed.contains_key(&s.name));
            if !self.retry.of_containers || plan.sandbox.is_some() || plan.start.is_empty() {
                return Next::Wait(earliest(until, Some(at)));
            }
        }
        if self.bring_up(intent, &plan).await || self.own_kill.is_some() {
            return Next::Again;
        }
        // What failed is in `self.failed`: say so, then wait.
        self.look().await;
        self.publish(intent, &plan.waiting).await;
        Next::Wait(earliest(until, self.retry.not_before))
    }

    /// Brings a resize into force, unless it failed a moment ago. One that comes back unchanged has failed too.
    async fn resize_in_time(&mut self, intent: &Intent, due: Due) -> Resized {
        let now = self.node.now().mono;
        if let Some(at) = self.resize_retry.not_before.filter(|at| *at > now) {
            self.leave_behind(&due);
            return Resized::Later(Some(at));
        }
        let worked = self.resize(&intent.pod, &due).await;
        let comes_back = self.resized.as_ref() == Some(&due);
        self.resized = Some(due).filter(|_| worked);
        if worked && !comes_back {
            return Resized::Now;
        }
        if worked {
            self.resize_retry.fail(now);
        }
        self.publish(intent, &BTreeMap::new()).await;
        Resized::Later(self.resize_retry.not_before)
    }

    /// The exits that restart the whole Pod are about to be removed: the next one waits longer.
    fn note_restart_of_all(&mut self, pod: &Pod, plan: &Plan) {
        if !plan.keep_logs {
            return;
        }
        let now = self.node.now().mono;
        for c in plan.remove.iter().filter_map(|id| self.observed.container(id)) {
            let Some(spec) = spec_of(pod, &c.name) else { continue };
            if c.state == ContainerState::Exited && restarts_all(&spec, c.exit_code) {
                self.crash_loop.restarted(&spec, &c.id, now);
            }
        }
    }

    /// After stopping or removing something: on failure wait a little before the next pass.
    fn after(&mut self, worked: bool) -> Next {
        if worked {
            return Next::Again;
        }
        self.retry_with_backoff();
        Next::Wait(self.retry.not_before)
    }

    pub(super) fn anything_lives(&self) -> bool {
        let live = [ContainerState::Running, ContainerState::Unknown];
        self.observed.ready_sandbox().is_some()
            || self.observed.containers.iter().any(|c| live.contains(&c.state))
    }

    /// Sleeps until something happens: an order, a change in the runtime, a probe's verdict, the given
    /// moment, or the periodic sync that refreshes volume contents.
    async fn wait(&mut self, until: Option<Mono>) {
        let now = self.node.now().mono;
        let every = self.node.settings.sync_frequency;
        let resync = now + every + self.rng.up_to(every / 2);
        let wake = earliest(until, self.retry.not_before.filter(|at| *at > now));
        let at = wake.map_or(resync, |w| w.min(resync));
        let sleep = tokio::time::sleep(at.since(now));
        tokio::select! {
            _ = self.intent.changed() => {
                self.step = Step::Update;
                self.refresh_volumes().await;
            }
            _ = self.wake.changed() => {}
            _ = self.verdicts.changed() => {}
            Ok(()) = self.devices.changed() => {}
            // Nobody wakes it on a node without an API server.
            Ok(()) = self.objects.changed() => {
                // What was missing may be there now.
                self.retry.not_before = None;
                self.refresh_volumes().await;
            }
            () = sleep => if at == resync {
                self.refresh_volumes().await;
            },
        }
    }

    /// Files follow what they show: the Pod's labels and annotations, ConfigMaps, Secrets, tokens.
    async fn refresh_volumes(&mut self) {
        let intent = self.current_intent();
        if intent.stage > Stage::Run || !self.observed.any_running() {
            return;
        }
        self.node.objects.follow(&intent.pod);
        let Some(refreshed) = self.unless_ending(self.node.volumes.mount(&intent.pod)).await else { return };
        match refreshed {
            Ok(mounted) => mounted.stale.iter().for_each(|error| self.tell_stale(&intent.pod, error)),
            Err(error) => {
                tracing::warn!(pod = name(&intent.pod), pod_uid = %self.uid, %error, "volumes not refreshed");
                self.tell_failed_mount(&intent.pod, &error);
            }
        }
    }

    /// Volumes, sandbox, containers. True if all that was planned came up; otherwise a retry is due.
    async fn bring_up(&mut self, intent: &Intent, plan: &Plan) -> bool {
        if !self.network_ready(&intent.pod) {
            self.retry_after(Duration::from_secs(1));
            return false;
        }
        self.node.objects.follow(&intent.pod);
        let Some(parent) = self.ensure_cgroup(&intent.pod).await else { return false };
        let Some(volumes) = self.mount_volumes(intent).await else { return false };
        if let Some(new) = &plan.sandbox {
            if let Err(error) = self.note_sandbox(&intent.pod).await {
                tracing::warn!(pod = name(&intent.pod), pod_uid = %self.uid, error, "resources not written down");
                self.retry_with_backoff();
                return false;
            }
            let Some(id) = self.create_sandbox(intent, new.attempt, &parent).await else { return false };
            if !self.look_at_new_sandbox(&id).await {
                return false;
            }
            self.publish(intent, &BTreeMap::new()).await;
        }
        if plan.start.is_empty() {
            return true;
        }
        self.start_all(intent, &plan.start, &parent, &volumes).await
    }

    /// The Pod's cgroup, before anything is put in it. None, with an event and a retry, if it is not there.
    async fn ensure_cgroup(&mut self, pod: &Pod) -> Option<String> {
        match self.node.cgroups.ensure(pod).await {
            Ok(parent) => Some(parent),
            Err(error) => {
                let message = format!("unable to ensure pod container exists: {error}");
                self.node.recorder.pod(pod, EventType::Warning, "FailedCreatePodContainer", message);
                self.retry_with_backoff();
                None
            }
        }
    }

    fn network_ready(&self, pod: &Pod) -> bool {
        let host = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
        let health = self.node.health.borrow();
        if host || health.network_ready {
            return true;
        }
        self.node.recorder.pod(
            pod,
            EventType::Warning,
            "NetworkNotReady",
            format!("network is not ready: {}", health.network_message),
        );
        false
    }

    pub(super) fn fail(&mut self, container: &str, reason: &str, message: impl Into<String>) {
        let waiting = Waiting { reason: reason.to_owned(), message: message.into() };
        self.failed.insert(container.to_owned(), waiting);
    }
}

/// Whether somebody changed more than the status, which mostly is our own word that comes back.
fn is_edited(old: &Arc<Pod>, new: &Arc<Pod>) -> bool {
    let (was, is) = (&old.metadata, &new.metadata);
    let same = || old.spec == new.spec && was.labels == is.labels && was.annotations == is.annotations;
    !Arc::ptr_eq(old, new) && !same()
}

pub(super) fn earliest(a: Option<Mono>, b: Option<Mono>) -> Option<Mono> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
