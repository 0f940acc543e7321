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
/// The last events of the whole node, for who looks at it.
const RECENT: usize = 256;

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

/// An event with whom it is about: a Pod or the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub event: Event,
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
    /// The newest last.
    recent: VecDeque<Told>,
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

    /// Something happened to the node itself; the API server keeps it, and for a while who looks at the node sees it.
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
        self.lock().remember(&about, self.event(kind, reason, &message, String::new()));
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

    /// What happened on the node lately, the newest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Told> {
        self.lock().recent.iter().rev().cloned().collect()
    }

    fn event(&self, kind: EventType, reason: &str, message: &str, field_path: String) -> Event {
        let now = self.clock.now().wall;
        let (reason, message) = (reason.to_owned(), message.to_owned());
        Event { kind, reason, message, field_path, first: now, last: now, count: 1 }
    }

    fn record(
        &self,
        pod: &Pod,
        kind: EventType,
        reason: &str,
        message: String,
        (field_path, annotations): (String, Annotations),
    ) {
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
        let event = self.event(kind, reason, &message, field_path.clone());
        let mut store = self.lock();
        store.remember(&about, event.clone());
        store.add(uid, event);
        drop(store);
        self.tell(about, kind, reason, message, (field_path, annotations));
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
        if let Some(old) = queue.iter_mut().find(|e| e.is_again(&event)) {
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

    /// What happens again moves to the end, with its count.
    fn remember(&mut self, about: &About, mut event: Event) {
        let same = |t: &Told| t.kind == about.kind && t.uid == about.uid && t.event.is_again(&event);
        if let Some(old) = self.recent.iter().position(same).and_then(|at| self.recent.remove(at)) {
            event.first = old.event.first;
            event.count = old.event.count.saturating_add(1);
        }
        if self.recent.len() >= RECENT {
            self.recent.pop_front();
        }
        let (namespace, name) = (about.namespace.clone(), about.name.clone());
        self.recent.push_back(Told { kind: about.kind, namespace, name, uid: about.uid.clone(), event });
    }
}

// === impl Event ===

impl Event {
    fn is_again(&self, other: &Event) -> bool {
        self.kind == other.kind
            && self.reason == other.reason
            && self.message == other.message
            && self.field_path == other.field_path
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
        assert_eq!(recorder.recent().len(), RECENT);
    }

    #[test]
    fn the_newest_comes_first_and_a_repetition_is_new() {
        let recorder = Recorder::new(Arc::new(Zero));
        let mut pod = Pod::default();
        (pod.metadata.uid, pod.metadata.name) = (Some("u".into()), Some("p".into()));
        recorder.pod(&pod, EventType::Normal, "Pulled", "x");
        recorder.node("n", EventType::Normal, "Starting", "y");
        recorder.pod(&pod, EventType::Normal, "Pulled", "x");
        let told: Vec<_> = recorder.recent().into_iter().map(|t| (t.kind, t.name, t.event.count)).collect();
        assert_eq!(told, [("Pod", "p".to_owned(), 2), ("Node", "n".to_owned(), 1)]);
    }
}
