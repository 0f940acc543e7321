//! What the API server last said of each Pod that is bound to this node.
//!
//! The Pods' own tasks get the objects through the dispatcher; here is what the writers of status and of
//! mirror Pods compare with. Written by the source of Pods and with the answers to our own patches.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::pod::static_pod::MIRROR_ANNOTATION;
use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;

/// Every Pod of this node the API server knows.
#[derive(Debug, Default)]
pub struct ApiPods {
    /// Held for map operations only, never across an await.
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    listed: bool,
    pods: HashMap<PodUid, ApiPod>,
    /// Mirror Pods by namespace and name: they have the names of what they mirror.
    mirrors: BTreeMap<FullName, PodUid>,
}

/// Namespace and name.
pub type FullName = (String, String);

/// One object, without its spec.
#[derive(Clone, Debug)]
pub struct ApiPod {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    pub status: Arc<PodStatus>,
    pub is_deleting: bool,
    /// The hash of the static Pod it mirrors, for mirror Pods.
    pub mirrors: Option<String>,
    pub revision: String,
}

// === impl ApiPods ===

impl ApiPods {
    /// Everything there is.
    pub fn replace(&self, pods: impl IntoIterator<Item = ApiPod>) {
        let mut inner = self.lock();
        *inner = Inner { listed: true, ..Inner::default() };
        pods.into_iter().for_each(|pod| inner.insert(pod));
        drop(inner);
        self.tick();
    }

    /// A new version, from the watch; dropped if the answer to a request of ours was faster. A server that was set back
    /// in time ends its watches, and what it has now comes as a list.
    pub fn apply(&self, pod: ApiPod) {
        let mut inner = self.lock();
        if inner.pods.get(&pod.uid).is_some_and(|known| pod.is_older_than(known)) {
            return;
        }
        inner.insert(pod);
        drop(inner);
        self.tick();
    }

    /// The answer to a request of ours; dropped if the watch was faster, or the Pod is gone.
    pub fn apply_answer(&self, pod: ApiPod) {
        let mut inner = self.lock();
        if inner.pods.get(&pod.uid).is_some_and(|known| !pod.is_older_than(known)) {
            inner.insert(pod);
        }
        drop(inner);
        self.tick();
    }

    pub fn remove(&self, uid: &str) {
        let mut inner = self.lock();
        let removed = inner.pods.remove(uid);
        inner.mirrors.retain(|_, u| u.as_str() != uid);
        drop(inner);
        if removed.is_some() {
            self.tick();
        }
    }

    #[must_use]
    pub fn get(&self, uid: &str) -> Option<ApiPod> {
        self.lock().pods.get(uid).cloned()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().pods.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The mirror of the static Pod with this name.
    #[must_use]
    pub fn mirror(&self, name: &FullName) -> Option<ApiPod> {
        let inner = self.lock();
        inner.pods.get(inner.mirrors.get(name)?).cloned()
    }

    /// All mirror Pods.
    #[must_use]
    pub fn mirrors(&self) -> Vec<ApiPod> {
        let inner = self.lock();
        inner.mirrors.values().filter_map(|uid| inner.pods.get(uid)).cloned().collect()
    }

    /// The API server was asked at least once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.lock().listed
    }

    /// Ticks whenever anything changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn tick(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    fn insert(&mut self, pod: ApiPod) {
        if pod.mirrors.is_some() {
            self.mirrors.insert((pod.namespace.clone(), pod.name.clone()), pod.uid.clone());
        }
        self.pods.insert(pod.uid.clone(), pod);
    }
}

// === impl ApiPod ===

impl ApiPod {
    /// None for an object without a UID, which no API server sends.
    #[must_use]
    pub fn of(pod: &Pod) -> Option<ApiPod> {
        let meta = &pod.metadata;
        Some(ApiPod {
            uid: PodUid::from(meta.uid.as_deref()?),
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            status: Arc::new(pod.status.clone().unwrap_or_default()),
            is_deleting: meta.deletion_timestamp.is_some(),
            mirrors: meta.annotations.as_ref().and_then(|a| a.get(MIRROR_ANNOTATION)).cloned(),
            revision: meta.resource_version.clone().unwrap_or_default(),
        })
    }

    /// `/api/v1/namespaces/<namespace>/pods/<name>`
    #[must_use]
    pub fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }

    /// Revisions of one object can be compared as numbers; one that is none is taken for new.
    fn is_older_than(&self, other: &ApiPod) -> bool {
        match (self.revision.parse::<u64>(), other.revision.parse::<u64>()) {
            (Ok(a), Ok(b)) => a < b,
            _ => false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pod(uid: &str, revision: &str, phase: &str, mirrors: Option<&str>) -> ApiPod {
        let annotations = mirrors.map(|hash| serde_json::json!({MIRROR_ANNOTATION: hash}));
        let pod = serde_json::json!({
            "metadata": {"uid": uid, "name": "n", "namespace": "s", "resourceVersion": revision,
                         "annotations": annotations},
            "status": {"phase": phase},
        });
        ApiPod::of(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn answers_and_the_watch_never_hide_each_others_news() {
        let pods = ApiPods::default();
        let phase = || pods.get("u").and_then(|p| p.status.phase.clone()).unwrap();
        pods.apply(pod("u", "10", "Running", None));
        pods.apply_answer(pod("u", "9", "Pending", None));
        assert_eq!(phase(), "Running");
        pods.apply_answer(pod("u", "11", "Failed", None));
        assert_eq!(phase(), "Failed");
        // Its own echo comes later, and must not look like somebody else's edit.
        pods.apply(pod("u", "10", "Running", None));
        assert_eq!(phase(), "Failed");
        pods.remove("u");
        pods.apply_answer(pod("u", "12", "Running", None));
        assert!(pods.get("u").is_none());
    }

    #[test]
    fn mirrors_are_found_by_name() {
        let pods = ApiPods::default();
        let name = ("s".to_owned(), "n".to_owned());
        pods.replace([pod("m", "1", "Pending", Some("hash"))]);
        assert_eq!(pods.mirror(&name).unwrap().mirrors.as_deref(), Some("hash"));
        pods.replace([]);
        assert!(pods.mirror(&name).is_none() && pods.is_listed());
    }
}
