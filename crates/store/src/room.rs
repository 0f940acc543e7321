//! Whether the disk has room.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use super::error::OpenError;

/// What opening needs at most before the first write: the index of the log (32 KB for every 16 MB of it) and a few pages.
const ENOUGH: usize = 256 << 10;

/// What a new data directory needs, keys included, and a little to live on.
pub(super) const FOR_A_NEW_STORE: u64 = 2 << 20;

/// Whether an error means that there is no room.
pub(super) fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether opening the store in a directory failed for want of room. The engine has one word for most that goes wrong with
/// a disk, so the disk itself is asked.
pub(super) fn is_lacking(error: &OpenError, dir: &Path) -> bool {
    match error {
        OpenError::Io { cause, .. } if is_full(cause) => true,
        OpenError::Engine { cause, .. } if cause.sqlite_error_code() == Some(ErrorCode::DiskFull) => true,
        OpenError::Io { .. } | OpenError::Engine { .. } => probe(dir).is_err_and(|cause| is_full(&cause)),
        _ => false,
    }
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
