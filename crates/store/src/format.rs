//! The file: its tables, its version, and the connections to it.
//!
//! `log` holds one row per revision, so revisions above the compacted one have no gaps. `cur` names the newest row
//! of every key, tombstones included until compaction has passed them. A row links to the one it superseded, so
//! the state at any kept revision is found by walking back from `cur`. The store's revision is that of the newest
//! row, or the compacted one when that is higher.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rustix::fs::FlockOperation;

pub(super) use super::disk::wal_file;
use super::error::{Corruption, OpenError};
use super::wal;

/// `LSHR`
const APPLICATION: i64 = 0x4c53_4852;
/// The newest format this build knows.
const FORMAT: i64 = 1;

/// The first page is written without the log; all others are in it until they are on the disk.
const YOUNG: u64 = 64 << 10;

/// Only the recovery of another process, a backup, can be in the way of ours.
const BUSY: Duration = Duration::from_secs(10);

const SCHEMA: &str = "
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE log (
    rev INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    create_rev INTEGER NOT NULL,
    prev_rev INTEGER NOT NULL,
    dead INTEGER NOT NULL,
    sum INTEGER NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE TABLE cur (key TEXT PRIMARY KEY, rev INTEGER NOT NULL, dead INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('compacted', 0), ('swept', 0), ('sum', 0);
";

/// Where the store's file is in its directory.
#[must_use]
pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join("store.db")
}

/// Holds a data directory for one process as long as it lives. Whoever writes there takes it first.
#[derive(Debug)]
pub struct Lock {
    dir: PathBuf,
    _file: File,
}

// === impl Lock ===

impl Lock {
    /// Takes the directory, making it when there is none. One in which a restore was cut short is refused: part of what is
    /// there is of another cluster. Blocks, but not for others.
    pub fn take(dir: &Path) -> Result<Lock, OpenError> {
        let lock = Lock::take_unfinished(dir)?;
        let mark = unfinished(dir);
        match mark.symlink_metadata() {
            Ok(_) => Err(OpenError::HalfRestored { dir: dir.to_owned(), mark }),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(lock),
            Err(cause) => Err(OpenError::io("looking at", &mark)(cause)),
        }
    }

    /// The same for whoever restores it.
    pub(super) fn take_unfinished(dir: &Path) -> Result<Lock, OpenError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(OpenError::io("creating the store directory", dir))?;
        let path = dir.join("store.lock");
        let mut file = private(OpenOptions::new().read(true).write(true).create(true), &path)?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut text = String::new();
            let holder = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::Locked { dir: dir.to_owned(), holder });
        }
        // Only told to whoever finds the lock taken; the lock itself dies with the process, and holds on a full disk.
        let told = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = told {
            tracing::warn!(%error, path = %path.display(), "the lock file does not say whose it is");
        }
        Ok(Lock { dir: dir.to_owned(), _file: file })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

/// Whether there is nothing at all where a store would be.
pub(super) fn is_absent(path: &Path) -> Result<bool, OpenError> {
    Ok(size(path)? == 0 && size(&wal_file(path))? == 0 && !restoring(path).exists())
}

/// Opens the store file of a directory for its one writer, making it when there is none.
pub(super) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    let wal = wal_file(path);
    if size(path)? == 0 {
        let restoring = restoring(path);
        if restoring.exists() {
            return Err(OpenError::Unfinished { path: path.to_owned(), restoring });
        }
        if size(&wal)? > 0 {
            // The engine would throw it away.
            return Err(Corruption::whole(path, "it is empty, but its write-ahead log is not").into());
        }
        // The engine would make it readable for everybody; its companions take the mode of this file.
        private(OpenOptions::new().write(true).create(true), path)?;
    }
    wal::check(&wal)?;
    wal::settle(&wal)?;
    if size(path)? <= YOUNG {
        wal::settle(path)?;
    }
    let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let known = identify(&conn, path)?;
    let mode = tune(&conn).map_err(OpenError::engine("opening the store", path))?;
    if mode != "wal" {
        // The engine only says so, and goes on with what it has.
        let cause = io::Error::other(format!("the engine stays with journal mode {mode:?}"));
        return Err(OpenError::io("making a write-ahead log for", path)(cause));
    }
    if !known {
        create(&conn).map_err(OpenError::engine("making the store", path))?;
    }
    Ok(conn)
}

/// Opens an existing store file for reading.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    if !identify(&conn, path)? {
        return Err(OpenError::Foreign { path: path.to_owned() });
    }
    tune_cache(&conn).map_err(OpenError::engine("opening the store", path))?;
    Ok(conn)
}

/// Opens an existing store file for reading by this connection alone, for which nothing has to be written: the index of the
/// write-ahead log, elsewhere a file, is kept in memory. None when the file holds no store yet.
pub(super) fn open_alone(path: &Path) -> Result<Option<Connection>, OpenError> {
    let conn = if size(&wal_file(path))? == 0 {
        // Not even an empty log has to be made.
        connect(&unchanging(path), OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)?
    } else {
        wal::check(&wal_file(path))?;
        let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        conn.execute_batch("PRAGMA locking_mode = EXCLUSIVE; PRAGMA query_only = ON;")
            .map_err(OpenError::engine("opening the store", path))?;
        conn
    };
    if !identify(&conn, path)? {
        return Ok(None);
    }
    tune_cache(&conn).map_err(OpenError::engine("opening the store", path))?;
    Ok(Some(conn))
}

/// The engine's name for a file that nobody writes while it is read.
fn unchanging(path: &Path) -> PathBuf {
    let mut name = b"file:".to_vec();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'%' | b'?' | b'#' => name.extend_from_slice(format!("%{byte:02x}").as_bytes()),
            other => name.push(*other),
        }
    }
    name.extend_from_slice(b"?immutable=1");
    PathBuf::from(OsString::from_vec(name))
}

/// Zero for a file that is not there.
pub(super) fn size(path: &Path) -> Result<u64, OpenError> {
    match fs::metadata(path) {
        Ok(found) => Ok(found.len()),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(cause) => Err(OpenError::io("looking at", path)(cause)),
    }
}

/// Moves everything into the file itself, so that the write-ahead log starts anew. A reader may be in the way;
/// then it stays as it is.
pub(super) fn empty_wal(conn: &Connection) -> rusqlite::Result<()> {
    conn.busy_timeout(Duration::from_millis(200))?;
    let done = conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    conn.busy_timeout(BUSY)?;
    done
}

pub(super) fn sync_dir(dir: &Path) -> Result<(), OpenError> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(OpenError::io("syncing the directory", dir))
}

/// Opens a file only its owner may read.
pub(super) fn private(options: &mut OpenOptions, path: &Path) -> Result<File, OpenError> {
    options.mode(0o600).open(path).map_err(OpenError::io("opening", path))
}

fn connect(path: &Path, mode: OpenFlags) -> Result<Connection, OpenError> {
    let flags = mode | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let conn =
        Connection::open_with_flags(path, flags).map_err(OpenError::engine("opening the store", path))?;
    // An error below must leave the files as they are.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(OpenError::engine("opening the store", path))?;
    Ok(conn)
}

/// True for a store we know, false for an empty file; everything else is refused.
fn identify(conn: &Connection, path: &Path) -> Result<bool, OpenError> {
    let number = |sql| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let read = |sql| number(sql).map_err(OpenError::engine("reading the format of", path));
    let application = read("PRAGMA application_id")?;
    let format = read("PRAGMA user_version")?;
    let tables = read("SELECT count(*) FROM sqlite_schema")?;
    match (application, format) {
        (0, 0) if tables == 0 => Ok(false),
        (APPLICATION, 1..=FORMAT) => Ok(true),
        (APPLICATION, _) => Err(OpenError::Newer { path: path.to_owned(), found: format, known: FORMAT }),
        _ => Err(OpenError::Foreign { path: path.to_owned() }),
    }
}

/// Checkpoints are the writer's business: the engine's own fail in silence. Answers the journal mode there is now.
fn tune(conn: &Connection) -> rusqlite::Result<String> {
    // To its end: what fails in the switch fails after the answer.
    let mut switch = conn.prepare("PRAGMA journal_mode = WAL")?;
    let modes = switch.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    drop(switch);
    conn.execute_batch(
        "PRAGMA synchronous = FULL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 16777216;",
    )?;
    tune_cache(conn)?;
    Ok(modes.concat())
}

fn tune_cache(conn: &Connection) -> rusqlite::Result<()> {
    // Kilobytes. The kernel's page cache does the rest, and gives it back under pressure.
    conn.execute_batch(
        "PRAGMA cache_size = -768;
         PRAGMA temp_store = MEMORY;
         PRAGMA cell_size_check = ON;",
    )?;
    conn.busy_timeout(BUSY)
}

fn create(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(&format!(
        "BEGIN IMMEDIATE; {SCHEMA}
         PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT}; COMMIT"
    ))
}

/// What is in a directory while it is restored.
pub(super) fn unfinished(dir: &Path) -> PathBuf {
    dir.join("restore.unfinished")
}

/// Where a restore builds the store that is to be at `path`.
pub(super) fn restoring(path: &Path) -> PathBuf {
    beside(path, "restoring")
}

pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}
