//! The machine's own figures, from /proc.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::time::Mono;
use kubelet_core::stats::proc::{self, Tasks};
use kubelet_core::stats::{Interface, Memory};

use crate::host::facts::online_cpus;
use crate::host::identity::{MachineIdentity, read_identity};

/// Two looks closer together than this say nothing about a rate.
const APART: Duration = Duration::from_secs(1);

/// Remembers the last looks, so that rates can be told.
#[derive(Debug, Default)]
pub struct Meter {
    last: Mutex<Last>,
    identity: OnceLock<MachineIdentity>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    sample: Option<(Mono, u64)>,
    rate: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) identity: MachineIdentity,
    pub(super) booted: Option<i64>,
    /// Of all processors, since boot.
    pub(super) cpu_nanos: Option<u64>,
    pub(super) nano_cores: Option<u64>,
    pub(super) cores: u64,
    pub(super) memory: Option<Memory>,
    pub(super) faults: Option<(u64, u64)>,
    pub(super) network: Vec<Interface>,
    pub(super) default_interface: Option<String>,
    pub(super) fs: Option<Disk>,
    pub(super) tasks: Option<Tasks>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) capacity: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    pub(super) inodes: u64,
    pub(super) inodes_free: u64,
}

// === impl Meter ===

impl Meter {
    /// Blocks on files, though only of the kernel's own making.
    pub(super) fn read(&self, root: &Path, now: Mono) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let stat = read("/proc/stat");
        let cpu_nanos = proc::cpu_nanos(&stat, rustix::param::clock_ticks_per_second());
        Machine {
            identity: self.identity.get_or_init(read_identity).clone(),
            booted: proc::booted(&stat),
            cpu_nanos,
            nano_cores: cpu_nanos.and_then(|n| self.rate(n, now)),
            cores: online_cpus().map_or(1, i64::unsigned_abs),
            memory: proc::memory(&read("/proc/meminfo")),
            faults: proc::faults(&read("/proc/vmstat")),
            network: own_interfaces(&read("/proc/net/dev")),
            default_interface: proc::default_interface(&read("/proc/net/route")),
            fs: disk(root),
            tasks: proc::tasks(
                &read("/proc/loadavg"),
                &read("/proc/sys/kernel/pid_max"),
                &read("/proc/sys/kernel/threads-max"),
            ),
        }
    }

    fn rate(&self, nanos: u64, now: Mono) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.sample {
            Some((at, _)) if now.since(at) < APART => {}
            Some((at, before)) => {
                let spent = u128::from(nanos.saturating_sub(before)) * 1_000_000_000;
                last.rate = u64::try_from(spent / now.since(at).as_nanos().max(1)).ok();
                last.sample = Some((now, nanos));
            }
            None => last.sample = Some((now, nanos)),
        }
        last.rate
    }
}

/// The ends of Pods' networks are counted at their other end.
fn own_interfaces(dev: &str) -> Vec<Interface> {
    proc::interfaces(dev).into_iter().filter(|i| !proc::is_of_pods(i)).collect()
}

/// The filesystem that holds `path`.
pub(super) fn disk(path: &Path) -> Option<Disk> {
    let s = rustix::fs::statvfs(path).ok()?;
    Some(Disk {
        capacity: s.f_blocks.saturating_mul(s.f_frsize),
        available: s.f_bavail.saturating_mul(s.f_frsize),
        used: s.f_blocks.saturating_sub(s.f_bfree).saturating_mul(s.f_frsize),
        inodes: s.f_files,
        inodes_free: s.f_ffree,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_takes_two_looks() {
        let (meter, at) = (Meter::default(), |ms| Mono(Duration::from_millis(ms)));
        assert_eq!(meter.rate(0, at(0)), None);
        assert_eq!(meter.rate(500, at(10)), None);
        assert_eq!(meter.rate(4_000_000_000, at(2000)), Some(2_000_000_000));
        assert_eq!(meter.rate(4_000_000_001, at(2001)), Some(2_000_000_000));
    }
}
