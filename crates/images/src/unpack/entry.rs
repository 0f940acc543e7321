//! One entry of a layer is made.

use std::ffi::OsStr;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, linkat, mkdirat, mknodat, openat, symlinkat};

use super::{Unpacker, attributes, clean, exists, kind_of};
use crate::tar::{Entries, Entry, EntryType, Hole};

/// A layer takes `name` away from the layers below it.
pub(super) fn whiteout(dir: &OwnedFd, name: &OsStr) -> io::Result<()> {
    if name.is_empty() || name == "." || name == ".." {
        return Err(wrong("a whiteout of nothing"));
    }
    match exists(dir, name)? {
        None => Ok(mknodat(dir, name, FileType::CharacterDevice, Mode::empty(), 0)?),
        // The layer has one of its own: only what lies below it goes.
        Some(stat) if kind_of(&stat) == FileType::Directory => attributes::make_opaque(&open_dir(dir, name)?),
        Some(_) => Ok(()),
    }
}

impl Unpacker<'_> {
    pub(super) fn make<R: Read>(
        &mut self,
        dir: &OwnedFd,
        name: &OsStr,
        path: &Path,
        entry: &mut Entry,
        content: &mut Entries<R>,
    ) -> io::Result<()> {
        let before = exists(dir, name)?.map(|stat| kind_of(&stat));
        let stays = before == Some(FileType::Directory) && entry.kind == EntryType::Directory;
        if before.is_some() && !stays {
            // The layer says it twice: the later one counts.
            sys::tree::remove(dir, name).map_err(io::Error::other)?;
            self.last = None;
        }
        match entry.kind {
            EntryType::Directory => {
                if !stays {
                    mkdirat(dir, name, Mode::RWXU)?;
                }
                let made = open_dir(dir, name)?;
                // It was taken away from the layers below, and is there anew.
                if before == Some(FileType::CharacterDevice) {
                    attributes::make_opaque(&made)?;
                }
                self.done.implied.remove(path);
                self.later(path.to_owned(), entry);
                attributes::set(&made, entry)
            }
            EntryType::File => self.file(dir, name, entry, content),
            EntryType::Symlink => {
                symlinkat(OsStr::from_bytes(&entry.link), dir, name)?;
                attributes::set_link(dir, name, entry)
            }
            EntryType::HardLink => self.hard_link(dir, name, &entry.link),
            EntryType::Fifo => {
                mknodat(dir, name, FileType::Fifo, Mode::RUSR, 0)?;
                let made =
                    openat(dir, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
                attributes::set(&made, entry)?;
                attributes::set_times(&made, entry)
            }
            EntryType::CharDevice | EntryType::BlockDevice => {
                self.done.devices += 1;
                Ok(())
            }
        }
    }

    fn file<R: Read>(
        &mut self,
        dir: &OwnedFd,
        name: &OsStr,
        entry: &mut Entry,
        content: &mut Entries<R>,
    ) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        match entry.data.take() {
            None => self.copy(content, &mut file, u64::MAX)?,
            Some(runs) => self.with_holes(content, &mut file, &runs, entry.size)?,
        }
        attributes::set(&file, entry)?;
        attributes::set_times(&file, entry)
    }

    fn with_holes<R: Read>(
        &mut self,
        content: &mut Entries<R>,
        file: &mut std::fs::File,
        runs: &[Hole],
        size: u64,
    ) -> io::Result<()> {
        file.set_len(size)?;
        for run in runs {
            file.seek(SeekFrom::Start(run.offset))?;
            self.copy(content, file, run.length)?;
        }
        Ok(())
    }

    fn copy<R: Read>(
        &mut self,
        content: &mut Entries<R>,
        file: &mut std::fs::File,
        most: u64,
    ) -> io::Result<()> {
        let mut left = most;
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let n = content.read(&mut self.buffer[..room])?;
            if n == 0 {
                break;
            }
            file.write_all(&self.buffer[..n])?;
            left -= n as u64;
            self.done.bytes += n as u64;
        }
        Ok(())
    }

    /// To a file of this layer only, and never to one that a link leads to.
    fn hard_link(&mut self, dir: &OwnedFd, name: &OsStr, to: &[u8]) -> io::Result<()> {
        let path = clean(to).map_err(wrong)?;
        let (Some(parent), Some(target)) = (path.parent(), path.file_name()) else {
            return Err(wrong("a link to the layer itself"));
        };
        let from = self.directory(parent)?;
        match exists(&from, target)?.map(|stat| kind_of(&stat)) {
            Some(FileType::RegularFile | FileType::Symlink | FileType::Fifo) => {
                Ok(linkat(&from, target, dir, name, AtFlags::empty())?)
            }
            Some(_) => Err(wrong("a hard link to what is no file")),
            None => Err(wrong("a hard link to a file that this layer does not have")),
        }
    }
}

/// For reading its attributes and setting them.
fn open_dir(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.to_owned())
}
