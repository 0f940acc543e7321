//! Owner, mode, times and extended attributes.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, setxattr, utimensat};
use rustix::io::Errno;

use crate::tar::Entry;

const OPAQUE: &str = "trusted.overlay.opaque";

/// The owner first: changing it takes away the bits that lend rights, and capabilities.
pub(super) fn set(file: impl AsFd, entry: &Entry) -> io::Result<()> {
    let file = file.as_fd();
    sys::fd::chown(file, Some(entry.uid), Some(entry.gid))?;
    sys::fd::chmod(file, Mode::from_raw_mode(entry.mode))?;
    for (name, value) in entry.xattrs.iter().filter(|(name, _)| is_ours_to_set(name)) {
        match setxattr(sys::fd::proc_path(&file), OsStr::from_bytes(name), value, XattrFlags::empty()) {
            // A file system that has none: containerd goes on, too.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

pub(super) fn set_times(file: impl AsFd, entry: &Entry) -> io::Result<()> {
    Ok(utimensat(file, "", &times(entry), AtFlags::EMPTY_PATH)?)
}

/// A link has neither mode nor attributes.
pub(super) fn set_link(dir: &OwnedFd, name: &OsStr, entry: &Entry) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(entry.uid), Gid::from_raw(entry.gid));
    chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(utimensat(dir, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn times(entry: &Entry) -> Timestamps {
    let (tv_sec, nanos) = entry.mtime;
    let time = Timespec { tv_sec, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

/// Nothing of the layers below is to be seen in this directory.
pub(super) fn make_opaque(dir: &OwnedFd) -> io::Result<()> {
    Ok(setxattr(sys::fd::proc_path(dir), OPAQUE, b"y", XattrFlags::empty())?)
}

/// What steers overlayfs or the kernel's trust is not an image's to say.
pub(crate) fn is_ours_to_set(name: &[u8]) -> bool {
    let is_users = name.starts_with(b"user.") && !name.starts_with(b"user.overlay.");
    is_users
        || matches!(name, b"security.capability" | b"system.posix_acl_access" | b"system.posix_acl_default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_may_not_speak_to_overlayfs() {
        for (name, may) in [
            ("user.mime_type", true),
            ("security.capability", true),
            ("trusted.overlay.redirect", false),
            ("user.overlay.opaque", false),
            ("security.selinux", false),
            ("trusted.x", false),
        ] {
            assert_eq!(is_ours_to_set(name.as_bytes()), may, "{name}");
        }
    }
}
