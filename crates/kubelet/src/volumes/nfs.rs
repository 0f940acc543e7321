//! nfs: mounted by the system's own program, which speaks to the server's helpers where the version needs them.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::Mode;
use sys::fd;

use super::site::Site;

pub(super) const PLUGIN: &str = "kubernetes.io~nfs";

/// Mounts the share unless it is mounted. A server that does not answer holds this thread, and with it the Pod's
/// lane, and nobody else.
pub(super) fn set_up(site: &Site<'_>, share: &str, options: &[String]) -> io::Result<PathBuf> {
    let parent = site.parent(PLUGIN)?;
    fd::make_dir(&parent, site.name(), Mode::from_raw_mode(0o750))?;
    let path = site.path(PLUGIN);
    if fd::is_mount_point(&parent, site.name())? {
        return Ok(path);
    }
    let mut mount = Command::new("mount");
    mount.args(["-t", "nfs"]);
    if !options.is_empty() {
        mount.arg("-o").arg(options.join(","));
    }
    let done = mount.arg(share).arg(&path).stdin(Stdio::null()).output()?;
    if done.status.success() {
        return Ok(path);
    }
    let how = match (done.status.code(), done.status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or(0)),
    };
    let words = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("mount failed: {how}: mounting {share}: {}", words.trim())))
}
