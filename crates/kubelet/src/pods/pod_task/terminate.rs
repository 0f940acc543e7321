//! The end of a Pod, and the end of single containers.
//!
//! Stops run side by side: preStop with the whole grace, then StopContainer with what is left of it,
//! sidecars after the containers they serve. A shorter grace that arrives meanwhile drops the waiting
//! and begins again with less; nothing makes it longer.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use base::class::Class;
use base::ids::{ContainerId, SandboxId};
use base::time::Mono;
use futures_util::FutureExt;
use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Lifecycle, Pod};
use kubelet_core::observed::ContainerState;
use kubelet_core::pod::{Intent, KillCause, KillContainer, Stage, Stop, stop_grace};
use tokio::sync::watch;

use super::{PodTask, Step, name};
use crate::events::EventType;
use crate::pods::gc;
use crate::pods::hooks;
use crate::ports::VolumeError;

/// How long a Pod's volumes and cgroup may resist before the blocker is named in an event.
const NAME_BLOCKER_AFTER: u32 = 3;

/// How an attempt to stop everything ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopping {
    Done,
    Failed,
    /// A shorter grace came in.
    Interrupted,
}

impl PodTask {
    /// Stops every container and sandbox, and does not return before nothing runs.
    pub(super) async fn terminate(&mut self) {
        let begun = self.node.now().mono;
        self.step = Step::Kill;
        self.retry.failures = 0;
        self.node.prober.terminating(&self.uid);
        let mut stopped = false;
        loop {
            let intent = self.current_intent();
            if self.look().await {
                self.node.prober.sync(&self.pod_with_status(&intent.pod), &self.observed);
                self.publish(&intent, &BTreeMap::new()).await;
                if !self.anything_lives() {
                    break;
                }
                if stopped {
                    // The runtime said it was done, and yet something lives.
                    self.name_blocker(&intent.pod, "the runtime reports containers that survived their stop");
                }
                let stopping = self.stop_all(&intent, begun).await;
                if stopping == Stopping::Failed || stopped {
                    self.retry_with_backoff();
                }
                stopped = stopping == Stopping::Done;
            }
            self.pause().await;
        }
        self.node.prober.remove(&self.uid);
        self.measure_step(begun);
    }

    /// Volumes, cgroup, id range, and for a Pod that no source lists any more its dead containers.
    pub(super) async fn tear_down(&mut self) {
        let begun = self.node.now().mono;
        self.step = Step::Terminated;
        self.retry.failures = 0;
        self.retry.not_before = None;
        let mut intent = self.current_intent();
        intent.stage = Stage::Terminated;
        self.publish(&intent, &BTreeMap::new()).await;
        loop {
            // The Pod may be dropped by its source meanwhile: then its dead containers go as well.
            intent.kill = self.current_intent().kill;
            if self.tear_down_once(&intent).await {
                // Dropped at the last moment: once more, with its traces.
                if !leaves_no_trace(&intent) && leaves_no_trace(&self.current_intent()) {
                    continue;
                }
                break;
            }
            self.retry_with_backoff();
            self.pause().await;
        }
        self.measure_step(begun);
        self.node.observer.forget(&self.uid);
        self.node.records.forget(&self.uid);
        self.node.objects.forget(&self.uid);
    }

    async fn tear_down_once(&mut self, intent: &Intent) -> bool {
        if !self.release_networks().await {
            return false;
        }
        if let Err(error) = self.node.volumes.unmount(&self.uid).await {
            self.name_volume(&intent.pod, &error);
            // Who looks at a Pod that does not go away shall see why.
            self.publish(intent, &BTreeMap::new()).await;
            return false;
        }
        self.blocker = None;
        if let Err(error) = self.node.cgroups.remove(&self.uid).await {
            self.name_blocker(&intent.pod, &format!("remove cgroup: {error}"));
            return false;
        }
        if let Some(userns) = &self.node.userns
            && let Err(error) = userns.release(&self.uid).await
        {
            self.name_blocker(&intent.pod, &error.to_string());
            return false;
        }
        !leaves_no_trace(intent) || self.remove_traces(&intent.pod).await
    }

    /// A sandbox that died by itself still holds its network until it is stopped.
    pub(super) async fn release_networks(&self) -> bool {
        let mut worked = true;
        for sandbox in self.observed.sandboxes.iter().filter(|s| !s.ready && !self.is_stopped(&s.id)) {
            if let Err(error) = self.stop_sandbox(&sandbox.id).await {
                tracing::warn!(pod_uid = %self.uid, sandbox = %sandbox.id, %error, "sandbox not stopped");
                worked = false;
            }
        }
        worked
    }

    /// Stops a sandbox, which also releases its network, and remembers that it did.
    async fn stop_sandbox(&self, id: &SandboxId) -> cri::Result<()> {
        match self.node.runtime.stop_pod_sandbox(id.as_str()).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => {
                self.stopped.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
                Ok(())
            }
        }
    }

    fn is_stopped(&self, id: &SandboxId) -> bool {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// Removes sandboxes, and with them their containers, from the runtime, and then the Pod's directory,
    /// which holds its last status.
    async fn remove_traces(&mut self, pod: &Pod) -> bool {
        for sandbox in &self.observed.sandboxes {
            if let Err(error) = self.node.runtime.remove_pod_sandbox(sandbox.id.as_str()).await
                && !error.is_not_found()
            {
                tracing::warn!(pod_uid = %self.uid, sandbox = %sandbox.id, %error, "sandbox not removed");
                return false;
            }
        }
        if let Err(error) = self.node.volumes.remove(&self.uid).await {
            self.name_volume(pod, &error);
            return false;
        }
        true
    }

    /// A volume that does not go. One that somebody was waited for in vain is named at once.
    fn name_volume(&mut self, pod: &Pod, error: &VolumeError) {
        let blocker = error.to_string();
        self.blocker = Some(blocker.clone());
        self.tell_blocker(pod, &blocker, error.class == Class::Wait);
    }

    fn name_blocker(&mut self, pod: &Pod, blocker: &str) {
        self.tell_blocker(pod, blocker, false);
    }

    fn tell_blocker(&self, pod: &Pod, blocker: &str, at_once: bool) {
        tracing::warn!(pod = name(pod), pod_uid = %self.uid, blocker, "Pod could not be torn down yet");
        if at_once || self.retry.failures + 1 >= NAME_BLOCKER_AFTER {
            self.node.recorder.pod(
                pod,
                EventType::Warning,
                "FailedKillPod",
                format!("error killing pod: {blocker}"),
            );
        }
    }

    /// Waits out the retry delay, or returns as soon as something changes.
    async fn pause(&mut self) {
        let now = self.node.now().mono;
        let Some(at) = self.retry.not_before.take().filter(|at| *at > now) else { return };
        tokio::select! {
            () = tokio::time::sleep(at.since(now)) => {}
            _ = self.wake.changed() => {}
            // An intent nobody can change any more is no reason to hurry.
            Ok(()) = self.intent.changed() => {}
        }
    }

    /// One attempt to stop all, interrupted when the grace shrinks.
    async fn stop_all(&self, intent: &Intent, begun: Mono) -> Stopping {
        let grace = intent.grace();
        let used = self.node.now().mono.since(begun).as_secs();
        let left = grace.saturating_sub(i64::try_from(used).unwrap_or(i64::MAX)).max(0);
        let mut shrunk = self.intent.clone();
        let own = self.own_kill.clone();
        let shorter = shrunk.wait_for(|i: &Intent| {
            let mut i = i.clone();
            own.iter().for_each(|k| i.end_by_itself(k.clone()));
            i.grace() < grace
        });
        let stopping = async {
            tokio::select! {
                done = self.stop_containers_and_sandboxes(intent, left) => match done {
                    true => Stopping::Done,
                    false => Stopping::Failed,
                },
                Ok(_) = shorter => Stopping::Interrupted,
            }
        };
        self.with_probe_updates(stopping).await
    }

    /// Stops everything with the Pod's whole grace: a sandbox is to be replaced.
    pub(super) async fn stop_everything(&self, intent: &Intent) -> bool {
        let stopping = self.stop_containers_and_sandboxes(intent, intent.grace());
        // An order to end the Pod begins again, with its own grace.
        self.unless_ending(stopping).await.unwrap_or(true)
    }

    async fn stop_containers_and_sandboxes(&self, intent: &Intent, grace: i64) -> bool {
        let stops = kubelet_core::pod::stops(&intent.pod, &self.observed);
        let (stopped, _) = watch::channel(Vec::<String>::new());
        let mut all = Vec::new();
        for stop in &stops {
            all.push(self.stop_in_order(intent, stop, grace, &stopped).boxed());
        }
        if join_all(all).await.contains(&false) {
            return false;
        }
        for sandbox in self.observed.sandboxes.iter().filter(|s| s.ready) {
            if let Err(error) = self.stop_sandbox(&sandbox.id).await {
                let message = format!("error killing pod: failed to stop sandbox: {error}");
                self.node.recorder.pod(&intent.pod, EventType::Warning, "FailedKillPod", message);
                return false;
            }
        }
        true
    }

    /// One container of a dying Pod. Its name is announced once it has stopped.
    async fn stop_in_order(
        &self,
        intent: &Intent,
        stop: &Stop,
        grace: i64,
        stopped: &watch::Sender<Vec<String>>,
    ) -> bool {
        let begun = self.node.now().mono;
        self.killing(&intent.pod, &stop.name, &format!("Stopping container {}", stop.name));
        let end = async {
            let elapsed = self.node.now().mono.since(begun);
            let left = Duration::from_secs(u64::try_from(grace).unwrap_or(0)).saturating_sub(elapsed);
            let mut others = stopped.subscribe();
            let turn = others.wait_for(|done: &Vec<String>| stop.after.iter().all(|n| done.contains(n)));
            // The result only tells whether the turn came before the grace ran out; either way it is time.
            let _ = tokio::time::timeout(left, turn).await;
            let elapsed = self.node.now().mono.since(begun);
            self.stop_container(&stop.id, stop_grace(grace, elapsed)).await
        };
        let worked = self.pre_stop(&intent.pod, &stop.name, &stop.id, grace, end).await;
        stopped.send_modify(|done| done.push(stop.name.clone()));
        worked
    }

    /// Stops single containers of a Pod that lives on.
    pub(super) async fn kill_some(&self, intent: &Intent, kills: &[KillContainer]) -> bool {
        let mut all = Vec::new();
        for kill in kills {
            all.push(self.kill_one(intent, kill).boxed());
        }
        // An order to end the Pod does not wait for these: their stops are repeated with its grace.
        self.unless_ending(join_all(all)).await.is_none_or(|all| !all.contains(&false))
    }

    async fn kill_one(&self, intent: &Intent, kill: &KillContainer) -> bool {
        let grace = kill.grace.unwrap_or_else(|| intent.grace());
        let instance = self.observed.container(&kill.id);
        if instance.is_some_and(|c| c.state == ContainerState::Running) {
            return self.stop_one(&intent.pod, &kill.name, &kill.id, grace, &kill.message).await;
        }
        // Nobody knows whether a hook would find it alive.
        self.killing(&intent.pod, &kill.name, &kill.message);
        self.stop_container(&kill.id, stop_grace(grace, Duration::ZERO)).await
    }

    /// Event, preStop, and StopContainer with what the hook left of the grace.
    pub(super) async fn stop_one(
        &self,
        pod: &Pod,
        container: &str,
        id: &ContainerId,
        grace: i64,
        message: &str,
    ) -> bool {
        self.killing(pod, container, message);
        let begun = self.node.now().mono;
        let end = async {
            let elapsed = self.node.now().mono.since(begun);
            self.stop_container(id, stop_grace(grace, elapsed)).await
        };
        self.pre_stop(pod, container, id, grace, end).await
    }

    pub(super) async fn remove_dead(&self, ids: &[ContainerId], keep_logs: bool) -> bool {
        let mut worked = true;
        for id in ids {
            let keep_logs = keep_logs || self.is_last_trace(id, ids);
            if let Err(error) = gc::remove_container(&self.node, id, keep_logs).await {
                tracing::warn!(pod_uid = %self.uid, container = %id, error, "container not removed");
                worked = false;
            }
        }
        worked
    }

    /// Whether the number of this instance's log is all that will be left to count restarts on from.
    fn is_last_trace(&self, id: &ContainerId, going: &[ContainerId]) -> bool {
        let Some(instance) = self.observed.container(id) else { return false };
        let newest = self.observed.newest(&instance.name).is_some_and(|c| c.id == *id);
        let mut same = self.observed.containers.iter().filter(|c| c.name == instance.name);
        newest && same.all(|c| going.contains(&c.id))
    }

    pub(super) async fn stop_container(&self, id: &ContainerId, grace: i64) -> bool {
        match self.node.runtime.stop_container(id.as_str(), grace).await {
            Ok(()) => true,
            Err(error) if error.is_not_found() => true,
            Err(error) => {
                tracing::warn!(pod_uid = %self.uid, container = %id, %error, "container not stopped");
                false
            }
        }
    }

    fn killing(&self, pod: &Pod, container: &str, message: &str) {
        self.node.recorder.container(pod, container, EventType::Normal, "Killing", message);
    }

    /// The preStop hook, for at most the grace period, and then the end. Its failure delays nothing, and where the grace
    /// runs out the hook goes on until the container is stopped, as upstream's does.
    async fn pre_stop(
        &self,
        pod: &Pod,
        container: &str,
        id: &ContainerId,
        grace: i64,
        end: impl Future<Output = bool>,
    ) -> bool {
        let hook = lifecycle(pod, container).and_then(|l| l.pre_stop.clone());
        let limit = u64::try_from(grace).unwrap_or_default();
        let Some(hook) = hook.filter(|_| limit > 0) else { return end.await };
        let ip = self.pod_ip();
        let call = hooks::Call {
            pod,
            container,
            id,
            pod_ip: ip.as_deref(),
            runtime: &*self.node.runtime,
            net: &*self.node.net,
        };
        let mut run = std::pin::pin!(hooks::run(&hook, &call));
        match tokio::time::timeout(Duration::from_secs(limit), run.as_mut()).await {
            Ok(Ok(done)) => self.tell_fallback(pod, &done),
            Ok(Err(error)) => {
                tracing::warn!(pod = name(pod), container, %error, "preStop hook failed");
                self.node.recorder.container(
                    pod,
                    container,
                    EventType::Warning,
                    "FailedPreStopHook",
                    "PreStopHook failed",
                );
            }
            Err(_) => {
                if hook.sleep.is_some() {
                    self.node.metrics.lifecycle_handler_sleep_terminated_total.inc([]);
                }
                tracing::warn!(
                    pod = name(pod),
                    container,
                    "preStop hook not finished within the grace period"
                );
                let mut end = std::pin::pin!(end);
                tokio::select! {
                    worked = end.as_mut() => return worked,
                    _ = run => return end.await,
                }
            }
        }
        end.await
    }

    /// A hook was answered over plain HTTP where HTTPS was wanted: the user should know.
    pub(super) fn tell_fallback(&self, pod: &Pod, done: &hooks::Done) {
        let Some(host) = &done.fell_back else { return };
        self.node.metrics.lifecycle_handler_http_fallbacks_total.inc([]);
        let message =
            format!("request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded");
        self.node.recorder.pod(pod, EventType::Warning, "LifecycleHTTPFallback", message);
    }

    pub(super) fn pod_ip(&self) -> Option<String> {
        self.observed.ready_sandbox().and_then(|s| s.ips.first()).map(ToString::to_string)
    }
}

/// Whether the Pod is not only at its end but listed by nobody.
fn leaves_no_trace(intent: &Intent) -> bool {
    let cause = intent.kill.as_ref().map(|k| &k.cause);
    matches!(cause, Some(KillCause::Removed | KillCause::Orphaned))
}

pub(super) fn lifecycle<'a>(pod: &'a Pod, container: &str) -> Option<&'a Lifecycle> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.find(|c| c.name == container)?.lifecycle.as_ref()
}
