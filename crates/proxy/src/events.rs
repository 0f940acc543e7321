//! What users are told through Events, about this Node or a Service.

use std::sync::Arc;

use client::{Client, Request, Unreadable, UnreadableHandler};
use jiff::Timestamp;
use proxy_core::objects::ServiceKey;
use serde_json::{Value, json};
use supervise::Supervisor;
use tokio::sync::{Mutex, mpsc};

use crate::metrics::Metrics;

/// Events that wait to be sent; more are dropped.
const QUEUE: usize = 64;

/// One thing worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    is_warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
    /// None for this Node.
    object: Option<Object>,
}

/// What an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    api_version: &'static str,
    kind: &'static str,
    namespace: String,
    name: String,
}

/// Where notices wait.
pub type Queue = (mpsc::Sender<Notice>, mpsc::Receiver<Notice>);

pub fn queue() -> Queue {
    mpsc::channel(QUEUE)
}

/// Sends what comes in, one after the other, until nobody has anything to say. An event that cannot be sent is lost: it
/// is in the log as well.
pub fn start(client: Client, node: String, notices: mpsc::Receiver<Notice>, tasks: &Supervisor) {
    let notices = Arc::new(Mutex::new(notices));
    tasks.restart("events", move || {
        let (client, node, notices) = (client.clone(), node.clone(), notices.clone());
        async move {
            let mut notices = notices.lock().await;
            while let Some(notice) = notices.recv().await {
                send(&client, &node, &notice).await;
            }
        }
    });
}

/// Counts objects that cannot be read, and tells of each. It does not keep the queue open.
pub fn of_unreadable(metrics: Arc<Metrics>, events: &mpsc::Sender<Notice>) -> UnreadableHandler {
    let events = events.downgrade();
    UnreadableHandler::new(move |unreadable| {
        metrics.unreadable.inc([unreadable.kind]);
        if let Some(events) = events.upgrade().filter(|_| unreadable.is_news) {
            // The log has what finds no room.
            let _ = events.try_send(Notice::of_unreadable(unreadable));
        }
    })
}

/// Sends one, and waits until it is there; for what is told before the end.
pub async fn send(client: &Client, node: &str, notice: &Notice) {
    let event = notice.event(node, Timestamp::now());
    let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", notice.namespace());
    if let Err(error) = client.ask_bytes(Request::post(path, event.to_string())).await {
        tracing::debug!(%error, reason = notice.reason, "event not sent");
    }
}

// === impl Notice ===

impl Notice {
    pub fn normal(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: false, reason, action, note: note.into(), object: None }
    }

    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: true, ..Self::normal(reason, action, note) }
    }

    pub fn about_service(mut self, service: &ServiceKey) -> Self {
        let (namespace, name) = (service.namespace.to_string(), service.name.to_string());
        self.object = Some(Object { api_version: "v1", kind: "Service", namespace, name });
        self
    }

    fn of_unreadable(unreadable: &Unreadable<'_>) -> Self {
        let Unreadable { api_version, kind, namespace, name, why, .. } = *unreadable;
        let note = format!("{kind} is not understood, and what was known of it stays: {why}");
        let notice = Self::warning("FailedDecode", "ReadObject", note);
        if name.is_empty() || kind == "Node" {
            return notice;
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Self { object: Some(Object { api_version, kind, namespace, name }), ..notice }
    }

    /// Events about what has no namespace are kept in `default`.
    fn namespace(&self) -> &str {
        let namespace = self.object.as_ref().map(|object| object.namespace.as_str());
        namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("default")
    }

    fn event(&self, node: &str, now: Timestamp) -> Value {
        let regarding = match &self.object {
            Some(Object { api_version, kind, namespace, name }) => {
                let namespace = (!namespace.is_empty()).then_some(namespace);
                json!({"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name})
            }
            // The Node's name stands for its UID, as the kubelet has it and `kubectl describe node` looks for it. Upstream's
            // proxy leaves it out, and its events are not shown there.
            None => json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}),
        };
        let name = self.object.as_ref().map_or(node, |object| &object.name);
        json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": self.namespace(), "name": format!("{name}.{:x}", now.as_nanosecond())},
            "eventTime": format!("{now:.6}"),
            "type": if self.is_warning { "Warning" } else { "Normal" },
            "reason": self.reason,
            "action": self.action,
            "note": self.note,
            "regarding": regarding,
            "reportingController": "kube-proxy",
            "reportingInstance": format!("kube-proxy-{node}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_its_object() {
        let now = Timestamp::UNIX_EPOCH;
        let event = Notice::normal("Starting", "StartKubeProxy", "").event("n1", now);
        assert_eq!(
            event["regarding"],
            json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"})
        );
        assert_eq!(
            (&event["type"], &event["eventTime"]),
            (&json!("Normal"), &json!("1970-01-01T00:00:00.000000Z"))
        );
        let service = ServiceKey::new("ns", "web");
        let notice =
            Notice::warning("FailedToStartServiceHealthcheck", "Listen", "x").about_service(&service);
        let event = notice.event("n1", now);
        assert_eq!(event["metadata"]["namespace"], "ns");
        assert_eq!((&event["regarding"]["kind"], &event["type"]), (&json!("Service"), &json!("Warning")));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_counted_and_named() {
        let (metrics, (sender, mut notices)) = (Arc::new(Metrics::default()), queue());
        let handler = of_unreadable(metrics.clone(), &sender);
        let slice = Unreadable {
            api_version: "discovery.k8s.io/v1",
            kind: "EndpointSlice",
            namespace: "ns",
            name: "web-1",
            uid: "u",
            resource_version: "7",
            why: "cannot read ports",
            is_news: true,
        };
        handler.call(&slice);
        handler.call(&Unreadable { is_news: false, ..slice });
        let event = notices.try_recv().map(|notice| notice.event("n1", Timestamp::UNIX_EPOCH));
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "namespace": "ns", "name": "web-1"});
        assert_eq!(event.map(|e| e["regarding"].clone()), Ok(object));
        assert!(notices.try_recv().is_err(), "told twice");
        assert!(metrics.render().contains("longshore_unreadable_objects_total{kind=\"EndpointSlice\"} 2"));
        drop(sender);
        assert!(notices.is_closed(), "the client keeps the queue open");
    }
}
