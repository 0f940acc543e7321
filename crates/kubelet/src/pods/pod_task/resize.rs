//! Resources that were granted come into force: on disk first, then in the Pod's cgroup and its containers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use kubelet_core::cgroup::Limits;
use kubelet_core::cri_config::{self, spec_of};
use kubelet_core::pod::{Intent, Start};
use kubelet_core::resize::{
    self, Act, Due, InProgress, PodResources, Resource, Sizes, Usage, acts, check_shrink, is_in_progress,
    recorded, recorded_at_start, recorded_whole,
};

use super::{PodTask, name};
use crate::events::EventType;
use crate::metrics::Metrics;
use crate::ports::PodBounds;
use crate::runtime::to_cri;

/// Why a resize did not come into force.
struct Failed {
    message: String,
    /// Nothing was tried: too much memory is in use.
    is_refusal: bool,
}

impl From<String> for Failed {
    fn from(message: String) -> Self {
        Self { message, is_refusal: false }
    }
}

/// The Pod's own cgroup against what was granted. The record has containers only: once all of them have started with what
/// they were granted, it cannot tell that their Pod's cgroup was left as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bounds {
    /// An earlier life of the agent may have left it behind.
    Unknown,
    /// It reads differently. It is told again, and nobody else: version 2 does not keep every number as it was written.
    Doubtful,
    /// It could not be changed when it should have been.
    Behind,
    Settled,
}

/// A Pod with a resize in progress, in the metric of that name for as long as this lives.
pub(super) struct Counted(Arc<Metrics>);

impl PodTask {
    /// What was granted is on disk before anybody acts on it or tells of it. False if it is not, and has to be.
    pub(super) async fn keep_allocation(&mut self, intent: &Intent) -> bool {
        let known = self.node.records.allocated().get(&self.uid).cloned();
        if known.as_ref() == Some(&*intent.allocated) && self.unsaved.is_none() {
            return true;
        }
        let is_resize = known.is_some_and(|known| !known.are_of(&intent.pod)) || self.unsaved == Some(true);
        match self.node.records.allocate(&self.uid, &intent.allocated).await {
            Ok(()) => self.unsaved = None,
            Err(error) => {
                tracing::warn!(pod = name(&intent.pod), pod_uid = %self.uid, %error, "what the Pod was granted is not saved");
                // At its first start a Pod is worth more than the record of it.
                self.unsaved = Some(is_resize);
                if is_resize {
                    self.retry_with_backoff();
                    return false;
                }
            }
        }
        if is_resize {
            let pod = &*intent.pod;
            let generation = pod.metadata.generation;
            let message = resize::message("Pod resize started", pod, generation, "");
            self.node.recorder.pod(pod, EventType::Normal, "ResizeStarted", message);
            self.set_resizing(Some(InProgress { generation, error: None }));
            self.resize_retry = super::Retry::default();
        }
        true
    }

    /// Whether all that was granted is in force, by what was just seen.
    pub(super) fn follow_resize(&mut self, pod: &Pod) {
        if is_in_progress(pod, &self.observed, &self.actuated) || self.bounds == Bounds::Behind {
            if self.resizing.is_none() {
                let generation = pod.metadata.generation;
                self.set_resizing(Some(InProgress { generation, error: None }));
            }
        } else if let Some(done) = self.resizing.take() {
            self.set_resizing(None);
            let message = resize::message("Pod resize completed", pod, done.generation, "");
            self.node.recorder.pod(pod, EventType::Normal, "ResizeCompleted", message);
        }
    }

    pub(super) fn set_resizing(&mut self, resizing: Option<InProgress>) {
        let metrics = &self.node.metrics;
        self.counted =
            resizing.as_ref().map(|_| self.counted.take().unwrap_or_else(|| Counted::new(metrics.clone())));
        self.resizing = resizing;
    }

    /// What is due by the record, and for the Pod's own cgroup if that was left behind.
    pub(super) async fn due_by_all(&mut self, pod: &Pod, due: Option<Due>) -> Option<Due> {
        if self.bounds == Bounds::Unknown && self.observed.ready_sandbox().is_some() {
            self.bounds = self.look_at_bounds(pod).await;
        }
        match self.bounds {
            Bounds::Doubtful | Bounds::Behind => Some(Due { restarts: true, ..due.unwrap_or_default() }),
            Bounds::Unknown | Bounds::Settled => due,
        }
    }

    async fn look_at_bounds(&self, pod: &Pod) -> Bounds {
        // Nobody has ever changed what it asks for.
        if pod.metadata.generation.is_none_or(|generation| generation <= 1) {
            return Bounds::Settled;
        }
        let every = Due { restarts: true, ..Due::default() };
        match self.node.cgroups.bounds(pod).await {
            Ok(Some(PodBounds { now, next, .. })) if !acts(&every, &now, &next).is_empty() => {
                Bounds::Doubtful
            }
            Ok(_) => Bounds::Settled,
            Err(error) => {
                tracing::warn!(pod = name(pod), pod_uid = %self.uid, %error, "the Pod's cgroup could not be read");
                Bounds::Unknown
            }
        }
    }

    /// The Pod's own cgroup waits for a later try, whoever starts in it meanwhile.
    pub(super) fn leave_behind(&mut self, due: &Due) {
        if due.restarts {
            self.bounds = Bounds::Behind;
        }
    }

    /// Brings into force what was granted. False if that failed, and is to be tried again later.
    pub(super) async fn resize(&mut self, pod: &Pod, due: &Due) -> bool {
        let begun = self.node.now().mono;
        let outcome = self.carry_out(pod, due).await;
        let took = self.node.now().mono.since(begun).as_secs_f64() * 1000.0;
        let success = if outcome.is_ok() { "true" } else { "false" };
        self.node.metrics.pod_resize_duration_milliseconds.observe([success], took);
        let Err(Failed { message, is_refusal }) = outcome else {
            self.resize_retry = super::Retry::default();
            self.resize_failed = false;
            return true;
        };
        self.resize_failed = !is_refusal;
        self.leave_behind(due);
        tracing::warn!(pod = name(pod), pod_uid = %self.uid, error = message, "resize failed");
        self.resize_retry.fail(self.node.now().mono);
        let generation = self.resizing.as_ref().map_or(pod.metadata.generation, |r| r.generation);
        let failed = InProgress { generation, error: Some(message.clone()) };
        if self.resizing.as_ref() != Some(&failed) {
            let told = resize::message("Pod resize error", pod, generation, &message);
            self.node.recorder.pod(pod, EventType::Warning, "ResizeError", told);
            self.set_resizing(Some(failed));
        }
        false
    }

    /// It is written down once all of it is done: whoever fails or is killed in between does all of it again, and the
    /// Pod's own cgroup is not forgotten.
    async fn carry_out(&mut self, pod: &Pod, due: &Due) -> Result<(), Failed> {
        let bounds = self.node.cgroups.bounds(pod).await;
        let bounds =
            bounds.map_err(|e| format!("unable to get pod cgroup config for pod {:?}: {e}", name(pod)))?;
        let PodBounds { now, next, memory_used } = bounds.unwrap_or_default();
        let usage = self.usage(due, &now, &next, memory_used).await;
        check_shrink(due, now.memory, next.memory, || usage)
            .map_err(|message| Failed { message, is_refusal: true })?;
        let mut told = self.actuated.clone();
        for act in acts(due, &now, &next) {
            match act {
                Act::PodLimit(resource) => self.bound_pod(pod, limit(&next, resource), &next).await?,
                Act::PodShares => {
                    let shares = Limits { cpu_shares: next.cpu_shares, ..Limits::default() };
                    self.bound_pod(pod, shares, &next).await?;
                }
                Act::Container { id, name, sizes } => {
                    let given = self.update(pod, &name, id.as_str(), sizes).await?;
                    told.containers.extend(given.map(|resources| (name, resources)));
                }
                Act::Whole(resource) => {
                    let spec = pod.spec.as_ref();
                    told.pod = spec.and_then(|s| recorded_whole(s, told.pod.as_ref(), resource));
                }
            }
        }
        // It is in force, whether or not the disk takes it. Doing it again would go back first to what was in force before,
        // and the record that another Pod's write takes along would be wrong until then. A kubelet that finds the old
        // record does all of it again.
        self.actuated = told;
        if due.restarts {
            self.bounds = Bounds::Settled;
        }
        if let Err(error) = self.save_actuated().await {
            tracing::warn!(pod = name(pod), pod_uid = %self.uid, error, "what the Pod's cgroups were told is not saved");
        }
        Ok(())
    }

    /// Asked for only where a limit of memory shrinks.
    async fn usage(&self, due: &Due, now: &Limits, next: &Limits, pod: Option<u64>) -> Option<Usage> {
        let needs_none = check_shrink(due, now.memory, next.memory, || None).is_ok();
        if needs_none {
            return None;
        }
        let stats = self.node.runtime.list_container_stats().await;
        let stats = stats
            .inspect_err(|error| tracing::warn!(pod_uid = %self.uid, %error, "memory in use is not known"));
        let of = |s: cri::v1::ContainerStats| {
            let id = s.attributes?.id;
            let container = self.observed.containers.iter().find(|c| c.id.as_str() == id)?;
            let memory = s.memory?;
            let used = memory.usage_bytes.or(memory.working_set_bytes)?;
            Some((container.name.clone(), used.value))
        };
        Some(Usage { pod, containers: stats.ok()?.into_iter().filter_map(of).collect() })
    }

    /// The runtime hears of it first: it may refuse.
    async fn bound_pod(&self, pod: &Pod, limits: Limits, next: &Limits) -> Result<(), String> {
        if let Some(sandbox) = self.observed.ready_sandbox() {
            let facts = self.node.cri_config_facts();
            let (overhead, resources) =
                cri_config::pod_resources(pod, &facts, &self.node.settings.cri_config);
            let request = cri::v1::UpdatePodSandboxResourcesRequest {
                pod_sandbox_id: sandbox.id.to_string(),
                overhead: Some(to_cri::resources(&overhead)),
                resources: Some(to_cri::resources(&resources)),
            };
            let told = self.node.runtime.update_pod_sandbox_resources(request).await;
            if let Err(error) = told.or_else(|e| if knows_not(&e) { Ok(()) } else { Err(e) }) {
                let what = "failed to notify runtime for UpdatePodSandboxResources";
                return Err(format!("{what}; resize rejected: {error}"));
            }
        }
        let bound = self.node.cgroups.bound(pod, &limits).await;
        bound.map_err(|e| format!("set cgroup config of the pod to {limits:?} of {next:?}: {e}"))
    }

    /// Gives a container these; says what it has now.
    async fn update(
        &self,
        pod: &Pod,
        container: &str,
        id: &str,
        sizes: Sizes,
    ) -> Result<Option<ResourceRequirements>, String> {
        let Some((spec, own)) = pod.spec.as_ref().zip(spec_of(pod, container)) else { return Ok(None) };
        let granted = Container { resources: Some(recorded(spec, &own, sizes)), ..own.into_owned() };
        let facts = self.node.cri_config_facts();
        let mut linux =
            cri_config::container_resources(pod, &granted, &facts, &self.node.settings.cri_config);
        self.node.places.of(self.uid.as_str(), container).apply(&mut linux);
        let told = self.node.runtime.update_container_resources(id, to_cri::resources(&linux)).await;
        told.map_err(|e| e.grpc_text())?;
        Ok(granted.resources)
    }

    /// A sandbox is new: nothing runs, and the Pod's cgroup was just set for what the Pod was granted.
    pub(super) async fn note_sandbox(&mut self, pod: &Pod) -> Result<(), String> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        if self.actuated == PodResources::default() {
            let all = spec.init_containers.iter().flatten().chain(&spec.containers);
            self.actuated.containers = all.map(|c| (c.name.clone(), recorded_at_start(spec, c))).collect();
        }
        self.actuated.pod.clone_from(&spec.resources);
        self.save_actuated().await
    }

    /// A container is about to be made with what it was granted.
    pub(super) async fn note_start(&mut self, pod: &Pod, start: &Start) -> Result<(), String> {
        let Some((spec, own)) = pod.spec.as_ref().zip(spec_of(pod, &start.name)) else { return Ok(()) };
        let is_ephemeral = spec.ephemeral_containers.iter().flatten().any(|c| c.name == start.name);
        if is_ephemeral {
            return Ok(());
        }
        self.actuated.containers.insert(start.name.clone(), recorded_at_start(spec, &own));
        self.save_actuated().await
    }

    async fn save_actuated(&self) -> Result<(), String> {
        let saved = self.node.records.actuate(&self.uid, &self.actuated).await;
        saved.map_err(|e| e.to_string())
    }
}

// === impl Counted ===

impl Counted {
    fn new(metrics: Arc<Metrics>) -> Self {
        metrics.pod_in_progress_resizes.add([], 1.0);
        Self(metrics)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.pod_in_progress_resizes.add([], -1.0);
    }
}

fn limit(next: &Limits, resource: Resource) -> Limits {
    match resource {
        Resource::Memory => Limits { memory: next.memory, ..Limits::default() },
        Resource::Cpu => Limits { cpu_quota: next.cpu_quota, ..Limits::default() },
    }
}

/// It has no such call. containerd 2.2 says so in words only.
fn knows_not(error: &cri::Error) -> bool {
    error.is_unimplemented()
        || (error.code == cri::Code::Unknown && error.message.contains("not implemented"))
}
