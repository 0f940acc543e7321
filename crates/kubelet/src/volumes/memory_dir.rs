//! A directory with a file system in memory over it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstatfs};
use sys::fd::{self, OWN};
use sys::mount::{self, Memory};

/// Mounts `what` over the directory `name` (made when missing) unless it is there already, and opens
/// its root. Something else mounted there is an error: it is not ours to cover or to remove.
pub(super) fn ensure(parent: impl AsFd, name: &OsStr, what: &Memory) -> io::Result<OwnedFd> {
    let parent = parent.as_fd();
    let below = fd::make_dir(parent, name, Mode::from_raw_mode(0o777))?;
    if !fd::is_mount_point(parent, name)? {
        mount::memory(&below, what)?;
    }
    let top = fd::open_beneath(parent, Path::new(name), OFlags::PATH | OFlags::DIRECTORY, OWN)?;
    let magic = match what {
        Memory::Tmpfs { .. } => TMPFS_MAGIC,
        Memory::Hugetlbfs { .. } => HUGETLBFS_MAGIC,
    };
    if fstatfs(&top)?.f_type != magic {
        let message = format!("something that is no {} is mounted there", what.fs_type());
        return Err(io::Error::other(message));
    }
    Ok(top)
}

const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
