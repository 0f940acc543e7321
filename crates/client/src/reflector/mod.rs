//! What client-go calls Reflector, Store and shared informer: follows a resource for ever and tells of every object that was
//! added, updated or deleted, with what was known of it before.
//!
//! A [`Reflector`] is owned by one task, which asks it for the next [`Change`]. What is read of an object, and what is kept of
//! it, is its [`Reader`]'s: nothing but the name ([`Events`]), a typed object or a part of one ([`Objects`]), or the JSON with
//! a small header ([`Raw`]). Others look at what is kept through the [`Cache`]. Where many want to hear of one resource,
//! an [`Informer`] has one cache and one watch for all of them.

mod cache;
mod informer;
mod raw;
mod reader;
mod store;

use std::collections::VecDeque;

use base::rng::Rng;
use serde_json::value::RawValue;

use crate::read::Read;
use crate::request::Client;
use crate::watch::{Piece, Resource, Watcher};

pub use cache::{Cache, Progress};
pub use informer::{Informer, Informers};
pub use raw::RawObject;
pub use reader::{Events, Objects, Raw, Reader};
pub use store::{Identity, Index, Key};

use store::Standing;

/// What happened to an object. `O` is what was read of it, `K` what was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<O, K = O> {
    Added {
        key: Key,
        new: O,
    },
    Updated {
        key: Key,
        old: K,
        new: O,
    },
    /// Also where the server did not say so: it was missing in a later list, or another object has its name now.
    Deleted {
        key: Key,
        old: K,
        /// The last state, where the server told it.
        last: Option<O>,
    },
    /// A list has ended: all there is was told, and what is gone too. Comes again after each later list.
    Synced,
    /// Something was told of an object that nobody can name. After a list with such an item nothing is deleted; it is listed
    /// again in a while.
    Unnamed,
}

/// Follows a resource for ever.
#[derive(Debug)]
pub struct Reflector<R: Reader> {
    watcher: Watcher,
    reader: R,
    cache: Cache<R::Kept>,
    /// Never more than the cache had objects.
    pending: VecDeque<Change<R::Object, R::Kept>>,
    /// An item of the list under way could not be named.
    has_unnamed: bool,
    /// Unchanged items of the first list are told too: whoever was told of them is gone.
    tells_unchanged: bool,
}

// === impl Reflector ===

impl<R: Reader> Reflector<R> {
    /// Begins with nothing known. `rng` spreads the retries of many nodes after an outage.
    #[must_use]
    pub fn new(client: Client, resource: Resource, rng: Rng, reader: R) -> Reflector<R> {
        Reflector::with_cache(client, resource, rng, reader, Cache::new(Vec::new()))
    }

    /// Goes on with what an earlier reflector left in the cache. All of it is told again, and what is gone since is deleted:
    /// so a task that panicked is started again without losing anything.
    #[must_use]
    pub fn with_cache(
        client: Client,
        resource: Resource,
        rng: Rng,
        reader: R,
        cache: Cache<R::Kept>,
    ) -> Reflector<R> {
        let watcher = Watcher::new(client, resource, rng);
        let pending = VecDeque::new();
        Reflector { watcher, reader, cache, pending, has_unnamed: false, tells_unchanged: true }
    }

    /// The next change; waits as long as it takes. Failures are logged and retried.
    ///
    /// Cancel-safe: dropped in the middle, nothing is lost.
    pub async fn next(&mut self) -> Change<R::Object, R::Kept> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return change;
            }
            let piece = self.watcher.next_piece().await;
            self.take(piece);
        }
    }

    /// What is kept, for others to look at.
    #[must_use]
    pub fn cache(&self) -> &Cache<R::Kept> {
        &self.cache
    }

    fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Begin => {
                self.has_unnamed = false;
                self.cache.write().begin();
            }
            Piece::Item(raw) => self.put(raw, true),
            Piece::Applied(raw) => self.put(raw, false),
            Piece::Deleted(raw) => self.delete(raw),
            Piece::Bookmark => self.cache.reach(revision(self.watcher.revision())),
            Piece::End => self.end(),
        }
    }

    fn put(&mut self, raw: Box<RawValue>, is_listed: bool) {
        let (identity, object) = match self.reader.read(raw) {
            Read::Whole((identity, object)) => (identity, Some(object)),
            Read::Part((identity, part)) => {
                let object = self.reader.part(part, self.cache.read().get_same(&identity));
                (identity, object)
            }
            Read::Nothing => return self.unnamed(is_listed),
        };
        let at = identity.revision;
        self.tell(identity, object, is_listed);
        if !is_listed {
            self.cache.reach(at);
        }
    }

    /// Without an object there is nothing new to tell, but it is there.
    fn tell(&mut self, identity: Identity, object: Option<R::Object>, is_listed: bool) {
        let key = identity.key.clone();
        let mut store = self.cache.write();
        let standing = store.see(&identity);
        if let Standing::Replaced(old) = standing {
            self.pending.push_back(Change::Deleted { key: key.clone(), old, last: None });
        } else if matches!(standing, Standing::Same) && is_listed && !self.tells_unchanged {
            return;
        }
        let Some(new) = object else { return };
        let old = store.put(identity, self.reader.keep(&new));
        self.pending.push_back(match old {
            Some(old) => Change::Updated { key, old, new },
            None => Change::Added { key, new },
        });
    }

    fn delete(&mut self, raw: Box<RawValue>) {
        let (Read::Whole((identity, last)) | Read::Part((identity, last))) = self.reader.read(raw) else {
            return self.unnamed(false);
        };
        let (key, at) = (identity.key, identity.revision);
        if let Some(old) = self.cache.write().remove(&key) {
            self.pending.push_back(Change::Deleted { key, old, last: Some(last) });
        }
        self.cache.reach(at);
    }

    fn unnamed(&mut self, is_listed: bool) {
        self.has_unnamed |= is_listed;
        self.watcher.list_again();
        self.pending.push_back(Change::Unnamed);
    }

    fn end(&mut self) {
        // With one that cannot be named, nobody knows what is gone.
        if !self.has_unnamed {
            let gone = self.cache.write().sweep();
            self.pending.extend(gone.into_iter().map(|(key, old)| Change::Deleted { key, old, last: None }));
        }
        self.tells_unchanged = false;
        self.cache.synced_at(revision(self.watcher.revision()));
        self.pending.push_back(Change::Synced);
    }
}

/// Zero where the server does not count: then nothing is ever as new as anything.
fn revision(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
