//! Which file systems the node has, and what that means for what is measured and what can be freed.

use super::Signal;
use crate::stats::Disks;

/// Where images and the writable layers of containers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Images are not on the kubelet's disk.
    pub image_disk: bool,
    /// Writable layers are not where the images are.
    pub split: bool,
}

/// What can be freed without taking a Pod, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    DeadContainers,
    UnusedImages,
}

/// What counts of a Pod's use of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measures {
    pub(super) layers: bool,
    pub(super) logs: bool,
    pub(super) volumes: bool,
}

// === impl Layout ===

impl Layout {
    #[must_use]
    pub fn of(disks: &Disks) -> Layout {
        Layout { image_disk: disks.has_image_disk(), split: disks.is_split() }
    }

    /// The signal whose thresholds a signal of the containers' file system has: it has none of its own.
    #[must_use]
    pub fn stands_for(self, signal: Signal) -> Option<Signal> {
        let with_images = self.image_disk && !self.split;
        match signal {
            Signal::ContainerfsAvailable if with_images => Some(Signal::ImagefsAvailable),
            Signal::ContainerfsAvailable => Some(Signal::NodefsAvailable),
            Signal::ContainerfsInodesFree if with_images => Some(Signal::ImagefsInodesFree),
            Signal::ContainerfsInodesFree => Some(Signal::NodefsInodesFree),
            _ => None,
        }
    }

    #[must_use]
    pub fn reclaims(self, signal: Signal) -> &'static [Reclaim] {
        use Reclaim::{DeadContainers, UnusedImages};
        match (Of::from(signal), self.image_disk, self.split) {
            (Of::Other, ..) => &[],
            (Of::Node, true, false) => &[],
            (Of::Images, true, true) => &[UnusedImages],
            (Of::Node | Of::Containers, true, true) => &[DeadContainers],
            _ => &[DeadContainers, UnusedImages],
        }
    }

    pub(super) fn measures(self, signal: Signal) -> Measures {
        let (layers, logs, volumes) = match (Of::from(signal), self.image_disk, self.split) {
            (Of::Node, true, false) => (false, true, true),
            (Of::Images | Of::Containers, true, false) => (true, false, false),
            // Nothing of a Pod is on the disk of images alone.
            (Of::Images, true, true) => (false, false, false),
            _ => (true, true, true),
        };
        Measures { layers, logs, volumes }
    }
}

/// The file system a signal is about.
enum Of {
    Node,
    Images,
    Containers,
    Other,
}

impl From<Signal> for Of {
    fn from(signal: Signal) -> Of {
        match signal {
            Signal::NodefsAvailable | Signal::NodefsInodesFree => Of::Node,
            Signal::ImagefsAvailable | Signal::ImagefsInodesFree => Of::Images,
            Signal::ContainerfsAvailable | Signal::ContainerfsInodesFree => Of::Containers,
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => Of::Other,
        }
    }
}
