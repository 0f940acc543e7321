//! What is asked of the disk itself: whether it has room, and whether it can be read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What opening needs at most before the first write: the index of the log (32 KB for every 16 MB of it) and a few pages.
const ENOUGH: usize = 256 << 10;

/// Whether an error means that there is no room.
pub(super) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Writes as much as opening needs, and takes it away again.
pub(super) fn probe(dir: &Path) -> io::Result<()> {
    let path = file(dir);
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    let written = file.write_all(&vec![0; ENOUGH]).and_then(|()| file.sync_all());
    drop(file);
    written.and(fs::remove_file(&path))
}

/// Reads a store file and its log to their ends: an error is the disk's, not of what is on it.
pub(super) fn read_through(path: &Path) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    for path in [path, &wal_file(path)] {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            Err(cause) => return Err(cause),
        };
        while file.read(&mut buffer)? > 0 {}
    }
    Ok(())
}

/// The write-ahead log beside a store file.
#[must_use]
pub(super) fn wal_file(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    PathBuf::from(name)
}

/// Takes away what a process that died in [`probe`] left.
pub(super) fn clean(dir: &Path) {
    let path = file(dir);
    if path.exists() {
        let _ = fs::remove_file(path);
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("store.room")
}
