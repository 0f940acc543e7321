//! CPUs, caches and NUMA nodes as the kernel shows them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base::quantity::Quantity;
use kubelet_core::topology::cpu_set::CpuSet;
use kubelet_core::topology::machine::{CpuFacts, Machine, NumaNode, memory_of_node, page_size};

/// Where the kernel shows them.
pub const SYSTEM: &str = "/sys/devices/system";

/// Reads the machine below `root`. `memory` is what all of it has, for kernels without NUMA nodes.
pub fn read(root: &Path, memory: u64) -> io::Result<Machine> {
    let online = cpu_list(&root.join("cpu/online"))?;
    let cpus: Vec<CpuFacts> =
        online.iter().map(|cpu| facts(&root.join(format!("cpu/cpu{cpu}")), cpu)).collect();
    let mut nodes = Vec::new();
    for (id, dir) in numbered(&root.join("node"), "node") {
        nodes.push(node(id, &dir)?);
    }
    if nodes.is_empty() {
        nodes.push(NumaNode { memory, distances: vec![10], cpus: online, ..NumaNode::default() });
    }
    Ok(Machine::new(nodes, &cpus))
}

/// A kernel that does not tell has one socket, and a core per CPU.
fn facts(dir: &Path, cpu: u32) -> CpuFacts {
    let topology = dir.join("topology");
    CpuFacts {
        cpu,
        package: number(&topology.join("physical_package_id")).unwrap_or(0),
        core_id: number(&topology.join("core_id")).unwrap_or(cpu),
        last_cache: last_cache(&dir.join("cache")),
    }
}

/// The largest cache of the third level or above: its id, and how many CPUs share it.
fn last_cache(dir: &Path) -> Option<(u32, usize)> {
    let level = |dir: &PathBuf| number::<u32>(&dir.join("level"));
    let caches = numbered(dir, "index").into_values();
    let last = caches.filter(|c| level(c) > Some(2)).max_by_key(level)?;
    Some((number(&last.join("id"))?, cpu_list(&last.join("shared_cpu_list")).ok()?.len()))
}

fn node(id: u32, dir: &Path) -> io::Result<NumaNode> {
    let meminfo = fs::read_to_string(dir.join("meminfo"))?;
    let distance = fs::read_to_string(dir.join("distance")).unwrap_or_default();
    Ok(NumaNode {
        id,
        memory: memory_of_node(&meminfo).unwrap_or(0),
        hugepages: huge_pages(&dir.join("hugepages")),
        distances: distance.split_whitespace().filter_map(|d| d.parse().ok()).collect(),
        cpus: cpu_list(&dir.join("cpulist"))?,
    })
}

fn huge_pages(dir: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| {
        let size = page_size(entry.file_name().to_str()?)?;
        let count: u64 = number(&entry.path().join("nr_hugepages"))?;
        let name = format!("hugepages-{}", Quantity::from_bytes(i64::try_from(size).ok()?));
        Some((name, size.checked_mul(count)?))
    };
    entries.filter_map(bytes).collect()
}

/// Directories `name0`, `name1`… by their numbers.
fn numbered(dir: &Path, name: &str) -> BTreeMap<u32, PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let entry = |e: fs::DirEntry| Some((e.file_name().to_str()?.strip_prefix(name)?.parse().ok()?, e.path()));
    entries.filter_map(entry).collect()
}

fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn cpu_list(path: &Path) -> io::Result<CpuSet> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_as_many_cpus_as_it_says() {
        let machine = read(Path::new(SYSTEM), 0).unwrap();
        assert_eq!(Some(machine.cpus.all.len() as i64), super::super::facts::online_cpus());
        assert!(machine.nodes.iter().all(|n| n.memory > 0 || n.cpus.is_empty()));
    }

    #[test]
    fn files_of_the_kernel_are_read() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("cpu/online", "0-3\n");
        for cpu in 0..4 {
            write(&format!("cpu/cpu{cpu}/topology/physical_package_id"), "0\n");
            write(&format!("cpu/cpu{cpu}/topology/core_id"), &format!("{}\n", cpu % 2));
            let index = format!("cpu/cpu{cpu}/cache/index3");
            write(&format!("{index}/level"), "3\n");
            write(&format!("{index}/id"), &format!("{}\n", cpu % 2 + 7));
            write(&format!("{index}/shared_cpu_list"), &format!("{},{}\n", cpu % 2, cpu % 2 + 2));
        }
        let no_nodes = read(root.path(), 5 << 30).unwrap();
        assert_eq!((no_nodes.nodes.len(), no_nodes.nodes[0].memory), (1, 5 << 30));
        write("node/node0/meminfo", "Node 0 MemTotal:       4096 kB\n");
        write("node/node0/cpulist", "0-3\n");
        write("node/node0/distance", "10\n");
        write("node/node0/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
        let machine = read(root.path(), 0).unwrap();
        assert_eq!(machine.nodes[0].memory, 4 << 20);
        assert_eq!(machine.nodes[0].hugepages, [("hugepages-2Mi".to_owned(), 6 << 20)].into());
        assert_eq!((machine.cpus.cores, machine.cpus.caches), (2, 2));
        assert_eq!(machine.cpus.all.place(3).map(|p| (p.core, p.cache)), Some((1, 8)));
    }
}
