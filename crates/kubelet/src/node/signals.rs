//! How much is left of memory, disks and process ids, read from the kernel.

use std::fs;
use std::path::{Path, PathBuf};

use kubelet_core::node::pressure::{Reading, Readings};

/// Where to look.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// The kubelet's root directory.
    pub(super) root: PathBuf,
    /// Where the runtime keeps images and containers, as far as it says so.
    pub(super) images: Option<PathBuf>,
    pub(super) containers: Option<PathBuf>,
}

/// Reads all of them; blocks as long as a file system does.
pub(super) fn read(places: &Places) -> Readings {
    let mut all = Readings::new();
    if let Some(memory) = fs::read_to_string("/proc/meminfo").ok().and_then(|text| memory(&text)) {
        all.insert("memory.available", memory);
    }
    if let Some(pids) = pids() {
        all.insert("pid.available", pids);
    }
    let disks = [
        (Some(&places.root), "nodefs.available", "nodefs.inodesFree"),
        (places.images.as_ref(), "imagefs.available", "imagefs.inodesFree"),
        (places.containers.as_ref(), "containerfs.available", "containerfs.inodesFree"),
    ];
    for (path, bytes, inodes) in disks {
        if let Some((space, files)) = path.and_then(|p| disk(p)) {
            all.insert(bytes, space);
            all.extend(files.map(|f| (inodes, f)));
        }
    }
    all
}

/// What is free, and what is only cached: the working set is the rest, as upstream counts it.
fn memory(text: &str) -> Option<Reading> {
    let field = |key: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<i64>().ok().map(|kb| kb * 1024)
    };
    let available = field("MemFree")? + field("Inactive(file)")?;
    Some(Reading { available, capacity: field("MemTotal")? })
}

fn pids() -> Option<Reading> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let limit = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    let running = running(&fs::read_to_string("/proc/loadavg").ok()?)?;
    Some(Reading { available: limit - running, capacity: limit })
}

/// The second number of `1/234`.
fn running(loadavg: &str) -> Option<i64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Bytes and inodes; a file system without a count of inodes has none to run out of.
fn disk(path: &Path) -> Option<(Reading, Option<Reading>)> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let space = Reading {
        available: number(stat.f_bavail.saturating_mul(stat.f_frsize)),
        capacity: number(stat.f_blocks.saturating_mul(stat.f_frsize)),
    };
    let files = (stat.f_files > 0)
        .then(|| Reading { available: number(stat.f_ffree), capacity: number(stat.f_files) });
    Some((space, files))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cache_that_can_go_is_not_in_use() {
        let text = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 9 kB\nInactive: 7 kB\nInactive(file): 200 kB\n";
        assert_eq!(memory(text), Some(Reading { available: 500 * 1024, capacity: 1000 * 1024 }));
        assert_eq!(memory("nonsense"), None);
        assert_eq!(running("0.1 0.2 0.3 2/345 678\n"), Some(345));
    }

    #[test]
    fn this_machine_can_be_read() {
        let places = Places { root: "/".into(), ..Places::default() };
        let all = read(&places);
        for signal in ["memory.available", "nodefs.available", "pid.available"] {
            let reading = all[signal];
            assert!(reading.available > 0 && reading.available <= reading.capacity, "{signal} {reading:?}");
        }
        assert!(!all.contains_key("imagefs.available"));
    }
}
