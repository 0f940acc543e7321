//! The directory `/dev` of a container, made aside for it alone: nothing in it is the machine's or the image's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, FileType, Mode, makedev};
use sys::detached;

/// Name, major, minor.
const NODES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];
const DIRECTORIES: [&str; 3] = ["pts", "shm", "mqueue"];

/// A device of the machine that a container is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Below /dev.
    pub name: String,
    /// `c`haracter or `b`lock.
    pub is_block: bool,
    pub major: u32,
    pub minor: u32,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// `root`: who is root where it will be seen.
pub(crate) fn directory(extra: &[Device], root: u32) -> io::Result<OwnedFd> {
    let id = root.to_string();
    let settings = [("mode", "0755"), ("size", "64k"), ("uid", &id), ("gid", &id)];
    let dev = detached::new("tmpfs", &settings, detached::NO_SUID | detached::NO_EXEC)?;
    for (name, major, minor) in NODES {
        node(&dev, Path::new(name), false, (major, minor), 0o666)?;
        own(&dev, Path::new(name), root, root)?;
    }
    for (target, name) in LINKS {
        fs::symlinkat(target, &dev, name)?;
        own(&dev, Path::new(name), root, root)?;
    }
    for name in DIRECTORIES {
        drop(sys::fd::make_dir(&dev, name.as_ref(), Mode::from(0o755))?);
        own(&dev, Path::new(name), root, root)?;
    }
    for device in extra {
        let path = Path::new(&device.name);
        if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
            drop(sys::fd::make_dirs(&dev, parent, Mode::from(0o755))?);
        }
        node(&dev, path, device.is_block, (device.major, device.minor), device.mode)?;
        own(&dev, path, device.uid, device.gid)?;
    }
    Ok(dev)
}

fn own(dir: impl AsFd, name: &Path, uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (rustix::process::Uid::from_raw(uid), rustix::process::Gid::from_raw(gid));
    Ok(fs::chownat(dir, name, Some(uid), Some(gid), fs::AtFlags::SYMLINK_NOFOLLOW)?)
}

fn node(
    dir: impl AsFd,
    name: &Path,
    is_block: bool,
    (major, minor): (u32, u32),
    mode: u32,
) -> io::Result<()> {
    let kind = if is_block { FileType::BlockDevice } else { FileType::CharacterDevice };
    let mode = Mode::from(mode);
    fs::mknodat(&dir, name, kind, mode, makedev(major, minor))?;
    // The daemon's umask is not the container's business.
    fs::chmodat(&dir, name, mode, fs::AtFlags::empty())?;
    Ok(())
}
