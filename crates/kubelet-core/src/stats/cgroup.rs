//! A cgroup as its files describe it, in both versions.

use std::collections::BTreeMap;

/// Where there is no limit, version 1 writes a number close to the largest.
const NO_LIMIT: u64 = 1 << 62;

/// What a cgroup uses and what it may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupStats {
    pub cpu_nanos: Option<u64>,
    pub user_nanos: Option<u64>,
    pub system_nanos: Option<u64>,
    pub throttling: Option<Throttling>,
    pub memory: Option<CgroupMemory>,
    pub processes: Option<u64>,
    pub most_processes: Option<u64>,
    pub shares: Option<u64>,
    /// Quota and period in microseconds.
    pub quota: Option<(u64, u64)>,
    pub period: Option<u64>,
    pub io: Vec<DeviceIo>,
    pub cpu_stalls: Option<Stalls>,
    pub memory_stalls: Option<Stalls>,
    pub io_stalls: Option<Stalls>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    pub periods: u64,
    pub throttled: u64,
    pub throttled_nanos: u64,
    /// Periods in which more than the quota was used, as far as that was saved up.
    pub bursts: u64,
    pub burst_nanos: u64,
}

/// Bytes, and counts of faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    pub usage: u64,
    pub working_set: u64,
    pub limit: Option<u64>,
    pub rss: u64,
    pub cache: u64,
    pub mapped_file: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub kernel: Option<u64>,
    pub swap: Option<u64>,
    pub swap_limit: Option<u64>,
    /// What it keeps when others need memory.
    pub reservation: Option<u64>,
    pub most: Option<u64>,
    pub fail_count: Option<u64>,
    /// With those of the cgroups below it; without them in `own_faults`.
    pub faults: u64,
    pub major_faults: u64,
    pub own_faults: (u64, u64),
    pub oom_kills: Option<u64>,
}

/// What a device was asked to read and write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceIo {
    pub major: u32,
    pub minor: u32,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub reads: u64,
    pub writes: u64,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    pub some: Stall,
    pub full: Stall,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Microseconds.
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// Reads one file of the cgroup: controller and name.
pub type Files<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

/// Reads what a cgroup of version 1 says.
#[must_use]
pub fn read_v1(file: Files<'_>, ticks_per_second: u64) -> CgroupStats {
    let number = |controller: &str, name: &str| file(controller, name).and_then(|t| number(&t));
    let cpu = file("cpu", "cpu.stat").map(|t| fields(&t)).unwrap_or_default();
    let tick = 1_000_000_000 / ticks_per_second.max(1);
    let split = file("cpuacct", "cpuacct.stat").map(|t| fields(&t)).unwrap_or_default();
    let ticks = |name: &str| split.get(name).map(|n| n.saturating_mul(tick));
    let quota = file("cpu", "cpu.cfs_quota_us").and_then(|t| t.trim().parse::<i64>().ok());
    let period = number("cpu", "cpu.cfs_period_us");
    CgroupStats {
        cpu_nanos: number("cpuacct", "cpuacct.usage"),
        user_nanos: ticks("user"),
        system_nanos: ticks("system"),
        throttling: throttling(&cpu, "throttled_time", "burst_time", 1),
        memory: memory_v1(file),
        processes: number("pids", "pids.current"),
        most_processes: number("pids", "pids.max"),
        shares: number("cpu", "cpu.shares"),
        quota: quota.and_then(|q| u64::try_from(q).ok()).zip(period),
        period,
        io: io_v1(
            &file("blkio", "blkio.throttle.io_service_bytes").unwrap_or_default(),
            &file("blkio", "blkio.throttle.io_serviced").unwrap_or_default(),
        ),
        ..CgroupStats::default()
    }
}

/// Reads what a cgroup of version 2 says.
#[must_use]
pub fn read_v2(file: Files<'_>) -> CgroupStats {
    let number = |name: &str| file("", name).and_then(|t| number(&t));
    let cpu = file("", "cpu.stat").map(|t| fields(&t)).unwrap_or_default();
    let nanos = |name: &str| cpu.get(name).map(|micros| micros.saturating_mul(1000));
    let max = file("", "cpu.max").unwrap_or_default();
    let mut words = max.split_whitespace();
    let (quota, period) = (words.next(), words.next().and_then(|w| w.parse::<u64>().ok()));
    let stalled = |name: &str| file("", name).and_then(|t| stalls(&t));
    CgroupStats {
        cpu_nanos: nanos("usage_usec"),
        user_nanos: nanos("user_usec"),
        system_nanos: nanos("system_usec"),
        throttling: throttling(&cpu, "throttled_usec", "burst_usec", 1000),
        memory: memory_v2(file),
        processes: number("pids.current"),
        most_processes: number("pids.max"),
        shares: number("cpu.weight").map(|w| 2 + (w.clamp(1, 10_000) - 1) * 262_142 / 9999),
        quota: quota.and_then(|q| q.parse().ok()).zip(period),
        period,
        io: io_v2(&file("", "io.stat").unwrap_or_default()),
        cpu_stalls: stalled("cpu.pressure"),
        memory_stalls: stalled("memory.pressure"),
        io_stalls: stalled("io.pressure"),
    }
}

/// The memory of a cgroup of version 1, without the rest.
#[must_use]
pub fn memory_v1(file: Files<'_>) -> Option<CgroupMemory> {
    let number = |name: &str| file("memory", name).and_then(|t| number(&t));
    let usage = number("memory.usage_in_bytes")?;
    let stat = fields(&file("memory", "memory.stat")?);
    let of = |name: &str| {
        stat.get(&format!("total_{name}")).or_else(|| stat.get(name)).copied().unwrap_or_default()
    };
    let own = |name: &str| stat.get(name).copied().unwrap_or_default();
    let oom = file("memory", "memory.oom_control").map(|t| fields(&t)).unwrap_or_default();
    Some(CgroupMemory {
        usage,
        working_set: usage.saturating_sub(of("inactive_file")),
        limit: number("memory.limit_in_bytes").filter(|n| *n < NO_LIMIT),
        rss: of("rss"),
        cache: of("cache"),
        mapped_file: of("mapped_file"),
        active_file: of("active_file"),
        inactive_file: of("inactive_file"),
        kernel: number("memory.kmem.usage_in_bytes"),
        swap: stat.get("total_swap").or_else(|| stat.get("swap")).copied(),
        // Memory and swap together.
        swap_limit: number("memory.memsw.limit_in_bytes")
            .filter(|n| *n < NO_LIMIT)
            .zip(number("memory.limit_in_bytes"))
            .map(|(both, memory)| both.saturating_sub(memory)),
        reservation: number("memory.soft_limit_in_bytes").filter(|n| *n < NO_LIMIT),
        most: number("memory.max_usage_in_bytes"),
        fail_count: number("memory.failcnt"),
        faults: of("pgfault"),
        major_faults: of("pgmajfault"),
        own_faults: (own("pgfault"), own("pgmajfault")),
        oom_kills: oom.get("oom_kill").copied(),
    })
}

/// The memory of a cgroup of version 2, without the rest.
#[must_use]
pub fn memory_v2(file: Files<'_>) -> Option<CgroupMemory> {
    let number = |name: &str| file("", name).and_then(|t| number(&t));
    let usage = number("memory.current")?;
    let stat = fields(&file("", "memory.stat")?);
    let of = |name: &str| stat.get(name).copied().unwrap_or_default();
    let events = file("", "memory.events").map(|t| fields(&t)).unwrap_or_default();
    Some(CgroupMemory {
        usage,
        working_set: usage.saturating_sub(of("inactive_file")),
        limit: number("memory.max"),
        rss: of("anon"),
        cache: of("file"),
        mapped_file: of("file_mapped"),
        active_file: of("active_file"),
        inactive_file: of("inactive_file"),
        kernel: stat.get("kernel").or_else(|| stat.get("kernel_stack")).copied(),
        swap: number("memory.swap.current"),
        swap_limit: number("memory.swap.max"),
        reservation: number("memory.low"),
        most: number("memory.peak"),
        fail_count: events.get("max").copied(),
        faults: of("pgfault"),
        major_faults: of("pgmajfault"),
        // This version does not tell them apart.
        own_faults: (of("pgfault"), of("pgmajfault")),
        oom_kills: events.get("oom_kill").copied(),
    })
}

/// A file of `some …` and `full …`; the machine's own of processors has no `full` on older kernels.
#[must_use]
pub fn stalls(text: &str) -> Option<Stalls> {
    let line = |kind: &str| {
        let words = text.lines().find_map(|l| l.strip_prefix(kind)?.strip_prefix(' '))?;
        let of = |name: &str| words.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
        let average = |name: &str| of(name).and_then(|t| t.parse().ok()).unwrap_or_default();
        Some(Stall {
            total: of("total")?.parse().ok()?,
            avg10: average("avg10"),
            avg60: average("avg60"),
            avg300: average("avg300"),
        })
    };
    Some(Stalls { some: line("some")?, full: line("full").unwrap_or_default() })
}

/// `max` is no number.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Lines of a name and a number.
fn fields(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

fn throttling(cpu: &BTreeMap<String, u64>, time: &str, burst: &str, unit: u64) -> Option<Throttling> {
    Some(Throttling {
        periods: *cpu.get("nr_periods")?,
        throttled: *cpu.get("nr_throttled")?,
        throttled_nanos: cpu.get(time)?.saturating_mul(unit),
        // Kernels before 5.14 know of none.
        bursts: cpu.get("nr_bursts").copied().unwrap_or_default(),
        burst_nanos: cpu.get(burst).copied().unwrap_or_default().saturating_mul(unit),
    })
}

fn device(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// `8:0 Read 123`, once in bytes and once in operations.
fn io_v1(bytes: &str, operations: &str) -> Vec<DeviceIo> {
    let mut found: BTreeMap<(u32, u32), DeviceIo> = BTreeMap::new();
    for (text, in_bytes) in [(bytes, true), (operations, false)] {
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[name, act, count] = words.as_slice() else { continue };
            let (Some(at), Ok(count)) = (device(name), count.parse::<u64>()) else { continue };
            let io = found.entry(at).or_insert(DeviceIo { major: at.0, minor: at.1, ..DeviceIo::default() });
            match (act, in_bytes) {
                ("Read", true) => io.read_bytes = count,
                ("Write", true) => io.write_bytes = count,
                ("Read", false) => io.reads = count,
                ("Write", false) => io.writes = count,
                _ => {}
            }
        }
    }
    found.into_values().collect()
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn io_v2(text: &str) -> Vec<DeviceIo> {
    let line = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let (major, minor) = device(name)?;
        let of = |key: &str| {
            let value = rest.split_whitespace().find_map(|w| w.strip_prefix(key)?.strip_prefix('='));
            value.and_then(|v| v.parse().ok()).unwrap_or_default()
        };
        Some(DeviceIo {
            major,
            minor,
            read_bytes: of("rbytes"),
            write_bytes: of("wbytes"),
            reads: of("rios"),
            writes: of("wios"),
        })
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &'static [(&str, &str)]) -> impl Fn(&str, &str) -> Option<String> {
        |_, name| files.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned())
    }

    #[test]
    fn version_1_is_understood() {
        let files = of(&[
            ("cpuacct.usage", "5000000000\n"),
            ("cpuacct.stat", "user 300\nsystem 100\n"),
            ("cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 700\n"),
            ("cpu.shares", "512"),
            ("cpu.cfs_quota_us", "-1"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.usage_in_bytes", "1000"),
            ("memory.limit_in_bytes", "9223372036854771712"),
            (
                "memory.stat",
                "cache 1\nrss 2\ninactive_file 3\npgfault 5\ntotal_rss 20\ntotal_inactive_file 400\n\
                 total_cache 500\ntotal_pgfault 50\ntotal_active_file 60\n",
            ),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("memory.failcnt", "7"),
            ("pids.current", "4"),
            ("pids.max", "max"),
            ("blkio.throttle.io_service_bytes", "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n"),
            ("blkio.throttle.io_serviced", "8:0 Read 1\n8:0 Write 2\n"),
        ]);
        let all = read_v1(&files, 100);
        assert_eq!(
            (all.cpu_nanos, all.user_nanos, all.system_nanos),
            (Some(5_000_000_000), Some(3_000_000_000), Some(1_000_000_000))
        );
        assert_eq!(
            all.throttling,
            Some(Throttling { periods: 10, throttled: 3, throttled_nanos: 700, ..Throttling::default() })
        );
        assert_eq!((all.quota, all.period, all.shares), (None, Some(100_000), Some(512)));
        let memory = all.memory.unwrap_or_default();
        assert_eq!((memory.usage, memory.working_set, memory.rss, memory.cache), (1000, 600, 20, 500));
        assert_eq!((memory.limit, memory.fail_count, memory.oom_kills), (None, Some(7), Some(2)));
        assert_eq!((memory.faults, memory.own_faults, memory.active_file), (50, (5, 0), 60));
        assert_eq!((all.processes, all.most_processes), (Some(4), None));
        let io = DeviceIo { major: 8, minor: 0, read_bytes: 10, write_bytes: 20, reads: 1, writes: 2 };
        assert_eq!(all.io, [io]);
    }

    #[test]
    fn version_2_is_understood() {
        let files = of(&[
            (
                "cpu.stat",
                "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 1\nnr_throttled 1\nthrottled_usec 9\nnr_bursts 2\nburst_usec 4\n",
            ),
            ("cpu.max", "50000 100000"),
            ("cpu.weight", "1"),
            ("memory.current", "1000"),
            ("memory.max", "4096"),
            ("memory.low", "64"),
            ("memory.stat", "anon 20\nfile 500\ninactive_file 400\npgfault 6\npgmajfault 1\n"),
            ("memory.events", "max 7\noom_kill 2\n"),
            ("memory.swap.max", "max"),
            ("pids.current", "4"),
            ("io.stat", "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0\n"),
            (
                "memory.pressure",
                "some avg10=1.50 avg60=0.10 avg300=0.00 total=77\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=5\n",
            ),
        ]);
        let all = read_v2(&files);
        assert_eq!(
            (all.cpu_nanos, all.quota, all.shares),
            (Some(5_000_000), Some((50_000, 100_000)), Some(2))
        );
        assert_eq!(
            all.throttling,
            Some(Throttling {
                periods: 1,
                throttled: 1,
                throttled_nanos: 9000,
                bursts: 2,
                burst_nanos: 4000
            })
        );
        let memory = all.memory.unwrap_or_default();
        assert_eq!((memory.working_set, memory.limit, memory.faults), (600, Some(4096), 6));
        assert_eq!((memory.own_faults, memory.inactive_file, memory.reservation), ((6, 1), 400, Some(64)));
        assert_eq!((memory.fail_count, memory.oom_kills, memory.swap_limit), (Some(7), Some(2), None));
        let stalls = all.memory_stalls.unwrap_or_default();
        assert_eq!((stalls.some.total, stalls.some.avg10, stalls.full.total), (77, 1.5, 5));
        assert_eq!(all.io.len(), 1);
    }

    #[test]
    fn an_empty_cgroup_says_nothing() {
        let none = |_: &str, _: &str| None;
        assert_eq!((read_v1(&none, 100), read_v2(&none)), (CgroupStats::default(), CgroupStats::default()));
        let rubbish = |_: &str, _: &str| Some("x y z\n:: =\n".to_owned());
        assert!(read_v1(&rubbish, 100).memory.is_none() && read_v2(&rubbish).memory.is_none());
    }
}
