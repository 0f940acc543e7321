//! What a reflector keeps, for others to look at.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use super::store::{Index, Key, Store};

/// One reflector writes it; everybody with a clone reads it.
#[derive(Debug)]
pub struct Cache<K>(Arc<Inner<K>>);

/// How far the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// A whole list was seen once.
    pub has_synced: bool,
    /// Everything up to this revision was seen.
    pub revision: u64,
}

#[derive(Debug)]
struct Inner<K> {
    /// Held for map operations only.
    store: RwLock<Store<K>>,
    progress: watch::Sender<Progress>,
}

// === impl Cache ===

impl<K> Cache<K> {
    #[must_use]
    pub fn new(indexes: Vec<Index<K>>) -> Cache<K> {
        let store = RwLock::new(Store::new(indexes));
        Cache(Arc::new(Inner { store, progress: watch::Sender::default() }))
    }

    /// All of a first list was seen.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        self.progress().has_synced
    }

    #[must_use]
    pub fn progress(&self) -> Progress {
        *self.0.progress.borrow()
    }

    /// Waits for the first list.
    pub async fn synced(&self) {
        self.wait_for(|progress| progress.has_synced).await;
    }

    /// Waits until the cache is at least as new as `revision`, for instance that of an own write. Bound it with a timeout: a
    /// write that the reflector's selector leaves out is only seen with the next bookmark.
    pub async fn reached(&self, revision: u64) {
        self.wait_for(|progress| progress.has_synced && progress.revision >= revision).await;
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.read().len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks at all of it in the order of the keys, without a copy. The reflector waits meanwhile: do little.
    pub fn with_all<T>(&self, look: impl FnOnce(&mut dyn Iterator<Item = (&Key, &K)>) -> T) -> T {
        look(&mut self.read().iter())
    }

    /// Objects are filed under the terms of one more index, also those that are there already.
    pub fn add_index(&self, index: Index<K>) {
        self.write().add_index(index);
    }

    async fn wait_for(&self, is_there: impl FnMut(&Progress) -> bool) {
        // The sender lives as long as we do.
        let _ = self.0.progress.subscribe().wait_for(is_there).await;
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Store<K>> {
        self.0.store.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Store<K>> {
        self.0.store.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change or a bookmark was seen.
    pub(super) fn reach(&self, revision: u64) {
        self.0.progress.send_if_modified(|progress| {
            let is_newer = revision > progress.revision;
            progress.revision = progress.revision.max(revision);
            is_newer
        });
    }

    /// A list has ended. A server that was restored from a backup counts from an earlier revision again.
    pub(super) fn synced_at(&self, revision: u64) {
        self.0.progress.send_replace(Progress { has_synced: true, revision });
    }
}

impl<K: Clone> Cache<K> {
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<K> {
        self.read().get(key).cloned()
    }

    /// In the order of the keys.
    #[must_use]
    pub fn all(&self) -> Vec<K> {
        self.read().iter().map(|(_, kept)| kept.clone()).collect()
    }

    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<K> {
        self.read().in_namespace(namespace).map(|(_, kept)| kept.clone()).collect()
    }

    /// What the index of that name has under `term`, in the order of the keys.
    #[must_use]
    pub fn indexed(&self, index: &str, term: &str) -> Vec<K> {
        self.read().indexed(index, term).map(|(_, kept)| kept.clone()).collect()
    }
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Cache<K> {
        Cache(self.0.clone())
    }
}
