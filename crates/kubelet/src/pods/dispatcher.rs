//! The one owner of the map from Pod UID to Pod task; upstream's pod workers.
//!
//! What happens is told to [`Dispatch`], which decides; what it says is done here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::pod::static_pod::is_static;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;
pub use kubelet_core::dispatch::EndOrder;
use kubelet_core::dispatch::{
    Dispatch, Effect, Event, Found, Known, Note, PREEMPTED, PREEMPTING, Running, Surroundings, full_name,
};
use kubelet_core::observed::FoundPod;
use kubelet_core::pod::{Intent, Stage};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::events::EventType;
use crate::pods::beat::Beat;
use crate::pods::keyed_tasks::KeyedTasks;
use crate::pods::node::Node;
use crate::pods::sources::{SourceName, SourceUpdate};
use crate::pods::{orphan, pod_task};

/// How often the runtime and the disk are searched for Pods nobody knows.
const SWEEP: Duration = Duration::from_secs(60);
/// How often resizes that wait are looked at without cause.
const RETRY_RESIZES: Duration = Duration::from_secs(180);
/// Pause before a search that got no answer is made again.
const SEARCH_AGAIN: Duration = Duration::from_secs(5);
/// Pause before a task that panicked is started again.
const RESPAWN: Duration = Duration::from_secs(1);
/// What a Pod that makes way for a critical one gets at least.
const VICTIM_MIN: Duration = Duration::from_secs(10);

pub struct Dispatcher {
    node: Arc<Node>,
    updates: mpsc::Receiver<SourceUpdate>,
    state: Dispatch,
    tasks: HashMap<PodUid, Task>,
    running: KeyedTasks<PodUid, ()>,
    searches: JoinSet<Found>,
    questions: KeyedTasks<PodUid, ()>,
    /// Pods that the node itself ends.
    orders: mpsc::Receiver<EndOrder>,
    /// Turns with the loop; the syncloop health check looks at it.
    beat: Beat,
    known: watch::Sender<Arc<Known>>,
}

/// How a Pod's task is reached.
struct Task {
    intent: watch::Sender<Intent>,
    /// Cancelled when it has finished.
    over: CancellationToken,
}

/// A Pod that makes way for a critical one.
struct Victim {
    pod: Arc<Pod>,
    over: CancellationToken,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// `sources` are all that will ever report.
    #[must_use]
    pub fn new(
        node: Arc<Node>,
        updates: mpsc::Receiver<SourceUpdate>,
        sources: impl IntoIterator<Item = SourceName>,
        beat: Beat,
    ) -> Self {
        Self {
            updates,
            state: Dispatch::new(sources).with_granted(node.records.allocated().as_ref().clone()),
            tasks: HashMap::new(),
            running: KeyedTasks::new(),
            searches: JoinSet::new(),
            questions: KeyedTasks::new(),
            // Nobody gives any.
            orders: mpsc::channel(1).1,
            beat,
            known: watch::channel(Arc::default()).0,
            node,
        }
    }

    /// Who may end Pods by the node's own will.
    #[must_use]
    pub fn with_orders(mut self, orders: mpsc::Receiver<EndOrder>) -> Self {
        self.orders = orders;
        self
    }

    /// The Pods that have a task or an owner.
    #[must_use]
    pub fn known(&self) -> watch::Receiver<Arc<Known>> {
        self.known.subscribe()
    }

    /// Runs until cancelled. Pod tasks are dropped, and gone when this returns; containers are left alone.
    pub async fn run(mut self, token: CancellationToken) {
        tokio::select! {
            biased;
            () = token.cancelled() => {}
            () = self.dispatch() => {}
        }
        self.running.shutdown().await;
    }

    async fn dispatch(&mut self) {
        self.take_stock().await;
        let node = self.node.clone();
        let mut sweep = tokio::time::interval(SWEEP);
        sweep.reset();
        let mut retry = tokio::time::interval(RETRY_RESIZES);
        retry.reset();
        let mut actuated = node.records.watch_actuated();
        loop {
            self.beat.turn();
            let event = tokio::select! {
                Some(update) = self.updates.recv() => Event::Update(update),
                Some(order) = self.orders.recv() => Event::Order(order),
                Some((uid, ended)) = self.running.join_next() => match ended {
                    Ok(()) => Event::Ended(uid),
                    Err(error) => {
                        tracing::error!(pod_uid = %uid, %error, "Pod task died and is started again");
                        Event::Died(uid)
                    }
                },
                Some(found) = self.searches.join_next() => {
                    // A search that panicked found nothing; the next one is made soon.
                    let found = found.unwrap_or_else(|error| {
                        tracing::error!(%error, "the search for orphans died");
                        Found::default()
                    });
                    if !found.complete {
                        sweep.reset_after(SEARCH_AGAIN);
                    }
                    Event::Found(found)
                }
                Some((uid, asked)) = self.questions.join_next() => {
                    if let Err(error) = asked {
                        tracing::error!(pod_uid = %uid, %error, "the question for the node's labels died");
                    }
                    Event::Asked(uid)
                }
                () = node.observer.strangers.notified() => Event::SearchDue,
                _ = sweep.tick() => Event::SearchDue,
                // Nobody has to look while nothing waits.
                Ok(()) = actuated.changed(), if self.state.has_waiting_resizes() => Event::Actuated,
                _ = retry.tick() => Event::RetryDue,
            };
            self.take(event);
        }
    }

    /// Learns what runs already, so that a changed manifest waits for its predecessor.
    async fn take_stock(&mut self) {
        loop {
            match self.node.observer.survey().await {
                Ok(found) => return self.take(Event::Stock(found.iter().map(running).collect())),
                Err(error) => {
                    tracing::warn!(%error, "waiting for the runtime");
                    self.beat.turn();
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    fn take(&mut self, event: Event) {
        let node = self.node.clone();
        let offer = node.offer_now();
        let actuated = node.records.actuated();
        let around = Surroundings { offer: &offer, actuated: &actuated, can_ask: node.own.is_some() };
        for effect in self.state.on(event, around) {
            self.carry_out(effect);
        }
        self.count_resizes();
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Begin { uid, intent, after } => self.begin(uid, intent, &after),
            Effect::Respawn(uid) => {
                if let Some(task) = self.tasks.get(&uid) {
                    let intent = task.intent.subscribe();
                    self.launch(uid, intent, tokio::time::sleep(RESPAWN));
                }
            }
            Effect::Intend { uid, intent } => {
                if let Some(task) = self.tasks.get(&uid) {
                    task.intent.send_replace(intent);
                }
            }
            Effect::Over(uid) => {
                if let Some(task) = self.tasks.get(&uid) {
                    task.over.cancel();
                }
            }
            Effect::Forget(uid) => {
                self.tasks.remove(&uid);
                self.node.board.forget(&uid);
            }
            Effect::Ask(uid) => self.ask(uid),
            Effect::Search(known) => drop(self.searches.spawn(search(self.node.clone(), known))),
            Effect::Publish(known) => self.publish(known),
            Effect::Note(note) => self.note(note),
        }
    }

    fn begin(&mut self, uid: PodUid, intent: Intent, after: &[PodUid]) {
        let victims = after.iter().filter_map(|uid| {
            let task = self.tasks.get(uid)?;
            Some(Victim { pod: task.intent.borrow().pod.clone(), over: task.over.clone() })
        });
        let victims = victims.collect();
        let intent = watch::channel(intent).0;
        let receiver = intent.subscribe();
        let gone = are_gone(self.node.clone(), victims, intent.subscribe());
        self.tasks.insert(uid.clone(), Task { intent, over: CancellationToken::new() });
        self.launch(uid, receiver, gone);
    }

    fn launch(
        &mut self,
        uid: PodUid,
        intent: watch::Receiver<Intent>,
        before: impl Future<Output = ()> + Send + 'static,
    ) {
        let (node, of) = (self.node.clone(), uid.clone());
        self.running.spawn(uid, async move {
            before.await;
            pod_task::run(node, of, intent).await;
        });
    }

    /// Asks the API server for the node's object: a label may not have come round to here.
    fn ask(&mut self, uid: PodUid) {
        let (own, of) = (self.node.own.clone(), uid.clone());
        self.questions.spawn(uid, async move {
            let Some(own) = own else { return };
            if let Err(error) = own.ask_again().await {
                tracing::warn!(pod_uid = %of, %error, "the node's labels were not told");
            }
        });
    }

    /// Tells the others what this loop knows now.
    fn publish(&self, known: Known) {
        if known.sources_ready {
            // Of Pods that went while nobody was here.
            self.node.records.retain(|uid| known.pods.contains(uid));
        }
        self.known.send_if_modified(|old| {
            let changed = **old != known;
            if changed {
                *old = Arc::new(known);
            }
            changed
        });
        self.count_pods();
        self.count_work();
    }

    fn note(&self, note: Note) {
        let metrics = &self.node.metrics;
        match note {
            Note::Considered(pod) => {
                let containers = pod.spec.as_ref().map_or(0, |s| s.containers.len());
                metrics.containers_per_pod_count.observe([], containers as f64);
            }
            Note::Rejected { pod, rejection } => self.node.reject(&pod, &rejection),
            Note::Preempted { pod, shortage } => {
                metrics.preemptions.inc([&shortage]);
                self.node.recorder.pod(&pod, EventType::Warning, PREEMPTING, PREEMPTED);
            }
            Note::Restarted(pod) => metrics.restarted_pods_total.inc([static_label(&pod)]),
            Note::Parked(pod) => {
                tracing::info!(
                    pod = full_name(&pod).1,
                    pod_uid = pod.metadata.uid,
                    "waiting for an earlier Pod of the same name to end"
                );
            }
            Note::Orphaned(pod) => {
                metrics.orphaned_runtime_pods_total.inc([]);
                let (name, uid) = (full_name(&pod).1, &pod.metadata.uid);
                tracing::info!(pod = name, pod_uid = uid, "ending a Pod that no source lists");
            }
            Note::ResizeAsked(operations) => {
                operations
                    .into_iter()
                    .for_each(|labels| metrics.container_requested_resizes_total.inc(labels));
            }
            Note::ResizePending { pod, pending } => {
                let reason = pending.reason.as_str();
                let what = format!("Pod resize {reason}");
                let text = kubelet_core::resize::message(&what, &pod, pending.generation, &pending.message);
                self.node.recorder.pod(&pod, EventType::Warning, &format!("Resize{reason}"), text);
            }
            Note::ResizeInfeasible(detail) => metrics.pod_infeasible_resizes_total.inc([detail]),
            Note::ResizeAccepted(trigger) => {
                metrics.pod_deferred_accepted_resizes_total.inc([trigger.as_str()]);
            }
            Note::Spared(pod) => {
                let (name, uid) = (full_name(&pod).1, &pod.metadata.uid);
                let text = "a Pod that cannot be read may be this one: it runs on";
                tracing::warn!(pod = name, pod_uid = uid, "{text}");
            }
        }
    }

    fn count_pods(&self) {
        let metrics = &self.node.metrics;
        let active = || self.state.tasks().filter(|(_, t)| !t.finished);
        for label in STATIC_LABELS {
            let desired = self.state.wanted().filter(|p| static_label(p) == label).count();
            metrics.desired_pods.set([label], desired as f64);
            let active = active().filter(|(_, t)| static_label(&t.intent.pod) == label).count();
            metrics.active_pods.set([label], active as f64);
        }
        let ephemeral =
            |p: &Arc<Pod>| p.spec.as_ref().and_then(|s| s.ephemeral_containers.as_ref()).map_or(0, Vec::len);
        let all = self.state.wanted().map(ephemeral).sum::<usize>();
        metrics.managed_ephemeral_containers.set([], all as f64);
    }

    fn count_resizes(&self) {
        let metrics = &self.node.metrics;
        let pending = self.state.pending_resizes();
        for (label, reason) in [("deferred", "Deferred"), ("infeasible", "Infeasible")] {
            metrics.pod_pending_resizes.set([label], f64::from(pending.get(reason).copied().unwrap_or(0)));
        }
    }

    fn count_work(&self) {
        let mut counts: BTreeMap<[&str; 3], u32> = BTreeMap::new();
        for lifecycle in ["sync", "terminating", "terminated"] {
            for config in ["desired", "orphan"] {
                counts.extend(STATIC_LABELS.map(|label| ([lifecycle, config, label], 0)));
            }
        }
        for (uid, task) in self.state.tasks() {
            let ending = || self.node.board.get(uid.as_str()).is_some_and(|e| e.terminating.is_some());
            let lifecycle = match task.intent.stage {
                _ if task.finished => "terminated",
                Stage::Run if !ending() => "sync",
                _ => "terminating",
            };
            let config = if self.state.is_wanted(uid) { "desired" } else { "orphan" };
            let label = static_label(&task.intent.pod);
            *counts.entry([lifecycle, config, label]).or_default() += 1;
        }
        for (labels, n) in counts {
            self.node.metrics.working_pods.set(labels, f64::from(n));
        }
    }
}

/// Values of the label `static`.
const STATIC_LABELS: [&str; 2] = ["", "true"];

fn static_label(pod: &Pod) -> &'static str {
    STATIC_LABELS[usize::from(is_static(pod))]
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

/// Everything in the runtime, on disk and among the cgroups that looks like a Pod. Runs beside the loop: a runtime that
/// hangs must not keep orders from the Pods.
async fn search(node: Arc<Node>, known: BTreeSet<PodUid>) -> Found {
    let mut all = Vec::new();
    let (mut runtime, mut complete) = (None, true);
    match node.observer.survey().await {
        Ok(found) => {
            runtime = Some(found.iter().map(|f| f.uid.clone()).collect());
            for f in found.into_iter().filter(|f| !known.contains(&f.uid)) {
                all.push((f.uid.clone(), orphan::pod_from_runtime(&*node.runtime, &f).await));
            }
        }
        Err(error) => {
            complete = false;
            tracing::warn!(%error, "runtime could not be searched for orphans");
        }
    }
    let on_disk = node.volumes.known().await.map_err(|e| e.to_string());
    let in_cgroups = node.cgroups.known().await.map_err(|e| e.to_string());
    for (place, found) in [("disk", on_disk), ("cgroups", in_cgroups)] {
        match found {
            Ok(uids) => {
                let fresh = uids.into_iter().filter(|u| !known.contains(u));
                for uid in fresh {
                    if !all.iter().any(|(a, _)| *a == uid) {
                        all.push((uid.clone(), orphan::pod_without_trace(&uid)));
                    }
                }
            }
            Err(error) => {
                complete = false;
                tracing::warn!(place, error, "could not be searched for orphans");
            }
        }
    }
    Found { strangers: all, runtime, complete }
}

/// Waits until the victims are gone, or the Pod that waits for them is to go itself. Each has half as long again as its
/// grace, as upstream has it; one that takes longer is told of and waited for no more.
async fn are_gone(node: Arc<Node>, victims: Vec<Victim>, mut waiting: watch::Receiver<Intent>) {
    let all = victims.into_iter().map(|Victim { pod, over }| {
        let node = node.clone();
        let grace = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(0);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        async move {
            let timeout = (grace + grace / 2).max(VICTIM_MIN);
            if tokio::time::timeout(timeout, over.cancelled()).await.is_err() {
                let text = "Container runtime did not kill the pod within specified grace period.";
                node.recorder.pod(&pod, EventType::Warning, "ExceededGracePeriod", text);
            }
        }
    });
    tokio::select! {
        _ = futures_util::future::join_all(all) => {}
        _ = waiting.wait_for(|i| i.stage > Stage::Run) => {}
    }
}

fn running(found: &FoundPod) -> Running {
    Running {
        uid: found.uid.clone(),
        name: (found.namespace.clone(), found.name.clone()),
        alive: found.observed.ready_sandbox().is_some(),
    }
}
