//! A layer's archive becomes a directory that overlayfs can stack.
//!
//! Everything is made relative to a descriptor of that directory, and links in the way are resolved inside it, by the kernel.
//! What a layer takes away from those below it becomes what overlayfs knows: a device 0/0, or a directory that is opaque.

mod attributes;
mod entry;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timestamps, openat2, statat, utimensat};
use rustix::io::Errno;

use crate::digest::DiffId;
use crate::error::Error;
use crate::limits::Limits;
use crate::tar::{Entries, Entry, TarError};

pub(crate) use attributes::is_ours_to_set;

pub(crate) const WHITEOUT: &[u8] = b".wh.";
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";
/// What aufs kept for itself.
const OF_AUFS: &[u8] = b".wh..wh.";
/// Directories whose times are put right at the end: writing into them changes these.
const TIMES_MAX: usize = 500_000;

/// What came out of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Directories that the archive does not have and something in it lies in: a layer below may know them better.
    pub(crate) implied: BTreeSet<PathBuf>,
    /// Devices are not made: no container may have one that its runtime did not give it.
    pub(crate) devices: u64,
}

struct Unpacker<'a> {
    root: OwnedFd,
    layer: &'a DiffId,
    limits: &'a Limits,
    done: Unpacked,
    /// The directory that was written to last.
    last: Option<(PathBuf, OwnedFd)>,
    times: Vec<(PathBuf, Timestamps)>,
    buffer: Vec<u8>,
}

/// Unpacks the archive into the directory `root`, which is empty, and reads it to its end.
pub(crate) fn unpack<R: Read>(
    from: R,
    root: OwnedFd,
    layer: &DiffId,
    limits: &Limits,
) -> Result<(Unpacked, R), Error> {
    let mut unpacker = Unpacker {
        root,
        layer,
        limits,
        done: Unpacked::default(),
        last: None,
        times: Vec::new(),
        buffer: vec![0; 128 << 10],
    };
    let mut entries = Entries::new(from);
    while let Some(entry) = entries.next_entry().map_err(|e| unpacker.archive(e))? {
        unpacker.take(entry, &mut entries)?;
    }
    unpacker.set_times()?;
    Ok((unpacker.done, entries.into_inner()))
}

// === impl Unpacker ===

impl Unpacker<'_> {
    fn take<R: Read>(&mut self, mut entry: Entry, content: &mut Entries<R>) -> Result<(), Error> {
        self.done.entries += 1;
        if self.done.entries > self.limits.layer_entries {
            return Err(Error::Refused(format!(
                "layer {} has more than {} entries",
                self.layer, self.limits.layer_entries
            )));
        }
        let path = clean(&entry.path).map_err(|why| self.refused(&entry.path, why))?;
        let written = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => self.parent(parent).and_then(|dir| match name.as_bytes() {
                OPAQUE => attributes::make_opaque(&dir),
                name if name.starts_with(OF_AUFS) => Ok(()),
                name if name.starts_with(WHITEOUT) => {
                    entry::whiteout(&dir, OsStr::from_bytes(&name[WHITEOUT.len()..]))
                }
                _ => self.make(&dir, name, &path, &mut entry, content),
            }),
            _ => self.root_itself(&entry),
        };
        written.map_err(|e| self.failed(&entry.path, e))
    }

    /// The directory an entry lies in. Links in the way lead where they would lead a process whose root is the layer.
    fn parent(&mut self, path: &Path) -> io::Result<OwnedFd> {
        if let Some((last, fd)) = &self.last
            && last == path
        {
            return fd.try_clone();
        }
        let fd = match self.directory(path) {
            Err(Errno::NOENT) => self.make_parents(path)?,
            other => other?,
        };
        self.last = Some((path.to_owned(), fd.try_clone()?));
        Ok(fd)
    }

    fn directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    }

    fn make_parents(&mut self, path: &Path) -> io::Result<OwnedFd> {
        let mut here = self.directory(Path::new("."))?;
        let mut so_far = PathBuf::new();
        for name in path.iter() {
            so_far.push(name);
            here = match self.directory(&so_far) {
                Err(Errno::NOENT) => {
                    sys::fd::make_dir(&here, name, Mode::from_raw_mode(0o755))?;
                    self.done.implied.insert(so_far.clone());
                    self.directory(&so_far)?
                }
                other => other?,
            };
        }
        Ok(here)
    }

    fn root_itself(&mut self, entry: &Entry) -> io::Result<()> {
        if entry.kind != crate::tar::EntryType::Directory {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the layer itself is a directory"));
        }
        let root = self.root.try_clone()?;
        self.later(PathBuf::new(), entry);
        attributes::set(&root, entry)
    }

    /// The times of a directory, once nothing is written into it any more.
    fn later(&mut self, path: PathBuf, entry: &Entry) {
        if self.times.len() < TIMES_MAX {
            self.times.push((path, attributes::times(entry)));
        }
    }

    fn set_times(&mut self) -> Result<(), Error> {
        for (path, times) in std::mem::take(&mut self.times).into_iter().rev() {
            let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
            match sys::fd::open_beneath(&self.root, &path, OFlags::PATH, sys::fd::OWN) {
                // It made way for something else.
                Err(e)
                    if matches!(
                        e.raw_os_error().map(Errno::from_raw_os_error),
                        Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR)
                    ) => {}
                found => found
                    .and_then(|fd| Ok(utimensat(&fd, "", &times, AtFlags::EMPTY_PATH)?))
                    .map_err(|e| self.failed(path.as_os_str().as_bytes(), e))?,
            }
        }
        Ok(())
    }

    fn archive(&self, error: TarError) -> Error {
        match error {
            TarError::Read(source) => Error::Layer { layer: self.layer.clone(), source },
            TarError::Malformed(why) => {
                Error::Refused(format!("layer {}: the archive is malformed: {why}", self.layer))
            }
        }
    }

    fn refused(&self, path: &[u8], why: &str) -> Error {
        let path = String::from_utf8_lossy(path).chars().take(200).collect();
        Error::Entry { layer: self.layer.clone(), path, why: why.to_owned() }
    }

    /// A full disk is the node's trouble; what the kernel refuses otherwise is the archive's.
    fn failed(&self, path: &[u8], error: io::Error) -> Error {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded | Kind::ReadOnlyFilesystem | Kind::UnexpectedEof => {
                Error::Layer { layer: self.layer.clone(), source: error }
            }
            _ => self.refused(path, &error.to_string()),
        }
    }
}

/// The path below the root, by components. `..` would lead somewhere else in each of two layers.
fn clean(path: &[u8]) -> Result<PathBuf, &'static str> {
    let mut clean = PathBuf::new();
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err("a path may not lead upwards"),
            name => clean.push(OsStr::from_bytes(name)),
        }
    }
    Ok(clean)
}

fn exists(dir: impl AsFd, name: &OsStr) -> io::Result<Option<rustix::fs::Stat>> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn kind_of(stat: &rustix::fs::Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

#[cfg(test)]
mod tests;
