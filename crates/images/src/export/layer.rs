//! A layer as it lies on the disk becomes an archive again: always the same one, entry by entry in the order of names.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, getxattr, listxattr, openat, readlinkat, statat,
};
use rustix::io::Errno;

use super::writer::{self, Head};
use crate::tar::EntryType;
use crate::unpack::{OPAQUE, WHITEOUT, is_ours_to_set};

/// The attribute by which overlayfs knows that a directory hides those below it.
const OPAQUE_ATTRIBUTE: &str = "trusted.overlay.opaque";
/// Of all names of attributes, and of one value: the kernel's own bounds.
const XATTR_MAX: usize = 64 << 10;

struct Walk<'a, W> {
    out: &'a mut W,
    /// Where a file with several names was written first.
    seen: BTreeMap<(u64, u64), Vec<u8>>,
}

/// Everything below `root`. Links are written, never followed.
pub(super) fn write(root: OwnedFd, out: &mut impl Write) -> io::Result<()> {
    let mut walk = Walk { out, seen: BTreeMap::new() };
    walk.directory(&root, b"")?;
    writer::end(walk.out)
}

// === impl Walk ===

impl<W: Write> Walk<'_, W> {
    fn directory(&mut self, dir: &OwnedFd, path: &[u8]) -> io::Result<()> {
        for name in names(dir)? {
            let name = OsStr::from_bytes(&name);
            let path = join(path, name.as_bytes());
            let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            self.entry(dir, name, path, &stat)
                .map_err(|e| io::Error::new(e.kind(), format!("{name:?}: {e}")))?;
        }
        Ok(())
    }

    fn entry(&mut self, dir: &OwnedFd, name: &OsStr, path: Vec<u8>, stat: &Stat) -> io::Result<()> {
        let mut head = Head {
            path,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or_default()),
            ..Head::default()
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let below = open(dir, name, OFlags::DIRECTORY)?;
                head.kind = EntryType::Directory;
                head.xattrs = attributes(&below)?;
                let path = head.path.clone();
                head.path.push(b'/');
                writer::put(self.out, &head)?;
                if is_opaque(&below)? {
                    let path = join(&path, OPAQUE);
                    writer::put(self.out, &Head { path, ..Head::default() })?;
                }
                self.directory(&below, &path)
            }
            FileType::RegularFile => {
                if let Some(first) = self.first(stat, &head.path) {
                    (head.kind, head.link) = (EntryType::HardLink, first);
                    return writer::put(self.out, &head);
                }
                let file = open(dir, name, OFlags::empty())?;
                head.xattrs = attributes(&file)?;
                head.size = u64::try_from(stat.st_size).unwrap_or_default();
                writer::put_file(self.out, &head, File::from(file))
            }
            FileType::Symlink => {
                head.kind = EntryType::Symlink;
                head.link = readlinkat(dir, name, Vec::new())?.into_bytes();
                writer::put(self.out, &head)
            }
            FileType::Fifo => {
                head.kind = EntryType::Fifo;
                writer::put(self.out, &head)
            }
            // Only what takes away is made as a device.
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                let parent = head.path.len() - name.len();
                let path = [&head.path[..parent], WHITEOUT, name.as_bytes()].concat();
                writer::put(self.out, &Head { path, ..Head::default() })
            }
            _ => Ok(()),
        }
    }

    /// Where this file was written, if it was; this is the place otherwise.
    fn first(&mut self, stat: &Stat, path: &[u8]) -> Option<Vec<u8>> {
        if stat.st_nlink < 2 {
            return None;
        }
        let first = self.seen.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| path.to_owned());
        (first != path).then(|| first.clone())
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_owned() } else { [dir, b"/", name].concat() }
}

fn names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name: &CStr = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_bytes().to_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn open(dir: &OwnedFd, name: &OsStr, more: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
    Ok(openat(dir, name, flags, Mode::empty())?)
}

fn attributes(file: &OwnedFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let path = sys::fd::proc_path(&file.as_fd());
    let mut buffer = vec![0; XATTR_MAX];
    let n = match listxattr(&path, &mut buffer[..]) {
        // A file system that has none.
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        n => n?,
    };
    let mut names: Vec<Vec<u8>> = buffer[..n].split(|byte| *byte == 0).map(<[u8]>::to_owned).collect();
    names.retain(|name| is_ours_to_set(name));
    names.sort();
    let mut all = Vec::new();
    for name in names {
        let n = getxattr(&path, OsStr::from_bytes(&name), &mut buffer[..])?;
        all.push((name, buffer[..n].to_owned()));
    }
    Ok(all)
}

fn is_opaque(dir: &OwnedFd) -> io::Result<bool> {
    let mut value = [0; 8];
    match getxattr(sys::fd::proc_path(&dir.as_fd()), OPAQUE_ATTRIBUTE, &mut value[..]) {
        Ok(n) => Ok(value[..n] == *b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}
