//! image: an OCI image that the runtime mounts.

use std::io;
use std::os::fd::OwnedFd;

use super::kind::{NoRoot, Tools, VolumeKind};
use super::site::Site;
use crate::ports::MountedVolume;

pub(super) struct Image<'a> {
    pub(super) reference: &'a str,
}

// === impl Image ===

impl VolumeKind for Image<'_> {
    fn set_up(&self, _: &Site<'_>, _: &Tools<'_>) -> io::Result<MountedVolume> {
        Ok(MountedVolume::Image { reference: self.reference.to_owned() })
    }

    fn standing(&self, _: &Site<'_>, _: bool) -> Option<MountedVolume> {
        None
    }

    fn open(&self, _: &Site<'_>) -> Result<OwnedFd, NoRoot> {
        Err(NoRoot::Never("the runtime resolves the subPath of an image"))
    }
}
