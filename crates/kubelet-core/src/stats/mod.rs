//! What the node, its Pods and their containers use: the figures, and how the kernel's files are read.
//!
//! What nobody measured is none, never zero.

pub mod cgroup;
pub mod proc;
mod rate;

use std::collections::BTreeMap;

use base::time::Wall;

pub use cgroup::{CgroupMemory, CgroupStats, Stall, Stalls};
pub use proc::{Interface, Machine, Memory, Stalled};
pub use rate::Rates;

/// Disk that somebody uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub inodes: u64,
}

/// A whole file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub capacity: u64,
    pub available: u64,
    pub used: u64,
    /// Zero where the file system does not count them.
    pub inodes: u64,
    pub inodes_free: u64,
    /// Which file system it is: two paths on one have the same.
    pub device: u64,
}

/// The file systems that the node lives on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disks {
    /// The kubelet's root directory.
    pub node: Option<Disk>,
    /// Where the runtime keeps images.
    pub images: Option<Disk>,
    /// Where the runtime keeps what containers write.
    pub containers: Option<Disk>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuStats {
    pub at: Wall,
    /// Since the beginning.
    pub nanos: Option<u64>,
    /// At this moment.
    pub nano_cores: Option<u64>,
    pub stalls: Option<Stalls>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryStats {
    pub at: Wall,
    /// Until the limit, where there is one.
    pub available: Option<u64>,
    pub usage: Option<u64>,
    pub working_set: Option<u64>,
    pub rss: Option<u64>,
    pub faults: Option<u64>,
    pub major_faults: Option<u64>,
    pub stalls: Option<Stalls>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapStats {
    pub at: Wall,
    pub available: Option<u64>,
    pub used: Option<u64>,
}

/// The processes of a cgroup, and what they have open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processes {
    pub count: u64,
    pub descriptors: u64,
    pub sockets: u64,
    /// How many files the first of them may have open; -1 where there is no limit.
    pub open_files: Option<i64>,
}

/// A container that runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStats {
    pub name: String,
    pub id: String,
    pub image: String,
    /// Seconds since the epoch.
    pub started: Option<i64>,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    pub swap: Option<SwapStats>,
    pub io: Option<Stalls>,
    /// Its writable layer, and when that was measured.
    pub rootfs: Option<(Wall, Usage)>,
    pub logs: Option<Usage>,
    /// What its cgroup says, with the cgroup's path.
    pub cgroup: Option<(String, CgroupStats)>,
    pub processes: Option<Processes>,
}

/// What keeps a Pod's namespaces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sandbox {
    pub id: String,
    /// The path of its cgroup, and what that says.
    pub path: String,
    pub cgroup: CgroupStats,
    pub processes: Option<Processes>,
}

/// A volume of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    pub at: Wall,
    pub used: Usage,
    /// The file system that it is on.
    pub disk: Option<Disk>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStats {
    pub uid: String,
    pub name: String,
    pub namespace: String,
    /// Seconds since the epoch.
    pub started: Option<i64>,
    pub containers: Vec<ContainerStats>,
    pub cpu: Option<CpuStats>,
    pub memory: Option<MemoryStats>,
    pub swap: Option<SwapStats>,
    pub io: Option<Stalls>,
    /// The interfaces of its own network; none on the node's.
    pub network: Option<(Wall, Vec<Interface>)>,
    /// Volumes on the node's own disk or in its memory, by name.
    pub volumes: BTreeMap<String, VolumeStats>,
    /// All it has on the node's disk: writable layers, logs, local volumes, and what the kubelet made for it.
    pub ephemeral: Option<Usage>,
    /// Threads too: what its limit counts.
    pub processes: Option<u64>,
    /// Without threads.
    pub process_count: Option<u64>,
    /// The Pod's own cgroup.
    pub cgroup: Option<(String, CgroupStats)>,
    pub sandbox: Option<Sandbox>,
}

// === impl ContainerStats ===

impl ContainerStats {
    /// What a cgroup says, as of a container whose name nobody knows.
    #[must_use]
    pub fn of_cgroup(own: &CgroupStats, nano_cores: Option<u64>, at: Wall) -> ContainerStats {
        let memory = own.memory.as_ref();
        ContainerStats {
            cpu: own.cpu_nanos.map(|_| CpuStats { nano_cores, ..CpuStats::of_cgroup(own, at) }),
            memory: memory.map(|m| MemoryStats::of_cgroup(m, own.memory_stalls, at)),
            swap: memory.and_then(|m| SwapStats::of_cgroup(m, at)),
            io: own.io_stalls,
            ..ContainerStats::default()
        }
    }
}

impl CpuStats {
    #[must_use]
    pub fn of_cgroup(own: &CgroupStats, at: Wall) -> CpuStats {
        CpuStats { at, nanos: own.cpu_nanos, nano_cores: None, stalls: own.cpu_stalls }
    }
}

impl MemoryStats {
    #[must_use]
    pub fn of_cgroup(own: &CgroupMemory, stalls: Option<Stalls>, at: Wall) -> MemoryStats {
        MemoryStats {
            at,
            available: own.limit.map(|limit| limit.saturating_sub(own.working_set)),
            usage: Some(own.usage),
            working_set: Some(own.working_set),
            rss: Some(own.rss),
            faults: Some(own.faults),
            major_faults: Some(own.major_faults),
            stalls,
        }
    }
}

impl SwapStats {
    /// None where the kernel does not count swap.
    #[must_use]
    pub fn of_cgroup(own: &CgroupMemory, at: Wall) -> Option<SwapStats> {
        let used = own.swap?;
        Some(SwapStats {
            at,
            available: own.swap_limit.map(|limit| limit.saturating_sub(used)),
            used: Some(used),
        })
    }
}

// === impl Usage ===

impl std::ops::Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Usage>>(all: I) -> Usage {
        all.fold(Usage::default(), |a, b| a + b)
    }
}

// === impl Disks ===

impl Disks {
    /// Images have a file system of their own.
    #[must_use]
    pub fn has_image_disk(&self) -> bool {
        matches!((self.node, self.images), (Some(node), Some(images)) if node.device != images.device)
    }

    /// What containers write is not where their images are.
    #[must_use]
    pub fn is_split(&self) -> bool {
        matches!((self.containers, self.images), (Some(c), Some(images)) if c.device != images.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_known_by_its_device() {
        let on = |device| Some(Disk { device, ..Disk::default() });
        let table = [
            (on(1), on(1), on(1), (false, false)),
            (on(1), on(2), on(2), (true, false)),
            (on(1), on(2), on(1), (true, true)),
            (on(1), None, None, (false, false)),
            (None, on(2), None, (false, false)),
        ];
        for (node, images, containers, want) in table {
            let disks = Disks { node, images, containers };
            assert_eq!((disks.has_image_disk(), disks.is_split()), want, "{disks:?}");
        }
    }
}
