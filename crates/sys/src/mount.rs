//! Mounting by descriptor.
//!
//! Source and target are open files, so nothing between the check and the mount can swap them. The
//! new mount API builds a mount aside and attaches it in one step; where the kernel or a filter lacks
//! it, mount(2) is used through `/proc/self/fd`.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{
    self as m, FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};

use crate::{fd, mountinfo};

/// A file system without a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    Tmpfs {
        /// Bytes; the kernel's default is half of the memory.
        size: Option<u64>,
        inodes: Option<u64>,
        mode: u32,
        /// Keep it out of swap, where the kernel can (6.4 and later).
        noswap: bool,
    },
    Hugetlbfs {
        page_size: u64,
        size: Option<u64>,
        mode: u32,
    },
}

/// What to do about a mount that is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// `EBUSY`.
    Refuse,
    /// Take it out of the tree now; the kernel lets go when the last user does.
    Detach,
    /// Give up what its server was asked for and has not answered. `EBUSY` if somebody uses it nevertheless.
    Force,
}

/// Mounts the file or directory `source` over `target`. `recursive` takes along what is mounted below.
pub fn bind(source: impl AsFd, target: impl AsFd, recursive: bool) -> io::Result<()> {
    let (source, target) = (source.as_fd(), target.as_fd());
    let mut flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    match m::open_tree(source, "", flags) {
        Ok(tree) => attach(&tree, target),
        Err(e) if is_missing(e) => bind_by_path(source, target, recursive),
        Err(e) => Err(e.into()),
    }
}

/// Mounts a new memory file system over the directory `target`.
pub fn memory(target: impl AsFd, what: &Memory) -> io::Result<()> {
    let target = target.as_fd();
    match memory_aside(what) {
        Ok(aside) => attach(&aside, target),
        Err(e) if is_missing(e) => memory_by_path(target, what),
        Err(e) => Err(e.into()),
    }
}

/// Unmounts the topmost mount at `name` in `parent`. The name itself is not followed if it is a link.
pub fn unmount(parent: impl AsFd, name: &OsStr, busy: Busy) -> io::Result<()> {
    // A descriptor of the mount itself would keep it busy; its parent's does not.
    let path = fd::proc_path(&parent).join(name);
    let flags = match busy {
        Busy::Refuse => UnmountFlags::NOFOLLOW,
        Busy::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Busy::Force => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE,
    };
    Ok(m::unmount(path, flags)?)
}

/// Makes mounts below `dir` visible to containers that ask for it and the other way round. When `dir`
/// lies on a mount that is not shared it first becomes a mount of its own, so that nothing else on the
/// machine changes. Says whether such a mount was made; the caller may [`unmount`] it at its end.
pub fn make_shared(dir: &Path) -> io::Result<bool> {
    let dir = dir.canonicalize()?;
    let mounts = mountinfo::read()?;
    let on = mountinfo::containing(&mounts, &dir);
    if on.is_some_and(mountinfo::Mount::is_shared) {
        return Ok(false);
    }
    let own = on.is_none_or(|mount| mount.mount_point != dir);
    if own {
        bind_by_path(fd::open_dir(&dir)?.as_fd(), fd::open_dir(&dir)?.as_fd(), true)?;
    }
    m::mount_change(&dir, MountPropagationFlags::SHARED | MountPropagationFlags::REC)?;
    Ok(own)
}

/// Moves the calling thread into a mount namespace of its own, in which nothing propagates to where
/// it came from. Threads it starts afterwards live there too.
pub fn enter_private_namespace() -> io::Result<()> {
    // SAFETY: CLONE_NEWNS unshares the mount namespace and the cwd/umask of this thread only; no
    // memory and no descriptor table is touched, so nothing another thread relies on changes.
    #[allow(unsafe_code)]
    let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(m::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

fn attach(tree: &OwnedFd, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(m::move_mount(tree, "", target, "", flags)?)
}

fn bind_by_path(source: BorrowedFd<'_>, target: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let (source, target) = (fd::proc_path(&source), fd::proc_path(&target));
    Ok(if recursive { m::mount_bind_recursive(source, target) } else { m::mount_bind(source, target) }?)
}

fn memory_aside(what: &Memory) -> rustix::io::Result<OwnedFd> {
    let context = m::fsopen(what.fs_type(), FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in what.settings() {
        m::fsconfig_set_string(&context, key, value)?;
    }
    if matches!(what, Memory::Tmpfs { noswap: true, .. }) {
        // An older kernel refuses the word: then there is swap, as there always was.
        let _ = m::fsconfig_set_flag(&context, "noswap");
    }
    m::fsconfig_create(&context)?;
    m::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

fn memory_by_path(target: BorrowedFd<'_>, what: &Memory) -> io::Result<()> {
    let settings: Vec<String> = what.settings().into_iter().map(|(k, v)| format!("{k}={v}")).collect();
    let plain = settings.join(",");
    let noswap = format!("{plain},noswap");
    let try_one = |options: &str| -> rustix::io::Result<()> {
        let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
        let target = fd::proc_path(&target);
        m::mount(what.fs_type(), target, what.fs_type(), MountFlags::empty(), &*options)
    };
    if matches!(what, Memory::Tmpfs { noswap: true, .. }) && try_one(&noswap).is_ok() {
        return Ok(());
    }
    Ok(try_one(&plain)?)
}

/// ENOSYS: before Linux 5.2. EPERM: a filter that knows only mount(2); if we may not mount at all,
/// mount(2) will say so.
fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOSYS | Errno::PERM)
}

// === impl Memory ===

impl Memory {
    #[must_use]
    pub fn fs_type(&self) -> &'static str {
        match self {
            Memory::Tmpfs { .. } => "tmpfs",
            Memory::Hugetlbfs { .. } => "hugetlbfs",
        }
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        let mut out = Vec::new();
        let (size, mode) = match self {
            Memory::Tmpfs { size, inodes, mode, .. } => {
                out.extend(inodes.map(|n| ("nr_inodes", n.to_string())));
                (size, mode)
            }
            Memory::Hugetlbfs { page_size, size, mode } => {
                out.push(("pagesize", page_size.to_string()));
                (size, mode)
            }
        };
        out.extend(size.map(|bytes| ("size", bytes.to_string())));
        out.push(("mode", format!("{mode:o}")));
        out
    }
}

#[cfg(test)]
#[path = "mount_tests.rs"]
mod tests;
