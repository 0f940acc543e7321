//! What the node does for volumes of one kind.
//!
//! A new kind is one file that implements [`VolumeKind`], and one line in the table of this room (`kind_of`).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::site::Site;
use crate::ports::{MountedVolume, VolumeAct};

/// One volume, as its kind sees it. Everything here may block: it runs in the Pod's queue.
pub(super) trait VolumeKind {
    /// Makes it ready, as far as it is not.
    fn set_up(&self, site: &Site<'_>, tools: &Tools<'_>) -> io::Result<MountedVolume>;

    /// Where it is, if it was set up to its end and is still there. What leaves no trace on the disk counts if it
    /// `is_known` to have been ready.
    fn standing(&self, site: &Site<'_>, is_known: bool) -> Option<MountedVolume>;

    /// Its root, where a subPath begins.
    fn open(&self, site: &Site<'_>) -> Result<OwnedFd, NoRoot>;

    /// What belongs to the host is looked at when the Pod starts. What becomes of it later is not our business: nothing
    /// is made again that somebody took away.
    fn is_set_up_once(&self) -> bool {
        false
    }

    /// Set for a volume that one Pod at a time may have.
    fn exclusive(&self) -> Option<Exclusive<'_>> {
        None
    }

    /// Whether another Pod of this node has it. Asked of exclusive ones only.
    fn is_elsewhere(&self, _: &Site<'_>) -> io::Result<bool> {
        Ok(false)
    }

    /// What is on the other side of the network, for whoever waits for it.
    fn server(&self) -> Option<&str> {
        None
    }
}

/// What a kind may use.
pub(super) struct Tools<'a> {
    /// The name of a new directory of files.
    pub(super) stamp: &'a dyn Fn() -> String,
    /// How long a program of the host may run.
    pub(super) program: Duration,
}

/// A volume for one Pod at a time.
pub(super) struct Exclusive<'a> {
    /// As the node knows it.
    pub(super) name: &'a str,
    /// What fails while another Pod has it.
    pub(super) act: VolumeAct,
}

/// Why a subPath has nowhere to begin.
pub(super) enum NoRoot {
    /// It may be there later.
    Failed(io::Error),
    /// Volumes of this kind have none.
    Never(&'static str),
}

impl From<io::Error> for NoRoot {
    fn from(error: io::Error) -> NoRoot {
        NoRoot::Failed(error)
    }
}
