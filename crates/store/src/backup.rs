//! Copies of the store, and stores from copies.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::error::OpenError;
use super::format::{self, Lock};
use super::high_water::HighWater;
use super::writer::Start;
use super::{check, high_water, record, wal};

/// What is in a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub revision: u64,
    pub keys: u64,
    pub bytes: u64,
}

/// By how much a restore moves the revision on. Clients may hold revisions that the copy never saw; they must find them
/// compacted, not taken by something else. So many writes no store does between two backups.
const LEAP: u64 = 1_000_000_000;

/// Copies the store in `dir`, in use or not, to the new file `to`: one revision of it, checked row by row. Blocks.
pub fn backup(dir: &Path, to: &Path) -> Result<Report, OpenError> {
    refuse_taken(to)?;
    let path = format::file(dir);
    if !path.exists() {
        let cause = std::io::ErrorKind::NotFound.into();
        return Err(OpenError::io("opening", &path)(cause));
    }
    // While nobody writes, the log can be checked too.
    let lock = match Lock::take(dir) {
        Ok(lock) => {
            wal::check(&format::wal_file(&path))?;
            Some(lock)
        }
        Err(OpenError::Locked { .. }) => None,
        Err(other) => return Err(other),
    };
    let partial = format::beside(to, "partial");
    remove(&partial)?;
    let copied = copy(&path, &partial).and_then(|report| {
        if lock.is_some() {
            high_water::check(&path, report.revision)?;
        }
        settle(&partial, to)?;
        Ok(report)
    });
    drop(lock);
    if copied.is_err() {
        // What failed is not to be taken for a copy, and a full disk needs the room.
        for left in [journal_of(&partial), partial, to.to_owned()] {
            let _ = fs::remove_file(left);
        }
    }
    copied
}

fn copy(path: &Path, partial: &Path) -> Result<Report, OpenError> {
    format::private(OpenOptions::new().write(true).create_new(true), partial)?;
    let conn = format::open_reader(path)?;
    let name = partial.to_string_lossy();
    conn.execute("VACUUM INTO ?1", [&*name]).map_err(OpenError::engine("copying", path))?;
    drop(conn);
    let (_, report) = examine(partial)?;
    Ok(report)
}

/// Makes the copy `from` the store in `dir`. A store that is there already is refused, or moved into a directory
/// beside when `replace` is set. Revisions go on far above the copy's, with no history. Blocks.
pub fn restore(from: &Path, dir: &Path, replace: bool) -> Result<Report, OpenError> {
    let restore = Restore::with(Lock::take(dir)?, replace);
    let report = restore.build(from)?;
    restore.settle(report)?;
    Ok(report)
}

/// A data directory that is restored, with whatever else its owner keeps there. Held until this is dropped.
#[derive(Debug)]
pub struct Restore {
    lock: Lock,
    /// Where goes what is there.
    aside: Option<PathBuf>,
}

// === impl Restore ===

impl Restore {
    /// Takes the directory, also one in which an earlier restore was cut short.
    pub fn of(dir: &Path, replace: bool) -> Result<Restore, OpenError> {
        Ok(Restore::with(Lock::take_unfinished(dir)?, replace))
    }

    fn with(lock: Lock, replace: bool) -> Restore {
        let free = (1..).map(|n| lock.dir().join(format!("replaced-{n}"))).find(|p| !p.exists());
        Restore { aside: free.filter(|_| replace), lock }
    }

    /// The directory to put aside what is there, not made yet; None where nothing may be replaced.
    #[must_use]
    pub fn aside(&self) -> Option<&Path> {
        self.aside.as_deref()
    }

    /// Makes the store that is to be of a copy, beside the one that is, which stays as it is.
    pub fn build(&self, from: &Path) -> Result<Report, OpenError> {
        let path = format::file(self.lock.dir());
        if self.aside.is_none() {
            refuse_existing(&path)?;
            refuse_existing(&format::wal_file(&path))?;
        }
        // A pipe would be read for ever, and a directory is none.
        if !fs::metadata(from).map_err(OpenError::io("opening", from))?.is_file() {
            return Err(OpenError::Foreign { path: from.to_owned() });
        }
        let fresh = format::restoring(&path);
        build(from, self.lock.dir(), &fresh).inspect_err(|_| {
            // Nothing was moved yet, and a full disk needs the room.
            for left in [journal_of(&fresh), fresh.clone()] {
                let _ = fs::remove_file(left);
            }
        })
    }

    /// From here on until [`finish`](Restore::finish) nobody takes the directory but a restore, also after a crash.
    pub fn begin(&self) -> Result<(), OpenError> {
        let mark = format::unfinished(self.lock.dir());
        let file = format::private(OpenOptions::new().write(true).create(true), &mark)?;
        file.sync_all().map_err(OpenError::io("syncing", &mark))?;
        format::sync_dir(self.lock.dir())
    }

    /// The store that was built takes its place.
    pub fn settle(&self, report: Report) -> Result<(), OpenError> {
        let path = format::file(self.lock.dir());
        if let Some(aside) = &self.aside {
            move_away(self.lock.dir(), &path, aside)?;
        }
        settle(&format::restoring(&path), &path)?;
        HighWater::set(self.lock.dir(), report.revision);
        Ok(())
    }

    /// All that belongs to the directory is in its place.
    pub fn finish(self) -> Result<(), OpenError> {
        format::sync_dir(self.lock.dir())?;
        remove(&format::unfinished(self.lock.dir()))?;
        format::sync_dir(self.lock.dir())
    }
}

/// Makes the store that is to be, beside the one that is.
fn build(from: &Path, dir: &Path, fresh: &Path) -> Result<Report, OpenError> {
    let (start, _) = examine(from)?;
    remove(fresh)?;
    remove(&journal_of(fresh))?;
    let mut target = format::private(OpenOptions::new().write(true).create_new(true), fresh)?;
    let mut source = File::open(from).map_err(OpenError::io("opening", from))?;
    std::io::copy(&mut source, &mut target).map_err(OpenError::io("copying to", fresh))?;
    drop(target);
    // Above what the store that was here had, too: it may come from an earlier restore of the same copy.
    let known = high_water::read(dir)?.unwrap_or_default();
    leap(fresh, start.revision.max(known) + LEAP).map_err(OpenError::engine("restoring", fresh))?;
    let (_, report) = examine(fresh)?;
    Ok(report)
}

fn examine(path: &Path) -> Result<(Start, Report), OpenError> {
    let conn = format::open_reader(path)?;
    let start = check::check(&conn, path)?;
    let keys = conn
        .query_row("SELECT count(*) FROM cur WHERE NOT dead", [], |row| row.get::<_, i64>(0))
        .map_err(OpenError::engine("reading", path))?;
    let bytes = fs::metadata(path).map_err(OpenError::io("reading", path))?.len();
    Ok((start, Report { revision: start.revision, keys: keys.unsigned_abs(), bytes }))
}

/// Leaves only what is current, and moves the revision on.
fn leap(path: &Path, revision: u64) -> rusqlite::Result<()> {
    let conn = Connection::open_with_flags(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let sum = record::meta_sum(revision, revision);
    conn.execute_batch(&format!(
        "PRAGMA synchronous = FULL;
         BEGIN IMMEDIATE;
         DELETE FROM cur WHERE dead;
         DELETE FROM log WHERE rev NOT IN (SELECT rev FROM cur);
         UPDATE meta SET value = iif(name = 'sum', {sum}, {revision});
         COMMIT;"
    ))
}

/// The file first: a log without its file is refused at open, a file without its log would not be.
fn move_away(dir: &Path, path: &Path, aside: &Path) -> Result<(), OpenError> {
    let wal = format::wal_file(path);
    if !path.exists() && !wal.exists() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(aside)
        .map_err(OpenError::io("creating", aside))?;
    for old in [path, &wal] {
        let Some(name) = old.file_name().filter(|_| old.exists()) else { continue };
        fs::rename(old, aside.join(name)).map_err(OpenError::io("moving away", old))?;
    }
    let mut shm = path.as_os_str().to_owned();
    shm.push("-shm");
    remove(Path::new(&shm))?;
    format::sync_dir(aside)?;
    format::sync_dir(dir)
}

/// Gives a finished file its name, for good.
fn settle(file: &Path, name: &Path) -> Result<(), OpenError> {
    File::open(file).and_then(|f| f.sync_all()).map_err(OpenError::io("syncing", file))?;
    fs::rename(file, name).map_err(OpenError::io("naming", name))?;
    match name.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => format::sync_dir(dir),
        _ => format::sync_dir(Path::new(".")),
    }
}

/// A copy takes the place of nothing but an empty file: a device would be gone for everybody.
fn refuse_taken(path: &Path) -> Result<(), OpenError> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.len() > 0 || !found.is_file() => Err(OpenError::Exists { path: path.to_owned() }),
        _ => Ok(()),
    }
}

fn refuse_existing(path: &Path) -> Result<(), OpenError> {
    match fs::metadata(path) {
        Ok(found) if found.len() > 0 => Err(OpenError::Exists { path: path.to_owned() }),
        _ => Ok(()),
    }
}

fn remove(path: &Path) -> Result<(), OpenError> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(OpenError::io("removing", path)(cause))
        }
        _ => Ok(()),
    }
}

fn journal_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-journal");
    PathBuf::from(name)
}
