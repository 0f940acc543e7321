//! Taking a Pod's volumes away.
//!
//! Everything is found anew from the mount table and the disk, so it works after any crash. First all
//! mounts below the Pod's directory go, the last made first; only when none is left is anything deleted,
//! and the deletion itself cannot enter a mount either. User data that somebody mounted in there survives.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, OFlags};
use rustix::io::Errno;
use sys::fd::{self, OWN};
use sys::mount::{self, Busy};
use sys::mountinfo::{self, Mount};
use sys::tree;

use super::force_unmount;
use super::pod_queue::waiting_for;
use super::site::{PodDir, Tree, VOLUMES, is_file_name};
use super::timeouts::Timeouts;
use super::{nfs, reject, retry, sub_path};
use crate::ports::{VolumeAct, VolumeError};

/// Removes the Pod's volumes and leaves the rest of its directory, or says what is in the way.
pub(super) fn remove_volumes(tree: &Tree, timeouts: &Timeouts, uid: &str) -> Result<(), VolumeError> {
    let failed = |e: &dyn std::fmt::Display| retry(VolumeAct::Unmount, uid, e);
    let pods = tree.open_pods().map_err(|e| failed(&e))?;
    let Some(pod) = without_mounts(tree, timeouts, &pods, uid)? else { return Ok(()) };
    set_aside(&pod).map_err(|e| failed(&e))?;
    for name in [REMOVING, sub_path::DIR] {
        tree::remove(&pod.dir, OsStr::new(name)).map_err(|e| failed(&e))?;
    }
    Ok(())
}

/// Lets go of our second views of the Pod's volumes: whoever mounted those may then unmount them.
pub(super) fn unmount_sub_paths(tree: &Tree, uid: &str) -> Result<(), VolumeError> {
    if !is_file_name(uid) {
        return Err(reject(VolumeAct::Unmount, uid, format!("{uid:?} is no Pod UID")));
    }
    let dir = tree.real.join(uid).join(sub_path::DIR);
    let failed = |e: &dyn std::fmt::Display| retry(VolumeAct::Unmount, uid, e);
    let mounts = mountinfo::below(&dir).map_err(|e| failed(&e))?;
    if mounts.is_empty() {
        return Ok(());
    }
    let pods = tree.open_pods().map_err(|e| failed(&e))?;
    for mount in &mounts {
        unmount_one(&pods, &tree.real, mount, true).map_err(|e| failed(&describe(mount, &e)))?;
    }
    Ok(())
}

/// Removes the Pod's directory with all its volumes, or says what is in the way.
pub(super) fn remove_pod(tree: &Tree, timeouts: &Timeouts, uid: &str) -> Result<(), VolumeError> {
    let failed = |e: &dyn std::fmt::Display| retry(VolumeAct::Unmount, uid, e);
    let pods = tree.open_pods().map_err(|e| failed(&e))?;
    let Some(pod) = without_mounts(tree, timeouts, &pods, uid)? else { return Ok(()) };
    set_aside(&pod).map_err(|e| failed(&e))?;
    tree::remove(&pods, OsStr::new(uid)).map_err(|e| failed(&e))
}

/// The Pod's directory with nothing mounted in it any more; none if it has none.
fn without_mounts(
    tree: &Tree,
    timeouts: &Timeouts,
    pods: &OwnedFd,
    uid: &str,
) -> Result<Option<PodDir>, VolumeError> {
    if !is_file_name(uid) {
        return Err(reject(VolumeAct::Unmount, uid, format!("{uid:?} is no Pod UID")));
    }
    let failed = |e: &dyn std::fmt::Display| retry(VolumeAct::Unmount, uid, e);
    let name = OsStr::new(uid);
    if !exists(pods, name).map_err(|e| failed(&e))? {
        return Ok(None);
    }
    let real = tree.real.join(uid);
    unmount_all(pods, timeouts, &tree.real, &real)?;
    waiting_for(None, "remove the files of the Pod's volumes".to_owned());
    // Opened only now: a mount may have covered the Pod's directory itself.
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let dir = fd::open_beneath(pods, Path::new(name), flags, OWN).map_err(|e| failed(&e))?;
    Ok(Some(PodDir { dir, path: tree.path.join(uid), real }))
}

/// Ends a removal that a crash interrupted, before the Pod (a static one, come back) gets new volumes.
pub(super) fn forget_removed(pod: &PodDir) -> Result<(), String> {
    tree::remove(&pod.dir, OsStr::new(REMOVING)).map_err(|e| e.to_string())
}

const REMOVING: &str = "volumes.removing";
const ROUNDS: usize = 64;

/// The volumes leave their place in one step: a Pod of the same UID never meets half of them.
fn set_aside(pod: &PodDir) -> Result<(), String> {
    forget_removed(pod)?;
    match rustix::fs::renameat(&pod.dir, VOLUMES, &pod.dir, REMOVING) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(format!("set aside volumes: {}", io::Error::from(e))),
    }
}

fn exists(dir: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Goes on as long as something gives way: mounts stack, and one may hide another.
fn unmount_all(pods: &OwnedFd, timeouts: &Timeouts, base: &Path, pod: &Path) -> Result<(), VolumeError> {
    for _ in 0..ROUNDS {
        let mut left =
            mountinfo::below(pod).map_err(|e| retry(VolumeAct::Unmount, &name_of(pod, pod), &e))?;
        if left.is_empty() {
            return Ok(());
        }
        let before = left.len();
        let mut blocker = None;
        let mut next = 0;
        while let Some(mount) = left.get(next) {
            // Detaching a mount would take along what is mounted in it.
            let may_detach = is_ours(pod, mount) && !left.iter().any(|other| other.parent == mount.id);
            let from = mount.source.to_string_lossy();
            let what = format!("unmount {} ({} from {from})", mount.mount_point.display(), mount.fs_type);
            waiting_for(Some(&name_of(pod, &mount.mount_point)), what);
            let done = match is_share(pod, mount) {
                true => unmount_share(pods, timeouts, base, mount),
                false => unmount_one(pods, base, mount, may_detach),
            };
            match done {
                Ok(()) => {
                    left.remove(next);
                }
                Err(e) => {
                    blocker.get_or_insert_with(|| (name_of(pod, &mount.mount_point), describe(mount, &e)));
                    next += 1;
                }
            }
        }
        if let Some((volume, message)) = blocker.filter(|_| left.len() == before) {
            return Err(retry(VolumeAct::Unmount, &volume, &message));
        }
    }
    Err(retry(VolumeAct::Unmount, &name_of(pod, pod), &"new mounts appear as fast as they are removed"))
}

fn unmount_one(pods: &OwnedFd, base: &Path, mount: &Mount, may_detach: bool) -> io::Result<()> {
    let (parent, name) = parent_of(pods, base, &mount.mount_point)?;
    match mount::unmount(&parent, &name, Busy::Refuse) {
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) && may_detach => {
            mount::unmount(&parent, &name, Busy::Detach)
        }
        other => other,
    }
}

/// One that we mounted from a server, which may be dead.
fn unmount_share(pods: &OwnedFd, timeouts: &Timeouts, base: &Path, mount: &Mount) -> io::Result<()> {
    let (parent, name) = parent_of(pods, base, &mount.mount_point)?;
    let id = mount.id;
    let is_gone = || mountinfo::read().is_ok_and(|all| all.iter().all(|m| m.id != id));
    force_unmount::unmount(timeouts, move |busy| mount::unmount(&parent, &name, busy), is_gone)
}

fn parent_of(pods: &OwnedFd, base: &Path, mount_point: &Path) -> io::Result<(OwnedFd, OsString)> {
    let missing = || io::Error::from(io::ErrorKind::InvalidInput);
    let rel = mount_point.strip_prefix(base).map_err(|_| missing())?;
    let name = rel.file_name().ok_or_else(missing)?;
    let parent = rel.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = fd::open_beneath(pods, parent, OFlags::PATH | OFlags::DIRECTORY, OWN)?;
    Ok((dir, name.to_owned()))
}

/// Memory that dies with the Pod, or our second view of a volume: nothing is lost by letting go of it
/// while somebody still looks. Anything else was mounted by others, and they are asked first.
fn is_ours(pod: &Path, mount: &Mount) -> bool {
    let parts = parts(pod, &mount.mount_point);
    match parts.as_slice() {
        [first, _, _] if first == VOLUMES => matches!(mount.fs_type.as_str(), "tmpfs" | "hugetlbfs"),
        [first, _, _, _] => first == sub_path::DIR,
        _ => false,
    }
}

/// Ours alone: what a driver mounted from a server is the driver's to take away.
fn is_share(pod: &Path, mount: &Mount) -> bool {
    let parts = parts(pod, &mount.mount_point);
    let is_place =
        matches!(parts.as_slice(), [first, plugin, _] if first == VOLUMES && plugin == nfs::PLUGIN);
    is_place && force_unmount::is_remote(&mount.fs_type)
}

/// The volume a path below the Pod's directory belongs to, or the path itself.
fn name_of(pod: &Path, path: &Path) -> String {
    let parts = parts(pod, path);
    match parts.as_slice() {
        [first, _, volume, ..] if first == VOLUMES => volume.clone(),
        [first, volume, ..] if first == sub_path::DIR => volume.clone(),
        _ => path.display().to_string(),
    }
}

fn parts(pod: &Path, path: &Path) -> Vec<String> {
    let rel = path.strip_prefix(pod).unwrap_or(Path::new(""));
    let names = rel.components().filter(|c| matches!(c, Component::Normal(_)));
    names.map(|c| c.as_os_str().to_string_lossy().into_owned()).collect()
}

fn describe(mount: &Mount, error: &io::Error) -> String {
    format!(
        "{} is still mounted ({} from {}): {error}",
        mount.mount_point.display(),
        mount.fs_type,
        mount.source.to_string_lossy()
    )
}
