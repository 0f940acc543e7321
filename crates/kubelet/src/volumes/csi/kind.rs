//! csi among the other kinds: a driver makes the volume ready, elsewhere; what is left is where it is.

use std::io;
use std::os::fd::OwnedFd;

use kubelet_core::volumes::CsiVolume;
use kubelet_core::volumes::csi::PLUGIN_DIR;

use super::books::MOUNT;
use crate::ports::MountedVolume;
use crate::volumes::kind::{NoRoot, Tools, VolumeKind};
use crate::volumes::site::Site;

pub(in crate::volumes) struct Csi<'a>(pub(in crate::volumes) &'a CsiVolume);

// === impl Csi ===

impl VolumeKind for Csi<'_> {
    fn set_up(&self, _: &Site<'_>, _: &Tools<'_>) -> io::Result<MountedVolume> {
        Err(io::Error::other("a driver mounts this volume"))
    }

    fn standing(&self, _: &Site<'_>, _: bool) -> Option<MountedVolume> {
        None
    }

    fn open(&self, site: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Ok(site.pod.open_volume(PLUGIN_DIR, &format!("{}/{MOUNT}", self.0.spec_name))?)
    }
}
