//! Sends what happens to the node. Telling never waits; when the API server is away, the newest are kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::time::{Clock, Wall};
use client::{ClientError, Request};
use jiff::Timestamp;
use kubelet_core::node::NodeEvent;
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;

/// Where events about things without a namespace are kept.
const PATH: &str = "/api/v1/namespaces/default/events";
/// Events waiting to be sent; the oldest give way.
const WAITING: usize = 64;
/// Events remembered to count repetitions.
const REMEMBERED: usize = 32;
const PAUSE: Duration = Duration::from_secs(10);

/// Where to tell what happens to the node; cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeEvents(Arc<Queue>);

struct Queue {
    waiting: Mutex<VecDeque<(NodeEvent, Wall)>>,
    bell: Notify,
    clock: Arc<dyn Clock>,
}

/// The other end.
pub(super) struct Sender {
    queue: Arc<Queue>,
    cluster: Arc<Cluster>,
    sent: VecDeque<Sent>,
}

/// An event that the API server has.
struct Sent {
    event: NodeEvent,
    name: String,
    count: u32,
}

pub(super) fn channel(cluster: Arc<Cluster>, clock: Arc<dyn Clock>) -> (NodeEvents, Sender) {
    let queue = Arc::new(Queue { waiting: Mutex::default(), bell: Notify::new(), clock });
    (NodeEvents(queue.clone()), Sender { queue, cluster, sent: VecDeque::new() })
}

// === impl NodeEvents ===

impl NodeEvents {
    pub fn tell(&self, event: NodeEvent) {
        tracing::info!(reason = event.reason, text = event.message, "node event");
        let now = self.0.clock.now().wall;
        let mut waiting = self.0.lock();
        if waiting.len() == WAITING {
            waiting.pop_front();
        }
        waiting.push_back((event, now));
        self.0.bell.notify_one();
    }
}

// === impl Queue ===

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<(NodeEvent, Wall)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("waiting", &self.lock().len()).finish_non_exhaustive()
    }
}

// === impl Sender ===

impl Sender {
    pub(super) async fn run(mut self, token: CancellationToken) {
        token.run_until_cancelled(self.work()).await;
    }

    async fn work(&mut self) {
        loop {
            let next = self.queue.lock().pop_front();
            match next {
                Some((event, at)) => self.deliver(&event, at).await,
                None => self.queue.bell.notified().await,
            }
        }
    }

    /// Until it is there, or the server does not want it.
    async fn deliver(&mut self, event: &NodeEvent, at: Wall) {
        loop {
            match self.send(event, at).await {
                Ok(()) => return,
                Err(error) if error.code().is_some_and(|c| c < 500 && c != 429 && c != 401) => {
                    tracing::warn!(%error, reason = event.reason, "a node event was refused");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, reason = event.reason, "a node event waits");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    async fn send(&mut self, event: &NodeEvent, at: Wall) -> Result<(), ClientError> {
        if let Some(sent) = self.sent.iter_mut().find(|s| s.event == *event) {
            let count = sent.count + 1;
            let patch = json!({ "count": count, "lastTimestamp": time(at) }).to_string();
            let request = Request::strategic_patch(format!("{PATH}/{}", sent.name), patch);
            match self.cluster.events.ask_bytes(request).await {
                Ok(_) => {
                    sent.count = count;
                    return Ok(());
                }
                // It expired on the server: begin a new one.
                Err(e) if e.is_not_found() => {}
                Err(e) => return Err(e),
            }
        }
        let node = &self.cluster.node_name;
        let name = format!("{node}.{:x}", at.0);
        let object = object(event, node, &name, at).to_string();
        match self.cluster.events.ask_bytes(Request::post(PATH, object)).await {
            Ok(_) => {}
            // The answer to an earlier attempt was lost.
            Err(e) if e.is_already_exists() => {}
            Err(e) => return Err(e),
        }
        self.sent.retain(|s| s.event != *event);
        if self.sent.len() == REMEMBERED {
            self.sent.pop_front();
        }
        self.sent.push_back(Sent { event: event.clone(), name, count: 1 });
        Ok(())
    }
}

/// The event as the API has it. The reference's UID is the node's name: that is what `kubectl describe node` and
/// dashboards look for.
fn object(event: &NodeEvent, node: &str, name: &str, at: Wall) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": "default" },
        "involvedObject": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": node },
        "reason": event.reason,
        "message": event.message,
        "type": if event.warning { "Warning" } else { "Normal" },
        "source": { "component": "kubelet", "host": node },
        "firstTimestamp": time(at),
        "lastTimestamp": time(at),
        "count": 1,
        "reportingComponent": "kubelet",
        "reportingInstance": node,
    })
}

fn time(at: Wall) -> String {
    Timestamp::from_second(at.secs()).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_what_kubectl_looks_for() {
        let event = NodeEvent::status("n1", "NodeReady");
        let made = object(&event, "n1", "n1.1f", Wall::from_secs(1_700_000_000));
        assert_eq!(
            made["involvedObject"],
            json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"})
        );
        assert_eq!(made["message"], "Node n1 status is now: NodeReady");
        assert_eq!(made["firstTimestamp"], "2023-11-14T22:13:20Z");
        assert_eq!(made["type"], "Normal");
    }
}
