//! Tells the API server what became of each Pod, and deletes the object once nothing of the Pod is left.
//!
//! The board says what is true, [`ApiPods`](crate::cluster::api_pods::ApiPods) what the API server believes; whenever
//! they differ it is told, whoever changed what. At most one request per Pod is under way, so a Pod that
//! changes quickly is told of once per answer, with its latest word. The watch and the answers to our own
//! patches keep the other side current, which saves the read before each write.
//!
//! While the server is out of reach one Pod's request in a growing while asks whether it is back, another Pod's each
//! time; then all are caught up with in one sweep, a few at a time. A Pod that the server fails at says nothing about
//! the others: it alone waits.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::class::{Class, Classify};
use base::ids::PodUid;
use base::rng::Rng;
use client::{ClientError, Request};
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::pod::{Report, Reported, report};
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::cluster::api_pods::ApiPod;
use crate::pods::keyed_tasks::KeyedTasks;
use crate::pods::node::Node;
use crate::pods::status_board::Entry;

/// Requests under way at once.
const PARALLEL: usize = 10;
/// Even if nothing seems to change, everything is compared this often.
const SWEEP: Duration = Duration::from_secs(10);
/// First and longest pause after a failure.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A server that asks for a longer pause does not get it.
const ASKED_MAX: Duration = Duration::from_secs(30);
/// First and longest pause after the server failed at one Pod: a webhook of its namespace may be broken.
const FAILED_MIN: Duration = Duration::from_secs(1);
const FAILED_MAX: Duration = Duration::from_secs(30);
/// What the server refused, or did not change, is not sent again before this has passed.
const REFUSED: Duration = Duration::from_secs(30);
/// Somebody wrote at the same moment, or it is another object by now; the watch is about to tell.
const CONFLICT: Duration = Duration::from_secs(1);

/// Runs until cancelled.
pub(crate) async fn run(cluster: Arc<Cluster>, node: Arc<Node>, token: CancellationToken) {
    let rng = node.rng_for("status");
    let mut writer = Writer {
        cluster,
        node,
        rng,
        writing: BTreeSet::new(),
        requests: KeyedTasks::new(),
        in_step: HashMap::new(),
        untold: HashMap::new(),
        held: BTreeMap::new(),
        failing: HashMap::new(),
        outage: None,
        asked_last: None,
    };
    let _ = token.run_until_cancelled(writer.write()).await;
    writer.requests.shutdown().await;
}

struct Writer {
    cluster: Arc<Cluster>,
    node: Arc<Node>,
    rng: Rng,
    /// Pods with a request under way, by the object's UID.
    writing: BTreeSet<PodUid>,
    requests: KeyedTasks<(PodUid, u64), Done>,
    /// Pods on which both sides agree, so that a change of one Pod does not cost a look at all.
    in_step: HashMap<PodUid, Stand>,
    /// Since when the API server has not been told what these Pods say.
    untold: HashMap<PodUid, Instant>,
    /// What was refused: not before then, unless the Pod has something else to say.
    held: BTreeMap<PodUid, Held>,
    /// Pods that the server fails at, with the pause of each.
    failing: HashMap<PodUid, Duration>,
    /// Set while the server does not answer.
    outage: Option<Outage>,
    /// Whose request was sent last.
    asked_last: Option<PodUid>,
}

/// What either side said last.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stand {
    version: u64,
    finished: bool,
    revision: String,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    version: u64,
    until: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Outage {
    pause: Duration,
    retry_at: Instant,
}

/// How a request ended.
struct Done {
    uid: PodUid,
    version: u64,
    outcome: Result<Option<Pod>, ClientError>,
    /// The API server's object was to be deleted.
    deleted: bool,
}

// === impl Writer ===

impl Writer {
    async fn write(&mut self) {
        let cluster = self.cluster.clone();
        let node = self.node.clone();
        let (mut board, mut api) = (node.board.subscribe(), cluster.api_pods.subscribe());
        loop {
            board.borrow_and_update();
            api.borrow_and_update();
            self.send_what_is_due();
            let wake = self.next_wake();
            tokio::select! {
                _ = board.changed() => {}
                _ = api.changed() => {}
                Some((key, done)) = self.requests.join_next() => match done {
                    Ok(done) => self.settle(done),
                    Err(error) => self.settle_lost(key, &error),
                },
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// The next moment something may be due by itself. A moment that is over is not one: what was due then was sent just
    /// now, or waits for an answer.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let retry = self.outage.iter().map(|outage| outage.retry_at);
        let held = self.held.values().map(|held| held.until);
        retry.chain(held).filter(|at| *at > now).fold(now + SWEEP, Instant::min)
    }

    /// Begins as many requests as may run now.
    fn send_what_is_due(&mut self) {
        if !self.cluster.api_pods.is_listed() {
            return;
        }
        let now = Instant::now();
        let parallel = match self.outage {
            Some(outage) if now < outage.retry_at => return,
            // One asks whether the server is back.
            Some(_) => 1,
            None => PARALLEL,
        };
        self.held.retain(|_, held| held.until > now);
        for entry in self.in_turn() {
            if self.writing.len() >= parallel {
                return;
            }
            let Some(known) = self.object_of(&entry) else { continue };
            let held = self.held.get(&known.uid).is_some_and(|h| h.version == entry.version);
            let (version, finished) = (entry.version, entry.finished);
            let stand = Stand { version, finished, revision: known.revision.clone() };
            let in_step = self.in_step.get(&known.uid) == Some(&stand);
            if !held && !in_step && !self.writing.contains(&known.uid) {
                self.tell(known, &entry, stand);
            }
        }
        if self.writing.is_empty() {
            // Nobody has anything to say: whether the server is back will show when somebody has.
            self.outage = None;
        }
        let api_pods = &self.cluster.api_pods;
        if self.in_step.len() > 2 * api_pods.len() {
            self.in_step.retain(|uid, _| api_pods.get(uid.as_str()).is_some());
            self.untold.retain(|uid, _| api_pods.get(uid.as_str()).is_some());
            self.failing.retain(|uid, _| api_pods.get(uid.as_str()).is_some());
        }
    }

    /// Every Pod. During an outage the one after that which was asked about last comes first: if it was this one Pod
    /// that the server did not answer, it must not be the only one that is ever tried.
    fn in_turn(&self) -> Vec<Entry> {
        let mut all = self.node.board.all();
        if self.outage.is_some()
            && let Some(last) = &self.asked_last
            && let Some(at) = all.iter().position(|e| self.object_of(e).is_some_and(|o| o.uid == *last))
        {
            all.rotate_left(at + 1);
        }
        all
    }

    /// The object that stands for the Pod: its own, or its mirror.
    fn object_of(&self, entry: &Entry) -> Option<ApiPod> {
        let meta = &entry.pod.metadata;
        if let Some(own) = self.cluster.api_pods.get(meta.uid.as_deref()?) {
            return Some(own);
        }
        let name = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        let mirror = self.cluster.api_pods.mirror(&name)?;
        (mirror.mirrors.as_deref() == meta.uid.as_deref()).then_some(mirror)
    }

    fn tell(&mut self, known: ApiPod, entry: &Entry, stand: Stand) {
        let reported = Reported {
            uid: known.uid.as_str(),
            status: &known.status,
            is_deleting: known.is_deleting,
            is_mirror: known.mirrors.is_some(),
        };
        let (request, deleted) = match report(&reported, &entry.status, entry.finished) {
            Report::Nothing => {
                self.in_step.insert(known.uid, stand);
                return;
            }
            Report::Patch(patch) => {
                let path = format!("{}/status", known.path());
                (Request::strategic_patch(path, patch.to_string()), false)
            }
            Report::Delete => (delete_now(&known), true),
        };
        self.writing.insert(known.uid.clone());
        self.asked_last = Some(known.uid.clone());
        self.untold.entry(known.uid.clone()).or_insert_with(Instant::now);
        let (client, version) = (self.cluster.client.clone(), entry.version);
        // A server that wants to be left alone is left alone by all Pods, and then by what they say then.
        let request = request.once();
        self.requests.spawn((known.uid.clone(), version), async move {
            let outcome = match deleted {
                // What a deletion answers with depends on the object's finalizers; the watch will tell.
                true => client.ask_bytes(request).await.map(|_| None),
                false => client.ask::<Pod>(request).await.map(Some),
            };
            Done { uid: known.uid, version, outcome, deleted }
        });
    }

    /// Nobody knows what became of the request: the Pod is told of again after a pause.
    fn settle_lost(&mut self, (uid, version): (PodUid, u64), error: &JoinError) {
        tracing::error!(pod_uid = %uid, %error, "telling of a Pod died; trying again");
        self.writing.remove(&uid);
        self.hold(uid, version, FAILED_MIN);
    }

    fn settle(&mut self, done: Done) {
        let Done { uid, version, outcome, deleted } = done;
        self.writing.remove(&uid);
        let failed = outcome.as_ref().is_err_and(|e| e.class() == Class::Retry);
        if !failed {
            self.failing.remove(&uid);
        }
        match outcome {
            Ok(answer) => {
                self.outage = None;
                if let Some(since) = self.untold.remove(&uid).filter(|_| !deleted) {
                    let sync = &self.node.metrics.pod_status_sync_duration_seconds;
                    sync.observe_duration([], since.elapsed());
                }
                // Once told, a deletion waits for whoever holds a finalizer; a patch that changed nothing
                // would change nothing again.
                let mut hold = deleted;
                if let Some(fresh) = answer.as_ref().and_then(ApiPod::of) {
                    hold = self.still_differs(&fresh, version);
                    self.cluster.api_pods.apply_answer(fresh);
                }
                if hold {
                    self.hold(uid, version, REFUSED);
                }
            }
            Err(error) if error.is_conflict() => {
                tracing::debug!(pod_uid = %uid, %error, "the Pod's object is not what it was");
                self.hold(uid, version, CONFLICT);
            }
            Err(error) if error.is_not_found() => {
                tracing::debug!(pod_uid = %uid, %error, "the Pod's object is gone");
                self.hold(uid, version, REFUSED);
            }
            Err(error) if failed && concerns_all(&error) => self.back_off(&error),
            Err(error) if failed => self.hold_failing(uid, version, &error),
            Err(error) => {
                tracing::warn!(pod_uid = %uid, %error, "the API server refuses the Pod's status");
                self.hold(uid, version, REFUSED);
            }
        }
    }

    /// The server took the patch and says something else than we do nevertheless.
    fn still_differs(&self, fresh: &ApiPod, version: u64) -> bool {
        let same_entry =
            |e: &Entry| e.version == version && self.object_of(e).is_some_and(|o| o.uid == fresh.uid);
        let Some(entry) = self.node.board.all().into_iter().find(same_entry) else { return false };
        let reported = Reported {
            uid: fresh.uid.as_str(),
            status: &fresh.status,
            is_deleting: fresh.is_deleting,
            is_mirror: fresh.mirrors.is_some(),
        };
        matches!(report(&reported, &entry.status, entry.finished), Report::Patch(_))
    }

    fn hold(&mut self, uid: PodUid, version: u64, time: Duration) {
        self.held.insert(uid, Held { version, until: Instant::now() + time });
    }

    /// The server failed at this Pod. It is tried again after a growing while; the others are told of meanwhile.
    fn hold_failing(&mut self, uid: PodUid, version: u64, error: &ClientError) {
        let last = self.failing.get(&uid).copied();
        if last.is_none() {
            tracing::warn!(pod_uid = %uid, %error, "the API server fails at the Pod's status; trying again");
        }
        let pause = last.map_or(FAILED_MIN, |p| (p * 2).min(FAILED_MAX));
        let asked = error.retry_after().unwrap_or_default().min(ASKED_MAX);
        let spread = asked.max(pause / 2) + self.rng.up_to(pause / 2);
        self.failing.insert(uid.clone(), pause);
        self.hold(uid, version, spread);
    }

    fn back_off(&mut self, error: &ClientError) {
        let now = Instant::now();
        if self.outage.is_some_and(|o| now < o.retry_at) {
            // Sent before the trouble was known.
            return;
        }
        let pause = self.outage.map_or(PAUSE_MIN, |o| (o.pause * 2).min(PAUSE_MAX));
        if self.outage.is_none() {
            tracing::warn!(%error, "the API server cannot be told of Pods; trying again");
        }
        let asked = error.retry_after().unwrap_or_default().min(ASKED_MAX);
        let retry_at = now + asked.max(pause / 2) + self.rng.up_to(pause / 2);
        self.outage = Some(Outage { pause, retry_at });
    }
}

/// The trouble is the server's, or the way to it, and not the one Pod's: no answer, credentials that nobody takes, or the
/// wish to be left alone.
fn concerns_all(error: &ClientError) -> bool {
    match error.code() {
        None | Some(401 | 429) => true,
        Some(503) => error.retry_after().is_some(),
        Some(_) => false,
    }
}

/// Deletes an object at once, and only this very one.
pub(super) fn delete_now(pod: &ApiPod) -> Request {
    let options = serde_json::json!({
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": pod.uid.as_str()},
    });
    Request::delete(pod.path(), options.to_string())
}
