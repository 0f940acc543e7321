//! What users are told through Events, about this Node or a Service.

use client::{Client, Request};
use jiff::Timestamp;
use proxy_core::objects::ServiceKey;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Events that wait to be sent; more are dropped.
const QUEUE: usize = 64;

/// One thing worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    is_warning: bool,
    reason: &'static str,
    action: &'static str,
    note: String,
    service: Option<ServiceKey>,
}

/// Sends what comes in, one after the other, until nobody has anything to say. An event that cannot be sent is lost: it
/// is in the log as well.
pub fn start(client: Client, node: String) -> mpsc::Sender<Notice> {
    let (sender, mut notices) = mpsc::channel::<Notice>(QUEUE);
    tokio::spawn(async move {
        while let Some(notice) = notices.recv().await {
            send(&client, &node, &notice).await;
        }
    });
    sender
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
        Self { is_warning: false, reason, action, note: note.into(), service: None }
    }

    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self { is_warning: true, ..Self::normal(reason, action, note) }
    }

    pub fn about_service(mut self, service: &ServiceKey) -> Self {
        self.service = Some(service.clone());
        self
    }

    fn namespace(&self) -> &str {
        self.service.as_ref().map_or("default", |service| &service.namespace)
    }

    fn event(&self, node: &str, now: Timestamp) -> Value {
        let regarding = match &self.service {
            Some(service) => json!({
                "apiVersion": "v1", "kind": "Service", "namespace": &*service.namespace, "name": &*service.name,
            }),
            // The Node's name stands for its UID, as the kubelet has it and `kubectl describe node` looks for it. Upstream's
            // proxy leaves it out, and its events are not shown there.
            None => json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}),
        };
        let name = self.service.as_ref().map_or(node, |service| &service.name);
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
}
