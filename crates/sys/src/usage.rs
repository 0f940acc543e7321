//! How much of a file system a directory takes: a walk that can be paused, so that nobody's directory, however large,
//! takes more time at once than it is given.
//!
//! Like every walk here it goes by descriptor, follows no symlink and enters no other mount. Each directory is read a
//! piece at a time: a million names in one, or a hundred thousand directories in each other, cost little memory.

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use crate::fd::{self, FileId};
use crate::tree::{Cursor, TreeError};

/// Bytes of directory that are read at once.
const PIECE: usize = 8 << 10;
/// So many files with several names are remembered, to be counted once. Those beyond are counted by name.
const LINKS_MAX: usize = 64 << 10;
/// What the kernel calls a block, whatever the file system has.
const BLOCK: u64 = 512;

/// Blocks that are taken, in bytes, and the number of files and directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// A walk under way.
#[derive(Debug)]
pub struct Walk {
    cursor: Cursor,
    levels: Vec<Level>,
    total: Usage,
    linked: HashSet<FileId>,
}

/// A directory that is not done.
#[derive(Debug, Default)]
struct Level {
    /// Directories of the last piece that are still to be entered.
    below: VecDeque<CString>,
    /// Where the next piece begins.
    next: u64,
    is_read: bool,
}

// === impl Walk ===

impl Walk {
    /// Begins at this directory, which counts itself.
    pub fn of(dir: OwnedFd) -> io::Result<Walk> {
        let mut walk = Walk {
            total: Usage::default(),
            linked: HashSet::new(),
            levels: vec![Level::default()],
            cursor: Cursor::at(dir),
        };
        let own = fs::fstat(walk.cursor.fd())?;
        walk.count(&own);
        Ok(walk)
    }

    /// What was counted so far: no less than this is taken.
    #[must_use]
    pub fn so_far(&self) -> Usage {
        self.total
    }

    /// Goes on for as many files as `budget` allows, and takes them off it. The result, if that was all.
    pub fn go_on(&mut self, budget: &mut u64) -> Result<Option<Usage>, TreeError> {
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(Some(self.total)) };
            if let Some(name) = level.below.pop_front() {
                match self.cursor.enter(OsStr::from_bytes(name.to_bytes())) {
                    Ok(true) => self.levels.push(Level::default()),
                    // Gone, or another file system: what is mounted there is not this one's.
                    Ok(false) | Err(TreeError::Mounted(_)) => {}
                    Err(e) => return Err(e),
                }
            } else if level.is_read {
                self.levels.pop();
                if !self.levels.is_empty() {
                    self.cursor.leave()?;
                }
            } else if *budget == 0 {
                return Ok(None);
            } else {
                self.read_piece(budget)?;
            }
        }
    }

    fn read_piece(&mut self, budget: &mut u64) -> Result<(), TreeError> {
        let at = self.cursor.path(OsStr::new(""));
        let failed = |e: Errno| TreeError::Io { act: "measure", path: at.clone(), source: e.into() };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = fs::openat(self.cursor.fd(), ".", flags, Mode::empty()).map_err(failed)?;
        let mut level = self.levels.pop().unwrap_or_default();
        fs::seek(&dir, SeekFrom::Start(level.next)).map_err(failed)?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); PIECE];
        let mut entries = RawDir::new(&dir, &mut buffer);
        loop {
            let Some(entry) = entries.next() else {
                level.is_read = true;
                break;
            };
            let entry = entry.map_err(failed)?;
            level.next = entry.next_entry_cookie();
            let name = entry.file_name();
            if name != c"." && name != c".." {
                *budget = budget.saturating_sub(1);
                if let Some(below) = self.take(name) {
                    level.below.push_back(below);
                }
            }
            if entries.is_buffer_empty() {
                break;
            }
        }
        self.levels.push(level);
        Ok(())
    }

    /// Counts one name; its copy if there may be something below it.
    fn take(&mut self, name: &CStr) -> Option<CString> {
        // Whatever cannot be looked at is gone, or will be seen at the next walk.
        let stat = fs::statat(self.cursor.fd(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            if !self.is_same_mount(name) {
                return None;
            }
            self.count(&stat);
            return Some(name.to_owned());
        }
        self.count(&stat);
        None
    }

    /// The inode of a mount point is that of what is mounted there.
    fn is_same_mount(&self, name: &CStr) -> bool {
        !fd::is_mount_point(self.cursor.fd(), OsStr::from_bytes(name.to_bytes())).unwrap_or(false)
    }

    fn count(&mut self, stat: &Stat) {
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if stat.st_nlink > 1 && !is_dir {
            let id = FileId { dev: stat.st_dev, ino: stat.st_ino };
            if self.linked.len() < LINKS_MAX && !self.linked.insert(id) {
                return;
            }
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.total.bytes = self.total.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        self.total.inodes += 1;
    }
}

/// What one file takes, directory or not.
pub fn of_file(file: impl std::os::fd::AsFd) -> io::Result<Usage> {
    let stat = fs::fstat(file)?;
    Ok(Usage { bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK), inodes: 1 })
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
