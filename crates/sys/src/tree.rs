//! Directory trees that belong to a Pod: walked with one open descriptor, never through a symlink,
//! never into another mount.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::fd::{self, FileId, Mounts, Reach, Symlinks};

/// A place in a tree. It descends and comes back by descriptor: a Pod may nest a hundred thousand
/// directories without costing us more than one of them.
#[derive(Debug)]
pub struct Cursor {
    here: OwnedFd,
    trail: Vec<Level>,
}

/// One name in the directory the cursor stands in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    pub name: OsString,
    pub is_dir: bool,
}

/// Why a tree could not be walked or removed; the path is relative to where the walk began.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{} is a mount point", .0.display())]
    Mounted(PathBuf),
    #[error("{act} {}: {source}", .path.display())]
    Io { act: &'static str, path: PathBuf, source: io::Error },
}

#[derive(Debug)]
struct Level {
    /// The directory above, to recognise it when we come back.
    parent: FileId,
    name: OsString,
}

/// Removes `name` in `parent`, with everything below it. Whatever is missing already is fine.
/// Stops at the first mount point or error and names it; what is mounted is not touched.
pub fn remove(parent: impl AsFd, name: &OsStr) -> Result<(), TreeError> {
    let here = parent.as_fd().try_clone_to_owned();
    let mut cursor = Cursor::at(here.map_err(|e| failed("open", Path::new(name), e))?);
    if cursor.try_remove(name)? {
        return Ok(());
    }
    let mut pending = vec![vec![name.to_owned()]];
    let mut again = 0;
    loop {
        match pending.last_mut().and_then(Vec::pop) {
            Some(dir) => {
                if cursor.enter(&dir)? {
                    pending.push(cursor.shallow()?);
                }
            }
            None if cursor.depth() == 0 => return Ok(()),
            None => {
                pending.pop();
                let done = cursor.leave()?;
                if cursor.try_remove(&done)? {
                    continue;
                }
                // More than one batch was in there, or somebody still writes.
                again += 1;
                if again > MAX_AGAIN {
                    return Err(cursor.failed("remove", &done, Errno::NOTEMPTY.into()));
                }
                if let Some(level) = pending.last_mut() {
                    level.push(done);
                }
            }
        }
    }
}

/// Calls `visit` for everything below `dir`, children before their directory, `dir` itself excluded.
/// `visit` gets the directory it is in and the name. What other mounts cover is left out.
pub fn visit(
    dir: OwnedFd,
    visit: &mut dyn FnMut(BorrowedFd<'_>, &Name) -> io::Result<()>,
) -> Result<(), TreeError> {
    let mut cursor = Cursor::at(dir);
    let mut pending = vec![cursor.names()?];
    loop {
        match pending.last_mut().and_then(Vec::pop) {
            Some(entry) if entry.is_dir => match cursor.enter(&entry.name) {
                Ok(true) => pending.push(cursor.names()?),
                Ok(false) | Err(TreeError::Mounted(_)) => {}
                Err(e) => return Err(e),
            },
            Some(entry) => cursor.visited(visit(cursor.fd(), &entry), &entry.name)?,
            None if cursor.depth() == 0 => return Ok(()),
            None => {
                pending.pop();
                let name = cursor.leave()?;
                let entry = Name { name, is_dir: true };
                cursor.visited(visit(cursor.fd(), &entry), &entry.name)?;
            }
        }
    }
}

/// The names in a directory, without `.` and `..`.
pub fn list(dir: impl AsFd) -> io::Result<Vec<Name>> {
    let dir = dir.as_fd();
    let mut names = Vec::new();
    for entry in entries(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        let is_dir = match entry.file_type() {
            FileType::Directory => true,
            FileType::Unknown => match fs::statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(st) => FileType::from_raw_mode(st.st_mode) == FileType::Directory,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e.into()),
            },
            _ => false,
        };
        names.push(Name { name: OsStr::from_bytes(name).to_owned(), is_dir });
    }
    Ok(names)
}

/// So many directories of one level are kept in memory while removing; the rest waits for a second look.
const BATCH: usize = 4096;
const MAX_AGAIN: usize = 100_000;

const INSIDE: Reach = Reach { symlinks: Symlinks::Refuse, mounts: Mounts::Stay };

// === impl Cursor ===

impl Cursor {
    /// Stands in `dir`.
    #[must_use]
    pub fn at(dir: OwnedFd) -> Cursor {
        Cursor { here: dir, trail: Vec::new() }
    }

    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.here.as_fd()
    }

    #[must_use]
    pub fn depth(&self) -> usize {
        self.trail.len()
    }

    /// Goes down. `false` when the directory is gone, or is no directory any more.
    pub fn enter(&mut self, name: &OsStr) -> Result<bool, TreeError> {
        let parent = fd::file_id(&self.here).map_err(|e| self.failed("stat", name, e))?;
        match open_inside(self.here.as_fd(), name) {
            Ok(dir) => {
                self.here = dir;
                self.trail.push(Level { parent, name: name.to_owned() });
                Ok(true)
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(e) => Err(refused("open", &self.path(name), e)),
        }
    }

    /// Comes back up and says from where. Fails when the directory was moved meanwhile.
    pub fn leave(&mut self) -> Result<OsString, TreeError> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let up = fs::openat(&self.here, "..", flags, Mode::empty())
            .map_err(|e| self.failed("leave", OsStr::new(""), e.into()))?;
        let id = fd::file_id(&up).map_err(|e| self.failed("stat", OsStr::new(".."), e))?;
        match self.trail.pop() {
            Some(level) if level.parent == id => {
                self.here = up;
                Ok(level.name)
            }
            Some(level) => {
                let moved = io::Error::other("the directory was moved while it was walked");
                Err(self.failed("leave", &level.name, moved))
            }
            None => Err(self.failed("leave", OsStr::new("."), Errno::XDEV.into())),
        }
    }

    /// The path of `name` here, from where the walk began.
    #[must_use]
    pub fn path(&self, name: &OsStr) -> PathBuf {
        // A message needs no hundred thousand components.
        let mut path: PathBuf = self.trail.iter().take(64).map(|level| &level.name).collect();
        path.push(name);
        path
    }

    fn names(&self) -> Result<Vec<Name>, TreeError> {
        list(&self.here).map_err(|e| self.failed("list", OsStr::new(""), e))
    }

    /// Removes everything here but directories, and returns those. They are not tried first: the
    /// kernel may walk all it has cached below a full directory before it refuses.
    fn shallow(&self) -> Result<Vec<OsString>, TreeError> {
        let mut dirs = Vec::new();
        let dir = entries(self.fd()).map_err(|e| self.failed("list", OsStr::new(""), e.into()))?;
        for entry in dir {
            let entry = entry.map_err(|e| self.failed("list", OsStr::new(""), e.into()))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let is_dir = entry.file_type() == FileType::Directory;
            if !is_dir && self.try_remove(name)? {
                continue;
            }
            dirs.push(name.to_owned());
            if dirs.len() == BATCH {
                break;
            }
        }
        Ok(dirs)
    }

    fn try_remove(&self, name: &OsStr) -> Result<bool, TreeError> {
        remove_entry(self.fd(), name).map_err(|e| refused("remove", &self.path(name), e))
    }

    fn visited(&self, result: io::Result<()>, name: &OsStr) -> Result<(), TreeError> {
        match result {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| self.failed("change", name, e)),
        }
    }

    fn failed(&self, act: &'static str, name: &OsStr, source: io::Error) -> TreeError {
        failed(act, &self.path(name), source)
    }
}

fn failed(act: &'static str, path: &Path, source: io::Error) -> TreeError {
    TreeError::Io { act, path: path.to_owned(), source }
}

fn entries(dir: BorrowedFd<'_>) -> rustix::io::Result<Dir> {
    // Opened anew: `O_PATH` cannot be listed, and a shared offset would confuse two readers.
    Dir::new(fs::openat(dir, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn open_inside(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    fd::open_beneath(parent, Path::new(name), OFlags::DIRECTORY | OFlags::NOFOLLOW, INSIDE)
        .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

/// Removes a file, a link or an empty directory; `false` when it is a directory with something in it.
fn remove_entry(parent: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<bool> {
    match fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(e) => return Err(e),
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(e) => Err(e),
    }
}

/// EXDEV: the way leads into another mount. EBUSY: the entry itself is covered by one.
fn refused(act: &'static str, path: &Path, errno: Errno) -> TreeError {
    match errno {
        Errno::XDEV | Errno::BUSY => TreeError::Mounted(path.to_owned()),
        other => failed(act, path, other.into()),
    }
}

#[cfg(test)]
#[path = "tree_tests.rs"]
mod tests;
