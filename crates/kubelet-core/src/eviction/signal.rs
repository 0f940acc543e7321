//! What is measured, under upstream's names.

use std::collections::BTreeMap;

use base::quantity::Quantity;
use base::time::Mono;

use crate::stats::{CgroupStats, Disk, Disks, Machine};

/// In the order in which thresholds are relieved: memory before all else, because the kernel does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    MemoryAvailable,
    AllocatableMemoryAvailable,
    NodefsAvailable,
    NodefsInodesFree,
    ImagefsAvailable,
    ImagefsInodesFree,
    ContainerfsAvailable,
    ContainerfsInodesFree,
    PidAvailable,
}

/// What a Pod is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

/// What there is of something, and how much of it is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub available: i64,
    pub capacity: i64,
    pub at: Mono,
}

/// What could be read.
pub type Readings = BTreeMap<Signal, Reading>;

/// Makes readings of what was measured at that moment. `pods` is the cgroup of all Pods.
#[must_use]
pub fn readings(machine: &Machine, disks: &Disks, pods: Option<&CgroupStats>, at: Mono) -> Readings {
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let reading = |available: u64, capacity: u64| Reading {
        available: number(available),
        capacity: number(capacity),
        at,
    };
    let mut all = Readings::new();
    if let Some(memory) = &machine.memory {
        all.insert(Signal::MemoryAvailable, reading(memory.available(), memory.total));
    }
    if let Some((memory, limit)) = pods.and_then(|p| p.memory).and_then(|m| Some((m, m.limit?))) {
        let available = limit.saturating_sub(memory.working_set);
        all.insert(Signal::AllocatableMemoryAvailable, reading(available, limit));
    }
    if let Some(tasks) = machine.tasks {
        all.insert(Signal::PidAvailable, reading(tasks.most.saturating_sub(tasks.running), tasks.most));
    }
    let mut disk = |disk: Option<Disk>, space: Signal, inodes: Signal| {
        let Some(disk) = disk else { return };
        all.insert(space, reading(disk.available, disk.capacity));
        // A file system without a count of inodes has none to run out of.
        if disk.inodes > 0 {
            all.insert(inodes, reading(disk.inodes_free, disk.inodes));
        }
    };
    disk(disks.node, Signal::NodefsAvailable, Signal::NodefsInodesFree);
    disk(disks.images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree);
    disk(disks.containers.or(disks.images), Signal::ContainerfsAvailable, Signal::ContainerfsInodesFree);
    all
}

// === impl Signal ===

impl Signal {
    pub const ALL: [Signal; 9] = [
        Signal::MemoryAvailable,
        Signal::AllocatableMemoryAvailable,
        Signal::NodefsAvailable,
        Signal::NodefsInodesFree,
        Signal::ImagefsAvailable,
        Signal::ImagefsInodesFree,
        Signal::ContainerfsAvailable,
        Signal::ContainerfsInodesFree,
        Signal::PidAvailable,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::AllocatableMemoryAvailable => "allocatableMemory.available",
            Signal::NodefsAvailable => "nodefs.available",
            Signal::NodefsInodesFree => "nodefs.inodesFree",
            Signal::ImagefsAvailable => "imagefs.available",
            Signal::ImagefsInodesFree => "imagefs.inodesFree",
            Signal::ContainerfsAvailable => "containerfs.available",
            Signal::ContainerfsInodesFree => "containerfs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Signal> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    #[must_use]
    pub fn resource(self) -> Resource {
        match self {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Resource::Memory,
            Signal::NodefsAvailable | Signal::ImagefsAvailable | Signal::ContainerfsAvailable => {
                Resource::EphemeralStorage
            }
            Signal::NodefsInodesFree | Signal::ImagefsInodesFree | Signal::ContainerfsInodesFree => {
                Resource::Inodes
            }
            Signal::PidAvailable => Resource::Pids,
        }
    }

    /// The amount as people are shown it.
    #[must_use]
    pub fn quantity(self, amount: i64) -> Quantity {
        match self.resource() {
            Resource::Memory | Resource::EphemeralStorage => Quantity::from_bytes(amount),
            Resource::Inodes | Resource::Pids => Quantity::from_value(amount),
        }
    }
}

// === impl Resource ===

impl Resource {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
            Resource::Inodes => "inodes",
            Resource::Pids => "pids",
        }
    }
}
