//! A block device of this node that belongs to a PersistentVolume; containers get the device itself.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::csi::is_device;
use super::kind::{Exclusive, NoRoot, Tools, VolumeKind};
use super::site::Site;
use crate::ports::{MountedVolume, VolumeAct};

pub(super) struct LocalDevice<'a> {
    pub(super) path: &'a Path,
    /// The name of the PersistentVolume.
    pub(super) spec_name: &'a str,
    pub(super) exclusive: bool,
    pub(super) read_only: bool,
}

// === impl LocalDevice ===

impl VolumeKind for LocalDevice<'_> {
    fn set_up(&self, _: &Site<'_>, _: &Tools<'_>) -> io::Result<MountedVolume> {
        Ok(MountedVolume::Device { path: device(self.path)?, read_only: self.read_only })
    }

    fn standing(&self, _: &Site<'_>, is_known: bool) -> Option<MountedVolume> {
        let path = device(self.path).ok().filter(|_| is_known)?;
        Some(MountedVolume::Device { path, read_only: self.read_only })
    }

    fn open(&self, _: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Err(NoRoot::Never("a device has no subPath"))
    }

    fn is_set_up_once(&self) -> bool {
        true
    }

    fn exclusive(&self) -> Option<Exclusive<'_>> {
        self.exclusive.then_some(Exclusive { name: self.spec_name, act: VolumeAct::StageDevice })
    }
}

/// The device itself; containers get it under another name.
fn device(path: &Path) -> io::Result<PathBuf> {
    let path =
        path.canonicalize().map_err(|e| io::Error::new(e.kind(), format!("path {}: {e}", path.display())))?;
    match is_device(&path) {
        true => Ok(path),
        false => Err(io::Error::other(format!("{} is not a block device", path.display()))),
    }
}
