//! One row of the log.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Crc;
use rusqlite::{Row, Statement};

use super::error::{Corruption, Fault};
use super::{Change, ChangeKind, Entry};

pub(super) const FETCH: &str =
    "SELECT rev, key, create_rev, prev_rev, dead, sum, value FROM log WHERE rev = ?1";

/// A row whose checksum was found right.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) head: Head,
    pub(super) key: Arc<str>,
    pub(super) value: Bytes,
}

/// Where a row stands in the chain of its key's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) rev: u64,
    pub(super) create_rev: u64,
    /// Zero when the key was absent, or its older rows are gone and this one is the oldest kept.
    pub(super) prev_rev: u64,
    pub(super) dead: bool,
}

/// Fetches the row of a revision, value included.
pub(super) fn fetch(fetch: &mut Statement<'_>, path: &Path, rev: u64) -> Result<Record, Fault> {
    let mut rows = fetch.query([signed(rev)]).map_err(engine(path))?;
    match rows.next().map_err(engine(path))? {
        Some(row) => Record::read(row, path),
        None => Err(missing(path, rev)),
    }
}

/// Walks back from the row `rev` to the newest one not above `at`; None when the key did not exist then.
pub(super) fn walk_back(
    fetch: &mut Statement<'_>,
    path: &Path,
    mut rev: u64,
    at: u64,
) -> Result<Option<u64>, Fault> {
    while rev > at {
        rev = fetch_head(fetch, path, rev)?.prev_rev;
    }
    Ok((rev != 0).then_some(rev))
}

/// Fetches the row of a revision without touching its value.
pub(super) fn fetch_head(fetch: &mut Statement<'_>, path: &Path, rev: u64) -> Result<Head, Fault> {
    match fetch.query_row([signed(rev)], Head::read) {
        Ok(head) => Ok(head),
        Err(rusqlite::Error::QueryReturnedNoRows) => Err(missing(path, rev)),
        Err(cause) => Err(engine(path)(cause)),
    }
}

pub(super) fn engine(path: &Path) -> impl Fn(rusqlite::Error) -> Fault {
    move |cause| Fault::engine("reading the store", path, cause)
}

/// The engine's integers are signed; no store lives to see the difference.
pub(super) fn signed(rev: u64) -> i64 {
    i64::try_from(rev).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// The checksum of the two numbers in `meta`; zero of two zeros, as in a new file.
pub(super) fn meta_sum(compacted: u64, swept: u64) -> u32 {
    let mut sum = Crc::new();
    sum.update(&compacted.to_le_bytes());
    sum.update(&swept.to_le_bytes());
    if (compacted, swept) == (0, 0) { 0 } else { sum.sum() }
}

fn missing(path: &Path, rev: u64) -> Fault {
    Corruption::new(path, rev, "the row is missing").into()
}

// === impl Head ===

impl Head {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Head> {
        Ok(Head {
            rev: unsigned(row, 0)?,
            create_rev: unsigned(row, 2)?,
            prev_rev: unsigned(row, 3)?,
            dead: row.get(4)?,
        })
    }

    /// The checksum of a row with this head.
    pub(super) fn sum(&self, key: &str, value: &[u8]) -> u32 {
        let mut sum = Crc::new();
        for number in [self.rev, self.create_rev, self.prev_rev, u64::from(self.dead), key.len() as u64] {
            sum.update(&number.to_le_bytes());
        }
        sum.update(key.as_bytes());
        sum.update(value);
        sum.sum()
    }
}

// === impl Record ===

impl Record {
    /// Reads a row with the columns of [`FETCH`] and checks it.
    pub(super) fn read(row: &Row<'_>, path: &Path) -> Result<Record, Fault> {
        let head = Head::read(row).map_err(engine(path))?;
        let wrong = |what: String| Fault::from(Corruption::new(path, head.rev, what));
        let read = |cause: rusqlite::Error| wrong(cause.to_string());
        let key = row.get_ref(1).map_err(read)?.as_str().map_err(|e| wrong(e.to_string()))?;
        let sum: i64 = row.get(5).map_err(read)?;
        let value = row.get_ref(6).map_err(read)?.as_blob().map_err(|e| wrong(e.to_string()))?;
        if i64::from(head.sum(key, value)) != sum {
            return Err(wrong(format!("the checksum of the row of {key:?} does not match")));
        }
        Ok(Record { head, key: key.into(), value: Bytes::copy_from_slice(value) })
    }

    pub(super) fn into_entry(self) -> Entry {
        Entry { key: self.key, create_rev: self.head.create_rev, rev: self.head.rev, value: self.value }
    }

    /// `previous` is the row this one superseded.
    pub(super) fn into_change(self, previous: Option<Bytes>) -> Change {
        let kind = match (self.head.dead, self.head.create_rev == self.head.rev) {
            (true, _) => ChangeKind::Deleted,
            (false, true) => ChangeKind::Created,
            (false, false) => ChangeKind::Updated,
        };
        Change::new(self.head.rev, self.head.create_rev, self.key, kind, self.value, previous)
    }
}
