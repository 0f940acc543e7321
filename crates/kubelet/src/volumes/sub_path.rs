//! subPath: a file or directory inside a volume, bound to a place of our own.
//!
//! Containers of the Pod may write to the volume while this runs. So the path is resolved once, below
//! the volume's root, to a descriptor; that descriptor is what gets mounted, and the runtime is given
//! our place, which nobody else can change.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use sys::fd::{self, Mounts, OWN, Reach, Symlinks};
use sys::mount::{self, Busy};
use sys::tree;

use super::pod_queue::is_left_behind;
use super::site::{OWN_MODE, PodDir, is_file_name};
use super::{reject, retry};
use crate::ports::{VolumeAct, VolumeError};

/// One volumeMount with a subPath.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) container: String,
    pub(super) index: usize,
    pub(super) sub_path: String,
}

pub(super) const DIR: &str = "volume-subpaths";

/// Binds the subPath below `root` to `volume-subpaths/<volume>/<container>/<index>` and returns that.
pub(super) fn prepare(
    pod: &PodDir,
    root: &OwnedFd,
    volume: &str,
    want: &Wanted,
) -> Result<PathBuf, VolumeError> {
    let path = Path::new(&want.sub_path);
    if path.is_absolute() {
        let message = format!("error SubPath `{}` must not be an absolute path", want.sub_path);
        return Err(reject(VolumeAct::SubPath, volume, message));
    }
    if fd::names(path).is_err() {
        let message = format!("unable to provision SubPath `{}`: must not contain '..'", want.sub_path);
        return Err(reject(VolumeAct::SubPath, volume, message));
    }
    if !is_file_name(&want.container) {
        return Err(reject(VolumeAct::SubPath, volume, format!("{:?} is no container name", want.container)));
    }
    let place = Path::new(DIR).join(volume).join(&want.container);
    let name = OsString::from(want.index.to_string());
    let done = resolve(root.as_fd(), path).and_then(|source| {
        still_wanted()?;
        let parent = fd::make_dirs(&pod.dir, &place, OWN_MODE)?;
        bind(source.as_fd(), parent.as_fd(), &name)
    });
    match done {
        Ok(()) => Ok(pod.path.join(place).join(name)),
        Err(e) => Err(retry(VolumeAct::SubPath, volume, &explain(&want.sub_path, &e))),
    }
}

/// Links made by AtomicWriter must be followed; links that lead out must not.
pub(super) const INSIDE: Reach = Reach { symlinks: Symlinks::Beneath, mounts: Mounts::Cross };

/// The file at `path` below `root`; directories that are missing are made with the root's mode.
pub(super) fn resolve(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match fd::open_beneath(root, path, OFlags::PATH, INSIDE) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    still_wanted()?;
    let mode = Mode::from_raw_mode(fd::stat(root)?.st_mode & 0o7777);
    let directory = OFlags::PATH | OFlags::DIRECTORY;
    let mut here = fd::open_beneath(root, Path::new("."), directory, INSIDE)?;
    let mut so_far = PathBuf::new();
    for name in fd::names(path)? {
        so_far.push(name);
        // From the root each time, because `name` may be a link to anywhere inside it.
        here = match fd::open_beneath(root, &so_far, directory, INSIDE) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => fd::make_dir(&here, name, mode)?,
            other => other?,
        };
    }
    Ok(here)
}

/// A server may answer when the Pod is gone long since: then nothing is made any more.
fn still_wanted() -> io::Result<()> {
    match is_left_behind() {
        true => Err(io::Error::other("the Pod is to go and no longer waits for it")),
        false => Ok(()),
    }
}

fn bind(source: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let wanted = fd::file_id(source)?;
    if fd::is_mount_point(parent, name)? {
        let there = fd::open_beneath(parent, Path::new(name), OFlags::PATH, OWN)?;
        if fd::file_id(&there)? == wanted {
            return Ok(());
        }
        // Another file of that name since the last start: containers that run keep the old one.
        drop(there);
        mount::unmount(parent, name, Busy::Detach)?;
    }
    let is_dir = FileType::from_raw_mode(fd::stat(source)?.st_mode) == FileType::Directory;
    mount::bind(source, target(parent, name, is_dir)?, false)
}

/// An empty directory to mount a directory over, or an empty file for anything else.
fn target(parent: BorrowedFd<'_>, name: &OsStr, is_dir: bool) -> io::Result<OwnedFd> {
    let existing = fd::open_beneath(parent, Path::new(name), OFlags::PATH, OWN);
    if let Ok(file) = existing {
        if (FileType::from_raw_mode(fd::stat(&file)?.st_mode) == FileType::Directory) == is_dir {
            return Ok(file);
        }
        tree::remove(parent, name).map_err(io::Error::other)?;
    }
    if is_dir {
        return fd::make_dir(parent, name, OWN_MODE);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE;
    fd::create_beneath(parent, Path::new(name), flags, Mode::from_raw_mode(0o640), OWN)
}

fn explain(path: &str, error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::XDEV) => format!("subPath {path:?} leads out of the volume"),
        Some(Errno::LOOP) => format!("subPath {path:?} leads through too many symbolic links"),
        Some(Errno::EXIST | Errno::NOENT) => format!("subPath {path:?} ends in a dangling symbolic link"),
        _ => format!("subPath {path:?}: {error}"),
    }
}
