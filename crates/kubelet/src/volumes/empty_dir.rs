//! emptyDir: a directory on disk, a tmpfs or a hugetlbfs, for as long as the Pod lives.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use kubelet_core::volumes::Medium;
use rustix::fs::Mode;
use sys::fd;
use sys::mount::Memory;

use super::fs_group::{self, Access};
use super::kind::{NoRoot, Tools, VolumeKind};
use super::memory_dir;
use super::site::Site;
use crate::ports::MountedVolume;

const PLUGIN: &str = "kubernetes.io~empty-dir";

pub(super) struct EmptyDir<'a> {
    pub(super) medium: &'a Medium,
    pub(super) read_only: bool,
}

// === impl EmptyDir ===

impl EmptyDir<'_> {
    fn at(&self, path: PathBuf) -> MountedVolume {
        MountedVolume::Host { path, read_only: self.read_only }
    }
}

impl VolumeKind for EmptyDir<'_> {
    fn set_up(&self, site: &Site<'_>, _: &Tools<'_>) -> io::Result<MountedVolume> {
        set_up(site, self.medium).map(|path| self.at(path))
    }

    fn standing(&self, site: &Site<'_>, _: bool) -> Option<MountedVolume> {
        stands(site, self.medium).then(|| self.at(site.path(PLUGIN)))
    }

    fn open(&self, site: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Ok(site.pod.open_volume(PLUGIN, site.volume)?)
    }
}

/// Makes it once. Later calls leave it alone, whatever the containers did to it; only a volume in
/// memory that is no longer mounted (the machine was restarted) is made again.
fn set_up(site: &Site<'_>, medium: &Medium) -> io::Result<PathBuf> {
    let path = site.path(PLUGIN);
    let parent = site.parent(PLUGIN)?;
    if stands(site, medium) {
        return Ok(path);
    }
    let dir = match medium {
        Medium::Disk => {
            let dir = fd::make_dir(&parent, site.name(), OPEN)?;
            // Once more: a crash may have come between making it and setting its mode.
            fd::chmod(&dir, OPEN)?;
            dir
        }
        Medium::Memory { size } => {
            // 01777 is what a tmpfs has that is mounted without a word about it, upstream's way.
            let tmpfs = Memory::Tmpfs { size: *size, inodes: None, mode: 0o1777, noswap: true };
            memory_dir::ensure(&parent, site.name(), &tmpfs)?
        }
        Medium::HugePages { page_size, size } => {
            let huge = Memory::Hugetlbfs { page_size: *page_size, size: *size, mode: 0o777 };
            memory_dir::ensure(&parent, site.name(), &huge)?
        }
    };
    if let Some(group) = site.fs_group {
        fs_group::apply(dir, group, Access::ReadWrite)?;
    }
    site.set_ready(PLUGIN)?;
    Ok(path)
}

/// Whether it was made to the end, and is there.
fn stands(site: &Site<'_>, medium: &Medium) -> bool {
    site.is_ready(PLUGIN) && is_there(site, medium)
}

const OPEN: Mode = Mode::from_raw_mode(0o777);

fn is_there(site: &Site<'_>, medium: &Medium) -> bool {
    match medium {
        Medium::Disk => site.pod.open_volume(PLUGIN, site.volume).is_ok(),
        Medium::Memory { .. } | Medium::HugePages { .. } => {
            site.parent(PLUGIN).and_then(|parent| fd::is_mount_point(parent, site.name())).unwrap_or(false)
        }
    }
}
