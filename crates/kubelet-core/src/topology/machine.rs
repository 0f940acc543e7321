//! The machine as its files under /sys describe it: what is read there becomes [`Machine`].

use std::collections::BTreeMap;

use super::cpu_set::CpuSet;
use super::layout::{CpuPlace, CpuTopology, Layout};

/// CPUs and NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: CpuTopology,
    pub nodes: Vec<NumaNode>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    pub id: u32,
    /// Bytes, with those in huge pages.
    pub memory: u64,
    /// Bytes in huge pages, by resource name.
    pub hugepages: BTreeMap<String, u64>,
    /// How far every node is, itself among them, in the order of their numbers.
    pub distances: Vec<u64>,
    pub cpus: CpuSet,
}

/// A CPU as its files describe it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFacts {
    pub cpu: u32,
    pub package: u32,
    pub core_id: u32,
    /// The id of its cache of the third level or above, and how many CPUs share it.
    pub last_cache: Option<(u32, usize)>,
}

// === impl Machine ===

impl Machine {
    /// CPUs that no node has are on the first.
    #[must_use]
    pub fn new(mut nodes: Vec<NumaNode>, cpus: &[CpuFacts]) -> Self {
        nodes.sort_by_key(|n| n.id);
        if nodes.is_empty() {
            nodes.push(NumaNode { distances: vec![10], ..NumaNode::default() });
        }
        let node_of = |cpu: u32| nodes.iter().find(|n| n.cpus.contains(cpu)).unwrap_or(&nodes[0]);
        let on = |id: u32| cpus.iter().filter(|c| node_of(c.cpu).id == id).count();
        let mut cores: BTreeMap<(u32, u32, u32), u32> = BTreeMap::new();
        for facts in cpus {
            let core = (node_of(facts.cpu).id, facts.package, facts.core_id);
            let lowest = cores.entry(core).or_insert(facts.cpu);
            *lowest = (*lowest).min(facts.cpu);
        }
        let place = |facts: &CpuFacts| {
            let numa = node_of(facts.cpu).id;
            // A cache that the whole node shares tells nothing apart; upstream then looks at the socket.
            let cache = facts.last_cache.filter(|(_, sharers)| *sharers < on(numa)).map(|(id, _)| id);
            let place = CpuPlace {
                numa,
                socket: facts.package,
                core: cores[&(numa, facts.package, facts.core_id)],
                cache: cache.unwrap_or(facts.package),
            };
            (facts.cpu, place)
        };
        let layout: Layout = cpus.iter().map(place).collect();
        Self { cpus: CpuTopology::new(layout), nodes }
    }

    #[must_use]
    pub fn node_ids(&self) -> Vec<u32> {
        self.nodes.iter().map(|n| n.id).collect()
    }
}

/// `Node 0 MemTotal:       24689464 kB`, in bytes.
#[must_use]
pub fn memory_of_node(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.contains("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The page size in bytes that a directory `hugepages-2048kB` is for.
#[must_use]
pub fn page_size(directory: &str) -> Option<u64> {
    let kilobytes: u64 = directory.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_core_and_caches_are_found() {
        let node = |id: u32, cpus: &[u32]| NumaNode {
            id,
            cpus: cpus.iter().copied().collect(),
            ..NumaNode::default()
        };
        // Two nodes, each one socket with two cores of two threads; on the first node each core has a cache of its own.
        let nodes = vec![node(1, &[2, 3, 6, 7]), node(0, &[0, 1, 4, 5])];
        let cpu = |cpu, package, core_id, last_cache| CpuFacts { cpu, package, core_id, last_cache };
        let cpus: Vec<CpuFacts> = (0..4)
            .flat_map(|n| {
                let package = n / 2;
                let cache = if package == 0 { (n, 2) } else { (9, 4) };
                [n, n + 4].map(|c| cpu(c, package, n % 2, Some(cache)))
            })
            .collect();
        let machine = Machine::new(nodes, &cpus);
        let all = &machine.cpus;
        assert_eq!((all.sockets, all.numa_nodes, all.cores, all.cpus_per_core()), (2, 2, 4, 2));
        let place = |cpu| all.all.place(cpu).map(|p| (p.numa, p.socket, p.core, p.cache));
        assert_eq!(place(5), Some((0, 0, 1, 1)));
        assert_eq!(place(7), Some((1, 1, 3, 1)), "a cache of the whole node is the socket's");
        assert_eq!(machine.node_ids(), [0, 1]);
    }

    #[test]
    fn a_machine_that_names_no_nodes_has_one() {
        let machine = Machine::new(Vec::new(), &[CpuFacts { cpu: 3, ..CpuFacts::default() }]);
        assert_eq!((machine.cpus.numa_nodes, machine.nodes.len()), (1, 1));
    }

    #[test]
    fn files_of_a_node_are_read() {
        let text = "Node 0 MemTotal:       24689464 kB\nNode 0 MemFree:        1 kB\n";
        assert_eq!(memory_of_node(text), Some(24_689_464 * 1024));
        assert_eq!(page_size("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(page_size("huge"), None);
    }
}
