//! Room on the disk that is kept for deletions: on a full disk they are what makes room (docs/decisions/013.md).
//!
//! A file of a fixed size lies beside the store. When a deletion finds no room, the file gives its own back, and takes it again
//! before any other write is taken.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::{MAX_VALUE, disk};

/// The largest value once more, as a deletion that has to wait for somebody writes it, and pages around it.
pub(super) const SIZE: u64 = MAX_VALUE as u64 + (1 << 20);
/// What a new data directory needs: this, keys, and a little to live on.
pub(super) const FOR_A_NEW_STORE: u64 = (2 << 20) + SIZE;
/// It is taken piece by piece, so that all there is can be had.
const PIECE: u64 = 256 << 10;

#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    file: Option<File>,
    /// Bytes of the file that are on the disk for certain.
    held: u64,
}

// === impl Reserve ===

impl Reserve {
    pub(super) fn of(dir: &Path) -> Reserve {
        Reserve { path: dir.join("store.reserve"), file: None, held: 0 }
    }

    /// Takes what is missing of it. False when the disk has no room for that.
    pub(super) fn fill(&mut self) -> bool {
        while self.held < SIZE {
            let length = PIECE.min(SIZE - self.held);
            let held = self.held;
            let taken = self.open().and_then(|file| take(file, held, length));
            match taken {
                Ok(()) => self.held += length,
                Err(cause) if disk::is_full(&cause) => return false,
                Err(error) => {
                    // A store without it does all but one thing.
                    tracing::warn!(%error, path = %self.path.display(), "no room is kept for deletions");
                    return true;
                }
            }
        }
        true
    }

    /// Bytes of it there are.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Gives all of it to whoever writes next.
    pub(super) fn release(&mut self) {
        self.held = 0;
        if let Err(error) = self.open().and_then(|file| file.set_len(0)) {
            tracing::warn!(%error, path = %self.path.display(), "the room that is kept for deletions cannot be used");
        }
    }

    fn open(&mut self) -> io::Result<&File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)?
            }
        };
        Ok(self.file.insert(file))
    }
}

/// Has the file system put a piece of the file on the disk.
fn take(file: &File, at: u64, length: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), at, length) {
        // Not every file system can; all can write.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            file.write_all_at(&vec![0; usize::try_from(length).unwrap_or_default()], at)
        }
        done => done.map_err(io::Error::from),
    }
}
