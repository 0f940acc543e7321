//! The machine's own figures, from /proc.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use base::time::Mono;

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
    pub(super) processes: Option<(i64, i64)>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) usage: u64,
    pub(super) working_set: u64,
    pub(super) rss: u64,
    pub(super) swap_total: u64,
    pub(super) swap_used: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) rx_bytes: u64,
    pub(super) rx_errors: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_errors: u64,
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
        let cpu_nanos = parse_cpu(&stat, rustix::param::clock_ticks_per_second());
        Machine {
            identity: self.identity.get_or_init(read_identity).clone(),
            booted: stat.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse().ok()),
            cpu_nanos,
            nano_cores: cpu_nanos.and_then(|n| self.rate(n, now)),
            cores: online_cpus().map_or(1, i64::unsigned_abs),
            memory: parse_memory(&read("/proc/meminfo")),
            faults: parse_faults(&read("/proc/vmstat")),
            network: parse_interfaces(&read("/proc/net/dev")),
            default_interface: parse_default_route(&read("/proc/net/route")),
            fs: disk(root),
            processes: parse_processes(&read("/proc/loadavg"), &read("/proc/sys/kernel/pid_max")),
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

/// Time spent, not idle and not waiting for disks. Guests are already in `user`.
fn parse_cpu(stat: &str, ticks: u64) -> Option<u64> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| fields.get(*i)).sum();
    Some(busy.saturating_mul(1_000_000_000 / ticks.max(1)))
}

fn parse_memory(text: &str) -> Option<Memory> {
    let field = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb * 1024)
    };
    let (total, free) = (field("MemTotal")?, field("MemFree")?);
    let usage = total.saturating_sub(free);
    let swap_total = field("SwapTotal").unwrap_or(0);
    Some(Memory {
        total,
        usage,
        working_set: usage.saturating_sub(field("Inactive(file)").unwrap_or(0)),
        rss: field("AnonPages").unwrap_or(0),
        swap_total,
        swap_used: swap_total.saturating_sub(field("SwapFree").unwrap_or(0)),
    })
}

fn parse_faults(text: &str) -> Option<(u64, u64)> {
    let field =
        |key: &str| text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    Some((field("pgfault")?, field("pgmajfault")?))
}

fn parse_interfaces(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let n: Vec<u64> = rest.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        let name = name.trim();
        let &[rx_bytes, _, rx_errors, _, _, _, _, _, tx_bytes, _, tx_errors, ..] = n.as_slice() else {
            return None;
        };
        // Those of Pods come and go, and are counted at their other end.
        let virtual_ = name == "lo" || ["veth", "cni", "docker", "br-"].iter().any(|p| name.starts_with(p));
        (!virtual_).then(|| Interface { name: name.to_owned(), rx_bytes, rx_errors, tx_bytes, tx_errors })
    };
    text.lines().filter_map(interface).collect()
}

fn parse_default_route(text: &str) -> Option<String> {
    let rows = text.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    rows.into_iter().find(|r| r.get(1) == Some(&"00000000")).and_then(|r| r.first().map(|n| (*n).to_owned()))
}

fn parse_processes(loadavg: &str, pid_max: &str) -> Option<(i64, i64)> {
    let running = loadavg.split_whitespace().nth(3)?.split_once('/')?.1;
    Some((pid_max.trim().parse().ok()?, running.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_understood() {
        let stat = "cpu  100 1 50 9000 70 2 3 4 99 0\ncpu0 1 1 1 1\nbtime 1700000000\n";
        assert_eq!(parse_cpu(stat, 100), Some(160 * 10_000_000));
        let memory = "MemTotal: 1000 kB\nMemFree: 400 kB\nAnonPages: 200 kB\nInactive(file): 100 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n";
        let expected = Memory {
            total: 1000 << 10,
            usage: 600 << 10,
            working_set: 500 << 10,
            rss: 200 << 10,
            swap_total: 10 << 10,
            swap_used: 6 << 10,
        };
        assert_eq!(parse_memory(memory), Some(expected));
        assert_eq!(parse_faults("pgfault 12\npgmajfault 3\n"), Some((12, 3)));
        let dev = "Inter-| Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 1 2 0 0 0 0 0 20 1 3 0 0 0 0 0\nveth1: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n";
        let eth0 = Interface { name: "eth0".into(), rx_bytes: 10, rx_errors: 2, tx_bytes: 20, tx_errors: 3 };
        assert_eq!(parse_interfaces(dev), [eth0]);
        let route = "Iface\tDestination\tGateway\neth1\t0000A8C0\t0\neth0\t00000000\t0101A8C0\n";
        assert_eq!(parse_default_route(route).as_deref(), Some("eth0"));
        assert_eq!(parse_processes("0.1 0.1 0.1 2/345 999\n", "4194304\n"), Some((4_194_304, 345)));
        assert_eq!((parse_cpu("", 100), parse_memory(""), parse_processes("", "")), (None, None, None));
    }

    #[test]
    fn a_rate_takes_two_looks() {
        let (meter, at) = (Meter::default(), |ms| Mono(Duration::from_millis(ms)));
        assert_eq!(meter.rate(0, at(0)), None);
        assert_eq!(meter.rate(500, at(10)), None);
        assert_eq!(meter.rate(4_000_000_000, at(2000)), Some(2_000_000_000));
        assert_eq!(meter.rate(4_000_000_001, at(2001)), Some(2_000_000_000));
    }
}
