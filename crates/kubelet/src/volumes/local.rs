//! local: a directory or a file system of this node, in a place of the Pod's own; or one of its devices.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use sys::fd::{self, OWN};
use sys::{mount, mountinfo};

use super::device::Manner;
use super::fs_group::{self, Access};
use super::kind::{Exclusive, NoRoot, Tools, VolumeKind};
use super::pod_queue::waiting_for;
use super::site::{OWN_MODE, Site};
use super::{device, host_path};
use crate::ports::{MountedVolume, VolumeAct};

const PLUGIN: &str = "kubernetes.io~local-volume";

pub(super) struct Local<'a> {
    pub(super) path: &'a Path,
    /// The name of the PersistentVolume, and of its place in the Pod.
    pub(super) spec_name: &'a str,
    pub(super) manner: Manner<'a>,
    pub(super) exclusive: bool,
}

// === impl Local ===

impl Local<'_> {
    fn site<'s>(&'s self, site: &Site<'s>) -> Site<'s> {
        Site { volume: self.spec_name, ..*site }
    }

    fn at(&self, path: PathBuf) -> MountedVolume {
        MountedVolume::Host { path, read_only: self.manner.read_only }
    }
}

impl VolumeKind for Local<'_> {
    fn set_up(&self, site: &Site<'_>, _: &Tools<'_>) -> io::Result<MountedVolume> {
        set_up(&self.site(site), self.path, &self.manner).map(|path| self.at(path))
    }

    fn standing(&self, site: &Site<'_>, _: bool) -> Option<MountedVolume> {
        let site = self.site(site);
        stands(&site).then(|| self.at(site.path(PLUGIN)))
    }

    fn open(&self, site: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Ok(site.pod.open_volume(PLUGIN, self.spec_name)?)
    }

    fn exclusive(&self) -> Option<Exclusive<'_>> {
        self.exclusive.then_some(Exclusive { name: self.spec_name, act: VolumeAct::SetUp })
    }

    fn is_elsewhere(&self, site: &Site<'_>) -> io::Result<bool> {
        is_elsewhere(&self.site(site))
    }
}

/// Makes the volume appear in the Pod's place unless it is there: a directory is bound, a device mounted. The first Pod on
/// the node gives it to its group; another that shares it takes it as it is, because a second walk would take it from
/// the first.
fn set_up(site: &Site<'_>, source: &Path, manner: &Manner<'_>) -> io::Result<PathBuf> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("path {}: {e}", source.display()));
    let parent = site.parent(PLUGIN)?;
    let below = fd::make_dir(&parent, site.name(), OWN_MODE)?;
    let path = site.path(PLUGIN);
    let is_bound = fd::is_mount_point(&parent, site.name())?;
    if is_bound && site.is_ready(PLUGIN) {
        return Ok(path);
    }
    let root = host_path::open(source).map_err(named)?;
    let kind = fs::metadata(source).map_err(named)?.file_type();
    let is_shared = is_elsewhere(site)?;
    if !is_bound {
        waiting_for(Some(site.volume), format!("mount {}", source.display()));
        if kind.is_dir() {
            mount::bind(&root, &below, false).map_err(named)?;
            device::restrict(&path, manner.options)?;
        } else if kind.is_block_device() {
            device::mount(source, &path, manner)?;
        } else {
            return Err(io::Error::other("only directory and block device are supported"));
        }
    }
    if let Some(group) = site.fs_group.filter(|_| !manner.read_only && !is_shared) {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let top = fd::open_beneath(&parent, Path::new(site.name()), flags, OWN)?;
        fs_group::apply(top, group, Access::ReadWrite)?;
    }
    site.set_ready(PLUGIN)?;
    Ok(path)
}

/// Whether it is bound, and was to the end.
fn stands(site: &Site<'_>) -> bool {
    let is_bound = || fd::is_mount_point(site.parent(PLUGIN)?, site.name());
    site.is_ready(PLUGIN) && is_bound().unwrap_or(false)
}

/// Whether another Pod has the same volume: its name is the PersistentVolume's, so the last part of the path tells.
fn is_elsewhere(site: &Site<'_>) -> io::Result<bool> {
    let path = site.real_path(PLUGIN);
    let name = path.file_name();
    let is_other = |m: &mountinfo::Mount| {
        let parts: Vec<_> = m.mount_point.components().rev().take(2).map(|c| c.as_os_str()).collect();
        m.mount_point != path && parts.first().copied() == name && parts.get(1).is_some_and(|p| *p == PLUGIN)
    };
    Ok(mountinfo::read()?.iter().any(is_other))
}
