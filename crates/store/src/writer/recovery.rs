//! After a write that failed (docs/decisions/013.md).
//!
//! What was acknowledged was synced before, so none of it is in doubt. What the failed transaction left at the end of the
//! log is: a failed sync does not say what reached the disk, and the kernel goes on showing all of it from memory, to a
//! new process too. So nobody looks at it again. The log is cut back to where it was, that is synced, and a small
//! transaction shows whether the disk takes writes.

use std::sync::Arc;
use std::time::Duration;

use base::time::Mono;
use rusqlite::ErrorCode;

use super::super::error::Fault;
use super::super::health::Health;
use super::super::high_water::HighWater;
use super::super::{format, wal};
use super::{Failed, Request, Writer};

/// The first wait after a try that failed too, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A checkpoint is in the way of writes, and copies a page that was written many times once: it may take up to 16 MB
/// of the write-ahead log (4000 pages of 4 KB) together.
const CHECKPOINT_FRAMES: u64 = 4000;
/// Deletions, or rows of a compaction, in one transaction that has only the reserve to write with.
const FEW: usize = 16;
/// Bytes of a page, the engine's usual.
const PAGE: u64 = 4096;
/// Steps of a compaction after a deletion on a full disk; others wait meanwhile.
const SWEEPS: usize = 256;

pub(in super::super) const NO_ROOM: Fault = Fault::Full { act: "writing to the store" };

/// The last write failed, and no later one has succeeded.
#[derive(Debug)]
pub(super) struct Outage {
    fault: Fault,
    next_try: Mono,
    wait: Duration,
}

// === impl Writer ===

impl Writer<'_> {
    /// Takes note of a transaction that failed on the disk's account.
    pub(super) fn note_trouble(&mut self, fault: &Fault) {
        let now = self.now();
        match &mut self.outage {
            Some(outage) => {
                outage.next_try = now + outage.wait;
                outage.wait = (outage.wait * 2).min(LONGEST_WAIT);
                outage.fault = fault.clone();
            }
            None => {
                let path = self.path.display();
                tracing::error!(error = %fault, %path, "a write to the store failed; no more writes until one succeeds");
                self.outage = Some(Outage { fault: fault.clone(), next_try: now, wait: FIRST_WAIT });
            }
        }
        self.shared.health.send_replace(Health::of(fault));
    }

    /// Takes note of a transaction that is on the disk. All is well when there is room for the next deletion, too.
    pub(super) fn note_success(&mut self) {
        if self.outage.is_none() || self.is_spending {
            return;
        }
        if !self.reserve.fill() {
            return self.note_trouble(&NO_ROOM);
        }
        self.outage = None;
        tracing::info!("the store writes again");
        self.shared.health.send_replace(Health::Good);
    }

    /// Why no write is taken now. A full disk may have room again at any time.
    pub(super) fn why_not_now(&mut self) -> Option<Fault> {
        if matches!(self.outage.as_ref()?.fault, Fault::Full { .. }) {
            let _ = self.try_to_write();
        }
        match self.outage.as_ref()?.fault.clone() {
            full @ Fault::Full { .. } => Some(full),
            other => Some(Fault::Stopped { cause: Arc::new(other) }),
        }
    }

    /// Whether the file has so many free pages that a write makes it no larger. Then it needs the reserve only on its way
    /// through the log; half of that stays for deletions, should the log be held by a reader.
    pub(super) fn has_pages_for(&self, request: &Request) -> bool {
        let free = self.conn.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0));
        let free = free.unwrap_or_default().unsigned_abs() * PAGE;
        request.cost() <= free.min(self.reserve.held() / 2)
    }

    /// Does deletions, or steps of them, with the room that is kept for these.
    pub(super) fn spend(&mut self, deletions: Vec<Request>) {
        self.is_spending = true;
        let mut left = deletions.into_iter().peekable();
        while left.peek().is_some() {
            let few: Vec<Request> = left.by_ref().take(FEW).collect();
            self.reserve.release();
            let done = match self.cut_back() {
                Ok(()) => self.attempt(few),
                Err(fault) => Err(Failed { fault, requests: few }),
            };
            if let Err(Failed { fault, requests }) = done {
                super::refuse(requests, &fault);
            }
            self.reclaim();
        }
        self.is_spending = false;
        if let Err(fault) = self.try_to_write() {
            tracing::debug!(error = %fault, "the disk is as full as before");
        }
    }

    /// Makes room of what was deleted: its history goes at once, and the log becomes part of the file.
    fn reclaim(&mut self) {
        let mut done = self.compact(self.revision);
        for _ in 0..SWEEPS {
            if done.is_err() || self.swept >= self.compacted {
                break;
            }
            let _ = format::empty_wal(self.conn);
            done = self.sweep(FEW);
        }
        if let Err(fault) = done {
            tracing::debug!(error = %fault, "what was deleted on a full disk still has its history");
        }
        let _ = format::empty_wal(self.conn);
    }

    /// How long until the next try to recover; None without outage.
    pub(super) fn until_next_try(&self) -> Option<Duration> {
        self.outage.as_ref().map(|outage| outage.next_try.since(self.now()))
    }

    /// Tries to write again, when it is time. Says whether there is outage, still.
    pub(super) fn recover(&mut self) -> bool {
        match self.until_next_try() {
            None => return false,
            Some(wait) if !wait.is_zero() => return true,
            Some(_) => {}
        }
        if let Err(fault) = self.try_to_write() {
            tracing::debug!(error = %fault, "the store cannot be written yet");
        }
        self.outage.is_some()
    }

    fn try_to_write(&mut self) -> Result<(), Fault> {
        self.cut_back()?;
        if matches!(self.shared.health.borrow().clone(), Health::Full) {
            // What the log holds twice is room, if the file can take it.
            let _ = format::empty_wal(self.conn);
        }
        // There and back: the engine writes no page for a number that stays as it is, and would call that a success.
        let (compacted, swept) = (self.compacted, self.swept);
        self.transact("writing to the store", |writer| {
            writer.set_meta(compacted + 1, swept)?;
            writer.set_meta(compacted, swept)
        })
    }

    /// Takes what a failed transaction left out of the log.
    fn cut_back(&mut self) -> Result<(), Fault> {
        let cut = self.frames().and_then(|frames| {
            let log = format::wal_file(&self.path);
            wal::cut(&log, frames).map_err(|cause| Fault::io("cutting back the write-ahead log", cause))
        });
        if let Err(fault) = &cut {
            self.note_trouble(fault);
        }
        cut
    }

    /// Frames in the log that count.
    fn frames(&mut self) -> Result<u64, Fault> {
        let frames = self.frames.query_row([], |row| row.get::<_, i64>(1));
        let frames =
            frames.map_err(|cause| Fault::engine("asking for the log's length", &self.path, cause))?;
        Ok(frames.max(0).unsigned_abs())
    }

    /// Moves what the log holds into the file when it is much. The log grows while that fails.
    pub(super) fn checkpoint(&mut self) {
        let due = self.now() >= self.checkpoint_after
            && self.frames().is_ok_and(|frames| frames >= CHECKPOINT_FRAMES);
        if !due {
            return;
        }
        if let Err(cause) = self.conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
            let frames = self.frames().unwrap_or_default();
            tracing::warn!(error = %cause, frames, "store checkpoint failed; the write-ahead log grows");
            self.checkpoint_after = self.now() + super::REST;
        }
        self.mark.iter().for_each(HighWater::sync);
    }
}

// === impl Fault ===

impl Fault {
    /// Whether the disk is to blame, not the request or a row.
    pub(super) fn is_of_the_disk(&self) -> bool {
        match self {
            Fault::Full { .. } | Fault::Io { .. } => true,
            Fault::Engine { cause, .. } => matches!(
                cause.sqlite_error_code(),
                Some(
                    ErrorCode::SystemIoFailure
                        | ErrorCode::ReadOnly
                        | ErrorCode::CannotOpen
                        | ErrorCode::OutOfMemory
                )
            ),
            Fault::Corrupt(_) | Fault::Stopped { .. } | Fault::Closed => false,
        }
    }
}
