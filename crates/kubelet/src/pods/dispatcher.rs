//! The one owner of the map from Pod UID to Pod task.
//!
//! Sources send whole sets of desired Pods; the dispatcher merges each difference into that Pod's
//! intent. It also adopts what it finds: a Pod that runs but that no source lists is ended like any
//! other, by a task of its own, though never before every source has reported once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::pod::static_pod::is_static;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::observed::FoundPod;
use kubelet_core::pod::{Intent, Kill, KillCause, ORPHAN_GRACE, Stage};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::events::Kind;
use crate::pods::beat::Beat;
use crate::pods::known::Known;
use crate::pods::node::Node;
use crate::pods::sources::{SourceName, SourceUpdate, Unread};
use crate::pods::{orphan, pod_task};

/// How often the runtime and the disk are searched for Pods nobody knows.
const SWEEP: Duration = Duration::from_secs(60);
/// Pause before a search that got no answer is made again.
const SEARCH_AGAIN: Duration = Duration::from_secs(5);
/// Pause before a task that panicked is started again.
const RESPAWN: Duration = Duration::from_secs(1);
/// What a Pod that makes way for a critical one gets at least.
const VICTIM_MIN: Duration = Duration::from_secs(10);
/// The one verdict that labels on their way here could change.
const NODE_AFFINITY: &str = "NodeAffinity";

pub struct Dispatcher {
    node: Arc<Node>,
    updates: mpsc::Receiver<SourceUpdate>,
    /// Sources that have not reported yet. Nothing is ended for want of an owner while any is left.
    silent: BTreeSet<SourceName>,
    /// What each source wants.
    wanted: BTreeMap<SourceName, BTreeMap<PodUid, Arc<Pod>>>,
    /// What each source has and cannot read: nobody's to end.
    unread: BTreeMap<SourceName, Unread>,
    tasks: HashMap<PodUid, Task>,
    running: JoinSet<()>,
    ids: HashMap<Id, PodUid>,
    /// A search has ended since every source reported: what is not known now belongs to nobody.
    searched: bool,
    /// At most one search for orphans at a time.
    searches: JoinSet<Found>,
    /// Found in the runtime at start and not claimed by a source yet: name by UID.
    unclaimed: HashMap<PodUid, FullName>,
    /// Ran when this life began. An earlier one let them in, and nobody asks again whether they may run here.
    settled: BTreeSet<PodUid>,
    /// Static Pods that wait for another of the same name to be gone.
    parked: Vec<(SourceName, Arc<Pod>)>,
    /// Pods that the node's labels speak against as far as they are known here; the API server is asked for them.
    asking: BTreeSet<PodUid>,
    questions: JoinSet<PodUid>,
    /// Pods that the node itself ends.
    orders: mpsc::Receiver<EndOrder>,
    /// Turns with the loop; the syncloop health check looks at it.
    beat: Beat,
    known: watch::Sender<Arc<Known>>,
}

/// The node ends a Pod, and says why in its status.
#[derive(Clone, Debug)]
pub struct EndOrder {
    pub uid: PodUid,
    pub reason: &'static str,
    pub message: &'static str,
    /// Seconds at most.
    pub grace: i64,
}

type FullName = (String, String);

/// What a search came upon.
struct Found {
    strangers: Vec<(PodUid, Pod)>,
    /// Every Pod the runtime holds; none if it could not be asked.
    runtime: Option<BTreeSet<PodUid>>,
    /// Runtime and disk both answered.
    complete: bool,
}

struct Task {
    intent: watch::Sender<Intent>,
    name: FullName,
    finished: bool,
    /// It was let in and holds its place until it has ended. Rejected Pods and orphans hold none.
    admitted: bool,
    /// The same UID was wanted again while this one was ending.
    again: Option<(SourceName, Arc<Pod>)>,
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
            node,
            updates,
            silent: sources.into_iter().collect(),
            wanted: BTreeMap::new(),
            unread: BTreeMap::new(),
            tasks: HashMap::new(),
            running: JoinSet::new(),
            ids: HashMap::new(),
            searched: false,
            searches: JoinSet::new(),
            unclaimed: HashMap::new(),
            settled: BTreeSet::new(),
            parked: Vec::new(),
            asking: BTreeSet::new(),
            questions: JoinSet::new(),
            // Nobody gives any.
            orders: mpsc::channel(1).1,
            beat,
            known: watch::channel(Arc::default()).0,
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
        loop {
            self.beat.turn();
            tokio::select! {
                Some(update) = self.updates.recv() => {
                    let was_silent = !self.silent.is_empty();
                    self.merge(update);
                    if was_silent {
                        self.search();
                    }
                }
                Some(order) = self.orders.recv() => self.obey(order),
                Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => self.ended(ended),
                Some(Ok(found)) = self.searches.join_next(), if !self.searches.is_empty() => {
                    if !found.complete {
                        sweep.reset_after(SEARCH_AGAIN);
                    }
                    self.found(found);
                }
                Some(Ok(uid)) = self.questions.join_next(), if !self.questions.is_empty() => self.asked(&uid),
                () = node.observer.strangers.notified() => self.search(),
                _ = sweep.tick() => self.search(),
            }
        }
    }

    /// Learns what runs already, so that a changed manifest waits for its predecessor.
    async fn take_stock(&mut self) {
        loop {
            match self.node.observer.survey().await {
                Ok(found) => {
                    self.unclaimed = found.iter().map(|f| (f.uid.clone(), found_name(f))).collect();
                    let alive = found.iter().filter(|f| f.observed.ready_sandbox().is_some());
                    self.settled = alive.map(|f| f.uid.clone()).collect();
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "waiting for the runtime");
                    self.beat.turn();
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    fn merge(&mut self, update: SourceUpdate) {
        let SourceUpdate { source, pods, unread } = update;
        self.silent.remove(&source);
        self.unread.insert(source, unread);
        let mut listed: Vec<(PodUid, Arc<Pod>)> =
            pods.into_iter().filter_map(|p| Some((PodUid::from(p.metadata.uid.as_deref()?), p))).collect();
        let next: BTreeMap<PodUid, Arc<Pod>> = listed.iter().cloned().collect();
        listed.retain(|(uid, pod)| next.get(uid).is_some_and(|kept| Arc::ptr_eq(kept, pod)));
        let last = self.wanted.insert(source, next).unwrap_or_default();
        for uid in last.keys() {
            if !self.is_wanted(uid) {
                self.remove(uid);
            }
        }
        // Who runs already keeps his place; who was created first is admitted first, and else who is listed first.
        listed.sort_by_key(|(uid, pod)| {
            (!self.settled.contains(uid), pod.metadata.creation_timestamp.as_ref().map(|t| t.0))
        });
        for (uid, pod) in listed {
            match last.get(&uid) {
                Some(old) if Arc::ptr_eq(old, &pod) || old == &pod => {}
                _ => self.want(source, uid, pod),
            }
        }
        self.publish();
    }

    /// A Pod is wanted: tell its task, or begin one.
    fn want(&mut self, source: SourceName, uid: PodUid, pod: Arc<Pod>) {
        self.unclaimed.remove(&uid);
        let Some(task) = self.tasks.get_mut(&uid) else {
            return self.begin(source, uid, pod, false);
        };
        // A deleted Pod stays itself: its updates may shorten the grace.
        let leaving = matches!(
            task.intent.borrow().kill.as_ref().map(|k| &k.cause),
            Some(KillCause::Removed | KillCause::Orphaned)
        );
        // An order to end it does not ask for another life, it may only leave this one less time.
        if leaving && pod.metadata.deletion_timestamp.is_none() {
            task.again = Some((source, pod));
        } else {
            task.intent.send_modify(|i| i.update(pod));
        }
    }

    /// `asked`: the labels that speak against it, should any, are the latest.
    fn begin(&mut self, source: SourceName, uid: PodUid, pod: Arc<Pod>, asked: bool) {
        if self.asking.contains(&uid) {
            // What it is now will be looked at then.
            return;
        }
        let name = full_name(&pod);
        let taken = self.tasks.iter().any(|(u, t)| *u != uid && !t.finished && t.name == name)
            || self.unclaimed.iter().any(|(u, n)| *u != uid && *n == name);
        // Only a manifest that changed waits for what it was before. Who deletes a Pod of the API server by force wants
        // the next one, whatever holds up the end of the last.
        if taken && is_static(&pod) {
            tracing::info!(pod = name.1, pod_uid = %uid, "waiting for an earlier Pod of the same name to end");
            self.unpark_one(&uid);
            self.parked.push((source, pod));
            return;
        }
        let mut intent = Intent::run(pod.clone());
        intent.update(pod.clone());
        let containers = pod.spec.as_ref().map_or(0, |s| s.containers.len());
        self.node.metrics.containers_per_pod_count.observe([], containers as f64);
        let (ended, ending) = (has_ended(&pod), intent.stage > Stage::Run);
        if self.settled.remove(&uid) || ended || ending {
            // It runs already, or will not run any more: nobody asks whether it may. Until it has ended it holds its place.
            return self.spawn(uid, intent, !ended);
        }
        let holding = self.admitted(&name);
        let admitted = self.node.admit(&pod, &holding);
        let is_admitted = admitted.is_ok();
        let mut victims = Vec::new();
        match admitted {
            Ok(chosen) => {
                for victim in &chosen {
                    self.node.metrics.preemptions.inc([&self.node.shortage(&pod, &holding)]);
                    victims.extend(self.preempt(victim));
                }
            }
            Err(rejection) if rejection.reason == NODE_AFFINITY && !asked && self.ask(&uid) => return,
            Err(rejection) => {
                self.node.reject(&pod, &rejection);
                let message = format!("Pod was rejected: {}", rejection.message);
                let cause = KillCause::Rejected { reason: rejection.reason, message };
                intent.end(Kill { cause, grace: None });
            }
        }
        self.spawn_after(uid, intent, is_admitted, victims);
    }

    /// The scheduler may have seen a label that has not come round to here: asks for the node's object. False if there
    /// is nobody to ask.
    fn ask(&mut self, uid: &PodUid) -> bool {
        let Some(own) = self.node.own.clone() else { return false };
        let of = uid.clone();
        self.asking.insert(uid.clone());
        self.questions.spawn(async move {
            if let Err(error) = own.ask_again().await {
                tracing::warn!(pod_uid = %of, %error, "the node's labels were not told");
            }
            of
        });
        true
    }

    /// The labels are the latest now. If the Pod is still wanted, it may come in or not.
    fn asked(&mut self, uid: &PodUid) {
        self.asking.remove(uid);
        let wanted = self.wanted.iter().find_map(|(source, all)| Some((*source, all.get(uid)?.clone())));
        if let Some((source, pod)) = wanted.filter(|_| !self.tasks.contains_key(uid)) {
            self.begin(source, uid.clone(), pod, true);
            self.publish();
        }
    }

    /// Ends a Pod to make room for a critical one, which has to wait for it.
    fn preempt(&self, uid: &PodUid) -> Option<Victim> {
        let task = self.tasks.get(uid)?;
        let message = "Preempted in order to admit critical pod".to_owned();
        self.node.recorder.pod(&task.intent.borrow().pod, Kind::Warning, "Preempting", &message);
        let cause = KillCause::Node { reason: "Preempting".into(), message };
        task.intent.send_modify(|i| i.end(Kill { cause, grace: None }));
        Some(Victim { pod: task.intent.borrow().pod.clone(), over: task.over.clone() })
    }

    fn obey(&self, order: EndOrder) {
        let Some(task) = self.tasks.get(&order.uid).filter(|t| !t.finished) else { return };
        let cause = KillCause::Node { reason: order.reason.to_owned(), message: order.message.to_owned() };
        task.intent.send_modify(|i| i.end(Kill { cause, grace: Some(order.grace) }));
    }

    /// Pods that hold their place on the node, as a Pod of this name finds it. One that is ending uses its place still;
    /// if it was taken away by force, its successor has it.
    fn admitted(&self, name: &FullName) -> Vec<Arc<Pod>> {
        let is_predecessor = |uid: &PodUid, t: &Task| t.name == *name && !self.is_wanted(uid);
        let holding =
            self.tasks.iter().filter(|(uid, t)| t.admitted && !t.finished && !is_predecessor(uid, t));
        holding.map(|(_, t)| t.intent.borrow().pod.clone()).collect()
    }

    fn spawn(&mut self, uid: PodUid, intent: Intent, admitted: bool) {
        self.spawn_after(uid, intent, admitted, Vec::new());
    }

    /// The Pod has its task and its place from now on; the task begins once the victims are gone.
    fn spawn_after(&mut self, uid: PodUid, intent: Intent, admitted: bool, victims: Vec<Victim>) {
        let name = full_name(&intent.pod);
        let intent = watch::channel(intent).0;
        let receiver = intent.subscribe();
        let gone = are_gone(self.node.clone(), victims, intent.subscribe());
        let over = CancellationToken::new();
        self.tasks.insert(uid.clone(), Task { intent, name, finished: false, admitted, again: None, over });
        self.launch(uid, receiver, gone);
    }

    fn launch(
        &mut self,
        uid: PodUid,
        intent: watch::Receiver<Intent>,
        before: impl Future<Output = ()> + Send + 'static,
    ) {
        let node = self.node.clone();
        let of = uid.clone();
        let handle = self.running.spawn(async move {
            before.await;
            pod_task::run(node, of, intent).await;
        });
        self.ids.insert(handle.id(), uid);
    }

    /// A source dropped the Pod.
    fn remove(&mut self, uid: &PodUid) {
        self.unpark_one(uid);
        let Some(task) = self.tasks.get_mut(uid) else { return };
        task.again = None;
        let kill = Kill { cause: KillCause::Removed, grace: None };
        if task.finished {
            // Nothing runs, but its dead containers and its record are still there.
            let mut intent = Intent::run(task.intent.borrow().pod.clone());
            intent.end(kill);
            self.spawn(uid.clone(), intent, false);
        } else {
            task.intent.send_modify(|i| i.end_as_removed(kill));
        }
    }

    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(e) => e.id(),
        };
        let Some(uid) = self.ids.remove(&id) else { return };
        let Some(task) = self.tasks.get_mut(&uid) else { return };
        if let Err(error) = ended {
            tracing::error!(pod = task.name.1, pod_uid = %uid, %error, "Pod task died and is started again");
            let intent = task.intent.subscribe();
            return self.launch(uid, intent, tokio::time::sleep(RESPAWN));
        }
        task.finished = true;
        task.over.cancel();
        let again = task.again.take();
        let label = static_label(&task.intent.borrow().pod);
        let gone = !self.is_wanted(&uid);
        if again.is_some() {
            self.node.metrics.restarted_pods_total.inc([label]);
        }
        if gone || again.is_some() {
            self.tasks.remove(&uid);
            self.node.board.forget(&uid);
        }
        self.unclaimed.remove(&uid);
        if let Some((source, pod)) = again {
            self.want(source, uid, pod);
        }
        self.unpark();
        self.publish();
    }

    fn unpark_one(&mut self, uid: &PodUid) {
        self.parked.retain(|(_, p)| p.metadata.uid.as_deref() != Some(uid.as_str()));
    }

    /// A name may have become free.
    fn unpark(&mut self) {
        for (source, pod) in std::mem::take(&mut self.parked) {
            if let Some(uid) = pod.metadata.uid.as_deref().map(PodUid::from) {
                self.want(source, uid, pod);
            }
        }
    }

    fn is_wanted(&self, uid: &PodUid) -> bool {
        self.wanted.values().any(|w| w.contains_key(uid)) || self.is_unread(uid)
    }

    fn is_unread(&self, uid: &PodUid) -> bool {
        self.unread.values().any(|unread| unread.uids.contains(uid))
    }

    /// Begins a search for what nobody wants, unless one is under way or a source is still silent.
    fn search(&mut self) {
        if self.silent.is_empty() && self.searches.is_empty() {
            let listed = self.wanted.values().flat_map(BTreeMap::keys);
            let unread = self.unread.values().flat_map(|unread| &unread.uids);
            let known = self.tasks.keys().chain(listed).chain(unread).cloned().collect();
            self.searches.spawn(search(self.node.clone(), known));
        }
    }

    /// Ends what the search found and nobody wants.
    fn found(&mut self, found: Found) {
        self.searched |= found.complete;
        let has_nameless = self.unread.values().any(|unread| unread.has_nameless);
        for (uid, pod) in found.strangers {
            if has_nameless {
                tracing::warn!(pod = full_name(&pod).1, pod_uid = %uid, "a Pod that cannot be read may be this one: it runs on");
                continue;
            }
            self.unclaimed.remove(&uid);
            self.settled.remove(&uid);
            if self.tasks.contains_key(&uid) || self.is_wanted(&uid) {
                continue;
            }
            tracing::info!(pod = full_name(&pod).1, pod_uid = %uid, "ending a Pod that no source lists");
            self.node.metrics.orphaned_runtime_pods_total.inc([]);
            self.end_orphan(uid, pod);
        }
        if let Some(there) = found.runtime {
            // Somebody else took it away: nobody has to wait for its end.
            self.unclaimed.retain(|uid, _| there.contains(uid));
        }
        self.unpark();
        self.publish();
    }

    fn end_orphan(&mut self, uid: PodUid, pod: Pod) {
        let mut intent = Intent::run(Arc::new(pod));
        intent.end(Kill { cause: KillCause::Orphaned, grace: Some(ORPHAN_GRACE) });
        self.spawn(uid, intent, false);
    }

    /// Tells the others what this loop knows now.
    fn publish(&self) {
        let listed = self.wanted.values().flat_map(BTreeMap::keys);
        let unread = self.unread.values().flat_map(|unread| &unread.uids);
        let pods: BTreeSet<PodUid> = self.tasks.keys().chain(listed).chain(unread).cloned().collect();
        let known = Known { pods, sources_ready: self.silent.is_empty() && self.searched };
        self.known.send_if_modified(|old| {
            let changed = old.pods != known.pods || old.sources_ready != known.sources_ready;
            if changed {
                *old = Arc::new(known);
            }
            changed
        });

        self.count_pods();
        self.count_work();
    }

    fn count_pods(&self) {
        let metrics = &self.node.metrics;
        let wanted = || self.wanted.values().flat_map(BTreeMap::values);
        let active = || self.tasks.values().filter(|t| !t.finished);
        for label in STATIC_LABELS {
            let desired = wanted().filter(|p| static_label(p) == label).count();
            metrics.desired_pods.set([label], desired as f64);
            let active = active().filter(|t| static_label(&t.intent.borrow().pod) == label).count();
            metrics.active_pods.set([label], active as f64);
        }
        let ephemeral =
            |p: &Arc<Pod>| p.spec.as_ref().and_then(|s| s.ephemeral_containers.as_ref()).map_or(0, Vec::len);
        metrics.managed_ephemeral_containers.set([], wanted().map(ephemeral).sum::<usize>() as f64);
    }

    fn count_work(&self) {
        let mut counts: BTreeMap<[&str; 3], u32> = BTreeMap::new();
        for lifecycle in ["sync", "terminating", "terminated"] {
            for config in ["desired", "orphan"] {
                counts.extend(STATIC_LABELS.map(|label| ([lifecycle, config, label], 0)));
            }
        }
        for (uid, task) in &self.tasks {
            let ending = || self.node.board.get(uid.as_str()).is_some_and(|e| e.terminating.is_some());
            let lifecycle = match task.intent.borrow().stage {
                _ if task.finished => "terminated",
                Stage::Run if !ending() => "sync",
                _ => "terminating",
            };
            let config = if self.is_wanted(uid) { "desired" } else { "orphan" };
            let label = static_label(&task.intent.borrow().pod);
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
            let patience = (grace + grace / 2).max(VICTIM_MIN);
            if tokio::time::timeout(patience, over.cancelled()).await.is_err() {
                let text = "Container runtime did not kill the pod within specified grace period.";
                node.recorder.pod(&pod, Kind::Warning, "ExceededGracePeriod", text);
            }
        }
    });
    tokio::select! {
        _ = futures_util::future::join_all(all) => {}
        _ = waiting.wait_for(|i| i.stage > Stage::Run) => {}
    }
}

/// The API server was told that the Pod is over.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn full_name(pod: &Pod) -> FullName {
    let m = &pod.metadata;
    (m.namespace.clone().unwrap_or_default(), m.name.clone().unwrap_or_default())
}

fn found_name(found: &FoundPod) -> FullName {
    (found.namespace.clone(), found.name.clone())
}
