//! The machine as /proc describes it.

use std::collections::BTreeMap;

use super::cgroup::Stalls;

/// What the machine uses. One reading serves everybody.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Machine {
    /// Seconds since the epoch.
    pub booted: Option<i64>,
    /// Of all processors, since boot.
    pub cpu_nanos: Option<u64>,
    pub memory: Option<Memory>,
    /// Page faults, and those that had to wait for a disk.
    pub faults: Option<(u64, u64)>,
    pub interfaces: Vec<Interface>,
    pub default_interface: Option<String>,
    pub tasks: Option<Tasks>,
    pub stalled: Stalled,
}

/// Pressure stall information; none where the kernel keeps none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalled {
    pub cpu: Option<Stalls>,
    pub memory: Option<Stalls>,
    pub io: Option<Stalls>,
}

/// Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: u64,
    pub usage: u64,
    pub working_set: u64,
    pub rss: u64,
    pub swap_total: u64,
    pub swap_used: u64,
    /// Files in memory: all of them, those that were not used lately, and those that processes have mapped.
    pub cache: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub mapped_file: u64,
}

/// What a disk did since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskWork {
    pub read: Work,
    pub written: Work,
    /// Under way at this moment.
    pub now: u64,
    pub millis: u64,
    /// Every request by how long it took.
    pub weighted_millis: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    pub done: u64,
    pub merged: u64,
    pub sectors: u64,
    pub millis: u64,
}

/// Tasks that run, and how many may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    pub most: u64,
    pub running: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub received: Traffic,
    pub sent: Traffic,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

// === impl Memory ===

impl Memory {
    /// What is free, and what is only cached: the working set is the rest, as upstream counts it.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.total.saturating_sub(self.working_set)
    }
}

/// /proc/meminfo.
#[must_use]
pub fn memory(text: &str) -> Option<Memory> {
    let field = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kb| kb.saturating_mul(1024))
    };
    let (total, free) = (field("MemTotal")?, field("MemFree")?);
    let usage = total.saturating_sub(free);
    let swap_total = field("SwapTotal").unwrap_or(0);
    let inactive_file = field("Inactive(file)").unwrap_or(0);
    Some(Memory {
        total,
        usage,
        working_set: usage.saturating_sub(inactive_file),
        rss: field("AnonPages").unwrap_or(0),
        swap_total,
        swap_used: swap_total.saturating_sub(field("SwapFree").unwrap_or(0)),
        cache: field("Cached").unwrap_or(0),
        active_file: field("Active(file)").unwrap_or(0),
        inactive_file,
        mapped_file: field("Mapped").unwrap_or(0),
    })
}

/// /proc/stat: time spent, not idle and not waiting for disks. Guests are already in `user`.
#[must_use]
pub fn cpu_nanos(stat: &str, ticks_per_second: u64) -> Option<u64> {
    let line = stat.lines().find_map(|l| l.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().filter_map(|f| f.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|i| fields.get(*i)).sum();
    Some(busy.saturating_mul(1_000_000_000 / ticks_per_second.max(1)))
}

/// /proc/stat: when the machine started.
#[must_use]
pub fn booted(stat: &str) -> Option<i64> {
    stat.lines().find_map(|l| l.strip_prefix("btime ")?.trim().parse().ok())
}

/// /proc/vmstat: all page faults, and the major ones.
#[must_use]
pub fn faults(vmstat: &str) -> Option<(u64, u64)> {
    let field =
        |key: &str| vmstat.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok());
    Some((field("pgfault")?, field("pgmajfault")?))
}

/// /proc/net/dev, without the loopback device.
#[must_use]
pub fn interfaces(dev: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, rest) = line.split_once(':')?;
        let n: Vec<u64> = rest.split_whitespace().filter_map(|f| f.parse().ok()).collect();
        let &[rb, rp, re, rd, _, _, _, _, tb, tp, te, td, ..] = n.as_slice() else { return None };
        let name = name.trim();
        (name != "lo").then(|| Interface {
            name: name.to_owned(),
            received: Traffic { bytes: rb, packets: rp, errors: re, dropped: rd },
            sent: Traffic { bytes: tb, packets: tp, errors: te, dropped: td },
        })
    };
    dev.lines().filter_map(interface).collect()
}

/// Whether it is the node's own end of a Pod's network: those come and go, and are counted at their other end.
#[must_use]
pub fn is_of_pods(interface: &Interface) -> bool {
    ["veth", "cni", "docker", "br-"].iter().any(|p| interface.name.starts_with(p))
}

/// /proc/net/route: the interface of the default route.
#[must_use]
pub fn default_interface(route: &str) -> Option<String> {
    let rows = route.lines().skip(1).map(|l| l.split_whitespace().collect::<Vec<_>>());
    rows.into_iter().find(|r| r.get(1) == Some(&"00000000")).and_then(|r| r.first().map(|n| (*n).to_owned()))
}

/// /proc/loadavg, and the two settings that bound how many tasks there are.
#[must_use]
pub fn tasks(loadavg: &str, pid_max: &str, threads_max: &str) -> Option<Tasks> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let running = loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
    let most = [number(pid_max), number(threads_max)].into_iter().flatten().min()?;
    Some(Tasks { most, running })
}

/// /proc/diskstats, by the device's numbers.
#[must_use]
pub fn disks(diskstats: &str) -> BTreeMap<(u32, u32), DiskWork> {
    let disk = |line: &str| {
        let mut words = line.split_whitespace();
        let at = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let n: Vec<u64> = words.skip(1).map_while(|w| w.parse().ok()).collect();
        let &[rd, rm, rs, rt, wd, wm, ws, wt, now, millis, weighted_millis, ..] = n.as_slice() else {
            return None;
        };
        let read = Work { done: rd, merged: rm, sectors: rs, millis: rt };
        let written = Work { done: wd, merged: wm, sectors: ws, millis: wt };
        Some((at, DiskWork { read, written, now, millis, weighted_millis }))
    };
    diskstats.lines().filter_map(disk).collect()
}

/// /proc/PID/limits: how many files it may have open; -1 for as many as it likes.
#[must_use]
pub fn open_files(limits: &str) -> Option<i64> {
    let line = limits.lines().find_map(|l| l.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(-1),
        number => number.parse().ok(),
    }
}

/// /proc/PID/cgroup: where the process is, as systemd sees it, or else as the memory controller does.
#[must_use]
pub fn own_cgroup(text: &str) -> Option<&str> {
    let of = |wanted: &dyn Fn(&str) -> bool| {
        let mut lines = text.lines().filter_map(|l| l.split_once(':')?.1.split_once(':'));
        lines.find(|(controllers, _)| wanted(controllers)).map(|(_, path)| path)
    };
    let unified = || of(&|c| c.is_empty());
    let by_systemd = of(&|c| c == "name=systemd").filter(|path| *path != "/");
    by_systemd.or_else(|| of(&|c| c.split(',').any(|w| w == "memory"))).or_else(unified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_understood() {
        let stat = "cpu  100 1 50 9000 70 2 3 4 99 0\ncpu0 1 1 1 1\nbtime 1700000000\n";
        assert_eq!((cpu_nanos(stat, 100), booted(stat)), (Some(160 * 10_000_000), Some(1_700_000_000)));
        assert_eq!(faults("pgfault 12\npgmajfault 3\n"), Some((12, 3)));
        let dev = "Inter-| Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
                   eth0: 10 1 2 7 0 0 0 0 20 4 3 8 0 0 0 0\nveth1: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n";
        let all = interfaces(dev);
        let eth0 = Interface {
            name: "eth0".into(),
            received: Traffic { bytes: 10, packets: 1, errors: 2, dropped: 7 },
            sent: Traffic { bytes: 20, packets: 4, errors: 3, dropped: 8 },
        };
        assert_eq!((all.len(), all.first()), (2, Some(&eth0)));
        assert_eq!(all.iter().map(is_of_pods).collect::<Vec<_>>(), [false, true]);
        let route = "Iface\tDestination\tGateway\neth1\t0000A8C0\t0\neth0\t00000000\t0101A8C0\n";
        assert_eq!(default_interface(route).as_deref(), Some("eth0"));
        let want = Tasks { most: 1000, running: 345 };
        assert_eq!(tasks("0.1 0.1 0.1 2/345 999\n", "4194304\n", "1000\n"), Some(want));
    }

    #[test]
    fn cache_that_can_go_is_not_in_use() {
        let text = "MemTotal: 1000 kB\nMemFree: 400 kB\nMemAvailable: 9 kB\nAnonPages: 200 kB\nInactive: 7 kB\n\
                    Inactive(file): 100 kB\nCached: 300 kB\nActive(file): 150 kB\nMapped: 5 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n";
        let want = Memory {
            total: 1000 << 10,
            usage: 600 << 10,
            working_set: 500 << 10,
            rss: 200 << 10,
            swap_total: 10 << 10,
            swap_used: 6 << 10,
            cache: 300 << 10,
            active_file: 150 << 10,
            inactive_file: 100 << 10,
            mapped_file: 5 << 10,
        };
        assert_eq!(memory(text), Some(want));
        assert_eq!(want.available(), 500 << 10);
    }

    #[test]
    fn disks_limits_and_cgroups_are_understood() {
        let text = "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11 0 0\n   8 1 sda1 short\nnonsense\n";
        let want = DiskWork {
            read: Work { done: 1, merged: 2, sectors: 3, millis: 4 },
            written: Work { done: 5, merged: 6, sectors: 7, millis: 8 },
            now: 9,
            millis: 10,
            weighted_millis: 11,
        };
        assert_eq!(disks(text), BTreeMap::from([((8, 0), want)]));
        let limits =
            "Limit     Soft Limit  Hard Limit Units\nMax open files            1024      4096     files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(open_files(&limits.replace("1024", "unlimited")), Some(-1));
        assert_eq!(open_files(""), None);
        let old = "4:memory:/m\n2:cpu,cpuacct:/c\n1:name=systemd:/system.slice/k.service\n0::/\n";
        let table = [
            (old, Some("/system.slice/k.service")),
            ("4:memory:/m\n1:name=systemd:/\n", Some("/m")),
            ("0::/system.slice/k.service\n", Some("/system.slice/k.service")),
            ("", None),
        ];
        for (text, want) in table {
            assert_eq!(own_cgroup(text), want, "{text:?}");
        }
    }

    #[test]
    fn what_says_nothing_is_none() {
        for text in ["", "nonsense", "cpu", "MemTotal: x kB\nMemFree: 1 kB"] {
            assert_eq!((cpu_nanos(text, 100), memory(text), faults(text)), (None, None, None), "{text:?}");
            assert_eq!((tasks(text, text, text), default_interface(text)), (None, None), "{text:?}");
            assert!(interfaces(text).is_empty(), "{text:?}");
        }
    }
}
