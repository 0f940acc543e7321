//! Events, told in order and correlated as client-go does it, and never at anybody's expense.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::events::{About, Correlator, Happened, Told};
use base::time::{Clock, Wall};
use controllers_core::plan::{Act, Event, PatchKind, Regarding, Target, Why, WriteError};
use controllers_core::resource::Resource;
use controllers_core::terms::timestamp;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::port::Api;

/// Events that may wait; more are dropped, the newest first.
const QUEUE: usize = 1024;
/// How often an event is tried while the server is out of reach.
const TRIES: u32 = 12;
const PAUSE: Duration = Duration::from_secs(10);
const EVENTS: Resource =
    Resource { group: "", version: "v1", plural: "events", kind: "Event", is_namespaced: true };

/// A handle for the loops; cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder(mpsc::Sender<(&'static str, Event)>);

/// Owned by the task that tells the API server.
pub struct Teller {
    queue: mpsc::Receiver<(&'static str, Event)>,
    api: Arc<dyn Api>,
    clock: Arc<dyn Clock>,
    /// By source: what one component says is not mixed with what another says.
    correlators: HashMap<&'static str, Correlator>,
}

// === impl Recorder ===

impl Recorder {
    #[must_use]
    pub fn new(api: Arc<dyn Api>, clock: Arc<dyn Clock>) -> (Recorder, Teller) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Recorder(sender), Teller { queue, api, clock, correlators: HashMap::new() })
    }

    pub(crate) fn tell(&self, source: &'static str, events: Vec<Event>) {
        for event in events {
            if let Err(error) = self.0.try_send((source, event)) {
                let (_, event) = error.into_inner();
                tracing::debug!(reason = event.reason, "event dropped: too many are waiting");
            }
        }
    }
}

// === impl Teller ===

impl Teller {
    /// Runs until every recorder is gone.
    pub async fn run(&mut self) {
        while let Some((source, event)) = self.queue.recv().await {
            let Event { about: regarding, is_warning, reason, message } = event;
            let happened = Happened {
                about: about(&regarding),
                field_path: String::new(),
                kind: if is_warning { "Warning" } else { "Normal" },
                reason,
                message,
                annotations: Default::default(),
            };
            let correlator = self.correlators.entry(source).or_default();
            if let Some(told) = correlator.correlate(happened, self.clock.now()) {
                self.send(source, &regarding, &told).await;
            }
        }
    }

    /// An event that the server answers is told or dropped: all others wait behind it.
    async fn send(&self, source: &str, regarding: &Regarding, told: &Told) {
        for _ in 0..TRIES {
            match self.write(source, regarding, told).await {
                Ok(()) => return,
                Err(refusal) if matches!(refusal.why, Why::Lost | Why::TooManyRequests) => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(refusal) => {
                    tracing::debug!(%refusal, reason = told.happened.reason, "event refused");
                    return;
                }
            }
        }
        tracing::warn!(reason = told.happened.reason, "event dropped: the API server is out of reach");
    }

    async fn write(&self, source: &str, regarding: &Regarding, told: &Told) -> Result<(), WriteError> {
        let namespace = match regarding.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        if told.count > 1 {
            let target = Target {
                resource: EVENTS,
                namespace: namespace.to_owned(),
                name: told.name.clone(),
                subresource: "",
            };
            let change = json!({"count": told.count, "lastTimestamp": time(told.last), "message": told.happened.message});
            let body = change.to_string().into();
            match self.api.act(&Act::Patch { target, kind: PatchKind::Strategic, body }).await {
                // It had its time; what is told now begins a new one.
                Err(refusal) if refusal.why == Why::NotFound => {}
                other => return other.map(|_| ()),
            }
        }
        let event = object(source, regarding, namespace, told);
        self.api.act(&Act::create(EVENTS, namespace, event)).await.map(|_| ())
    }
}

impl std::fmt::Debug for Teller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Teller")
    }
}

fn about(regarding: &Regarding) -> About {
    About {
        kind: regarding.resource.kind,
        namespace: regarding.namespace.clone(),
        name: regarding.name.clone(),
        uid: regarding.uid.clone(),
        resource_version: regarding.resource_version.clone(),
    }
}

fn object(source: &str, regarding: &Regarding, namespace: &str, told: &Told) -> Value {
    let Regarding { resource, name, uid, resource_version, .. } = regarding;
    json!({
        "metadata": {"name": told.name, "namespace": namespace},
        "involvedObject": {
            "kind": resource.kind, "apiVersion": resource.api_version(),
            "namespace": (!regarding.namespace.is_empty()).then_some(&regarding.namespace),
            "name": name, "uid": uid, "resourceVersion": resource_version,
        },
        "type": told.happened.kind,
        "reason": told.happened.reason,
        "message": told.happened.message,
        "count": told.count,
        "firstTimestamp": time(told.first),
        "lastTimestamp": time(told.last),
        "source": {"component": source},
        "reportingComponent": source,
        "reportingInstance": "",
    })
}

fn time(at: Wall) -> String {
    timestamp(at)
}
