//! What Pods were granted, and what their cgroups were last told: in memory for all who ask, on disk before anybody acts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::ids::PodUid;
use kubelet_core::resize::PodResources;
use kubelet_core::resize::checkpoint::{ACTUATED, ALLOCATED, Entries, decode, encode};
use tokio::sync::{Mutex, watch};

use crate::ports::PodFiles;

/// The resources of every Pod on this node.
pub struct ResourceRecords {
    allocated: Book,
    actuated: Book,
}

/// One of the files. Many may write at once: who finds that another's write took his words along has nothing to do.
struct Book {
    files: Arc<dyn PodFiles>,
    name: &'static str,
    entries: watch::Sender<Arc<Entries>>,
    /// Grows with every change.
    version: AtomicU64,
    /// The version on disk.
    written: Mutex<u64>,
}

/// A file that cannot be believed. Which Pod has what is not known then, and the node does not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "could not restore state from checkpoint: {cause}, please drain this node and delete pod resource information \
     checkpoint file {name:?} before restarting Kubelet"
)]
pub struct RecordError {
    name: &'static str,
    cause: String,
}

// === impl ResourceRecords ===

impl ResourceRecords {
    /// Reads what an earlier life wrote.
    pub async fn open(files: Arc<dyn PodFiles>) -> Result<Self, RecordError> {
        let allocated = Book::open(files.clone(), ALLOCATED).await?;
        Ok(Self { allocated, actuated: Book::open(files, ACTUATED).await? })
    }

    /// Records that somebody has read already.
    #[must_use]
    pub fn with(files: Arc<dyn PodFiles>, allocated: Entries, actuated: Entries) -> Self {
        Self {
            allocated: Book::with(files.clone(), ALLOCATED, allocated),
            actuated: Book::with(files, ACTUATED, actuated),
        }
    }

    /// What Pods were granted.
    #[must_use]
    pub fn allocated(&self) -> Arc<Entries> {
        self.allocated.entries.borrow().clone()
    }

    /// What the cgroups of Pods were last told.
    #[must_use]
    pub fn actuated(&self) -> Arc<Entries> {
        self.actuated.entries.borrow().clone()
    }

    /// Wakes whenever a cgroup was told something else.
    #[must_use]
    pub fn watch_actuated(&self) -> watch::Receiver<Arc<Entries>> {
        self.actuated.entries.subscribe()
    }

    pub async fn allocate(&self, uid: &PodUid, resources: &PodResources) -> io::Result<()> {
        self.allocated.put(uid, resources).await
    }

    pub async fn actuate(&self, uid: &PodUid, resources: &PodResources) -> io::Result<()> {
        self.actuated.put(uid, resources).await
    }

    /// The Pod is gone. The files follow with the next write.
    pub fn forget(&self, uid: &PodUid) {
        self.retain(|known| known != uid);
    }

    /// Forgets all Pods but these.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.allocated.retain(&keep);
        self.actuated.retain(&keep);
    }
}

impl std::fmt::Debug for ResourceRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResourceRecords").field("pods", &self.allocated().len()).finish_non_exhaustive()
    }
}

// === impl Book ===

impl Book {
    async fn open(files: Arc<dyn PodFiles>, name: &'static str) -> Result<Self, RecordError> {
        let unread = |cause: String| RecordError { name, cause };
        let text = files.load_checkpoint(name).await.map_err(|e| unread(e.to_string()))?;
        let entries = text.map(|text| decode(&text)).transpose().map_err(|e| unread(e.to_string()))?;
        Ok(Self::with(files, name, entries.unwrap_or_default()))
    }

    fn with(files: Arc<dyn PodFiles>, name: &'static str, entries: Entries) -> Self {
        let entries = watch::Sender::new(Arc::new(entries));
        Self { files, name, entries, version: AtomicU64::new(0), written: Mutex::default() }
    }

    async fn put(&self, uid: &PodUid, resources: &PodResources) -> io::Result<()> {
        let changed = self.entries.send_if_modified(|entries| {
            let differs = entries.get(uid) != Some(resources);
            if differs {
                Arc::make_mut(entries).insert(uid.clone(), resources.clone());
            }
            differs
        });
        // What is in memory may not be on disk yet: then the next line sees to it.
        let version = match changed {
            true => self.version.fetch_add(1, Ordering::SeqCst) + 1,
            false => self.version.load(Ordering::SeqCst),
        };
        let mut written = self.written.lock().await;
        if *written >= version {
            return Ok(());
        }
        let newest = self.version.load(Ordering::SeqCst);
        let entries = self.entries.borrow().clone();
        let text = encode(&entries).map_err(io::Error::other)?;
        let saved = self.files.save_checkpoint(self.name, text).await;
        saved.map_err(|e| io::Error::new(e.kind(), format!("write {}: {e}", self.name)))?;
        *written = newest;
        Ok(())
    }

    fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let changed = self.entries.send_if_modified(|entries| {
            let is_any_gone = entries.keys().any(|uid| !keep(uid));
            if is_any_gone {
                Arc::make_mut(entries).retain(|uid, _| keep(uid));
            }
            is_any_gone
        });
        if changed {
            self.version.fetch_add(1, Ordering::SeqCst);
        }
    }
}
