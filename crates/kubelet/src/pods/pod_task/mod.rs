//! One loop per Pod: wait, look, plan, act, publish.
//!
//! | input | channel | meaning |
//! |---|---|---|
//! | intent | `watch<Intent>` from the dispatcher | what is wanted; only ever moves towards the end |
//! | wake | `watch<u64>` from the observer | something of this Pod changed in the runtime: look |
//! | verdicts | `watch<Verdicts>` from the prober | a probe changed its mind |
//! | objects | `watch<u64>` from what the Pod refers to | a ConfigMap or Secret changed: its files follow |
//!
//! The task alone starts and stops this Pod's containers, so two instances of one container cannot be
//! raced into life. Every choice is made by `kubelet_core::pod`; this module only carries it out. After
//! any effect, successful or not, the runtime is looked at again before the next plan.

mod busy;
mod resize;
mod run;
mod start;
mod terminate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::ids::{ContainerId, PodUid, SandboxId};
use base::rng::Rng;
use base::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::Timestamp;
use kubelet_core::observed::{Container, ContainerState, Observed};
use kubelet_core::pod::{
    ContainerKind, CrashLoop, Intent, Kill, KillCause, Stage, StatusInput, Verdicts, Waiting,
};
use kubelet_core::resize::{Due, InProgress, PodResources};
use kubelet_core::topology::wants::PodWant;
use tokio::sync::watch;

use crate::images::PullSecret;
use crate::pods::node::Node;

/// Runs one Pod from its first sight to its end. What tells of it, its dead containers and its last status, stays
/// for as long as somebody lists it: the API server may not have heard of its end yet.
pub(crate) async fn run(node: Arc<Node>, uid: PodUid, intent: watch::Receiver<Intent>) {
    let mut task = PodTask::new(node, uid, intent);
    task.remember().await;
    task.live().await;
    task.terminate().await;
    task.node.places.release(task.uid.as_str()).await;
    task.tear_down().await;
    task.node.board.finish(&task.uid);
}

struct PodTask {
    node: Arc<Node>,
    uid: PodUid,
    rng: Rng,
    intent: watch::Receiver<Intent>,
    wake: watch::Receiver<u64>,
    verdicts: watch::Receiver<Verdicts>,
    /// Wakes when an object that the Pod refers to has changed.
    objects: watch::Receiver<u64>,
    /// Wakes when devices come, go, or change their health.
    devices: watch::Receiver<u64>,
    /// The status last published, or remembered from an earlier life.
    status: PodStatus,
    /// The one shown since, while the task was busy. Held to read or write it only.
    meanwhile: Mutex<Option<PodStatus>>,
    /// What the Pod's cgroups were last told, as the record has it: this task alone changes it.
    actuated: PodResources,
    /// A resize that was granted and is not in force.
    resizing: Option<InProgress>,
    /// Counts the Pod among those with one.
    counted: Option<resize::Counted>,
    /// What was granted is not on disk; true if it is a resize.
    unsaved: Option<bool>,
    /// No resize is tried again before this moment.
    resize_retry: Retry,
    /// The last one was tried and failed; one that is refused, because too much memory is in use, was not tried.
    resize_failed: bool,
    /// What was brought into force last.
    resized: Option<Due>,
    /// Whether the Pod's own cgroup has what was granted.
    bounds: resize::Bounds,
    /// The verdicts the current pass goes by: plan and status must see the same ones.
    heard: Verdicts,
    /// Instances that this task stopped because their definition changed: they come back whatever the policy says.
    replaced: BTreeSet<ContainerId>,
    /// The end this task decided itself: completion, or the Pod's own deadline.
    own_kill: Option<Kill>,
    observed: Observed,
    /// Sandboxes that the runtime stopped for us: their network is released. Held for set operations only.
    stopped: Mutex<BTreeSet<SandboxId>>,
    /// The runtime's name for the Pod's RuntimeClass, once known. Neither can be changed.
    handler: OnceLock<String>,
    /// The runtime was asked at least once since this task began.
    has_looked: bool,
    crash_loop: CrashLoop,
    /// Why the last attempt to start a container failed, by container name.
    failed: BTreeMap<String, Waiting>,
    /// Nothing is tried again before this moment.
    retry: Retry,
    /// Logins for registries that the Pod brings along.
    pull_secrets: Arc<[PullSecret]>,
    /// Groups that the Pod's volumes say their users are in.
    volume_groups: Vec<i64>,
    /// When the earliest image back-off ends.
    image_retry: Option<Mono>,
    /// When a source first saw the Pod.
    first_seen: Mono,
    /// activeDeadlineSeconds and when they run out; asked once per value, so that a jump of the wall
    /// clock changes nothing.
    deadline: Option<(i64, Mono)>,
    /// The volume that keeps a Pod from going.
    blocker: Option<String>,
    /// An earlier life of the agent knew this Pod.
    took_over: bool,
    /// How long its images were waited for.
    pulling: Duration,
    /// The pod_start metrics were fed.
    start_measured: bool,
    /// What set off the pass that comes next, for the metrics.
    step: Step,
}

/// Why a pass is made; the label of `pod_worker_duration_seconds`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Update,
    Sync,
    Kill,
    Terminated,
}

/// Delays between failed attempts: the first is soon, then they grow to upstream's ten seconds.
#[derive(Debug, Default)]
struct Retry {
    failures: u32,
    not_before: Option<Mono>,
    /// Only the containers in `failed` have to wait; the rest of the Pod is in order.
    of_containers: bool,
}

// === impl PodTask ===

impl PodTask {
    fn new(node: Arc<Node>, uid: PodUid, intent: watch::Receiver<Intent>) -> Self {
        let (first, longest) = node.settings.restart_period;
        let first_seen = first_seen(&intent.borrow().pod, node.now());
        let devices = wake_for_devices(&node, &intent.borrow().pod);
        Self {
            rng: node.rng_for(uid.as_str()),
            wake: node.observer.subscribe(&uid),
            verdicts: node.prober.subscribe(&uid),
            objects: node.objects.wake(&uid),
            devices,
            first_seen,
            node,
            uid,
            intent,
            status: PodStatus::default(),
            meanwhile: Mutex::default(),
            actuated: PodResources::default(),
            resizing: None,
            counted: None,
            unsaved: None,
            resize_retry: Retry::default(),
            resize_failed: false,
            resized: None,
            bounds: resize::Bounds::Unknown,
            heard: Verdicts::default(),
            replaced: BTreeSet::new(),
            own_kill: None,
            observed: Observed::default(),
            stopped: Mutex::default(),
            handler: OnceLock::new(),
            has_looked: false,
            crash_loop: CrashLoop::new(longest).starting_with(first),
            failed: BTreeMap::new(),
            retry: Retry::default(),
            pull_secrets: Arc::default(),
            volume_groups: Vec::new(),
            image_retry: None,
            deadline: None,
            blocker: None,
            took_over: false,
            pulling: Duration::ZERO,
            start_measured: false,
            step: Step::Create,
        }
    }

    /// The dispatcher's intent with this task's own decision merged in.
    fn current_intent(&mut self) -> Intent {
        self.intent.mark_unchanged();
        self.wanted()
    }

    fn wanted(&self) -> Intent {
        let mut intent = self.intent.borrow().clone();
        if let Some(kill) = &self.own_kill {
            intent.end_by_itself(kill.clone());
        }
        intent
    }

    /// Looks at the runtime. False if it could not be asked; a retry is then scheduled.
    async fn look(&mut self) -> bool {
        self.wake.borrow_and_update();
        self.heard = self.verdicts.borrow_and_update().clone();
        let seen = self.node.observer.look(&self.uid, &self.observed).await;
        self.take_in(seen)
    }

    /// Looks at a sandbox that was just made, as [`look`](Self::look) does at everything.
    async fn look_at_new_sandbox(&mut self, id: &str) -> bool {
        let seen = self.node.observer.look_at_new_sandbox(id, &self.observed).await;
        self.take_in(seen)
    }

    fn take_in(&mut self, seen: cri::Result<Observed>) -> bool {
        match seen {
            Ok(observed) => {
                self.count_exits(&observed);
                self.observed = observed;
                let stopped = self.stopped.get_mut().unwrap_or_else(PoisonError::into_inner);
                stopped.retain(|id| self.observed.sandboxes.iter().any(|s| s.id == *id));
                self.replaced.retain(|id| self.observed.container(id).is_some());
                self.has_looked = true;
                self.crash_loop.note_exits(&self.observed, self.node.now());
                true
            }
            Err(error) => {
                // Once per outage and Pod; the retries are for those who look closer.
                if self.retry.failures == 0 {
                    tracing::warn!(pod_uid = %self.uid, %error, "runtime could not be asked about the Pod");
                } else {
                    tracing::debug!(pod_uid = %self.uid, %error, "runtime still could not be asked about the Pod");
                }
                self.retry_after(Duration::from_secs(1));
                false
            }
        }
    }

    fn retry_after(&mut self, delay: Duration) {
        self.retry.failures = self.retry.failures.saturating_add(1);
        self.retry.of_containers = false;
        self.retry.not_before = Some(self.node.now().mono + delay);
    }

    /// After an error of the runtime.
    fn retry_with_backoff(&mut self) {
        self.retry.fail(self.node.now().mono);
        self.retry.of_containers = false;
    }

    /// Takes up what an earlier life of the agent knew: without it, a Pod would look unready until its
    /// probes have spoken again.
    async fn remember(&mut self) {
        self.remember_status().await;
        self.actuated = self.node.records.actuated().get(&self.uid).cloned().unwrap_or_default();
        self.set_resizing(InProgress::of_status(&self.status));
    }

    async fn remember_status(&mut self) {
        if let Some(entry) = self.node.board.get(self.uid.as_str()) {
            // An earlier task of this life: it died, or it ended the Pod and left the rest to us.
            self.took_over = true;
            self.start_measured = true;
            self.status = (*entry.status).clone();
            return;
        }
        match self.node.files.load_status(&self.uid).await {
            Ok(Some(status)) => {
                self.took_over = true;
                self.start_measured = true;
                self.status = status;
            }
            Ok(None) => self.remember_from_api(),
            Err(error) => {
                tracing::warn!(pod_uid = %self.uid, %error, "last status not read");
                self.remember_from_api();
            }
        }
    }

    /// The disk knows nothing, but the API server was told once: the Pod ran here, under another root or
    /// another kubelet.
    fn remember_from_api(&mut self) {
        let told = self.intent.borrow().pod.status.clone();
        if let Some(told) = told.filter(|s| s.start_time.is_some()) {
            self.took_over = true;
            self.start_measured = true;
            self.status = told;
        }
    }

    /// The Pod with its last known status, for the prober to see what was already started.
    fn pod_with_status(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        match self.took_over {
            true => Arc::new(Pod { status: Some(self.status.clone()), ..(**pod).clone() }),
            false => pod.clone(),
        }
    }

    /// Publishes the Pod's status as things stand. It is on disk first: what was once seen outside is
    /// still true after a crash.
    async fn publish(&mut self, intent: &Intent, waiting: &BTreeMap<String, Waiting>) {
        if let Some(shown) = self.meanwhile.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.status = shown;
        }
        if is_unlisted(intent) {
            return;
        }
        let rro = self.can_be_read_only(&intent.pod).await;
        let status = self.compute_status(intent, waiting, rro);
        self.measure_start(&status);
        if status != self.status {
            self.save(&intent.pod, &status).await;
            self.status = status.clone();
        }
        self.show(intent, status);
    }

    async fn save(&self, pod: &Pod, status: &PodStatus) {
        if let Err(error) = self.node.files.save_status(&self.uid, status).await {
            tracing::warn!(pod = name(pod), pod_uid = %self.uid, %error, "status not saved");
        }
    }

    fn show(&self, intent: &Intent, status: PodStatus) {
        let stopping = intent.stage > Stage::Run && !is_terminal(&status);
        let terminating = stopping.then(|| self.node.now().wall);
        let status = self.with_blocker(&intent.pod, status);
        self.node.board.publish(&self.uid, &intent.desired, status, terminating);
    }

    /// A Pod that is being deleted says what it waits for. Only what is shown says so: it is no part of how it ended.
    fn with_blocker(&self, pod: &Pod, mut status: PodStatus) -> PodStatus {
        if let Some(blocker) = self.blocker.as_ref().filter(|_| pod.metadata.deletion_timestamp.is_some()) {
            status.message.get_or_insert_with(|| format!("waiting to {blocker}"));
        }
        status
    }

    /// The runtime does not answer and never did: shows what an earlier life knew, or a Pod that waits.
    async fn publish_unseen(&mut self, intent: &Intent) {
        match (self.has_looked, self.took_over) {
            (true, _) => {}
            (false, true) => {
                self.node.board.publish(&self.uid, &intent.desired, self.status.clone(), None);
            }
            (false, false) => self.publish(intent, &BTreeMap::new()).await,
        }
    }

    fn compute_status(
        &self,
        intent: &Intent,
        waiting: &BTreeMap<String, Waiting>,
        recursive_read_only: bool,
    ) -> PodStatus {
        let mut all_waiting = self.failed.clone();
        all_waiting.extend(waiting.iter().map(|(k, v)| (k.clone(), v.clone())));
        let host_ips = self.node.host_ips.now();
        let input = self.status_input(intent, &self.heard, &all_waiting, &self.status);
        let mut status =
            kubelet_core::pod::status(&StatusInput { host_ips: &host_ips, recursive_read_only, ..input });
        if let Some(devices) = self.node.places.devices() {
            devices.describe(self.uid.as_str(), &mut status);
        }
        status
    }

    /// What a status is judged by, but for the node's addresses and what its runtime can: only a whole one needs those.
    fn status_input<'a>(
        &'a self,
        intent: &'a Intent,
        verdicts: &'a Verdicts,
        waiting: &'a BTreeMap<String, Waiting>,
        previous: &'a PodStatus,
    ) -> StatusInput<'a> {
        StatusInput {
            pod: &intent.pod,
            observed: &self.observed,
            verdicts,
            replaced: &self.replaced,
            waiting,
            previous,
            stage: intent.stage,
            kill: intent.kill.as_ref().map(|k| &k.cause),
            actuated: Some(&self.actuated),
            pending: intent.pending.as_ref(),
            resizing: self.resizing.as_ref(),
            host_ips: &[],
            runtime_name: &self.node.facts.runtime_name,
            recursive_read_only: false,
            now: self.node.now().wall,
        }
    }

    /// Feeds the pod_start metrics once, when the Pod first runs.
    fn measure_start(&mut self, status: &PodStatus) {
        if self.start_measured || status.phase.as_deref() != Some("Running") {
            return;
        }
        self.start_measured = true;
        let took = self.node.now().mono.since(self.first_seen);
        let metrics = &self.node.metrics;
        metrics.pod_start_duration_seconds.observe([], took.as_secs_f64());
        metrics.pod_start_total_duration_seconds.observe([], took.as_secs_f64());
        let intent = self.intent.borrow();
        if !is_stateful(&intent.pod) {
            let own = took.saturating_sub(self.pulling).saturating_sub(self.initialising(&intent.pod));
            metrics.pod_start_sli_duration_seconds.observe([], own.as_secs_f64());
        }
    }

    /// How long its init containers ran, all in all.
    fn initialising(&self, pod: &Pod) -> Duration {
        let is_init =
            |c: &&Container| kubelet_core::pod::policy::kind_of(pod, &c.name) == Some(ContainerKind::Init);
        let ran = |c: &Container| Some(c.finished_at?.since(c.started_at?));
        self.observed.containers.iter().filter(is_init).filter_map(ran).sum()
    }

    /// Feeds terminated_containers_total with exits that happened before our eyes.
    fn count_exits(&self, fresh: &Observed) {
        let intent = self.intent.borrow();
        for c in fresh.containers.iter().filter(|c| c.state == ContainerState::Exited) {
            let news = match self.observed.container(&c.id) {
                Some(before) => before.state != ContainerState::Exited,
                None => self.has_looked,
            };
            if news {
                let kind = kubelet_core::pod::policy::kind_of(&intent.pod, &c.name);
                let kind = start::type_label(kind.unwrap_or(ContainerKind::Regular));
                let labels = [kind, &c.exit_code.to_string(), &c.reason];
                self.node.metrics.terminated_containers_total.inc(labels);
            }
        }
    }

    fn measure_step(&self, begun: Mono) {
        let took = self.node.now().mono.since(begun).as_secs_f64();
        self.node.metrics.pod_worker_duration_seconds.observe([self.step.as_str()], took);
    }

    fn end_by_itself(&mut self, cause: KillCause) {
        self.own_kill.get_or_insert(Kill { cause, grace: None });
    }
}

// === impl Retry ===

impl Retry {
    /// After an error: 1 s, 2 s, 4 s, 8 s, then every 10 s.
    fn fail(&mut self, now: Mono) {
        let delay = Duration::from_secs((1 << self.failures.min(4)).min(10));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + delay);
    }
}

// === impl Step ===

impl Step {
    fn as_str(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Update => "update",
            Step::Sync => "sync",
            Step::Kill => "kill",
            Step::Terminated => "terminated",
        }
    }
}

/// Nobody who has no devices is waked for them.
fn wake_for_devices(node: &Node, pod: &Pod) -> watch::Receiver<u64> {
    match has_devices(pod) {
        true => node.places.subscribe_devices(),
        false => watch::channel(0).1,
    }
}

fn has_devices(pod: &Pod) -> bool {
    PodWant::new(pod).containers.iter().any(|c| !c.devices.is_empty())
}

/// When the Pod's source saw it, as its annotation says; now if it does not say, or says nonsense.
fn first_seen(pod: &Pod, now: Now) -> Mono {
    let annotations = pod.metadata.annotations.as_ref();
    let seen = annotations.and_then(|a| a.get(SEEN_ANNOTATION)).and_then(|at| at.parse::<Timestamp>().ok());
    let ago = seen.map(|at| now.wall.since(Wall::from_secs(at.as_second())));
    now.mono - ago.filter(|ago| *ago < LONGEST_WAIT).unwrap_or_default()
}

const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
/// A Pod that seems to have waited longer was seen by another clock.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// It has a volume that may hold it up; how soon such Pods start is nobody's promise.
fn is_stateful(pod: &Pod) -> bool {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|v| {
        v.secret.is_none()
            && v.config_map.is_none()
            && v.downward_api.is_none()
            && v.empty_dir.is_none()
            && v.projected.is_none()
    })
}

/// Nobody asked for the Pod, so nobody is told of it.
fn is_unlisted(intent: &Intent) -> bool {
    matches!(intent.kill, Some(Kill { cause: KillCause::Orphaned, .. }))
}

fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

/// The Pod's display name for logs.
fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
