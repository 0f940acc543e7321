//! The writing thread: the only one that changes the file.
//!
//! It takes everything that waits, does it in one transaction and syncs once for all of it. Nobody hears of a write,
//! neither its author nor a watcher, before it is on the disk.

mod recovery;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::time::Mono;
use bytes::Bytes;
use rusqlite::{Connection, Statement, params};
use tokio::sync::oneshot;

use super::error::{Fault, WriteError};
use super::format;
use super::high_water::HighWater;
use super::history::History;
use super::hot::Meter;
use super::queue::Taken;
use super::record::{self, FETCH, Head, Record, signed, unsigned};
use super::reserve::Reserve;
use super::{Change, ChangeKind, Entry, Expect, Op, Shared, Write};
pub(super) use recovery::NO_ROOM;
use recovery::Outage;

#[derive(Debug)]
pub(super) enum Request {
    Write {
        writes: Vec<Write>,
        reply: oneshot::Sender<Result<Vec<Entry>, WriteError>>,
    },
    /// Forget the history up to a revision.
    Compact {
        upto: u64,
        reply: oneshot::Sender<Result<(), WriteError>>,
    },
}

type Outcome = Result<Vec<Entry>, WriteError>;

/// Requests in one transaction.
pub(super) const BATCH: usize = 256;
/// Rows one transaction of a compaction looks at; writers wait that long at most.
const SWEEP: usize = 256;
/// After a compaction that failed.
const REST: Duration = Duration::from_secs(5);

pub(super) struct Writer<'c> {
    path: PathBuf,
    shared: Arc<Shared>,
    conn: &'c Connection,
    newest: Statement<'c>,
    fetch: Statement<'c>,
    insert: Statement<'c>,
    point: Statement<'c>,
    unpoint: Statement<'c>,
    remove: Statement<'c>,
    next_rows: Statement<'c>,
    meta: Statement<'c>,
    frames: Statement<'c>,
    revision: u64,
    compacted: u64,
    swept: u64,
    history: History,
    hot: Meter,
    started: Instant,
    /// A compaction failed; the next try is not before this.
    tired_until: Mono,
    /// A checkpoint failed; the next try is not before this.
    checkpoint_after: Mono,
    outage: Option<Outage>,
    mark: Option<HighWater>,
    reserve: Reserve,
    /// What is done now may use the reserve, which is taken again afterwards.
    is_spending: bool,
}

/// How the store was found.
pub(super) struct Standing {
    pub(super) start: Start,
    pub(super) reserve: Reserve,
    /// What keeps it from writing at first.
    pub(super) trouble: Option<Fault>,
}

/// Where the store was when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub(super) revision: u64,
    pub(super) compacted: u64,
    pub(super) swept: u64,
    /// Bytes of the changes above `compacted`.
    pub(super) history_bytes: u64,
}

/// What a transaction will tell once it is on the disk.
#[derive(Default)]
struct Batch {
    changes: Vec<Change>,
    /// Of each request in order; nothing of a compaction, which is yet to come.
    outcomes: Vec<Option<Outcome>>,
}

/// Requests of which nothing was done, and why.
struct Failed {
    fault: Fault,
    requests: Vec<Request>,
}

/// Writes until the queue is closed, and closes the file.
pub(super) fn run(conn: Connection, shared: &Arc<Shared>, at: Standing) {
    match Writer::new(&conn, shared.clone(), at.start, at.reserve) {
        Ok(mut writer) => {
            at.trouble.iter().for_each(|fault| writer.note_trouble(fault));
            writer.serve();
        }
        Err(cause) => tracing::error!(error = %cause, "store writer cannot start"),
    }
    // The next start has nothing to recover.
    if let Err(cause) = format::empty_wal(&conn) {
        tracing::warn!(error = %cause, "store checkpoint at close failed");
    }
}

// === impl Writer ===

impl<'c> Writer<'c> {
    fn new(
        conn: &'c Connection,
        shared: Arc<Shared>,
        start: Start,
        reserve: Reserve,
    ) -> rusqlite::Result<Writer<'c>> {
        let started = Instant::now();
        let history =
            History::new(shared.options.retention, Mono::default(), start.revision, start.history_bytes);
        Ok(Writer {
            path: shared.path.clone(),
            conn,
            newest: conn.prepare("SELECT rev FROM cur WHERE key = ?1")?,
            fetch: conn.prepare(FETCH)?,
            insert: conn.prepare(
                "INSERT INTO log (rev, key, create_rev, prev_rev, dead, sum, value)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?,
            point: conn.prepare(
                "INSERT INTO cur (key, rev, dead) VALUES (?1, ?2, ?3)
                 ON CONFLICT (key) DO UPDATE SET rev = excluded.rev, dead = excluded.dead",
            )?,
            unpoint: conn.prepare("DELETE FROM cur WHERE key = ?1 AND rev = ?2")?,
            remove: conn.prepare("DELETE FROM log WHERE rev = ?1")?,
            next_rows: conn.prepare(
                "SELECT rev, key, create_rev, prev_rev, dead FROM log
                 WHERE rev > ?1 AND rev <= ?2 ORDER BY rev LIMIT ?3",
            )?,
            meta: conn.prepare("UPDATE meta SET value = ?2 WHERE name = ?1")?,
            frames: conn.prepare("PRAGMA wal_checkpoint(NOOP)")?,
            revision: start.revision,
            compacted: start.compacted,
            swept: start.swept,
            history,
            hot: Meter::default(),
            started,
            tired_until: Mono::default(),
            checkpoint_after: Mono::default(),
            outage: None,
            mark: shared.path.parent().and_then(|dir| HighWater::set(dir, start.revision)),
            reserve,
            is_spending: false,
            shared,
        })
    }

    fn serve(&mut self) {
        loop {
            match self.shared.writes.take(BATCH, self.timeout()) {
                Taken::Items(requests) => self.commit(requests),
                Taken::Nothing => {}
                Taken::Closed => return,
            }
            if !self.recover() {
                self.checkpoint();
                self.tidy();
            }
        }
    }

    /// How long to wait for requests before the next step of a compaction.
    fn timeout(&self) -> Option<Duration> {
        let now = self.now();
        if let Some(wait) = self.until_next_try() {
            Some(wait)
        } else if now < self.tired_until {
            Some(self.tired_until.since(now))
        } else if self.swept < self.compacted {
            Some(Duration::ZERO)
        } else {
            self.history.until_due(now)
        }
    }

    fn now(&self) -> Mono {
        Mono(self.started.elapsed())
    }

    fn commit(&mut self, requests: Vec<Request>) {
        let done = match self.why_not_now() {
            None => self.attempt(requests),
            Some(fault) => Err(Failed { fault, requests }),
        };
        let Err(Failed { fault, requests }) = done else { return };
        if !matches!(fault, Fault::Full { .. }) {
            return refuse(requests, &fault);
        }
        // A full disk takes what makes room, and as much as that made.
        let (deletions, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(Request::is_deletion);
        if !deletions.is_empty() {
            self.spend(deletions);
        }
        for other in others {
            if self.has_pages_for(&other) { self.spend(vec![other]) } else { refuse(vec![other], &fault) }
        }
    }

    /// Does all of the requests in one transaction, or none.
    fn attempt(&mut self, requests: Vec<Request>) -> Result<(), Failed> {
        let started = Instant::now();
        let mut batch = Batch::default();
        let before = self.revision;
        let done = self.transact("writing to the store", |writer| {
            requests.iter().try_for_each(|request| writer.apply(request, &mut batch))
        });
        if let Err(fault) = done {
            self.revision = before;
            return Err(Failed { fault, requests });
        }
        let bytes = batch.changes.iter().map(|c| (c.value.len() + c.key.len()) as u64).sum();
        if !batch.changes.is_empty() {
            self.mark.iter().for_each(|mark| mark.note(self.revision));
            self.history.note(self.now(), self.revision, bytes);
            self.shared.counters.committed(batch.changes.len(), bytes, started.elapsed());
            let hot = self.hot.note_all(self.now(), batch.changes.iter().map(|c| &c.key));
            self.shared.counters.alarmed(hot);
            self.shared.publish(batch.changes);
        }
        for (request, outcome) in requests.into_iter().zip(batch.outcomes) {
            match (request, outcome) {
                // Whoever stopped waiting finds the write in the store.
                (Request::Write { reply, .. }, Some(outcome)) => drop(reply.send(outcome)),
                (Request::Write { .. }, None) => {}
                (Request::Compact { upto, reply }, _) => {
                    drop(reply.send(self.compact(upto).map_err(WriteError::from)));
                }
            }
        }
        Ok(())
    }

    /// Runs `act` between BEGIN and a COMMIT that syncs.
    fn transact(
        &mut self,
        what: &'static str,
        act: impl FnOnce(&mut Self) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let path = self.path.clone();
        let fault = |cause| Fault::engine(what, &path, cause);
        let begun = self.conn.execute_batch("BEGIN IMMEDIATE").map_err(fault);
        let acted = begun.and_then(|()| act(self));
        let (committing, result) = match acted {
            Ok(()) => (true, self.conn.execute_batch("COMMIT").map_err(fault)),
            Err(fault) => (false, Err(fault)),
        };
        if result.is_err() && !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("ROLLBACK");
        }
        match &result {
            Ok(()) => self.note_success(),
            // Some of a commit may be on the disk and some not, whatever the reason.
            Err(fault) if committing || fault.is_of_the_disk() => self.note_trouble(fault),
            Err(_) => {}
        }
        result
    }

    fn apply(&mut self, request: &Request, batch: &mut Batch) -> Result<(), Fault> {
        let Request::Write { writes, .. } = request else {
            batch.outcomes.push(None);
            return Ok(());
        };
        let before = self.revision;
        let outcome = self.apply_all(writes, batch);
        match &outcome {
            // A bad row is the trouble of those who want it, as long as the transaction is whole.
            Err(WriteError::Fault(fault))
                if self.revision == before && !self.conn.is_autocommit() && !fault.is_of_the_disk() => {}
            Err(WriteError::Fault(fault)) => return Err(fault.clone()),
            Err(WriteError::Conflict { .. }) => self.shared.counters.conflicted(),
            Err(WriteError::TooLarge { .. }) | Ok(_) => {}
        }
        batch.outcomes.push(Some(outcome));
        Ok(())
    }

    /// All of the writes, or none when one of them meets a key in another state than expected.
    fn apply_all(&mut self, writes: &[Write], batch: &mut Batch) -> Result<Vec<Entry>, WriteError> {
        let mut found = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            let current = self.current(&write.key)?;
            let again = writes[..index].iter().any(|earlier| earlier.key == write.key);
            if again || !write.holds(current.as_ref()) {
                let current = current.filter(|r| !r.head.dead).map(Record::into_entry);
                return Err(WriteError::Conflict { index, current });
            }
            found.push(current);
        }
        let mut entries = Vec::with_capacity(writes.len());
        for (write, current) in writes.iter().zip(found) {
            match &write.op {
                Op::Put(value) => entries.push(self.append(write, current, Some(value), batch)?),
                Op::Delete => entries.push(self.append(write, current, None, batch)?),
                Op::Check => {}
            }
        }
        Ok(entries)
    }

    fn current(&mut self, key: &str) -> Result<Option<Record>, Fault> {
        let newest = match self.newest.query_row([key], |row| unsigned(row, 0)) {
            Ok(rev) => rev,
            Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
            Err(cause) => return Err(record::engine(&self.path)(cause)),
        };
        record::fetch(&mut self.fetch, &self.path, newest).map(Some)
    }

    /// Adds one row to the log: a value, or a tombstone.
    fn append(
        &mut self,
        write: &Write,
        current: Option<Record>,
        value: Option<&Bytes>,
        batch: &mut Batch,
    ) -> Result<Entry, Fault> {
        let rev = self.revision + 1;
        let prev_rev = current.as_ref().map_or(0, |r| r.head.rev);
        let live = current.filter(|r| !r.head.dead);
        let create_rev = live.as_ref().map_or(rev, |r| r.head.create_rev);
        let head = Head { rev, create_rev, prev_rev, dead: value.is_none() };
        let bytes = value.map_or(&[][..], |v| v);
        let sum = i64::from(head.sum(&write.key, bytes));
        let fault = |cause| Fault::engine("writing to the store", &self.path, cause);
        self.insert
            .execute(params![
                signed(rev),
                &*write.key,
                signed(create_rev),
                signed(prev_rev),
                head.dead,
                sum,
                bytes
            ])
            .map_err(fault)?;
        self.point.execute(params![&*write.key, signed(rev), head.dead]).map_err(fault)?;
        self.revision = rev;
        let (kind, previous) = match (value, live) {
            (None, live) => (ChangeKind::Deleted, live.map(|r| r.value)),
            (Some(_), Some(live)) => (ChangeKind::Updated, Some(live.value)),
            (Some(_), None) => (ChangeKind::Created, None),
        };
        let value = value.cloned().unwrap_or_default();
        let change = Change::new(rev, create_rev, write.key.clone(), kind, value, previous);
        let entry = Entry { key: write.key.clone(), create_rev, rev, value: change.value.clone() };
        batch.changes.push(change);
        Ok(entry)
    }

    /// Moves the compacted revision; the rows go in small steps afterwards.
    fn compact(&mut self, upto: u64) -> Result<(), Fault> {
        if upto <= self.compacted {
            return Ok(());
        }
        let upto = upto.min(self.revision);
        let swept = self.swept;
        self.transact("compacting the store", |writer| writer.set_meta(upto, swept))?;
        self.compacted = upto;
        self.shared.compacted(upto);
        Ok(())
    }

    /// What may be done when nobody waits.
    fn tidy(&mut self) {
        if self.now() < self.tired_until {
            return;
        }
        let due = self.history.due(self.now());
        let done = match due {
            Some(upto) => self.compact(upto),
            None => Ok(()),
        };
        let done = done.and_then(|()| if self.swept < self.compacted { self.sweep(SWEEP) } else { Ok(()) });
        if let Err(fault) = done {
            // Rows that stay a while longer harm nobody; the next pass tries again.
            tracing::warn!(error = %fault, "store compaction failed");
            self.tired_until = self.now() + REST;
        }
    }

    /// Removes the rows that the next few revisions up to the compacted one superseded.
    fn sweep(&mut self, rows: usize) -> Result<(), Fault> {
        let (swept, compacted) = (self.swept, self.compacted);
        let mut upto = swept;
        self.transact("compacting the store", |writer| {
            let heads = writer.heads(swept, compacted, rows)?;
            upto = if heads.len() < rows { compacted } else { heads.last().map_or(compacted, |h| h.0.rev) };
            let path = writer.path.clone();
            let fault = |cause| Fault::engine("compacting the store", &path, cause);
            for (head, key) in &heads {
                if head.prev_rev != 0 {
                    writer.remove.execute([signed(head.prev_rev)]).map_err(fault)?;
                }
                // A tombstone that nothing superseded since is no longer needed either.
                if head.dead && writer.unpoint.execute(params![key, signed(head.rev)]).map_err(fault)? > 0 {
                    writer.remove.execute([signed(head.rev)]).map_err(fault)?;
                }
            }
            writer.set_meta(compacted, upto)
        })?;
        self.swept = upto;
        Ok(())
    }

    fn heads(&mut self, after: u64, upto: u64, rows: usize) -> Result<Vec<(Head, String)>, Fault> {
        let limit = i64::try_from(rows).unwrap_or(i64::MAX);
        let rows = self.next_rows.query_map(params![signed(after), signed(upto), limit], |row| {
            Ok((Head::read(row)?, row.get(1)?))
        });
        rows.and_then(Iterator::collect).map_err(record::engine(&self.path))
    }

    fn set_meta(&mut self, compacted: u64, swept: u64) -> Result<(), Fault> {
        let sum = u64::from(record::meta_sum(compacted, swept));
        for (name, value) in [("compacted", compacted), ("swept", swept), ("sum", sum)] {
            let done = self.meta.execute(params![name, signed(value)]);
            done.map_err(|cause| Fault::engine("compacting the store", &self.path, cause))?;
        }
        Ok(())
    }
}

// === impl Request ===

impl Request {
    /// Whether it is a deletion or a step of one.
    fn is_deletion(&self) -> bool {
        matches!(self, Request::Write { writes, .. } if writes.iter().all(|write| write.deletes))
    }

    /// Bytes that it may need in the file, pages around its values included.
    fn cost(&self) -> u64 {
        const PAGES_AROUND: usize = 16 * 4096;
        let Request::Write { writes, .. } = self else { return PAGES_AROUND as u64 };
        let cost = |write: &Write| match &write.op {
            Op::Put(value) => value.len() + write.key.len() + PAGES_AROUND,
            Op::Delete | Op::Check => PAGES_AROUND,
        };
        writes.iter().map(cost).sum::<usize>() as u64
    }
}

/// Tells everybody the same.
pub(super) fn refuse(requests: Vec<Request>, fault: &Fault) {
    for request in requests {
        match request {
            Request::Write { reply, .. } => drop(reply.send(Err(fault.clone().into()))),
            Request::Compact { reply, .. } => drop(reply.send(Err(fault.clone().into()))),
        }
    }
}

// === impl Write ===

impl Write {
    fn holds(&self, current: Option<&Record>) -> bool {
        let rev = current.filter(|r| !r.head.dead).map(|r| r.head.rev);
        match (self.expect, &self.op) {
            (Expect::Any, Op::Delete | Op::Check) => rev.is_some(),
            (Expect::Any, Op::Put(_)) => true,
            (Expect::Absent, Op::Delete) => false,
            (Expect::Absent, _) => rev.is_none(),
            (Expect::Rev(expected), _) => rev == Some(expected),
        }
    }
}
