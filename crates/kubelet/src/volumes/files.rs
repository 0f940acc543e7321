//! downwardAPI and projected: files on a tmpfs, rewritten when their content changes.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use kubelet_core::volumes::{FilesKind, Payload};
use sys::mount::Memory;

use super::fs_group::{self, Access};
use super::site::Site;
use super::{atomic_writer, memory_dir};

pub(super) fn plugin(kind: FilesKind) -> &'static str {
    match kind {
        FilesKind::DownwardApi => "kubernetes.io~downward-api",
        FilesKind::Projected => "kubernetes.io~projected",
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
    let dir = memory_dir::ensure(&parent, site.name(), &tmpfs)?;
    let gid = site.fs_group.map(|group| group.gid);
    atomic_writer::write(dir.as_fd(), payload, gid, stamp)?;
    if let Some(gid) = gid {
        // The files have their group since before they became visible; only the root is left.
        fs_group::set(dir.as_fd(), gid, Access::ReadOnly)?;
    }
    Ok(site.path(plugin(kind)))
}
