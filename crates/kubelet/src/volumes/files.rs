//! configMap, secret, downwardAPI and projected: files rewritten when their content changes, on a tmpfs unless they
//! may be read by anybody.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use kubelet_core::volumes::atomic::{DATA, top};
use kubelet_core::volumes::{FilesKind, Payload};
use rustix::fs::{Mode, OFlags};
use sys::fd;
use sys::mount::Memory;

use super::fs_group::{self, Access};
use super::kind::{NoRoot, Tools, VolumeKind};
use super::site::Site;
use super::sub_path::INSIDE;
use super::{atomic_writer, memory_dir};
use crate::ports::MountedVolume;

fn plugin(kind: FilesKind) -> &'static str {
    match kind {
        FilesKind::ConfigMap => "kubernetes.io~configmap",
        FilesKind::DownwardApi => "kubernetes.io~downward-api",
        FilesKind::Projected => "kubernetes.io~projected",
        FilesKind::Secret => "kubernetes.io~secret",
    }
}

pub(super) struct Files<'a> {
    pub(super) kind: FilesKind,
    pub(super) payload: &'a Payload,
    /// Directories where containers have other volumes.
    pub(super) nested: &'a [String],
    pub(super) size: Option<u64>,
    pub(super) read_only: bool,
}

// === impl Files ===

impl Files<'_> {
    fn at(&self, path: PathBuf) -> MountedVolume {
        MountedVolume::Host { path, read_only: self.read_only }
    }
}

impl VolumeKind for Files<'_> {
    fn set_up(&self, site: &Site<'_>, tools: &Tools<'_>) -> io::Result<MountedVolume> {
        set_up(site, self, tools.stamp).map(|path| self.at(path))
    }

    fn standing(&self, site: &Site<'_>, _: bool) -> Option<MountedVolume> {
        stands(site, self.kind).then(|| self.at(site.path(plugin(self.kind))))
    }

    fn open(&self, site: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Ok(site.pod.open_volume(plugin(self.kind), site.volume)?)
    }
}

fn set_up(site: &Site<'_>, content: &Files<'_>, stamp: &dyn Fn() -> String) -> io::Result<PathBuf> {
    let Files { kind, size, .. } = *content;
    let parent = site.parent(plugin(kind))?;
    let tmpfs = Memory::Tmpfs { size, inodes: None, mode: 0o1777, noswap: true };
    let dir = match kind {
        // Nothing in it is secret, so it may lie on the disk, as upstream's does.
        FilesKind::ConfigMap => disk_dir(&parent, site.name())?,
        _ => memory_dir::ensure(&parent, site.name(), &tmpfs)?,
    };
    let gid = site.fs_group.map(|group| group.gid);
    // A file of the same name makes way for another volume, unless containers use it already.
    let is_free = |path: &&String| rustix::fs::readlinkat(&dir, top(path), Vec::new()).is_err();
    make_nested(dir.as_fd(), content.nested.iter().filter(is_free), gid)?;
    atomic_writer::write(dir.as_fd(), content.payload, gid, &mut || stamp())?;
    make_nested(dir.as_fd(), content.nested.iter(), gid)?;
    if let Some(gid) = gid {
        // The files have their group since before they became visible; only the root is left.
        fs_group::set(dir.as_fd(), gid, Access::ReadOnly)?;
    }
    Ok(site.path(plugin(kind)))
}

/// Whether files were written once: the link to them is made last.
fn stands(site: &Site<'_>, kind: FilesKind) -> bool {
    let dir = site.pod.open_volume(plugin(kind), site.volume);
    dir.is_ok_and(|dir| rustix::fs::readlinkat(dir, DATA, Vec::new()).is_ok())
}

/// Makes the places where other volumes are mounted in containers.
fn make_nested<'a>(
    dir: BorrowedFd<'_>,
    places: impl Iterator<Item = &'a String>,
    gid: Option<u32>,
) -> io::Result<()> {
    for place in places {
        let (mut here, mut so_far) = (dir.try_clone_to_owned()?, PathBuf::new());
        for name in fd::names(Path::new(place))? {
            so_far.push(name);
            // From the top each time, because `name` may be a link to a directory of our files.
            here = match fd::open_beneath(dir, &so_far, OFlags::PATH | OFlags::DIRECTORY, INSIDE) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    fd::make_dir(&here, name, Mode::from_raw_mode(0o755))?
                }
                other => other?,
            };
            if let Some(gid) = gid {
                fs_group::set(&here, gid, Access::ReadOnly)?;
            }
        }
    }
    Ok(())
}

fn disk_dir(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let dir = fd::make_dir(parent.as_fd(), name, Mode::from_raw_mode(0o777))?;
    // Whatever the umask made of it.
    fd::chmod(&dir, Mode::from_raw_mode(0o777))?;
    Ok(dir)
}
