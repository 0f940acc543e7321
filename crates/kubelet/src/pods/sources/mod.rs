//! Where Pods come from. A source emits its whole set each time the set changes; the dispatcher
//! finds the differences. The first emission, even an empty one, says that the source is ready.

pub mod api;
pub mod file;
pub mod local;
pub mod url;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use ::api::pod::{self, Manifest, ManifestError, static_pod};
use base::time::Clock;
use k8s_openapi::api::core::v1::Pod;
pub use kubelet_core::dispatch::{SourceName, SourceUpdate, Unread};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::events::{EventType, Recorder};

/// The largest manifest, file or answer.
pub const MANIFEST_MAX: usize = 10 * 1024 * 1024;
/// Places a source may complain about at once.
const PROBLEMS_MAX: usize = 1024;

/// Updates that may wait for the dispatcher.
pub const CHANNEL: usize = 16;

/// What every source needs of the node.
#[derive(Clone)]
pub struct Context {
    pub node: Arc<str>,
    pub clock: Arc<dyn Clock>,
    pub events: Recorder,
    pub problems: Problems,
}

/// What is wrong with the sources right now, by place: a file, a URL, a stored Pod.
#[derive(Clone, Debug, Default)]
pub struct Problems(Arc<Mutex<BTreeMap<(SourceName, String), String>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub source: SourceName,
    pub place: String,
    pub message: String,
}

// === impl Problems ===

impl Problems {
    /// Everything that is wrong, by source and place.
    #[must_use]
    pub fn list(&self) -> Vec<Problem> {
        let held = self.lock();
        let each = |((source, place), message): (&(SourceName, String), &String)| Problem {
            source: *source,
            place: place.clone(),
            message: message.clone(),
        };
        held.iter().map(each).collect()
    }

    /// Notes a problem; says whether it is news.
    pub fn set(&self, source: SourceName, place: &str, message: &str) -> bool {
        let mut held = self.lock();
        let key = (source, place.to_owned());
        if held.len() >= PROBLEMS_MAX && !held.contains_key(&key) {
            return false;
        }
        held.insert(key, message.to_owned()).as_deref() != Some(message)
    }

    /// The place is in order again; says whether it was not before.
    pub fn clear(&self, source: SourceName, place: &str) -> bool {
        self.lock().remove(&(source, place.to_owned())).is_some()
    }

    /// Keeps only the problems of the source that `keep` names.
    pub fn retain(&self, source: SourceName, keep: impl Fn(&str) -> bool) {
        self.lock().retain(|(s, place), _| *s != source || keep(place));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<(SourceName, String), String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Context ===

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Context {
    /// Reads a manifest. Fields nobody knows are worth a warning, not a refusal.
    fn decode(&self, bytes: &[u8], place: &str) -> Result<Manifest, ManifestError> {
        let mut unknown = |field: &str| {
            tracing::warn!(path = place, field, "ignored an unknown field of a manifest");
        };
        pod::decode(bytes, &mut unknown)
    }

    fn prepare(&self, pod: Pod, origin: static_pod::Origin<'_>) -> Result<Arc<Pod>, ManifestError> {
        static_pod::prepare(pod, origin, &self.node, self.clock.now().wall).map(Arc::new)
    }

    /// Drops Pods whose name an earlier one of the same set already has.
    fn without_duplicates(&self, source: SourceName, pods: Vec<Arc<Pod>>) -> Vec<Arc<Pod>> {
        let mut seen = BTreeSet::new();
        let mut kept = Vec::with_capacity(pods.len());
        for pod in pods {
            let (namespace, name) = names(&pod);
            if seen.insert((namespace.to_owned(), name.to_owned())) {
                kept.push(pod);
                continue;
            }
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            tracing::warn!(pod = name, namespace, source = %source, "ignored a Pod with a duplicate name");
            let message = format!(
                "Error validating pod {name}_{namespace}({uid}) from {source} due to duplicate pod name {name:?}, ignoring"
            );
            self.events.pod(&pod, EventType::Warning, "FailedValidation", message);
        }
        kept
    }
}

/// The end of a source at which sets are handed over, skipping those that say nothing new.
struct SourceSender {
    source: SourceName,
    context: Context,
    tx: mpsc::Sender<SourceUpdate>,
    token: CancellationToken,
    last: Option<(Vec<Arc<Pod>>, Unread)>,
}

impl SourceSender {
    fn new(
        source: SourceName,
        context: &Context,
        tx: mpsc::Sender<SourceUpdate>,
        token: &CancellationToken,
    ) -> Self {
        Self { source, context: context.clone(), tx, token: token.clone(), last: None }
    }

    /// Hands the set over if it is the first or differs from the last. False when nobody listens
    /// any more.
    async fn emit(&mut self, pods: Vec<Arc<Pod>>) -> bool {
        self.emit_with(pods, Unread::default()).await
    }

    async fn emit_with(&mut self, pods: Vec<Arc<Pod>>, unread: Unread) -> bool {
        let same = |(last, last_unread): &(Vec<Arc<Pod>>, Unread)| {
            let same_pods =
                last.len() == pods.len() && last.iter().zip(&pods).all(|(a, b)| Arc::ptr_eq(a, b));
            same_pods && *last_unread == unread
        };
        if self.last.as_ref().is_some_and(same) {
            return !self.token.is_cancelled();
        }
        self.last = Some((pods.clone(), unread.clone()));
        let pods = self.context.without_duplicates(self.source, pods);
        let update = SourceUpdate { source: self.source, pods, unread };
        tokio::select! {
            () = self.token.cancelled() => false,
            sent = self.tx.send(update) => sent.is_ok(),
        }
    }
}

/// Namespace and name of a Pod.
#[must_use]
pub fn names(pod: &Pod) -> (&str, &str) {
    let meta = &pod.metadata;
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod test_context {
    use super::*;
    use base::time::{Now, Wall};

    struct Fixed;
    impl Clock for Fixed {
        fn now(&self) -> Now {
            Now { wall: Wall::from_secs(1_700_000_000), ..Now::default() }
        }
    }

    pub(crate) fn context() -> Context {
        let clock = Arc::new(Fixed);
        Context {
            node: "n1".into(),
            events: Recorder::new(clock.clone()),
            clock,
            problems: Problems::default(),
        }
    }

    pub(crate) fn manifest(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: c\n    image: {image}\n"
        )
    }

    pub(crate) fn pod_names(pods: &[Arc<Pod>]) -> Vec<&str> {
        pods.iter().map(|p| names(p).1).collect()
    }
}
