//! Events, recorded locally and bounded. With an API server they are also told there.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use base::time::{Clock, Wall};
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::events::{About, Happened};
use tokio::sync::mpsc;

/// Events kept per Pod; older ones give way.
const PER_POD: usize = 64;
/// Pods remembered at once; the Pod silent for longest gives way.
const PODS: usize = 1024;

/// One thing that happened to a Pod, with repetitions folded into `count`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventType,
    pub reason: String,
    pub message: String,
    /// `spec.containers{name}` and the like; empty for the Pod itself.
    pub field_path: String,
    pub first: Wall,
    pub last: Wall,
    pub count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// Told with an event, for programs.
type Annotations = BTreeMap<String, String>;

/// A handle on the event store; cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    clock: Arc<dyn Clock>,
    /// A plain lock: held for a few map operations, never across an await.
    store: Arc<Mutex<Store>>,
    /// To the API server, if there is one.
    sink: Option<mpsc::Sender<Happened>>,
}

#[derive(Default)]
struct Store {
    by_pod: HashMap<String, VecDeque<Event>>,
    /// Pod UIDs, the most recently heard of last.
    order: VecDeque<String>,
}

// === impl Recorder ===

impl Recorder {
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, store: Arc::default(), sink: None }
    }

    /// With somebody who tells the API server.
    #[must_use]
    pub fn with_sink(self, sink: Option<mpsc::Sender<Happened>>) -> Self {
        Self { sink, ..self }
    }

    /// Something happened to the node itself; only the API server keeps it.
    pub fn node(&self, name: &str, kind: EventType, reason: &str, message: impl Into<String>) {
        let message = message.into();
        tracing::info!(node = name, reason, text = message, "event");
        let about = About {
            kind: "Node",
            namespace: String::new(),
            name: name.to_owned(),
            // A node's events have carried its name for a UID since before it had one.
            uid: name.to_owned(),
            resource_version: String::new(),
        };
        self.tell(about, kind, reason, message, Default::default());
    }

    /// Something happened to a claim; only the API server keeps it.
    pub fn claim(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        kind: EventType,
        reason: &str,
        message: &str,
    ) {
        tracing::info!(namespace, claim = name, reason, text = message, "event");
        let about = About {
            kind: "PersistentVolumeClaim",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            resource_version: String::new(),
        };
        self.tell(about, kind, reason, message.to_owned(), Default::default());
    }

    /// Something happened to the Pod.
    pub fn pod(&self, pod: &Pod, kind: EventType, reason: &str, message: impl Into<String>) {
        self.record(pod, kind, reason, message.into(), Default::default());
    }

    /// The node ended the Pod, and programs may want to know why.
    pub fn eviction(&self, pod: &Pod, reason: &str, message: &str, annotations: Annotations) {
        let details = (String::new(), annotations);
        self.record(pod, EventType::Warning, reason, message.to_owned(), details);
    }

    /// Something happened to one container of the Pod.
    pub fn container(
        &self,
        pod: &Pod,
        name: &str,
        kind: EventType,
        reason: &str,
        message: impl Into<String>,
    ) {
        self.record(pod, kind, reason, message.into(), (field_path(pod, name), Annotations::new()));
    }

    /// The Pod's events, oldest first.
    #[must_use]
    pub fn of(&self, uid: &str) -> Vec<Event> {
        self.lock().by_pod.get(uid).map(|q| q.iter().cloned().collect()).unwrap_or_default()
    }

    fn record(
        &self,
        pod: &Pod,
        kind: EventType,
        reason: &str,
        message: String,
        (field_path, annotations): (String, Annotations),
    ) {
        let now = self.clock.now().wall;
        let Some(uid) = pod.metadata.uid.clone() else { return };
        tracing::debug!(
            pod = pod.metadata.name.as_deref().unwrap_or_default(),
            pod_uid = %uid, reason, text = message, "event"
        );
        let meta = &pod.metadata;
        let about = About {
            kind: "Pod",
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: uid.clone(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        };
        self.tell(about, kind, reason, message.clone(), (field_path.clone(), annotations));
        let event =
            Event { kind, reason: reason.to_owned(), message, field_path, first: now, last: now, count: 1 };
        self.lock().add(uid, event);
    }

    /// A full queue means that the API server is away: what happens meanwhile is in the log.
    fn tell(
        &self,
        about: About,
        kind: EventType,
        reason: &str,
        message: String,
        (field_path, annotations): (String, Annotations),
    ) {
        let Some(sink) = &self.sink else { return };
        let kind = match kind {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        let reason = reason.to_owned();
        let event = Happened { about, field_path, kind, reason, message, annotations };
        if sink.try_send(event).is_err() {
            tracing::debug!("event dropped: too many are waiting");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

// === impl Store ===

impl Store {
    fn add(&mut self, uid: String, event: Event) {
        self.order.retain(|u| *u != uid);
        self.order.push_back(uid.clone());
        let queue = self.by_pod.entry(uid).or_default();
        let same = |e: &&mut Event| {
            e.kind == event.kind
                && e.reason == event.reason
                && e.message == event.message
                && e.field_path == event.field_path
        };
        if let Some(old) = queue.iter_mut().find(same) {
            old.count = old.count.saturating_add(1);
            old.last = event.last;
        } else {
            queue.push_back(event);
        }
        if queue.len() > PER_POD {
            queue.pop_front();
        }
        if self.order.len() > PODS
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_pod.remove(&oldest);
        }
    }
}

fn field_path(pod: &Pod, container: &str) -> String {
    let Some(spec) = &pod.spec else { return String::new() };
    let kind = if spec.containers.iter().any(|c| c.name == container) {
        "containers"
    } else if spec.init_containers.iter().flatten().any(|c| c.name == container) {
        "initContainers"
    } else {
        "ephemeralContainers"
    };
    format!("spec.{kind}{{{container}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Now;

    struct Zero;
    impl Clock for Zero {
        fn now(&self) -> Now {
            Now::default()
        }
    }

    #[test]
    fn repetitions_fold_and_both_bounds_hold() {
        let recorder = Recorder::new(Arc::new(Zero));
        let mut pod = Pod::default();
        pod.metadata.uid = Some("u".into());
        recorder.pod(&pod, EventType::Normal, "Pulled", "twice");
        recorder.pod(&pod, EventType::Normal, "Pulled", "twice");
        assert_eq!(recorder.of("u")[0].count, 2);
        for i in 0..2 * PER_POD {
            recorder.pod(&pod, EventType::Normal, "Pulled", i.to_string());
        }
        assert_eq!(recorder.of("u").len(), PER_POD);
        for i in 0..2 * PODS {
            pod.metadata.uid = Some(format!("p{i}"));
            recorder.pod(&pod, EventType::Warning, "Failed", "x");
        }
        assert!(recorder.of("u").is_empty());
        assert_eq!(recorder.lock().by_pod.len(), PODS);
    }
}
