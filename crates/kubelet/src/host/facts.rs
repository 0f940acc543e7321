//! What is true of this machine, read once at start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use kubelet_core::node::capacity;
use kubelet_core::stats::proc;

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Memory and swap in bytes, from /proc/meminfo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub total: i64,
    pub swap: i64,
}

/// The machine as /proc and /sys describe it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub hostname: String,
    pub kernel: String,
    pub cpus: i64,
    /// The processors that are on, as the kernel lists them.
    pub online: Option<String>,
    /// How many tasks the kernel allows at most.
    pub tasks: Option<i64>,
    pub memory: Memory,
    pub numa_nodes: usize,
    pub cgroup_v2: bool,
    /// The kernel can limit swap per cgroup.
    pub swap_controller: bool,
    /// Page sizes in the kernel's notation: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    /// Reserved huge pages: bytes per page, and how many.
    pub huge_pages: BTreeMap<i64, i64>,
    /// Size of the filesystem that holds the root directory.
    pub disk: i64,
    pub thermal_paths: Vec<String>,
    pub selinux: bool,
    pub app_armor: bool,
}

// === impl Machine ===

impl Machine {
    /// Its size. The disk is part of it only where the storage of Pods is kept apart (`localStorageCapacityIsolation`).
    #[must_use]
    pub fn numbers(&self, counts_storage: bool) -> capacity::Machine {
        capacity::Machine {
            cpus: self.cpus,
            memory: self.memory.total,
            ephemeral_storage: counts_storage.then_some(self.disk),
            huge_pages: self.huge_pages.clone(),
        }
    }
}

fn numa_nodes(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let names = entries.filter_map(|e| e.file_name().into_string().ok());
    let is_node = |n: &String| n.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    names.filter(is_node).count()
}

/// Whether swap can be limited. With cgroup v2 the root cgroup does not tell, so the cgroup of this process is asked.
fn limits_swap(root: &Path, own_cgroups: &str) -> bool {
    let unified = own_cgroups.lines().find_map(|line| line.strip_prefix("0::/"));
    match unified.filter(|_| root.join("cgroup.controllers").exists()) {
        Some(own) => root.join(own).join("memory.swap.max").exists(),
        None => root.join("memory/memory.memsw.limit_in_bytes").exists(),
    }
}

/// Reads the machine. `root` is the kubelet's root directory.
pub fn read_machine(root: &Path) -> io::Result<Machine> {
    let read = |path: &str| fs::read_to_string(path).map(|s| s.trim().to_owned());
    Ok(Machine {
        hostname: read("/proc/sys/kernel/hostname")?,
        kernel: read("/proc/sys/kernel/osrelease")?,
        cpus: online_cpus().unwrap_or(1),
        online: read(ONLINE).ok(),
        tasks: most_tasks(),
        memory: memory(&fs::read_to_string("/proc/meminfo")?),
        numa_nodes: numa_nodes(Path::new("/sys/devices/system/node")),
        cgroup_v2: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
        swap_controller: limits_swap(
            Path::new("/sys/fs/cgroup"),
            &read("/proc/self/cgroup").unwrap_or_default(),
        ),
        hugepage_sizes: hugepage_sizes(Path::new("/sys/kernel/mm/hugepages")),
        huge_pages: huge_pages(Path::new("/sys/kernel/mm/hugepages")),
        disk: rustix::fs::statvfs(root)
            .map(|s| i64::try_from(s.f_blocks.saturating_mul(s.f_frsize)).unwrap_or(i64::MAX))?,
        thermal_paths: thermal_paths(Path::new("/sys/devices/system/cpu")),
        selinux: Path::new("/sys/fs/selinux/enforce").exists(),
        app_armor: read("/sys/module/apparmor/parameters/enabled").is_ok_and(|v| v.starts_with('Y')),
    })
}

/// The CPUs of the machine, not those this process may use: an agent with a quota does not make the node smaller.
pub(crate) fn online_cpus() -> Option<i64> {
    let listed = fs::read_to_string(ONLINE).ok();
    let listed = listed.and_then(|text| capacity::count_cpus(&text));
    listed.or_else(|| i64::try_from(std::thread::available_parallelism().ok()?.get()).ok())
}

/// Two settings of the kernel bound them.
fn most_tasks() -> Option<i64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<i64>().ok();
    let both = ["/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"];
    both.into_iter().filter_map(number).min()
}

/// Go's name of this machine's architecture.
#[must_use]
pub fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn memory(meminfo: &str) -> Memory {
    let found = proc::memory(meminfo).unwrap_or_default();
    let bytes = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    Memory { total: bytes(found.total), swap: bytes(found.swap_total) }
}

fn hugepage_sizes(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let kb = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let sizes: BTreeSet<u64> = names.filter_map(|e| kb(&e.file_name().to_string_lossy())).collect();
    sizes.into_iter().map(page_size).collect()
}

fn huge_pages(dir: &Path) -> BTreeMap<i64, i64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let pages = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kb: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
        Some((kb.checked_mul(1024)?, count.trim().parse().ok()?))
    };
    entries.filter_map(pages).collect()
}

fn page_size(kb: u64) -> String {
    match kb {
        kb if kb % (1024 * 1024) == 0 => format!("{}GB", kb / 1024 / 1024),
        kb if kb % 1024 == 0 => format!("{}MB", kb / 1024),
        kb => format!("{kb}KB"),
    }
}

fn thermal_paths(cpus: &Path) -> Vec<String> {
    let entries = fs::read_dir(cpus).into_iter().flatten().flatten();
    let mut paths: Vec<String> = entries
        .map(|e| e.path().join("thermal_throttle"))
        .filter(|p| p.is_dir())
        .map(|p| p.to_string_lossy().into_owned())
        .collect();
    paths.sort_unstable();
    paths
}

// --- addresses ---

pub(crate) fn resolve(name: &str) -> Vec<IpAddr> {
    (name, 0).to_socket_addrs().map(|all| all.map(|a| a.ip()).collect()).unwrap_or_default()
}

/// The kernel picks a source address when a datagram socket is connected; no packet is sent.
pub(crate) fn towards_default_route(v6: bool) -> Option<IpAddr> {
    let (any, far): (SocketAddr, SocketAddr) = if v6 {
        ((Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into())
    } else {
        ((Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::new(192, 0, 2, 1), 9).into())
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(far).ok()?;
    socket.local_addr().ok().map(|a| a.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

/// Every address of this network namespace.
pub(crate) fn local_addresses() -> BTreeSet<IpAddr> {
    let v4 = fs::read_to_string("/proc/net/fib_trie").map(|t| parse_fib_trie(&t)).unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").map(|t| parse_if_inet6(&t)).unwrap_or_default();
    v4.into_iter().chain(v6).collect()
}

fn parse_fib_trie(text: &str) -> Vec<IpAddr> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let local = lines.windows(2).filter(|w| w[1].starts_with("/32 host LOCAL"));
    local.filter_map(|w| w[0].strip_prefix("|-- ")?.parse().ok()).collect()
}

fn parse_if_inet6(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| u128::from_str_radix(line.split_whitespace().next()?, 16).ok();
    text.lines().filter_map(address).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        let m = memory("MemTotal:       24682416 kB\nMemFree: 1 kB\nSwapTotal:             0 kB\n");
        assert_eq!(m, Memory { total: 24_682_416 * 1024, swap: 0 });
        let fib = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 10.1.2.255\n        /32 link BROADCAST\n";
        assert_eq!(parse_fib_trie(fib), ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(parse_if_inet6(v6), ["::1".parse::<IpAddr>().unwrap()]);
    }

    #[test]
    fn page_sizes_are_spelled_as_the_kernel_does() {
        assert_eq!([2048, 1024 * 1024, 64].map(page_size), ["2MB", "1GB", "64KB"]);
    }

    #[test]
    fn huge_pages_are_counted_by_size() {
        let dir = tempfile::tempdir().unwrap();
        for (name, count) in [("hugepages-2048kB", "3\n"), ("hugepages-1048576kB", "0\n"), ("other", "9\n")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("nr_hugepages"), count).unwrap();
        }
        assert_eq!(huge_pages(dir.path()), BTreeMap::from([(2 << 20, 3), (1 << 30, 0)]));
    }

    #[test]
    fn this_machine_can_be_read() {
        let m = read_machine(Path::new("/")).unwrap();
        assert!(m.cpus > 0 && m.memory.total > 0 && m.disk > 0 && !m.hostname.is_empty());
    }

    #[test]
    fn numa_nodes_are_counted() {
        let root = tempfile::tempdir().unwrap();
        for name in ["node0", "node12", "possible", "nodes", "node"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        assert_eq!(numa_nodes(root.path()), 2);
        assert_eq!(numa_nodes(Path::new("/no/such/directory")), 0);
    }

    #[test]
    fn swap_can_be_limited_where_the_kernel_has_the_file() {
        let root = tempfile::tempdir().unwrap();
        let (at, own) = (root.path(), "12:memory:/x\n0::/a/b\n");
        assert!(!limits_swap(at, own));
        fs::create_dir_all(at.join("memory")).unwrap();
        fs::write(at.join("memory/memory.memsw.limit_in_bytes"), "").unwrap();
        assert!(limits_swap(at, own), "version 1");
        fs::write(at.join("cgroup.controllers"), "memory").unwrap();
        assert!(!limits_swap(at, own), "version 2 asks its own cgroup");
        fs::create_dir_all(at.join("a/b")).unwrap();
        fs::write(at.join("a/b/memory.swap.max"), "max").unwrap();
        assert!(limits_swap(at, own));
    }
}
