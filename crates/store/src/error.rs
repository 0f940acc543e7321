//! What can go wrong in the store, and what a caller does about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::class::{Class, Classify};

use super::{Entry, disk};

/// Why the store cannot be opened, copied or restored. Nothing was changed when one of these is returned.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the store in {} is in use{}", dir.display(), holder.map(|pid| format!(" by process {pid}")).unwrap_or_default())]
    Locked { dir: PathBuf, holder: Option<u32> },
    #[error(
        "{} has store format {found}, and this build knows no format above {known}: \
         use a newer build, nothing was changed", path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("{} is a database of some other program: nothing was changed", path.display())]
    Foreign { path: PathBuf },
    #[error("{0}; nothing was changed: restore a backup, or move the store's files away to start empty")]
    Corrupt(#[from] Corruption),
    #[error("{act} {}: {cause}", path.display())]
    Io { act: &'static str, path: PathBuf, cause: io::Error },
    #[error("{act} {}: {cause}", path.display())]
    Engine { act: &'static str, path: PathBuf, cause: Arc<rusqlite::Error> },
    /// Only where there is nothing yet that could be read.
    #[error("the disk of {} is full: a new cluster needs {} KB there; free them and start again", dir.display(), needs >> 10)]
    Full { dir: PathBuf, needs: u64 },
    #[error(
        "{} is missing, and a restore was cut short: run it again, or move {} away to start empty",
        path.display(), restoring.display()
    )]
    Unfinished { path: PathBuf, restoring: PathBuf },
    #[error(
        "a restore of {} was cut short: run it again with --replace, which puts aside what is there; \
         remove {} to go on with what is there all the same", dir.display(), mark.display()
    )]
    HalfRestored { dir: PathBuf, mark: PathBuf },
    #[error("{} exists already: nothing was changed", path.display())]
    Exists { path: PathBuf },
    #[error(
        "{} is missing, but {} says that the store was at revision {known}: put it back, or restore a backup; \
         to start empty on purpose, move {} away too", path.display(), mark.display(), mark.display()
    )]
    Gone { path: PathBuf, mark: PathBuf, known: u64 },
    #[error(
        "{} is at revision {found}, but {} says that it was at {known}: {} was taken away or cut short, or the file is an older copy; \
         put back what was there, or restore a backup; to go on with what there is, move {} away",
        path.display(), mark.display(), wal.display(), mark.display()
    )]
    Rewound { path: PathBuf, wal: PathBuf, mark: PathBuf, found: u64, known: u64 },
}

/// A row, or the file as a whole, does not say what was once written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store file {} is corrupt{}: {what}", path.display(), row.map(|r| format!(" at revision {r}")).unwrap_or_default())]
pub struct Corruption {
    pub path: PathBuf,
    /// The revision whose row is wrong, where one row can be named.
    pub row: Option<u64>,
    pub what: String,
}

/// Trouble of the store itself, not of the request.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    #[error("{act}: the disk is full; nothing can be written until there is room")]
    Full { act: &'static str },
    #[error("{act}: {cause}")]
    Engine { act: &'static str, cause: Arc<rusqlite::Error> },
    #[error("{act}: {cause}")]
    Io { act: &'static str, cause: Arc<io::Error> },
    /// An earlier write failed, and the store has not recovered yet.
    #[error("the store takes no writes: {cause}")]
    Stopped { cause: Arc<Fault> },
    #[error("the store is closed")]
    Closed,
}

/// The history asked for is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {requested} is compacted: history starts after {compacted}")]
pub struct Compacted {
    pub requested: u64,
    pub compacted: u64,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Compacted(#[from] Compacted),
    #[error("revision {requested} is ahead of the store's {revision}")]
    Ahead { requested: u64, revision: u64 },
    #[error(transparent)]
    Fault(#[from] Fault),
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The expectation of the write at `index` did not hold; nothing of the transaction was written.
    #[error("a key is not in the expected state")]
    Conflict { index: usize, current: Option<Entry> },
    /// Nothing of the transaction was written.
    #[error("a value of {bytes} bytes is larger than {limit}")]
    TooLarge { bytes: usize, limit: usize },
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Why a watch ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// The watcher was so slow that its next change was compacted away.
    #[error(transparent)]
    Compacted(#[from] Compacted),
    #[error(transparent)]
    Fault(#[from] Fault),
}

// === impl OpenError ===

impl OpenError {
    pub(super) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
        move |cause| OpenError::Io { act, path: path.to_owned(), cause }
    }

    pub(super) fn engine(act: &'static str, path: &Path) -> impl FnOnce(rusqlite::Error) -> OpenError {
        move |cause| match Verdict::of(path, &cause) {
            Verdict::Corrupt(corruption) => OpenError::Corrupt(corruption),
            Verdict::Unreadable(cause) => OpenError::io("reading", path)(cause),
            Verdict::Other => OpenError::Engine { act, path: path.to_owned(), cause: Arc::new(cause) },
        }
    }

    pub(super) fn fault(path: &Path, fault: Fault) -> OpenError {
        match fault {
            Fault::Corrupt(corruption) => OpenError::Corrupt(corruption),
            Fault::Engine { act, cause } => OpenError::Engine { act, path: path.to_owned(), cause },
            Fault::Full { act } => OpenError::io(act, path)(io::ErrorKind::StorageFull.into()),
            Fault::Io { cause, .. } => {
                OpenError::io("reading", path)(io::Error::new(cause.kind(), cause.to_string()))
            }
            other @ (Fault::Stopped { .. } | Fault::Closed) => {
                OpenError::io("reading", path)(io::Error::other(other))
            }
        }
    }
}

impl Classify for OpenError {
    fn class(&self) -> Class {
        match self {
            OpenError::Locked { .. } => Class::Retry,
            _ => Class::Fault,
        }
    }
}

// === impl Corruption ===

impl Corruption {
    pub(super) fn new(path: &Path, row: u64, what: impl Into<String>) -> Corruption {
        Corruption { path: path.to_owned(), row: Some(row), what: what.into() }
    }

    pub(super) fn whole(path: &Path, what: impl Into<String>) -> Corruption {
        Corruption { path: path.to_owned(), row: None, what: what.into() }
    }
}

/// What an error of the engine says about the file.
enum Verdict {
    Corrupt(Corruption),
    /// The disk did not give everything.
    Unreadable(io::Error),
    Other,
}

// === impl Verdict ===

impl Verdict {
    fn of(path: &Path, cause: &rusqlite::Error) -> Verdict {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match cause.sqlite_error_code() {
            // A type or text the schema cannot hold got there by no write of ours.
            None => {}
            // The engine says so of an EIO, too.
            Some(DatabaseCorrupt | NotADatabase) => {
                if let Err(cause) = disk::read_through(path) {
                    return Verdict::Unreadable(cause);
                }
            }
            Some(_) => return Verdict::Other,
        }
        Verdict::Corrupt(Corruption::whole(path, cause.to_string()))
    }
}

// === impl Fault ===

impl Fault {
    pub(super) fn io(act: &'static str, cause: io::Error) -> Fault {
        if disk::is_full(&cause) { Fault::Full { act } } else { Fault::Io { act, cause: Arc::new(cause) } }
    }

    pub(super) fn engine(act: &'static str, path: &Path, cause: rusqlite::Error) -> Fault {
        if cause.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull) {
            return Fault::Full { act };
        }
        match Verdict::of(path, &cause) {
            Verdict::Corrupt(corruption) => Fault::Corrupt(corruption),
            Verdict::Unreadable(cause) => Fault::io(act, cause),
            Verdict::Other => Fault::Engine { act, cause: Arc::new(cause) },
        }
    }
}

impl Fault {
    /// Whether the engine called the file corrupt as a whole: it says so of a read that failed once, too.
    pub(super) fn may_be_a_slip(&self) -> bool {
        matches!(self, Fault::Corrupt(Corruption { row: None, .. }))
    }

    /// The same for somebody who need not know where things lie on this machine.
    #[must_use]
    pub fn without_paths(&self) -> String {
        match self {
            Fault::Corrupt(Corruption { row, .. }) => {
                let at = row.map(|rev| format!(" at revision {rev}")).unwrap_or_default();
                format!("the store is corrupt{at}")
            }
            Fault::Engine { act, .. } => format!("{act}: the disk or the engine failed"),
            Fault::Io { act, cause } => format!("{act}: {}", cause.kind()),
            Fault::Stopped { cause } => format!("the store takes no writes: {}", cause.without_paths()),
            Fault::Full { .. } | Fault::Closed => self.to_string(),
        }
    }

    /// Whether it may be over in a while, without anybody's doing or with some room on the disk.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Fault::Full { .. } | Fault::Stopped { .. } | Fault::Closed)
    }
}

impl Classify for Fault {
    fn class(&self) -> Class {
        match self {
            Fault::Full { .. } => Class::Retry,
            _ => Class::Fault,
        }
    }
}

// === impl ReadError, WriteError, WatchError ===

impl Classify for ReadError {
    fn class(&self) -> Class {
        match self {
            ReadError::Compacted(_) => Class::Reject,
            ReadError::Ahead { .. } => Class::Retry,
            ReadError::Fault(fault) => fault.class(),
        }
    }
}

impl Classify for WriteError {
    fn class(&self) -> Class {
        match self {
            WriteError::Conflict { .. } => Class::Retry,
            WriteError::TooLarge { .. } => Class::Reject,
            WriteError::Fault(fault) => fault.class(),
        }
    }
}

impl Classify for WatchError {
    fn class(&self) -> Class {
        match self {
            WatchError::Compacted(_) => Class::Reject,
            WatchError::Fault(fault) => fault.class(),
        }
    }
}
