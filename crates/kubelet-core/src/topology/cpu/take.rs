//! Which CPUs a container gets: whole sockets, NUMA nodes, caches and cores first, from where least is left.

use std::collections::BTreeSet;

use super::super::cpu_set::CpuSet;
use super::super::layout::{CpuTopology, Layout, Level};

/// The order in which single threads are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The threads of a core one after the other.
    #[default]
    Packed,
    /// One thread of each core first.
    Spread,
}

/// How [`take`] goes about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    pub order: Order,
    /// CPUs behind one last-level cache go together where they can.
    pub by_cache: bool,
}

/// Why there are no CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough { requested: usize, available: usize },
    #[error("failed to allocate cpus")]
    Failed,
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    TooFew(i64),
    #[error("accounting error, too many CPUs allocated, remaining: {0}")]
    TooMany(i64),
}

/// What is free, and what was taken of it so far.
pub(super) struct Pile<'a> {
    pub(super) topology: &'a CpuTopology,
    pub(super) free: Layout,
    pub(super) needed: usize,
    pub(super) taken: CpuSet,
}

/// Takes `count` of the free CPUs, as few parts of the machine as possible.
pub fn take(
    topology: &CpuTopology,
    free: &CpuSet,
    count: usize,
    manner: Manner,
) -> Result<CpuSet, TakeError> {
    let mut pile = Pile::new(topology, free, count);
    if pile.has_enough() {
        return Ok(pile.taken);
    }
    if pile.cannot_do() {
        return Err(TakeError::NotEnough { requested: count, available: free.len() });
    }
    pile.take_whole(pile.outer());
    pile.take_whole(pile.inner());
    if manner.by_cache && !pile.has_enough() {
        pile.take_by_cache();
    }
    if manner.order == Order::Packed {
        pile.take_whole(Level::Core);
    }
    for cpu in pile.threads(manner.order) {
        if pile.has_enough() {
            break;
        }
        pile.take(&CpuSet::from([cpu]));
    }
    if pile.has_enough() { Ok(pile.taken) } else { Err(TakeError::Failed) }
}

// === impl Pile ===

impl<'a> Pile<'a> {
    pub(super) fn new(topology: &'a CpuTopology, free: &CpuSet, needed: usize) -> Self {
        Self { topology, free: topology.all.only(free), needed, taken: CpuSet::default() }
    }

    pub(super) fn has_enough(&self) -> bool {
        self.needed == 0
    }

    pub(super) fn cannot_do(&self) -> bool {
        self.needed > self.free.len()
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free.remove(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// The larger of socket and NUMA node. Where both are the same, upstream calls it a NUMA node.
    fn outer(&self) -> Level {
        if self.topology.sockets >= self.topology.numa_nodes { Level::Numa } else { Level::Socket }
    }

    fn inner(&self) -> Level {
        if self.outer() == Level::Numa { Level::Socket } else { Level::Numa }
    }

    /// Those with the fewest free CPUs first, so that what is broken already is used up.
    fn by_free(&self, level: Level, ids: BTreeSet<u32>) -> Vec<u32> {
        let mut ids: Vec<u32> = ids.into_iter().collect();
        ids.sort_by_key(|id| (self.free.count_in(level, *id), *id));
        ids
    }

    /// All groups of the level with free CPUs, in the order they are used up: the order of the larger groups comes first.
    pub(super) fn sorted(&self, level: Level) -> Vec<u32> {
        let outer = match level {
            Level::Cache => Level::Numa,
            Level::Core => self.inner(),
            level if level == self.outer() => return self.by_free(level, self.free.groups(level)),
            _ => self.outer(),
        };
        let inside = |id: u32| self.by_free(level, self.free.groups_in(level, outer, &[id]));
        self.sorted(outer).into_iter().flat_map(inside).collect()
    }

    fn is_whole(&self, level: Level, id: u32) -> bool {
        let free = self.free.count_in(level, id);
        match level {
            Level::Socket => free == self.topology.cpus_per_socket(),
            Level::Core => free == self.topology.cpus_per_core(),
            _ => free == self.topology.all.count_in(level, id),
        }
    }

    /// Every group that is wholly free and not too large.
    fn take_whole(&mut self, level: Level) {
        if self.has_enough() {
            return;
        }
        let whole: Vec<u32> = self.sorted(level).into_iter().filter(|id| self.is_whole(level, *id)).collect();
        for id in whole {
            let cpus = self.topology.all.cpus_in(level, &[id]);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    fn take_by_cache(&mut self) {
        for cache in self.sorted(Level::Cache) {
            if self.needed >= self.topology.cpus_per_cache() {
                self.take_whole(Level::Cache);
            }
            if self.has_enough() {
                return;
            }
            self.take_part_of_cache(cache);
            if self.has_enough() {
                return;
            }
        }
    }

    /// All that is still needed, from behind one cache; nothing if that cannot be.
    fn take_part_of_cache(&mut self, cache: u32) {
        let per_core = self.topology.cpus_per_core();
        let cores_needed = self.needed.div_ceil(per_core.max(1));
        let cores = self.free.groups_in(Level::Core, Level::Cache, &[cache]);
        let cores: Vec<u32> = cores.into_iter().take(cores_needed).collect();
        let mut cpus = self.free.cpus_in(Level::Core, &cores);
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            let keep = cpus.len() - 1;
            cpus = cpus.iter().take(keep).collect();
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn threads(&self, order: Order) -> Vec<u32> {
        let level = match order {
            Order::Packed => Level::Core,
            Order::Spread => Level::Socket,
        };
        let inside = |id: u32| self.free.cpus_in(level, &[id]).iter().collect::<Vec<_>>();
        self.sorted(level).into_iter().flat_map(inside).collect()
    }
}
