//! A file system on a device of this node. One that has none gets one.
//!
//! Upstream mounts it once for the node and binds that to each Pod. Here each Pod has a mount of its own: to the kernel
//! that is the same file system, and there is nothing to take away after the last Pod.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::program::{self, Ended, how};

/// Longer than any device takes that works.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Between the look at a device and its mount nobody else may format it.
static FORMATTING: Mutex<()> = Mutex::new(());

/// What a PersistentVolume says of how it is mounted.
pub(super) struct Manner<'a> {
    pub(super) fs_type: &'a str,
    pub(super) options: &'a [String],
    pub(super) read_only: bool,
}

/// Mounts the device's file system at `target`.
pub(super) fn mount(device: &Path, target: &Path, manner: &Manner<'_>) -> io::Result<()> {
    let failed = |e: io::Error| {
        let (device, target, kind) = (device.display(), target.display(), manner.fs_type);
        let text = format!("local: failed to mount device {device} at {target} (fstype: {kind}), error {e}");
        io::Error::new(e.kind(), text)
    };
    let _alone = FORMATTING.lock().unwrap_or_else(PoisonError::into_inner);
    prepare(device, manner).map_err(failed)?;
    let read_only = manner.read_only.then_some("ro");
    let options = read_only.into_iter().chain(manner.options.iter().map(String::as_str)).chain(["defaults"]);
    let options: Vec<&str> = options.collect();
    let mut mount = Command::new("mount");
    mount.args(["-t", manner.fs_type, "-o"]).arg(options.join(",")).arg(device).arg(target);
    done(program::run(&mut mount, TIMEOUT), "mount failed").map_err(failed)
}

/// Gives a bound directory the options of its PersistentVolume.
pub(super) fn restrict(target: &Path, options: &[String]) -> io::Result<()> {
    if options.is_empty() {
        return Ok(());
    }
    let mut mount = Command::new("mount");
    mount.arg("-o").arg(format!("remount,bind,{}", options.join(","))).arg(target);
    done(program::run(&mut mount, TIMEOUT), "mount failed")
}

/// Checks the file system, or makes one where there is nothing.
fn prepare(device: &Path, manner: &Manner<'_>) -> io::Result<()> {
    match (holds(device)?, manner.read_only) {
        (true, true) => Ok(()),
        (true, false) => check(device),
        (false, true) => {
            let device = device.display();
            let text =
                format!("cannot mount unformatted disk {device} as we are manipulating it in read-only mode");
            Err(io::Error::other(text))
        }
        (false, false) => format(device, manner.fs_type),
    }
}

/// Whether there is anything on the device. Partitions are something too: they are never written over.
fn holds(device: &Path) -> io::Result<bool> {
    let mut look = Command::new("blkid");
    look.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device);
    let ended = program::run(&mut look, TIMEOUT)?;
    match ended.status.code() {
        Some(0) => Ok(ended.out.lines().any(|line| line.starts_with("TYPE=") || line.starts_with("PTTYPE="))),
        // This is how it says that it found nothing.
        Some(2) => Ok(false),
        _ => done(Ok(ended), "blkid failed").map(|()| true),
    }
}

/// Errors that the program leaves behind are errors; that there is no such program is none.
fn check(device: &Path) -> io::Result<()> {
    let ended = match program::run(Command::new("fsck").arg("-a").arg(device), TIMEOUT) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        ended => ended?,
    };
    match ended.status.code() {
        Some(4) => {
            let (device, words) = (device.display(), ended.out);
            let text = format!("'fsck' found errors on device {device} but could not correct them: {words}");
            Err(io::Error::other(text))
        }
        _ => Ok(()),
    }
}

fn format(device: &Path, fs_type: &str) -> io::Result<()> {
    let mut make = Command::new(format!("mkfs.{fs_type}"));
    match fs_type {
        "ext3" | "ext4" => _ = make.args(["-F", "-m0"]),
        "xfs" => _ = make.arg("-f"),
        _ => {}
    }
    tracing::info!(device = %device.display(), fs_type, "formatting a device that holds nothing");
    done(program::run(make.arg(device), TIMEOUT), "format of disk failed")
}

fn done(ended: io::Result<Ended>, what: &str) -> io::Result<()> {
    let ended = ended?;
    match ended.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{what}: {}: {} {}", how(ended.status), ended.out, ended.err))),
    }
}
