//! The last word about every Pod: what `/pods`, the local API and the API server are told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use base::ids::PodUid;
use base::time::Wall;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tokio::sync::watch;

/// Pods with their latest status. Each Pod's entry is written by that Pod's task only.
#[derive(Debug, Default)]
pub struct StatusBoard {
    /// A plain lock: held for map operations only, never across an await.
    pods: Mutex<HashMap<PodUid, Entry>>,
    changed: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub pod: Arc<Pod>,
    pub status: Arc<PodStatus>,
    /// Since when the Pod is being stopped.
    pub terminating: Option<Wall>,
    /// Grows with every change of the status.
    pub version: u64,
    /// The Pod's task is done: nothing runs, volumes and cgroup are gone.
    pub finished: bool,
}

impl StatusBoard {
    /// Publishes; says whether the status differs from the last one.
    pub fn publish(
        &self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        status: PodStatus,
        terminating: Option<Wall>,
    ) -> bool {
        let mut pods = self.lock();
        let old = pods.get(uid);
        let differs =
            old.is_none_or(|e| *e.status != status || e.terminating.is_some() != terminating.is_some());
        let terminating = old.and_then(|e| e.terminating).filter(|_| terminating.is_some()).or(terminating);
        let same_pod = old.is_some_and(|e| Arc::ptr_eq(&e.pod, pod));
        if differs || !same_pod {
            let version = old.map_or(1, |e| e.version + u64::from(differs));
            let finished = old.is_some_and(|e| e.finished);
            let entry = Entry { pod: pod.clone(), status: Arc::new(status), terminating, version, finished };
            pods.insert(uid.clone(), entry);
            drop(pods);
            self.changed.send_modify(|n| *n += 1);
        }
        differs
    }

    /// Its task has nothing left to do for the Pod.
    pub fn finish(&self, uid: &PodUid) {
        if let Some(entry) = self.lock().get_mut(uid) {
            entry.finished = true;
        }
        self.changed.send_modify(|n| *n += 1);
    }

    #[must_use]
    pub fn get(&self, uid: &str) -> Option<Entry> {
        self.lock().get(uid).cloned()
    }

    /// Every Pod, sorted by namespace and name.
    #[must_use]
    pub fn all(&self) -> Vec<Entry> {
        let mut all: Vec<Entry> = self.lock().values().cloned().collect();
        all.sort_by(|a, b| key(&a.pod).cmp(&key(&b.pod)));
        all
    }

    pub fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Ticks whenever anything on the board changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PodUid, Entry>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// The Pod object with its status, as `/pods` shows it.
    #[must_use]
    pub fn to_pod(&self) -> Pod {
        let mut pod = (*self.pod).clone();
        pod.status = Some((*self.status).clone());
        pod
    }
}

fn key(pod: &Pod) -> (Option<&String>, Option<&String>, Option<&String>) {
    (pod.metadata.namespace.as_ref(), pod.metadata.name.as_ref(), pod.metadata.uid.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_changed_status_counts_as_news() {
        let board = StatusBoard::default();
        let (uid, pod) = (PodUid::from("u"), Arc::new(Pod::default()));
        let status = |phase: &str| PodStatus { phase: Some(phase.into()), ..Default::default() };
        assert!(board.publish(&uid, &pod, status("Pending"), None));
        assert!(!board.publish(&uid, &pod, status("Pending"), None));
        assert!(board.publish(&uid, &pod, status("Running"), None));
        assert_eq!(board.get("u").map(|e| e.version), Some(2));
    }
}
