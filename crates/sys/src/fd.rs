//! Paths walked relative to an open directory.
//!
//! A Pod may own the directory we walk and may rename, link and replace things while we do. So a
//! path is never checked first and used later: it is resolved once, by the kernel (`openat2`) or
//! component by component where the kernel is too old, and afterwards only the descriptor is used.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;

/// How far a walk may go. It never leaves its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub symlinks: Symlinks,
    pub mounts: Mounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// A symlink anywhere in the path is an error (`ELOOP`).
    Refuse,
    /// Relative symlinks are followed as long as they stay below the root.
    Beneath,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// Another mount in the way is an error (`EXDEV`).
    Stay,
    Cross,
}

/// What a file is, whatever it is called: equal ids are the same file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    pub dev: u64,
    pub ino: u64,
}

/// Opens a directory the operator named. Symlinks in this path are the operator's and are followed.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens `rel` below `root`. `O_CLOEXEC` is added; an absolute path or `..` is `EXDEV`.
pub fn open_beneath(root: impl AsFd, rel: &Path, flags: OFlags, reach: Reach) -> io::Result<OwnedFd> {
    create_beneath(root, rel, flags, Mode::empty(), reach)
}

/// Opens a path as somebody would whose root this directory is: links lead nowhere but into it. For file systems that nobody
/// changes meanwhile, or where it does not matter what is found.
pub fn open_inside(root: impl AsFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    Ok(fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// [`open_beneath`] with the mode of the file that `O_CREAT` may create.
pub fn create_beneath(
    root: impl AsFd,
    rel: &Path,
    flags: OFlags,
    mode: Mode,
    reach: Reach,
) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::CLOEXEC;
    if KERNEL_RESOLVES.load(Ordering::Relaxed) {
        match by_kernel(root.as_fd(), rel, flags, mode, reach) {
            // ENOSYS: before Linux 5.6. EPERM: a seccomp filter that does not know the call; if the
            // file itself is meant, the slow walk says so again.
            Err(Errno::NOSYS) => KERNEL_RESOLVES.store(false, Ordering::Relaxed),
            Err(Errno::PERM) => {}
            other => return Ok(other?),
        }
    }
    Ok(by_hand(root.as_fd(), rel, flags, mode, reach)?)
}

/// Makes every missing directory of `rel` below `root` with exactly `mode` (no umask) and opens the
/// last one. Directories that exist keep their mode. No symlinks; mounts may be crossed.
pub fn make_dirs(root: impl AsFd, rel: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let mut here = open_beneath(root, Path::new("."), OFlags::PATH | OFlags::DIRECTORY, OWN)?;
    for name in names(rel)? {
        here = make_dir(&here, name, mode)?;
    }
    Ok(here)
}

/// Makes one directory with exactly `mode` if it is missing, and opens it.
pub fn make_dir(parent: impl AsFd, name: &OsStr, mode: Mode) -> io::Result<OwnedFd> {
    let parent = parent.as_fd();
    let made = match fs::mkdirat(parent, name, mode) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(e) => return Err(e.into()),
    };
    let dir = open_beneath(parent, Path::new(name), OFlags::PATH | OFlags::DIRECTORY, OWN)?;
    if made {
        chmod(&dir, mode)?;
    }
    Ok(dir)
}

/// Changes the mode of whatever the descriptor is, `O_PATH` included.
pub fn chmod(file: impl AsFd, mode: Mode) -> io::Result<()> {
    Ok(fs::chmod(proc_path(&file), mode)?)
}

/// Changes the owner of whatever the descriptor is, symlinks and `O_PATH` included.
pub fn chown(file: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    let uid = uid.map(fs::Uid::from_raw);
    let gid = gid.map(fs::Gid::from_raw);
    Ok(fs::chownat(file.as_fd(), "", uid, gid, AtFlags::EMPTY_PATH)?)
}

/// `fstat`, which works on `O_PATH` descriptors too.
pub fn stat(file: impl AsFd) -> io::Result<Stat> {
    Ok(fs::fstat(file.as_fd())?)
}

pub fn file_id(file: impl AsFd) -> io::Result<FileId> {
    let st = stat(file)?;
    Ok(FileId { dev: st.st_dev, ino: st.st_ino })
}

/// The mount a descriptor lives on. Two bind mounts of one file system have different ids, which
/// `st_dev` cannot tell.
pub fn mount_id(file: impl AsFd) -> io::Result<u64> {
    let fd = file.as_fd();
    match fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) {
        Ok(stx) if stx.stx_mask & StatxFlags::MNT_ID.bits() != 0 => return Ok(stx.stx_mnt_id),
        // Before Linux 5.8, or filtered: the older place to read it.
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => {}
        Err(e) => return Err(e.into()),
    }
    mount_id_from_fdinfo(fd)
}

/// Whether the directory entry `name` is covered by a mount. `false` when it does not exist.
pub fn is_mount_point(parent: impl AsFd, name: &OsStr) -> io::Result<bool> {
    let parent = parent.as_fd();
    match fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(child) => Ok(mount_id(parent)? != mount_id(child)?),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The way to name an open file to a call that only takes paths.
pub fn proc_path(file: &impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

/// The components of a relative path; `.` is dropped, `..` and a leading `/` are `EXDEV`.
pub fn names(rel: &Path) -> io::Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in rel.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(Errno::XDEV.into());
            }
        }
    }
    Ok(names)
}

/// Below our own directories: nobody else makes symlinks there, and volumes are mounts.
pub const OWN: Reach = Reach { symlinks: Symlinks::Refuse, mounts: Mounts::Cross };

static KERNEL_RESOLVES: AtomicBool = AtomicBool::new(true);

/// A Pod that renames directories in a loop makes the kernel answer EAGAIN; it cannot do so for ever,
/// but we do not wait for it either.
const RACE_RETRIES: usize = 128;
const MAX_LINKS: usize = 40;

fn by_kernel(
    root: BorrowedFd<'_>,
    rel: &Path,
    flags: OFlags,
    mode: Mode,
    reach: Reach,
) -> rustix::io::Result<OwnedFd> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if reach.symlinks == Symlinks::Refuse {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    if reach.mounts == Mounts::Stay {
        resolve |= ResolveFlags::NO_XDEV;
    }
    let mut tries = 0;
    loop {
        match fs::openat2(root, rel, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) if tries < RACE_RETRIES => tries += 1,
            other => return other,
        }
    }
}

/// The same walk for kernels without `openat2`: one component at a time, never through a symlink,
/// and `..` goes back to the descriptor we came from, so moving a directory cannot lead us out.
fn by_hand(
    root: BorrowedFd<'_>,
    rel: &Path,
    flags: OFlags,
    mode: Mode,
    reach: Reach,
) -> rustix::io::Result<OwnedFd> {
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let home = fs::openat(root, ".", step | OFlags::DIRECTORY, Mode::empty())?;
    let home_mount = mount_of(&home)?;
    let mut trail = vec![home];
    let mut todo: Vec<Vec<u8>> = split(rel)?;
    todo.reverse();
    let mut links = 0;
    while let Some(name) = todo.pop() {
        let name = OsStr::from_bytes(&name);
        let here = trail.last().ok_or(Errno::XDEV)?;
        if name == ".." {
            trail.pop();
            if trail.is_empty() {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let creates = todo.is_empty() && flags.contains(OFlags::CREATE);
        let next = match fs::openat(here, name, step, Mode::empty()) {
            Err(Errno::NOENT) if creates => {
                return fs::openat(here, name, flags | OFlags::NOFOLLOW, mode);
            }
            other => other?,
        };
        if reach.mounts == Mounts::Stay && mount_of(&next)? != home_mount {
            return Err(Errno::XDEV);
        }
        if FileType::from_raw_mode(fs::fstat(&next)?.st_mode) != FileType::Symlink {
            trail.push(next);
            continue;
        }
        links += 1;
        if reach.symlinks == Symlinks::Refuse || links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = fs::readlinkat(&next, "", Vec::new())?;
        let mut parts = split(Path::new(OsStr::from_bytes(target.as_bytes())))?;
        parts.reverse();
        todo.append(&mut parts);
    }
    reopen(trail.pop().ok_or(Errno::XDEV)?, flags, mode)
}

/// Turns the `O_PATH` descriptor of a resolved file into one with the wanted access.
fn reopen(found: OwnedFd, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
    let kind = FileType::from_raw_mode(fs::fstat(&found)?.st_mode);
    if flags.contains(OFlags::CREATE | OFlags::EXCL) {
        return Err(Errno::EXIST);
    }
    if flags.contains(OFlags::DIRECTORY) && kind != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    if flags.contains(OFlags::PATH) {
        return Ok(found);
    }
    fs::open(proc_path(&found), flags - OFlags::NOFOLLOW - OFlags::CREATE, mode)
}

fn split(path: &Path) -> rustix::io::Result<Vec<Vec<u8>>> {
    if path.is_absolute() {
        return Err(Errno::XDEV);
    }
    Ok(path
        .as_os_str()
        .as_bytes()
        .split(|b| *b == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect())
}

fn mount_of(fd: &OwnedFd) -> rustix::io::Result<u64> {
    mount_id(fd).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
}

fn mount_id_from_fdinfo(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    text.lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .and_then(|id| id.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no mnt_id in fdinfo"))
}

#[cfg(test)]
#[path = "fd_tests.rs"]
mod tests;
