//! Watching a prefix from a revision on.
//!
//! A watch is a position, not a queue: it holds no changes but the few it last read from the log, so a watcher that
//! never reads costs nothing however much is written. It falls back from memory to the log, and from the log to
//! an end with [`Compacted`].

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use super::error::{Fault, ReadError, WatchError};
use super::reader::{Request, Span};
use super::recent::Next;
use super::{Change, Shared};

/// Bytes of changes a watch reads from the log at a time.
const STRETCH_BYTES: usize = 16 << 10;

#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    prefix: Arc<str>,
    /// Everything up to this revision was handed out or is in `backlog`.
    position: u64,
    backlog: VecDeque<Change>,
    wake: watch::Receiver<()>,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(shared: Arc<Shared>, prefix: &str, from: u64) -> Watch {
        let wake = shared.recent().subscribe(prefix);
        Watch { shared, prefix: prefix.into(), position: from, backlog: VecDeque::new(), wake }
    }

    /// The next change of the prefix, in the order of revisions, none left out, none twice. Cancel safe.
    pub async fn next(&mut self) -> Result<Arc<Change>, WatchError> {
        loop {
            match self.step() {
                Next::Change(change) => return Ok(change),
                Next::Behind(floor) => self.read_log(floor).await?,
                Next::Nothing(_) => {
                    if self.shared.is_closed() || self.wake.changed().await.is_err() {
                        return Err(Fault::Closed.into());
                    }
                }
            }
        }
    }

    /// A change that is at hand without waiting: for writers that put several into one frame.
    pub fn try_next(&mut self) -> Option<Arc<Change>> {
        match self.step() {
            Next::Change(change) => Some(change),
            Next::Nothing(_) | Next::Behind(_) => None,
        }
    }

    /// The revision up to which every change was handed out: what a bookmark may say. None while there are more.
    pub fn progress(&mut self) -> Option<u64> {
        if !self.backlog.is_empty() {
            return None;
        }
        let next = self.shared.recent().next(&self.prefix, self.position);
        match next {
            Next::Nothing(revision) => {
                self.position = revision;
                Some(revision)
            }
            Next::Change(_) | Next::Behind(_) => None,
        }
    }

    /// Changes held in memory for this watch alone.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.backlog.len()
    }

    /// Bytes held in memory for this watch alone.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let bytes =
            |c: &Change| c.key.len() + c.value.len() + c.previous.as_ref().map_or(0, bytes::Bytes::len);
        self.backlog.iter().map(bytes).sum()
    }

    fn step(&mut self) -> Next {
        if let Some(change) = self.backlog.pop_front() {
            return Next::Change(Arc::new(change));
        }
        let next = self.shared.recent().next(&self.prefix, self.position);
        match &next {
            Next::Change(change) => self.position = change.rev,
            Next::Nothing(revision) => self.position = *revision,
            Next::Behind(_) => {}
        }
        next
    }

    async fn read_log(&mut self, upto: u64) -> Result<(), WatchError> {
        let (reply, answer) = oneshot::channel();
        let span = Span { prefix: self.prefix.clone(), after: self.position, upto, bytes: STRETCH_BYTES };
        let stretch = match self.shared.ask(Request::Changes { span, reply }, answer).await {
            Ok(stretch) => stretch,
            Err(ReadError::Compacted(compacted)) => return Err(compacted.into()),
            Err(ReadError::Fault(fault)) => return Err(fault.into()),
            // The log is never behind what was published from it.
            Err(ReadError::Ahead { .. }) => return Err(Fault::Closed.into()),
        };
        self.position = stretch.upto;
        self.backlog = stretch.changes.into();
        Ok(())
    }
}
