//! The high-water mark: a small file beside the store that says that there is one, and how far it has come.
//!
//! A store file or a write-ahead log that somebody took away looks like a store that never was, or that is a few writes
//! younger. The mark tells. It is written after each commit and seldom synced: a crash of the process keeps it, and what a power
//! cut leaves of it is at most too low. Never is it ahead of what is on the disk.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use flate2::Crc;

use super::error::OpenError;
use super::format;

#[derive(Debug)]
pub(super) struct HighWater {
    file: File,
}

/// Where the mark is in the store's directory.
pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join("store.revision")
}

/// The revision that the store of a directory had reached for certain; None where there never was one. What cannot be understood
/// says only that there was one.
pub(super) fn read(dir: &Path) -> Result<Option<u64>, OpenError> {
    let path = file(dir);
    match fs::read(&path) {
        Ok(content) => Ok(Some(parse(&content).unwrap_or_default())),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(OpenError::io("reading", &path)(cause)),
    }
}

/// Refuses a store that has lost what it had: `found` is the revision it is at.
pub(super) fn check(path: &Path, found: u64) -> Result<(), OpenError> {
    let Some(dir) = path.parent() else { return Ok(()) };
    match read(dir)? {
        Some(known) if known > found => Err(OpenError::Rewound {
            path: path.to_owned(),
            wal: format::wal_file(path),
            mark: file(dir),
            found,
            known,
        }),
        _ => Ok(()),
    }
}

/// Refuses to make a store where there was one.
pub(super) fn check_absent(path: &Path) -> Result<(), OpenError> {
    let Some(dir) = path.parent() else { return Ok(()) };
    match read(dir)? {
        Some(known) => Err(OpenError::Gone { path: path.to_owned(), mark: file(dir), known }),
        None => Ok(()),
    }
}

// === impl HighWater ===

impl HighWater {
    /// Opens the mark of a directory, making it when there is none, and sets it. A store without one is worth more than none:
    /// what goes wrong leaves a line in the log.
    pub(super) fn set(dir: &Path, revision: u64) -> Option<HighWater> {
        let path = file(dir);
        let open = || -> Result<HighWater, OpenError> {
            let is_new = !path.exists();
            let file = format::private(OpenOptions::new().write(true).create(true), &path)?;
            let mark = HighWater { file };
            mark.write(revision).map_err(OpenError::io("writing", &path))?;
            mark.file.sync_data().map_err(OpenError::io("syncing", &path))?;
            if is_new {
                format::sync_dir(dir)?;
            }
            Ok(mark)
        };
        open()
            .inspect_err(
                |error| tracing::warn!(%error, "the store has no mark that tells how far it has come"),
            )
            .ok()
    }

    /// The store is at this revision, and that is on the disk.
    pub(super) fn note(&self, revision: u64) {
        // The next one makes up for it.
        let _ = self.write(revision);
    }

    pub(super) fn sync(&self) {
        // What is not synced is too low after a power cut, and that is all.
        let _ = self.file.sync_data();
    }

    /// In place and always as long, so that it needs no room.
    fn write(&self, revision: u64) -> io::Result<()> {
        self.file.write_all_at(render(revision).as_bytes(), 0)
    }
}

impl Drop for HighWater {
    fn drop(&mut self) {
        self.sync();
    }
}

fn render(revision: u64) -> String {
    let text = format!("revision {revision:020}");
    format!("{text} {:08x}\n", sum(&text))
}

fn parse(content: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(content).ok()?.trim_end();
    let (text, told) = text.rsplit_once(' ')?;
    let revision = text.strip_prefix("revision ")?.parse().ok()?;
    (u32::from_str_radix(told, 16) == Ok(sum(text))).then_some(revision)
}

fn sum(text: &str) -> u32 {
    let mut sum = Crc::new();
    sum.update(text.as_bytes());
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written_and_a_torn_one_claims_nothing() {
        for revision in [0, 7, 1_000_000_000_000, u64::MAX] {
            let text = render(revision);
            assert_eq!((parse(text.as_bytes()), text.len()), (Some(revision), render(0).len()));
            for cut in 0..text.len() - 1 {
                assert_eq!(parse(&text.as_bytes()[..cut]), None, "{cut}");
            }
        }
        let torn = [&render(12).as_bytes()[..28], &render(45).as_bytes()[28..]].concat();
        assert_eq!(parse(&torn), None);
    }
}
