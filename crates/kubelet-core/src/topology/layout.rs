//! How the machine's CPUs hang together: threads in cores, cores behind caches, on NUMA nodes, in sockets.

use std::collections::{BTreeMap, BTreeSet};

use super::cpu_set::CpuSet;

/// Where a CPU is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPlace {
    pub numa: u32,
    pub socket: u32,
    /// The lowest CPU of the core.
    pub core: u32,
    /// The cache shared by a group of cores, mostly the third level.
    pub cache: u32,
}

/// What CPUs can be grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Numa,
    Socket,
    Cache,
    Core,
}

/// A set of CPUs and where they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    places: BTreeMap<u32, CpuPlace>,
}

/// The whole machine, with the counts that do not change when CPUs are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuTopology {
    pub all: Layout,
    pub sockets: usize,
    pub cores: usize,
    pub numa_nodes: usize,
    pub caches: usize,
}

// === impl CpuPlace ===

impl CpuPlace {
    #[must_use]
    pub fn at(&self, level: Level) -> u32 {
        match level {
            Level::Numa => self.numa,
            Level::Socket => self.socket,
            Level::Cache => self.cache,
            Level::Core => self.core,
        }
    }
}

// === impl Layout ===

impl Layout {
    #[must_use]
    pub fn cpus(&self) -> CpuSet {
        self.places.keys().copied().collect()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[must_use]
    pub fn place(&self, cpu: u32) -> Option<CpuPlace> {
        self.places.get(&cpu).copied()
    }

    #[must_use]
    pub fn only(&self, cpus: &CpuSet) -> Layout {
        let places = self.places.iter().filter(|(cpu, _)| cpus.contains(**cpu));
        Layout { places: places.map(|(cpu, place)| (*cpu, *place)).collect() }
    }

    pub(super) fn remove(&mut self, cpus: &CpuSet) {
        cpus.iter().for_each(|cpu| _ = self.places.remove(&cpu));
    }

    /// The groups of this level that any of the CPUs is in.
    #[must_use]
    pub fn groups(&self, level: Level) -> BTreeSet<u32> {
        self.places.values().map(|p| p.at(level)).collect()
    }

    /// The groups of one level that lie in these groups of another.
    #[must_use]
    pub fn groups_in(&self, level: Level, outer: Level, ids: &[u32]) -> BTreeSet<u32> {
        self.places.values().filter(|p| ids.contains(&p.at(outer))).map(|p| p.at(level)).collect()
    }

    #[must_use]
    pub fn cpus_in(&self, level: Level, ids: &[u32]) -> CpuSet {
        self.places.iter().filter(|(_, p)| ids.contains(&p.at(level))).map(|(cpu, _)| *cpu).collect()
    }

    #[must_use]
    pub fn count_in(&self, level: Level, id: u32) -> usize {
        self.places.values().filter(|p| p.at(level) == id).count()
    }
}

impl FromIterator<(u32, CpuPlace)> for Layout {
    fn from_iter<I: IntoIterator<Item = (u32, CpuPlace)>>(iter: I) -> Self {
        Layout { places: iter.into_iter().collect() }
    }
}

// === impl CpuTopology ===

impl CpuTopology {
    #[must_use]
    pub fn new(all: Layout) -> Self {
        let count = |level| all.groups(level).len();
        Self {
            sockets: count(Level::Socket),
            cores: count(Level::Core),
            numa_nodes: count(Level::Numa),
            caches: count(Level::Cache),
            all,
        }
    }

    /// Threads of a core; on machines with unlike cores a mean, rounded down, as upstream has it.
    #[must_use]
    pub fn cpus_per_core(&self) -> usize {
        self.all.len().checked_div(self.cores).unwrap_or(0)
    }

    #[must_use]
    pub fn cpus_per_socket(&self) -> usize {
        self.all.len().checked_div(self.sockets).unwrap_or(0)
    }

    #[must_use]
    pub fn cpus_per_cache(&self) -> usize {
        self.all.len().checked_div(self.caches).unwrap_or(0)
    }

    /// Whether the CPUs share one last-level cache.
    #[must_use]
    pub fn share_a_cache(&self, cpus: &CpuSet) -> bool {
        let caches: BTreeSet<Option<u32>> =
            cpus.iter().map(|cpu| self.all.place(cpu).map(|p| p.cache)).collect();
        caches.len() <= 1 && (cpus.len() <= 1 || !caches.contains(&None))
    }
}
