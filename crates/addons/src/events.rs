//! Events about the objects that are looked after.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use api::events::{About, Correlator, Happened, Told};
use base::time::{Mono, Now, Wall};
use client::{Client, ClientError, Request};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

/// Tells of what one component does. It belongs to the task that does it: an event that cannot be sent is lost, and the log has
/// it.
#[derive(Debug)]
pub(crate) struct Recorder {
    client: Client,
    component: &'static str,
    correlator: Correlator,
    origin: Instant,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grade {
    Normal,
    Warning,
}

// === impl Recorder ===

impl Recorder {
    pub(crate) fn new(client: Client, component: &'static str) -> Recorder {
        Recorder { client, component, correlator: Correlator::default(), origin: Instant::now() }
    }

    pub(crate) async fn tell(&mut self, about: About, grade: Grade, reason: &str, message: String) {
        match grade {
            Grade::Normal => tracing::info!(about = about.name, namespace = about.namespace, message, reason),
            Grade::Warning => {
                tracing::warn!(about = about.name, namespace = about.namespace, message, reason)
            }
        }
        let kind = if grade == Grade::Warning { "Warning" } else { "Normal" };
        let reason = reason.to_owned();
        let happened = Happened {
            about,
            field_path: String::new(),
            kind,
            reason,
            message,
            annotations: Default::default(),
        };
        let Some(told) = self.correlator.correlate(happened, self.now()) else { return };
        if let Err(error) = self.send(&told).await {
            tracing::debug!(%error, reason = told.happened.reason, "event not sent");
        }
    }

    async fn send(&self, told: &Told) -> Result<(), ClientError> {
        let namespace = match told.happened.about.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        let path = format!("/api/v1/namespaces/{namespace}/events");
        if told.count > 1 {
            let change = json!({"count": told.count, "lastTimestamp": time(told.last), "message": told.happened.message});
            let request = Request::strategic_patch(format!("{path}/{}", told.name), change.to_string());
            match self.client.ask_bytes(request).await {
                // It had its time; what is told now begins a new one.
                Err(error) if error.is_not_found() => {}
                other => return other.map(drop),
            }
        }
        let event = object(told, namespace, self.component);
        self.client.ask_bytes(Request::post(path, event.to_string())).await.map(drop)
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Now { mono: Mono(self.origin.elapsed()), wall: Wall(i64::try_from(wall).unwrap_or(i64::MAX)) }
    }
}

fn object(told: &Told, namespace: &str, component: &str) -> Value {
    let About { kind, namespace: of, name, uid, resource_version } = &told.happened.about;
    json!({
        "metadata": {"name": told.name, "namespace": namespace},
        "involvedObject": {
            "kind": kind, "apiVersion": "v1", "namespace": (!of.is_empty()).then_some(of), "name": name,
            "uid": uid, "resourceVersion": resource_version,
        },
        "type": told.happened.kind,
        "reason": told.happened.reason,
        "message": told.happened.message,
        "count": told.count,
        "firstTimestamp": time(told.first),
        "lastTimestamp": time(told.last),
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
    })
}

fn time(at: Wall) -> String {
    format!("{:.0}", Timestamp::from_second(at.secs()).unwrap_or_default())
}
