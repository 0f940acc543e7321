//! Sends events to the API server: correlated, in order, and never at anybody's expense.

use std::sync::Arc;
use std::time::Duration;

use base::class::{Class, Classify};
use base::rng::Rng;
use base::time::{Clock, Wall};
use client::{ClientError, Request};
use k8s_openapi::jiff::Timestamp;
use kubelet_core::events::{Correlator, Happened, Told};
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// Events that may wait; more are dropped, the newest first.
pub(super) const QUEUE: usize = 1024;
/// How often an event is tried while the server is out of reach, and how long that takes at most.
const TRIES: u32 = 12;
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// How long the last events may hold up the exit.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// What the task is made of.
#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Rng,
    /// Locked by the task that runs: a new one goes on where the last one panicked.
    pub(crate) queue: Arc<Mutex<mpsc::Receiver<Happened>>>,
}

/// The task itself.
struct Writing<'a> {
    cluster: &'a Cluster,
    clock: &'a dyn Clock,
    rng: Rng,
    queue: &'a mut mpsc::Receiver<Happened>,
    correlator: Correlator,
    /// Under way, and perhaps not there yet. Sent twice it is still one: it keeps its name.
    unsent: Option<Told>,
}

// === impl Writer ===

impl Writer {
    /// Runs until cancelled. What happened before that is told, if the server is quick to hear it.
    pub(crate) async fn run(self, token: CancellationToken) {
        let mut queue = self.queue.lock().await;
        let mut writing = Writing {
            cluster: &self.cluster,
            clock: &*self.clock,
            rng: self.rng,
            queue: &mut queue,
            correlator: Correlator::default(),
            unsent: None,
        };
        let _ = token.run_until_cancelled(writing.write()).await;
        if tokio::time::timeout(LAST_EVENTS, writing.finish()).await.is_err() {
            tracing::warn!("events were not sent before the exit");
        }
    }
}

// === impl Writing ===

impl Writing<'_> {
    async fn write(&mut self) {
        while let Some(event) = self.queue.recv().await {
            self.unsent = self.correlator.correlate(event, self.clock.now());
            if let Some(told) = &self.unsent {
                send(self.cluster, told, &mut self.rng).await;
            }
            self.unsent = None;
        }
    }

    /// Once round; nothing is tried again.
    async fn finish(&mut self) {
        self.queue.close();
        if let Some(told) = self.unsent.take()
            && tell(self.cluster, &told).await.is_err_and(|e| may_pass(&e))
        {
            return;
        }
        while let Some(event) = self.queue.recv().await {
            let Some(told) = self.correlator.correlate(event, self.clock.now()) else { continue };
            if tell(self.cluster, &told).await.is_err_and(|e| may_pass(&e)) {
                return;
            }
        }
    }
}

/// An event that the server answers is told or dropped, as upstream has it: all others wait behind it.
async fn send(cluster: &Cluster, told: &Told, rng: &mut Rng) {
    let mut pause = Duration::from_secs(1);
    for _ in 0..TRIES {
        match tell(cluster, told).await {
            Ok(()) => return,
            Err(error) if may_pass(&error) => {
                tracing::debug!(%error, "event not sent yet");
                let asked = error.retry_after().unwrap_or_default().min(PAUSE_MAX);
                tokio::time::sleep(asked.max(pause / 2) + rng.up_to(pause / 2)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(error) => {
                tracing::debug!(%error, reason = told.happened.reason, "event refused");
                return;
            }
        }
    }
    tracing::warn!(reason = told.happened.reason, "event dropped: the API server is out of reach");
}

/// No answer at all, or the wish to be asked later; everything else is a verdict on this event.
fn may_pass(error: &ClientError) -> bool {
    error.code().map_or(error.class() == Class::Retry, |code| code == 429)
}

async fn tell(cluster: &Cluster, told: &Told) -> Result<(), ClientError> {
    let path = format!("/api/v1/namespaces/{}/events", namespace(told));
    if told.count > 1 {
        let change = json!({
            "count": told.count,
            "lastTimestamp": time(told.last),
            "message": told.happened.message,
        });
        let request = Request::strategic_patch(format!("{path}/{}", told.name), change.to_string());
        match cluster.events.ask_bytes(request).await {
            // It had its time; what is told now begins a new one.
            Err(e) if e.is_not_found() => {}
            other => return other.map(|_| ()),
        }
    }
    let created = cluster.events.ask_bytes(Request::post(path, object(cluster, told).to_string())).await;
    created.map(|_| ())
}

fn object(cluster: &Cluster, told: &Told) -> Value {
    let Happened { about, field_path, kind, reason, message, annotations } = &told.happened;
    let annotations = (!annotations.is_empty()).then_some(annotations);
    let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
    json!({
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": told.name, "namespace": namespace(told), "annotations": annotations},
        "involvedObject": {
            "kind": about.kind,
            "apiVersion": "v1",
            "namespace": text(&about.namespace),
            "name": about.name,
            "uid": about.uid,
            "resourceVersion": text(&about.resource_version),
            "fieldPath": text(field_path),
        },
        "type": kind,
        "reason": reason,
        "message": message,
        "count": told.count,
        "firstTimestamp": time(told.first),
        "lastTimestamp": time(told.last),
        "source": {"component": "kubelet", "host": &*cluster.node_name},
        "reportingComponent": "kubelet",
        "reportingInstance": &*cluster.node_name,
    })
}

/// Events about what has no namespace are kept in `default`.
fn namespace(told: &Told) -> &str {
    match told.happened.about.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    }
}

fn time(at: Wall) -> String {
    Timestamp::from_second(at.secs()).map(|t| t.to_string()).unwrap_or_default()
}
