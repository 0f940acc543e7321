//! configMap, secret, downwardAPI and projected: files rewritten when their content changes, on a tmpfs unless they
//! may be read by anybody.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use kubelet_core::volumes::atomic::DATA;
use kubelet_core::volumes::{FilesKind, Payload};
use rustix::fs::Mode;
use sys::fd;
use sys::mount::Memory;

use super::fs_group::{self, Access};
use super::site::Site;
use super::{atomic_writer, memory_dir};

pub(super) fn plugin(kind: FilesKind) -> &'static str {
    match kind {
        FilesKind::ConfigMap => "kubernetes.io~configmap",
        FilesKind::DownwardApi => "kubernetes.io~downward-api",
        FilesKind::Projected => "kubernetes.io~projected",
        FilesKind::Secret => "kubernetes.io~secret",
    }
}

pub(super) fn set_up(
    site: &Site<'_>,
    kind: FilesKind,
    payload: &Payload,
    size: Option<u64>,
    stamp: &mut dyn FnMut() -> String,
) -> io::Result<PathBuf> {
    let parent = site.parent(plugin(kind))?;
    let tmpfs = Memory::Tmpfs { size, inodes: None, mode: 0o1777, noswap: true };
    let dir = match kind {
        // Nothing in it is secret, so it may lie on the disk, as upstream's does.
        FilesKind::ConfigMap => disk_dir(&parent, site.name())?,
        _ => memory_dir::ensure(&parent, site.name(), &tmpfs)?,
    };
    let gid = site.fs_group.map(|group| group.gid);
    atomic_writer::write(dir.as_fd(), payload, gid, stamp)?;
    if let Some(gid) = gid {
        // The files have their group since before they became visible; only the root is left.
        fs_group::set(dir.as_fd(), gid, Access::ReadOnly)?;
    }
    Ok(site.path(plugin(kind)))
}

/// Whether files were written once: the link to them is made last.
pub(super) fn stands(site: &Site<'_>, kind: FilesKind) -> bool {
    let dir = site.pod.open_volume(plugin(kind), site.volume);
    dir.is_ok_and(|dir| rustix::fs::readlinkat(dir, DATA, Vec::new()).is_ok())
}

fn disk_dir(parent: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let dir = fd::make_dir(parent.as_fd(), name, Mode::from_raw_mode(0o777))?;
    // Whatever the umask made of it.
    fd::chmod(&dir, Mode::from_raw_mode(0o777))?;
    Ok(dir)
}
