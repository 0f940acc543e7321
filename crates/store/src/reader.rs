//! The reading threads: each owns a connection and answers one request at a time from one snapshot.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, Statement};
use tokio::sync::oneshot;

use super::error::{Compacted, Corruption, Fault, ReadError};
use super::queue::{Queue, Taken};
use super::record::{self, FETCH, Record, engine, signed, unsigned};
use super::{Change, Entry, ListOptions, Page};

#[derive(Debug)]
pub(super) enum Request {
    Get {
        key: Arc<str>,
        at: Option<u64>,
        reply: Reply<Got>,
    },
    List {
        options: ListOptions,
        reply: Reply<Page>,
    },
    Changes {
        span: Span,
        reply: Reply<Stretch>,
    },
    /// The thread that takes this ends, and answers when its connection is closed.
    Leave {
        reply: oneshot::Sender<()>,
    },
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, ReadError>>;

/// The answer to a get, and the revision of the snapshot it came from.
#[derive(Debug)]
pub(super) struct Got {
    pub(super) entry: Option<Entry>,
    pub(super) revision: u64,
}

/// A part of the log as a watcher sees it.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) prefix: Arc<str>,
    pub(super) after: u64,
    pub(super) upto: u64,
    /// Stop after this many bytes of changes.
    pub(super) bytes: usize,
}

/// The changes found, all there are up to `upto`.
#[derive(Debug)]
pub(super) struct Stretch {
    pub(super) changes: Vec<Change>,
    pub(super) upto: u64,
}

/// Log rows one request looks at before it gives others a turn.
const ROWS_PER_STRETCH: usize = 10_000;

struct Reader<'c> {
    path: PathBuf,
    conn: &'c Connection,
    revision: Statement<'c>,
    newest: Statement<'c>,
    scan: Statement<'c>,
    fetch: Statement<'c>,
    log: Statement<'c>,
}

#[derive(Clone, Copy)]
struct Snapshot {
    revision: u64,
    compacted: u64,
}

/// Serves requests until the queue is closed, or somebody asks it to leave: that is returned, to be answered.
pub(super) fn run(conn: &Connection, path: &Path, queue: &Queue<Request>) -> Option<oneshot::Sender<()>> {
    let mut reader = match Reader::new(conn, path) {
        Ok(reader) => reader,
        Err(cause) => {
            // The schema was checked at open, so this is the engine out of memory or the file swapped under us.
            tracing::error!(error = %cause, "store reader cannot start");
            return None;
        }
    };
    while let Taken::Items(requests) = queue.take(1, None) {
        for request in requests {
            // One at a time is taken, so nobody else's request is lost here.
            if let Request::Leave { reply } = request {
                return Some(reply);
            }
            reader.serve(request);
        }
    }
    None
}

// === impl Reader ===

impl<'c> Reader<'c> {
    fn new(conn: &'c Connection, path: &Path) -> rusqlite::Result<Reader<'c>> {
        Ok(Reader {
            path: path.to_owned(),
            conn,
            revision: conn.prepare(
                "SELECT (SELECT coalesce(max(rev), 0) FROM log),
                        (SELECT value FROM meta WHERE name = 'compacted')",
            )?,
            newest: conn.prepare("SELECT rev FROM cur WHERE key = ?1")?,
            scan: conn.prepare("SELECT key, rev, dead FROM cur WHERE key >= ?1 ORDER BY key")?,
            fetch: conn.prepare(FETCH)?,
            log: conn.prepare(
                "SELECT rev, key, create_rev, prev_rev, dead, sum, value FROM log
                 WHERE rev > ?1 AND rev <= ?2 ORDER BY rev",
            )?,
        })
    }

    fn serve(&mut self, request: Request) {
        // A caller that went away is not served; one that goes away meanwhile ignores the answer.
        match request {
            Request::Get { key, at, reply } if !reply.is_closed() => {
                let _ = reply.send(self.in_snapshot(|r, snapshot| r.get(snapshot, &key, at)));
            }
            Request::List { options, reply } if !reply.is_closed() => {
                let _ = reply.send(self.in_snapshot(|r, snapshot| r.list(snapshot, &options)));
            }
            Request::Changes { span, reply } if !reply.is_closed() => {
                let _ = reply.send(self.in_snapshot(|r, snapshot| r.changes(snapshot, &span)));
            }
            _ => {}
        }
    }

    fn in_snapshot<T>(
        &mut self,
        read: impl Fn(&mut Self, Snapshot) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match self.try_in_snapshot(&read) {
            Err(ReadError::Fault(fault)) if fault.may_be_a_slip() => self.try_in_snapshot(&read),
            other => other,
        }
    }

    fn try_in_snapshot<T>(
        &mut self,
        read: impl Fn(&mut Self, Snapshot) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        self.conn.execute_batch("BEGIN").map_err(engine(&self.path))?;
        let result = self.snapshot().map_err(ReadError::from).and_then(|snapshot| read(self, snapshot));
        let ended = self.conn.execute_batch("COMMIT").map_err(engine(&self.path));
        let value = result?;
        ended?;
        Ok(value)
    }

    fn snapshot(&mut self) -> Result<Snapshot, Fault> {
        let read = self.revision.query_row([], |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?)));
        let (newest, compacted) = read.map_err(engine(&self.path))?;
        Ok(Snapshot { revision: newest.max(compacted), compacted })
    }

    fn get(&mut self, snapshot: Snapshot, key: &str, at: Option<u64>) -> Result<Got, ReadError> {
        let at = snapshot.resolve(at)?;
        let newest = match self.newest.query_row([key], |row| unsigned(row, 0)) {
            Ok(rev) => Some(rev),
            Err(rusqlite::Error::QueryReturnedNoRows) => None,
            Err(cause) => return Err(engine(&self.path)(cause).into()),
        };
        let found = match newest {
            Some(rev) => record::walk_back(&mut self.fetch, &self.path, rev, at)?,
            None => None,
        };
        let mut entry = None;
        if let Some(rev) = found {
            let record = self.fetch_of(key, rev)?;
            entry = (!record.head.dead).then(|| record.into_entry());
        }
        Ok(Got { entry, revision: snapshot.revision })
    }

    fn list(&mut self, snapshot: Snapshot, options: &ListOptions) -> Result<Page, ReadError> {
        let at = snapshot.resolve(options.at)?;
        let start = match &options.after {
            // The first key that can follow.
            Some(after) => format!("{after}\0"),
            None => options.prefix.to_string(),
        };
        let mut page = Page { entries: Vec::new(), revision: at, more: false, remaining: 0 };
        let mut bytes = 0;
        let mut rows = self.scan.query([start]).map_err(engine(&self.path))?;
        while let Some(row) = rows.next().map_err(engine(&self.path))? {
            let key = row.get_ref(0).and_then(|key| Ok(key.as_str()?)).map_err(engine(&self.path))?;
            if !key.starts_with(&*options.prefix) {
                break;
            }
            let rev = unsigned(row, 1).map_err(engine(&self.path))?;
            let dead: bool = row.get(2).map_err(engine(&self.path))?;
            if rev <= at && dead {
                continue;
            }
            let Some(found) = record::walk_back(&mut self.fetch, &self.path, rev, at)? else { continue };
            let full = (options.limit != 0 && page.entries.len() >= options.limit)
                || (options.max_bytes != 0 && bytes >= options.max_bytes);
            if full {
                // Only a row that was walked back to can be a tombstone here.
                if found != rev && record::fetch_head(&mut self.fetch, &self.path, found)?.dead {
                    continue;
                }
                page.more = true;
                page.remaining += 1;
                if options.count {
                    continue;
                }
                break;
            }
            let record = record::fetch(&mut self.fetch, &self.path, found)?;
            if *record.key != *key {
                return Err(misplaced(&self.path, found, key, &record.key).into());
            }
            if !record.head.dead {
                bytes += record.value.len();
                page.entries.push(record.into_entry());
            }
        }
        Ok(page)
    }

    fn changes(&mut self, snapshot: Snapshot, span: &Span) -> Result<Stretch, ReadError> {
        if span.after < snapshot.compacted {
            let compacted = Compacted { requested: span.after, compacted: snapshot.compacted };
            return Err(compacted.into());
        }
        let mut stretch = Stretch { changes: Vec::new(), upto: span.after };
        let (mut bytes, mut looked) = (0, 0);
        let mut rows = self.log.query([signed(span.after), signed(span.upto)]).map_err(engine(&self.path))?;
        while let Some(row) = rows.next().map_err(engine(&self.path))? {
            if bytes >= span.bytes || looked >= ROWS_PER_STRETCH {
                return Ok(stretch);
            }
            looked += 1;
            let key = row.get_ref(1).and_then(|key| Ok(key.as_str()?)).map_err(engine(&self.path))?;
            if key.starts_with(&*span.prefix) {
                let record = Record::read(row, &self.path)?;
                let previous = match record.head.prev_rev {
                    0 => None,
                    rev => Some(record::fetch(&mut self.fetch, &self.path, rev)?.value),
                };
                // A key that comes back follows its own tombstone.
                let previous = previous.filter(|_| record.head.create_rev != record.head.rev);
                bytes += record.value.len() + previous.as_ref().map_or(0, bytes::Bytes::len);
                stretch.changes.push(record.into_change(previous));
            }
            stretch.upto = unsigned(row, 0).map_err(engine(&self.path))?;
        }
        stretch.upto = span.upto.min(snapshot.revision);
        Ok(stretch)
    }

    fn fetch_of(&mut self, key: &str, rev: u64) -> Result<Record, Fault> {
        let record = record::fetch(&mut self.fetch, &self.path, rev)?;
        if *record.key == *key { Ok(record) } else { Err(misplaced(&self.path, rev, key, &record.key)) }
    }
}

fn misplaced(path: &Path, rev: u64, wanted: &str, found: &str) -> Fault {
    Corruption::new(path, rev, format!("the row belongs to {found:?} instead of {wanted:?}")).into()
}

// === impl Snapshot ===

impl Snapshot {
    /// The revision a read is about.
    fn resolve(self, at: Option<u64>) -> Result<u64, ReadError> {
        match at {
            None => Ok(self.revision),
            Some(requested) if requested < self.compacted => {
                Err(Compacted { requested, compacted: self.compacted }.into())
            }
            Some(requested) if requested > self.revision => {
                Err(ReadError::Ahead { requested, revision: self.revision })
            }
            Some(at) => Ok(at),
        }
    }
}
