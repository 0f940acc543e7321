//! Opening the store, also on a disk without room (docs/decisions/013.md).
//!
//! The engine needs some room even to read: the index of its log is a file of its own. Without it the store is opened by one
//! connection alone, which keeps that index in memory. Reads are served from it; writes are refused until the store can be
//! opened as usual, which needs no restart.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use super::error::{Fault, OpenError};
use super::format::{self, Lock};
use super::queue::Taken;
use super::reserve::{self, Reserve};
use super::writer::{self, NO_ROOM, Start};
use super::{Health, Options, Shared, check, disk, high_water, reader};

/// The first wait for room, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The connections to a store that takes writes.
struct Opened {
    writer: Connection,
    readers: Vec<Connection>,
    start: Start,
    reserve: Reserve,
    /// What keeps it from writing at first.
    trouble: Option<Fault>,
}

/// What became of a try to open the store as usual.
enum Reopened {
    Fully(Box<Opened>),
    NotYet,
    /// Nobody reads any more.
    Lost,
}

/// Closes the store when a thread of it ends, also by a panic.
struct Ending {
    shared: Arc<Shared>,
    /// The writer's: it closes last.
    lock: Option<Lock>,
    /// The thread ends because it was asked to, and the store goes on.
    is_spared: bool,
}

/// Opens the store of a directory and starts its threads.
pub(super) fn open(lock: Lock, options: Options) -> Result<Arc<Shared>, OpenError> {
    let path = format::file(lock.dir());
    disk::clean(lock.dir());
    let opened = match Opened::fully(&path, options.readers) {
        // Before anybody is told so, once more: a read that failed once looks the same.
        Err(OpenError::Corrupt(_)) => Opened::fully(&path, options.readers),
        // Whoever deletes something needs the store open, and what is kept for that is enough for it.
        Err(error) if is_lacking(&error, lock.dir()) => {
            Reserve::of(lock.dir()).release();
            Opened::fully(&path, options.readers)
        }
        other => other,
    };
    match opened {
        Ok(opened) => {
            let shared = Arc::new(Shared::new(path, options, opened.start));
            if let Some(fault) = &opened.trouble {
                shared.health.send_replace(Health::of(fault));
            }
            start(&shared, lock, move |shared| opened.run(shared))?;
            Ok(shared)
        }
        Err(error) if is_lacking(&error, lock.dir()) => open_full(lock, options, &error),
        Err(error) => Err(error),
    }
}

/// The same on a disk without room: only what is there can be read.
fn open_full(lock: Lock, options: Options, error: &OpenError) -> Result<Arc<Shared>, OpenError> {
    let path = format::file(lock.dir());
    let full = || OpenError::Full { dir: lock.dir().to_owned(), needs: reserve::FOR_A_NEW_STORE };
    if format::size(&path)? == 0 {
        return Err(full());
    }
    let conn = format::open_alone(&path)?.ok_or_else(full)?;
    let found = check::check(&conn, &path)?;
    high_water::check(&path, found.revision)?;
    tracing::error!(
        %error,
        dir = %lock.dir().display(),
        "the disk is full: reads are served, writes are refused until there is room"
    );
    let shared = Arc::new(Shared::new(path, options, found));
    shared.health.send_replace(Health::Full);
    read_with(&shared, conn)?;
    start(&shared, lock, |shared| {
        if let Some(opened) = wait_for_room(shared) {
            tracing::info!("the disk has room again: the store writes");
            let health = opened.trouble.as_ref().map_or(Health::Good, Health::of);
            shared.health.send_replace(health);
            opened.run(shared);
        }
    })?;
    Ok(shared)
}

/// Whether opening the store in a directory failed for want of room. The engine has one word for most that goes wrong with
/// a disk, so the disk itself is asked.
fn is_lacking(error: &OpenError, dir: &Path) -> bool {
    match error {
        OpenError::Io { cause, .. } if disk::is_full(cause) => true,
        OpenError::Engine { cause, .. } if cause.sqlite_error_code() == Some(ErrorCode::DiskFull) => true,
        OpenError::Io { .. } | OpenError::Engine { .. } => {
            disk::probe(dir).is_err_and(|cause| disk::is_full(&cause))
        }
        _ => false,
    }
}

// === impl Opened ===

impl Opened {
    fn fully(path: &Path, readers: usize) -> Result<Opened, OpenError> {
        if format::is_absent(path)? {
            high_water::check_absent(path)?;
        }
        let writer = format::open_writer(path)?;
        if let Some(dir) = path.parent() {
            format::sync_dir(dir)?;
        }
        let start = check::check(&writer, path)?;
        high_water::check(path, start.revision)?;
        // What an earlier crash left behind must not be mistaken for ours after the next one.
        let trouble = match format::empty_wal(&writer) {
            Ok(()) => None,
            // The log stays, and is cut to what counts before anything is put behind it.
            Err(cause) if cause.sqlite_error_code() == Some(ErrorCode::DiskFull) => Some(NO_ROOM),
            Err(cause) => return Err(OpenError::engine("opening the store", path)(cause)),
        };
        let readers = (0..readers.max(1)).map(|_| format::open_reader(path)).collect::<Result<_, _>>()?;
        let mut reserve = Reserve::of(path.parent().unwrap_or(path));
        let trouble = if reserve.fill() { trouble } else { Some(NO_ROOM) };
        Ok(Opened { writer, readers, start, reserve, trouble })
    }

    /// Reads and writes until the store is closed.
    fn run(self, shared: &Arc<Shared>) {
        for conn in self.readers {
            if let Err(error) = read_with(shared, conn) {
                tracing::error!(%error, "store readers cannot start");
                return;
            }
        }
        let at = writer::Standing { start: self.start, reserve: self.reserve, trouble: self.trouble };
        writer::run(self.writer, shared, at);
    }
}

/// Refuses writes until the store can be opened as usual. None when it is closed first.
fn wait_for_room(shared: &Arc<Shared>) -> Option<Opened> {
    let mut wait = FIRST_WAIT;
    let mut next_try = Instant::now() + wait;
    loop {
        let left = next_try.saturating_duration_since(Instant::now());
        match shared.writes.take(writer::BATCH, Some(left)) {
            Taken::Items(requests) => writer::refuse(requests, &NO_ROOM),
            Taken::Nothing => {}
            Taken::Closed => return None,
        }
        if Instant::now() < next_try {
            continue;
        }
        match reopen(shared) {
            Reopened::Fully(opened) => return Some(*opened),
            Reopened::NotYet => {}
            Reopened::Lost => return None,
        }
        wait = (wait * 2).min(LONGEST_WAIT);
        next_try = Instant::now() + wait;
    }
}

/// Opens the store as usual, if there is room for it. Reads wait meanwhile.
fn reopen(shared: &Arc<Shared>) -> Reopened {
    let Some(dir) = shared.path.parent() else { return Reopened::Lost };
    let (reply, left) = oneshot::channel();
    if disk::probe(dir).is_err() || !shared.reads.try_send(reader::Request::Leave { reply }) {
        return Reopened::NotYet;
    }
    if left.blocking_recv().is_err() {
        return Reopened::Lost;
    }
    let error = match Opened::fully(&shared.path, shared.options.readers) {
        Ok(opened) => return Reopened::Fully(Box::new(opened)),
        Err(error) => error,
    };
    tracing::warn!(%error, "the store cannot be opened for writing yet");
    match format::open_alone(&shared.path).and_then(|conn| conn.map(|c| read_with(shared, c)).transpose()) {
        Ok(Some(())) => Reopened::NotYet,
        Ok(None) => Reopened::Lost,
        Err(error) => {
            tracing::error!(%error, "the store cannot be read any more");
            Reopened::Lost
        }
    }
}

/// Starts a thread that reads with this connection.
fn read_with(shared: &Arc<Shared>, conn: Connection) -> Result<(), OpenError> {
    let ending = Ending { shared: shared.clone(), lock: None, is_spared: false };
    spawn("store-reader", &shared.path, move || {
        // A reader ends when the store does. Should one die, the store is better closed than half alive.
        let asked = reader::run(&conn, &ending.shared.path, &ending.shared.reads);
        drop(conn);
        if let Some(reply) = asked {
            ending.spare();
            let _ = reply.send(());
        }
    })
}

/// Starts the thread that writes; the store is closed, and its directory free, when it ends.
fn start(
    shared: &Arc<Shared>,
    lock: Lock,
    run: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> Result<(), OpenError> {
    let ending = Ending { shared: shared.clone(), lock: Some(lock), is_spared: false };
    spawn("store-writer", &shared.path, move || run(&ending.shared))
}

fn spawn(name: &str, path: &Path, run: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
    let spawned = thread::Builder::new().name(name.to_owned()).stack_size(512 << 10).spawn(run);
    spawned.map(drop).map_err(OpenError::io("starting a thread for", path))
}

// === impl Ending ===

impl Ending {
    fn spare(mut self) {
        self.is_spared = true;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.is_spared {
            return;
        }
        self.shared.close();
        if let Some(lock) = self.lock.take() {
            drop(lock);
            self.shared.released.send_replace(true);
        }
    }
}
