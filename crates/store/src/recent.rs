//! The recent past in memory: what watches are served from, and the state of the keys that changed lately.
//!
//! Changes are kept in logs, one per resource and one for all of them. A watcher sleeps on its log and looks only
//! there, so a busy resource does not wake the watchers of a quiet one, and a quiet log is complete however far
//! the rest of the store has moved on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::watch;

use super::notify::Notify;
use super::{Change, ChangeKind, Entry};

#[derive(Debug)]
pub(super) struct Recent {
    /// The newest revision whose change is here: what the store calls its revision.
    revision: u64,
    /// Changes up to here were never here.
    opened: u64,
    limit: usize,
    bytes: usize,
    all: ResourceLog,
    logs: HashMap<Box<str>, ResourceLog>,
    latest: HashMap<Arc<str>, Arc<Change>>,
}

#[derive(Debug)]
struct ResourceLog {
    /// The revision of its last change, or one before which there was none since the start.
    last: u64,
    /// Every change of the log above this revision is in `changes`.
    floor: u64,
    changes: VecDeque<Arc<Change>>,
    notify: Notify,
}

/// What comes next for a watcher.
#[derive(Debug)]
pub(super) enum Next {
    Change(Arc<Change>),
    /// Nothing yet; everything up to this revision was seen.
    Nothing(u64),
    /// What comes next is only in the log, which has to be read up to this revision.
    Behind(u64),
}

/// The log of a key or prefix: its first two segments. A shorter prefix has none of its own.
pub(super) fn resource_of(key: &str) -> &str {
    let mut slashes = key.bytes().enumerate().filter(|(_, b)| *b == b'/').map(|(i, _)| i);
    slashes.nth(2).map_or("", |end| &key[..=end])
}

// === impl Recent ===

impl Recent {
    pub(super) fn new(revision: u64, limit: usize) -> Recent {
        let all = ResourceLog::new(revision);
        Recent {
            revision,
            opened: revision,
            limit,
            bytes: 0,
            all,
            logs: HashMap::new(),
            latest: HashMap::new(),
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Changes and bytes held.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.all.changes.len(), self.bytes)
    }

    /// The newest state of a key that changed lately: `Some(None)` when it was deleted.
    pub(super) fn get(&self, key: &str) -> Option<Option<Entry>> {
        let change = self.latest.get(key)?;
        Some((change.kind != ChangeKind::Deleted).then(|| Entry {
            key: change.key.clone(),
            create_rev: change.create_rev,
            rev: change.rev,
            value: change.value.clone(),
        }))
    }

    /// A revision at or after the last change of a resource; nothing of it changed later.
    pub(super) fn last_change(&self, prefix: &str) -> u64 {
        match resource_of(prefix) {
            "" => self.revision,
            name => self.logs.get(name).map_or(self.opened, |log| log.last),
        }
    }

    /// The log a watcher of `prefix` sleeps on.
    pub(super) fn subscribe(&mut self, prefix: &str) -> watch::Receiver<()> {
        match resource_of(prefix) {
            "" => self.all.notify.subscribe(),
            name => self.log(name).notify.subscribe(),
        }
    }

    pub(super) fn next(&self, prefix: &str, after: u64) -> Next {
        let log = match resource_of(prefix) {
            "" => Some(&self.all),
            name => self.logs.get(name),
        };
        // A log that does not exist yet had no change since the start.
        let floor = log.map_or(self.opened, |log| log.floor);
        if after < floor {
            return Next::Behind(floor);
        }
        let changes = log.map(|log| &log.changes);
        let start = changes.map_or(0, |c| c.partition_point(|change| change.rev <= after));
        let found = changes.and_then(|c| c.range(start..).find(|change| change.key.starts_with(prefix)));
        match found {
            Some(change) => Next::Change(change.clone()),
            None => Next::Nothing(self.revision.max(after)),
        }
    }

    /// Takes in what was committed. Whom it concerns is to be woken with what is returned, when they can look.
    #[must_use]
    pub(super) fn publish(&mut self, changes: Vec<Change>) -> Vec<watch::Sender<()>> {
        let mut touched: Vec<Arc<str>> = Vec::new();
        for change in changes {
            let change = Arc::new(change);
            self.revision = change.rev;
            self.bytes += weight(&change);
            self.latest.insert(change.key.clone(), change.clone());
            self.all.changes.push_back(change.clone());
            let name = resource_of(&change.key);
            if !name.is_empty() {
                let log = self.log(name);
                log.changes.push_back(change.clone());
                log.last = change.rev;
                if !touched.iter().any(|key| resource_of(key) == name) {
                    touched.push(change.key.clone());
                }
            }
        }
        while self.bytes > self.limit && self.all.changes.len() > 1 {
            self.forget_oldest();
        }
        let mut wakers = vec![self.all.notify.waker()];
        wakers.extend(touched.iter().map(|key| self.log(resource_of(key)).notify.waker()));
        wakers
    }

    /// Lets every watcher take note of how far the store is.
    pub(super) fn wake_all(&self) {
        for log in self.logs.values().chain([&self.all]) {
            log.notify.wake();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.all.changes.pop_front() else { return };
        self.all.floor = oldest.rev;
        self.bytes -= weight(&oldest);
        if let Some(log) = self.logs.get_mut(resource_of(&oldest.key)) {
            log.changes.pop_front();
            log.floor = oldest.rev;
        }
        if self.latest.get(&oldest.key).is_some_and(|change| change.rev == oldest.rev) {
            self.latest.remove(&oldest.key);
        }
    }

    fn log(&mut self, name: &str) -> &mut ResourceLog {
        if !self.logs.contains_key(name) {
            self.logs.insert(name.into(), ResourceLog::new(self.opened));
        }
        self.logs.get_mut(name).unwrap_or(&mut self.all)
    }
}

// === impl ResourceLog ===

impl ResourceLog {
    fn new(floor: u64) -> ResourceLog {
        ResourceLog { last: floor, floor, changes: VecDeque::new(), notify: Notify::new() }
    }
}

/// About what a change costs, when nobody else holds its values.
fn weight(change: &Change) -> usize {
    256 + change.key.len() + change.value.len() + change.previous.as_ref().map_or(0, bytes::Bytes::len)
}
