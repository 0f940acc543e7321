//! The store: durable, revisioned, watchable.
//!
//! Keys hold bytes. Every write gets the next revision of the one global count, is synced to the disk before anybody
//! hears of it, and is kept in an ordered log for as long as [`Retention`] says. Reads come from a snapshot of one
//! revision; watches deliver every change of a prefix after a revision, in order, once.

mod backup;
mod check;
mod disk;
mod error;
mod format;
mod health;
mod high_water;
mod history;
mod hot;
mod notify;
mod open;
mod queue;
mod reader;
mod recent;
mod record;
mod reserve;
mod stats;
mod wal;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

pub use backup::{Report, Restore, backup, restore};
pub use error::{Compacted, Corruption, Fault, OpenError, ReadError, WatchError, WriteError};
pub use format::Lock;
pub use health::Health;
pub use history::Retention;
pub use stats::Stats;
pub use watch::Watch;

use queue::Queue;
use recent::Recent;
use stats::Counters;

/// The largest value. Upstream's store ends at 1.5 MiB of protobuf, which is up to twice as much in JSON.
pub const MAX_VALUE: usize = 3 << 20;

/// A handle; clones are cheap and share the store. The files close after the last one is dropped.
#[derive(Clone, Debug)]
pub struct Store {
    handle: Arc<Handle>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub retention: Retention,
    /// Bytes of recent changes kept in memory.
    pub recent_bytes: usize,
    /// Threads that read.
    pub readers: usize,
}

/// A key and its value at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Arc<str>,
    pub create_rev: u64,
    /// The revision of the last change of this key.
    pub rev: u64,
    pub value: Bytes,
}

/// What a write presumes of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Rev(u64),
    /// Anything; a delete or a check still wants the key to exist.
    Any,
}

/// One part of a transaction. A key is written at most once in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: Arc<str>,
    pub op: Op,
    pub expect: Expect,
    /// Part of a deletion: on a full disk it may use the room that is kept for these.
    pub deletes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Put(Bytes),
    Delete,
    /// Changes nothing; the transaction fails unless the expectation holds.
    Check,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub prefix: Arc<str>,
    /// Only keys after this one.
    pub after: Option<Arc<str>>,
    /// Entries at most; zero for all.
    pub limit: usize,
    /// Bytes of values at which the page ends; zero for no end. A page has one entry at least.
    pub max_bytes: usize,
    /// The state at this revision; the newest when None.
    pub at: Option<u64>,
    /// Whether to count what remains after a page that is not the last.
    pub count: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub entries: Vec<Entry>,
    /// The revision whose state this is.
    pub revision: u64,
    pub more: bool,
    /// How many entries follow; at least one when there are more, all of them when it was asked to count.
    pub remaining: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    Created,
    Updated,
    Deleted,
}

/// One row of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub rev: u64,
    /// Of a deletion: when the deleted object was created.
    pub create_rev: u64,
    pub key: Arc<str>,
    pub kind: ChangeKind,
    /// Of a deletion: the last value.
    pub value: Bytes,
    pub previous: Option<Bytes>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

/// What the handles, the watches and the threads have in common.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    options: Options,
    recent: Mutex<Recent>,
    published: tokio::sync::watch::Sender<u64>,
    compacted: AtomicU64,
    closed: AtomicBool,
    health: tokio::sync::watch::Sender<Health>,
    /// Turns true when the files are closed and the lock is free.
    released: tokio::sync::watch::Sender<bool>,
    writes: Queue<writer::Request>,
    reads: Queue<reader::Request>,
    counters: Counters,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Options {
        Options { retention: Retention::default(), recent_bytes: 4 << 20, readers: 2 }
    }
}

// === impl Store ===

impl Store {
    /// Opens the store in a directory, making both when there are none. Every row is checked first; a file that is
    /// corrupt, of a newer format or in use is refused and left as it is. On a full disk an existing store is served for
    /// reading until there is room. Blocks.
    pub fn open(dir: &Path, options: Options) -> Result<Store, OpenError> {
        Store::open_locked(Lock::take(dir)?, options)
    }

    /// The same for whoever holds the directory already. The store keeps the lock until its files are closed.
    pub fn open_locked(lock: Lock, options: Options) -> Result<Store, OpenError> {
        let shared = open::open(lock, options)?;
        Ok(Store { handle: Arc::new(Handle { shared }) })
    }

    /// The revision of the last write that is on the disk.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.shared().recent().revision()
    }

    /// A revision at or after the last change of the resource that a key or prefix belongs to: what was read at it or
    /// later still holds.
    #[must_use]
    pub fn last_change(&self, prefix: &str) -> u64 {
        self.shared().recent().last_change(prefix)
    }

    /// Whether reads and writes are still taken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.shared().is_closed()
    }

    /// History starts after this revision.
    #[must_use]
    pub fn compacted(&self) -> u64 {
        self.shared().compacted.load(Ordering::Acquire)
    }

    pub async fn get(&self, key: &str) -> Result<Option<Entry>, ReadError> {
        self.shared().counters.read();
        let recent = self.shared().recent().get(key);
        match recent {
            Some(known) => Ok(known),
            None => self.read(key, None).await,
        }
    }

    /// The state of a key at a revision.
    pub async fn get_at(&self, key: &str, rev: u64) -> Result<Option<Entry>, ReadError> {
        self.shared().counters.read();
        self.read(key, Some(rev)).await
    }

    /// Entries in the order of their keys.
    pub async fn list(&self, options: ListOptions) -> Result<Page, ReadError> {
        self.shared().counters.read();
        let (reply, answer) = oneshot::channel();
        let page = self.shared().ask(reader::Request::List { options, reply }, answer).await?;
        self.shared().reached(page.revision).await;
        Ok(page)
    }

    /// Writes a value and returns it with its new revision.
    pub async fn put(&self, key: &str, value: Bytes, expect: Expect) -> Result<Entry, WriteError> {
        self.write_one(Write::put(key, value, expect)).await
    }

    /// Deletes a key and returns the revision of the deletion.
    pub async fn delete(&self, key: &str, expect: Expect) -> Result<u64, WriteError> {
        let gone = self.write_one(Write::delete(key, expect)).await?;
        Ok(gone.rev)
    }

    /// All of the writes or none. Each put or delete has a revision of its own, in order, and an entry in the answer.
    pub async fn transact(&self, writes: Vec<Write>) -> Result<Vec<Entry>, WriteError> {
        let sizes = writes.iter().map(|write| if let Op::Put(value) = &write.op { value.len() } else { 0 });
        if let Some(bytes) = sizes.max().filter(|bytes| *bytes > MAX_VALUE) {
            return Err(WriteError::TooLarge { bytes, limit: MAX_VALUE });
        }
        let (reply, answer) = oneshot::channel();
        if !self.shared().writes.send(writer::Request::Write { writes, reply }).await {
            return Err(Fault::Closed.into());
        }
        answer.await.unwrap_or(Err(WriteError::Fault(Fault::Closed)))
    }

    /// The changes of a prefix after a revision.
    pub fn watch(&self, prefix: &str, from: u64) -> Result<Watch, Compacted> {
        let watch = Watch::new(self.shared().clone(), prefix, from);
        let compacted = self.compacted();
        if from < compacted { Err(Compacted { requested: from, compacted }) } else { Ok(watch) }
    }

    /// Forgets the history up to a revision now, whatever its age.
    pub async fn compact(&self, upto: u64) -> Result<(), WriteError> {
        let (reply, answer) = oneshot::channel();
        if !self.shared().writes.send(writer::Request::Compact { upto, reply }).await {
            return Err(Fault::Closed.into());
        }
        answer.await.unwrap_or(Err(WriteError::Fault(Fault::Closed)))
    }

    /// Finishes what was asked for, then closes the files and frees the directory. Watches end.
    pub async fn close(self) {
        self.shared().writes.close();
        let mut released = self.shared().released.subscribe();
        // The sender lives in what `self` holds.
        let _ = released.wait_for(|released| *released).await;
    }

    /// Does one write and returns its entry; of a deletion, with its revision.
    pub async fn write_one(&self, write: Write) -> Result<Entry, WriteError> {
        let mut entries = self.transact(vec![write]).await?;
        entries.pop().ok_or(WriteError::Fault(Fault::Closed))
    }

    async fn read(&self, key: &str, at: Option<u64>) -> Result<Option<Entry>, ReadError> {
        let (reply, answer) = oneshot::channel();
        let got = self.shared().ask(reader::Request::Get { key: key.into(), at, reply }, answer).await?;
        self.shared().reached(got.revision).await;
        Ok(got.entry)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

// === impl Handle ===

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.writes.close();
    }
}

// === impl Shared ===

impl Shared {
    fn new(path: PathBuf, options: Options, start: writer::Start) -> Shared {
        Shared {
            path,
            options,
            recent: Mutex::new(Recent::new(start.revision, options.recent_bytes)),
            published: tokio::sync::watch::Sender::new(start.revision),
            compacted: AtomicU64::new(start.compacted),
            closed: AtomicBool::new(false),
            health: tokio::sync::watch::Sender::default(),
            released: tokio::sync::watch::Sender::new(false),
            writes: Queue::new(1024),
            reads: Queue::new(1024),
            counters: Counters::new(),
        }
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, changes: Vec<Change>) {
        let mut recent = self.recent();
        let wakers = recent.publish(changes);
        let revision = recent.revision();
        drop(recent);
        self.published.send_replace(revision);
        for waker in wakers {
            waker.send_replace(());
        }
    }

    /// A reader may see a commit a moment before it is published. Waiting for that keeps every later answer from
    /// being older than this one.
    async fn reached(&self, revision: u64) {
        if *self.published.borrow() < revision && !self.is_closed() {
            let _ = self.published.subscribe().wait_for(|r| *r >= revision || self.is_closed()).await;
        }
    }

    async fn ask<T>(
        &self,
        request: reader::Request,
        answer: oneshot::Receiver<Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        if !self.reads.send(request).await {
            return Err(Fault::Closed.into());
        }
        answer.await.unwrap_or(Err(ReadError::Fault(Fault::Closed)))
    }

    fn compacted(&self, upto: u64) {
        self.compacted.store(upto, Ordering::Release);
        self.recent().wake_all();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// No more reads and writes, and whoever waits for something stops waiting.
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.writes.abandon();
        self.reads.abandon();
        self.recent().wake_all();
        self.published.send_modify(|_| {});
        self.health.send_modify(|_| {});
    }
}

// === impl Change ===

impl Change {
    /// Whether a text stands anywhere in the value: a look that saves most readers of all changes from decoding them.
    #[must_use]
    pub fn mentions(&self, text: &str) -> bool {
        memchr::memmem::find(&self.value, text.as_bytes()).is_some()
    }

    fn new(
        rev: u64,
        create_rev: u64,
        key: Arc<str>,
        kind: ChangeKind,
        value: Bytes,
        previous: Option<Bytes>,
    ) -> Change {
        let value = match (kind, &previous) {
            (ChangeKind::Deleted, Some(last)) => last.clone(),
            _ => value,
        };
        Change { rev, create_rev, key, kind, value, previous }
    }
}

// === impl Write ===

impl Write {
    #[must_use]
    pub fn put(key: &str, value: Bytes, expect: Expect) -> Write {
        Write { key: key.into(), op: Op::Put(value), expect, deletes: false }
    }

    #[must_use]
    pub fn delete(key: &str, expect: Expect) -> Write {
        Write { key: key.into(), op: Op::Delete, expect, deletes: true }
    }

    #[must_use]
    pub fn check(key: &str, expect: Expect) -> Write {
        Write { key: key.into(), op: Op::Check, expect, deletes: true }
    }

    /// The same as a step of a deletion: a value that waits for somebody, or lets somebody go, before it ends.
    #[must_use]
    pub fn of_deletion(self) -> Write {
        Write { deletes: true, ..self }
    }
}
