//! nfs: mounted by the system's own program, which speaks to the server's helpers where the version needs them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::fs::Mode;
use sys::fd;

use super::kind::{NoRoot, Tools, VolumeKind};
use super::pod_queue::waiting_for;
use super::program::{self, how};
use super::site::Site;
use crate::ports::MountedVolume;

pub(super) const PLUGIN: &str = "kubernetes.io~nfs";

pub(super) struct Nfs<'a> {
    /// `server:/path`
    pub(super) share: &'a str,
    pub(super) options: &'a [String],
    pub(super) read_only: bool,
}

// === impl Nfs ===

impl Nfs<'_> {
    fn at(&self, path: PathBuf) -> MountedVolume {
        MountedVolume::Host { path, read_only: self.read_only }
    }
}

impl VolumeKind for Nfs<'_> {
    fn set_up(&self, site: &Site<'_>, tools: &Tools<'_>) -> io::Result<MountedVolume> {
        set_up(site, self.share, self.options, tools.program).map(|path| self.at(path))
    }

    fn standing(&self, site: &Site<'_>, _: bool) -> Option<MountedVolume> {
        let is_there = fd::is_mount_point(site.parent(PLUGIN).ok()?, site.name()).ok()?;
        is_there.then(|| self.at(site.path(PLUGIN)))
    }

    fn open(&self, site: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Ok(site.pod.open_volume(PLUGIN, site.volume)?)
    }

    fn server(&self) -> Option<&str> {
        Some(self.share)
    }
}

/// Mounts the share unless it is mounted. A server that does not answer holds this thread, and with it the Pod's
/// queue, and nobody else.
fn set_up(site: &Site<'_>, share: &str, options: &[String], timeout: Duration) -> io::Result<PathBuf> {
    let parent = site.parent(PLUGIN)?;
    fd::make_dir(&parent, site.name(), Mode::from_raw_mode(0o750))?;
    let path = site.path(PLUGIN);
    waiting_for(Some(site.volume), format!("mount {share}"));
    if fd::is_mount_point(&parent, site.name())? {
        return Ok(path);
    }
    let mut mount = Command::new("mount");
    mount.args(["-t", "nfs"]);
    if !options.is_empty() {
        mount.arg("-o").arg(options.join(","));
    }
    mount.arg(share).arg(&path);
    let ended = program::run(&mut mount, timeout)?;
    if ended.status.success() {
        return Ok(path);
    }
    let (how, words) = (how(ended.status), ended.err);
    Err(io::Error::other(format!("mount failed: {how}: mounting {share}: {words}")))
}
