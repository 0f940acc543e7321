//! nfs: mounted by the system's own program, which speaks to the server's helpers where the version needs them.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::fs::Mode;
use sys::fd;

use super::pod_queue::waiting_for;
use super::program::{self, how};
use super::site::Site;

pub(super) const PLUGIN: &str = "kubernetes.io~nfs";

/// Mounts the share unless it is mounted. A server that does not answer holds this thread, and with it the Pod's
/// queue, and nobody else.
pub(super) fn set_up(
    site: &Site<'_>,
    share: &str,
    options: &[String],
    patience: Duration,
) -> io::Result<PathBuf> {
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
    let ended = program::run(&mut mount, patience)?;
    if ended.status.success() {
        return Ok(path);
    }
    let (how, words) = (how(ended.status), ended.err);
    Err(io::Error::other(format!("mount failed: {how}: mounting {share}: {words}")))
}
