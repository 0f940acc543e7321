//! The machine as its files show it, its file systems and its disks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kubelet_core::stats::proc::{self, DiskWork};
use kubelet_core::stats::{CgroupMemory, CgroupStats, Disk, Machine, Stalled, cgroup};

use crate::host::topology;

/// How many processors of which kind the machine has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    pub logical: u64,
    /// None where the kernel does not show them.
    pub cores: Option<u64>,
    pub sockets: Option<u64>,
}

/// A device as it is known to those who mount it, and what it did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub work: DiskWork,
}

/// Reads /proc; blocks, though only on files of the kernel's own making.
pub(super) fn read() -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/stat");
    let stalls = |kind: &str| cgroup::stalls(&read(&format!("/proc/pressure/{kind}")));
    Machine {
        booted: proc::booted(&stat),
        cpu_nanos: proc::cpu_nanos(&stat, rustix::param::clock_ticks_per_second()),
        memory: proc::memory(&read("/proc/meminfo")),
        faults: proc::faults(&read("/proc/vmstat")),
        interfaces: proc::interfaces(&read("/proc/net/dev"))
            .into_iter()
            .filter(|i| !proc::is_of_pods(i))
            .collect(),
        default_interface: proc::default_interface(&read("/proc/net/route")),
        tasks: proc::tasks(
            &read("/proc/loadavg"),
            &read("/proc/sys/kernel/pid_max"),
            &read("/proc/sys/kernel/threads-max"),
        ),
        stalled: Stalled { cpu: stalls("cpu"), memory: stalls("memory"), io: stalls("io") },
    }
}

/// The file system that holds `path`.
pub(super) fn disk(path: &Path) -> Option<Disk> {
    let s = rustix::fs::statvfs(path).ok()?;
    let device = rustix::fs::stat(path).ok()?.st_dev;
    Some(Disk {
        capacity: s.f_blocks.saturating_mul(s.f_frsize),
        available: s.f_bavail.saturating_mul(s.f_frsize),
        used: s.f_blocks.saturating_sub(s.f_bfree).saturating_mul(s.f_frsize),
        inodes: s.f_files,
        inodes_free: s.f_ffree,
        device,
    })
}

/// The machine's processors, which do not change while it runs but for those that are switched off.
pub(super) fn processors(logical: u64) -> Processors {
    let found = topology::read(Path::new(topology::SYSTEM), 0).map(|m| m.cpus).ok();
    let count = |n: usize| u64::try_from(n).ok().filter(|n| *n > 0);
    Processors {
        logical,
        cores: found.as_ref().and_then(|c| count(c.cores)),
        sockets: found.as_ref().and_then(|c| count(c.sockets)),
    }
}

/// The disks by their numbers. The same numbers name them in the files of cgroups.
pub(super) fn devices() -> BTreeMap<(u32, u32), Device> {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let name = |(major, minor): (u32, u32)| {
        let link = fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        Some(format!("/dev/{}", link.file_name()?.to_str()?.replace('!', "/")))
    };
    let named = |(at, work)| (at, Device { name: name(at).unwrap_or_default(), work });
    proc::disks(&text).into_iter().map(named).collect()
}

/// The root of all cgroups. What its own files do not tell, the machine does.
pub(super) fn root(mut own: CgroupStats, machine: &Machine) -> CgroupStats {
    own.cpu_nanos = own.cpu_nanos.or(machine.cpu_nanos);
    own.cpu_stalls = own.cpu_stalls.or(machine.stalled.cpu);
    own.memory_stalls = own.memory_stalls.or(machine.stalled.memory);
    own.io_stalls = own.io_stalls.or(machine.stalled.io);
    let of = |m: &proc::Memory| {
        let (faults, major_faults) = machine.faults.unwrap_or_default();
        CgroupMemory {
            usage: m.usage,
            working_set: m.working_set,
            limit: Some(m.total),
            rss: m.rss,
            cache: m.cache,
            mapped_file: m.mapped_file,
            active_file: m.active_file,
            inactive_file: m.inactive_file,
            swap: Some(m.swap_used),
            faults,
            major_faults,
            own_faults: (faults, major_faults),
            ..CgroupMemory::default()
        }
    };
    own.memory = own.memory.or_else(|| machine.memory.as_ref().map(of));
    own
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use kubelet_core::eviction::signal::{Signal, readings};
    use kubelet_core::stats::Disks;

    #[test]
    fn this_machine_can_be_read() {
        let disks = Disks { node: disk(Path::new("/")), ..Disks::default() };
        let all = readings(&read(), &disks, None, Default::default());
        for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
            let reading = all[&signal];
            assert!(reading.available > 0 && reading.available <= reading.capacity, "{signal:?} {reading:?}");
        }
        assert!(!all.contains_key(&Signal::ImagefsAvailable));
        let found = processors(2);
        assert!(found.logical == 2 && found.cores.is_none_or(|n| n > 0), "{found:?}");
    }

    #[test]
    fn a_root_that_tells_nothing_is_the_machine() {
        let machine = read();
        let whole = root(CgroupStats::default(), &machine);
        assert_eq!(whole.cpu_nanos, machine.cpu_nanos);
        assert_eq!(whole.memory.unwrap().working_set, machine.memory.unwrap().working_set);
        let told = CgroupStats { cpu_nanos: Some(1), ..CgroupStats::default() };
        assert_eq!(root(told, &machine).cpu_nanos, Some(1), "its own word counts");
    }
}
