//! Noticing that a file was replaced, without a task that looks for it: whoever uses the file asks.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Nobody looks more often.
const PAUSE: Duration = Duration::from_secs(1);

/// Files that may be replaced at any time.
#[derive(Debug)]
pub(crate) struct Files {
    paths: Vec<PathBuf>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    looked: Option<Instant>,
    stamps: Vec<Option<Stamp>>,
}

/// What a replaced or rewritten file cannot keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

/// Writes a file that nobody ever sees half of.
pub(crate) fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let fresh = path.with_file_name(name);
    match fs::remove_file(&fresh) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}

// === impl Files ===

impl Files {
    /// As they are now.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let files = Self { paths, seen: Mutex::new(Seen { looked: None, stamps: Vec::new() }) };
        files.have_changed();
        files
    }

    /// Whether any of them has changed since the last time this was asked. A few stats, at most once a second.
    pub(crate) fn have_changed(&self) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if seen.looked.is_some_and(|at| now < at + PAUSE) {
            return false;
        }
        seen.looked = Some(now);
        let stamps: Vec<_> = self.paths.iter().map(Stamp::of).collect();
        let changed = stamps != seen.stamps;
        seen.stamps = stamps;
        changed
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(path: &PathBuf) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self { inode: meta.ino(), size: meta.size(), changed: (meta.ctime(), meta.ctime_nsec()) })
    }
}
