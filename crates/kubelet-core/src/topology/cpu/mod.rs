//! The CPU manager: who runs on which CPUs. Upstream's policies `none` and `static`.
//!
//! Guaranteed Pods that ask for whole CPUs get them for themselves; all others share the rest, among them the CPUs that
//! are kept for the system.

pub mod checkpoint;
mod distribute;
pub mod options;
pub mod take;

use std::collections::BTreeMap;

use super::admission_error::AdmissionError;
use super::cpu_set::CpuSet;
use super::layout::{CpuTopology, Level};
use super::mask::{Hint, NumaMask, Wish};
use super::wants::{ContainerWant, Lasting, PodWant};
use options::Options;
use take::{Manner, Order, TakeError, take};

/// CPU sets by container, by Pod UID.
pub type Entries = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// Who has which CPUs; what the state file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// Where everybody runs who has none of his own.
    pub shared: CpuSet,
    pub entries: Entries,
}

/// The static policy.
#[derive(Clone, Debug)]
pub struct StaticCpus {
    topology: CpuTopology,
    options: Options,
    reserved: CpuSet,
    /// With the other threads of their cores.
    reserved_cores: CpuSet,
    /// CPUs of the last Pod's init containers, which its next containers may have again.
    reusable: (String, CpuSet),
    pub state: CpuState,
    pub figures: CpuFigures,
}

/// What the metrics tell beyond the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuFigures {
    pub requests: u64,
    pub errors: u64,
    /// Allocations of whole cores, and failures to make them.
    pub whole_cores: u64,
    pub no_whole_cores: u64,
    /// Allocations behind one cache.
    pub one_cache: u64,
    pub allocations: u64,
}

// === impl CpuState ===

impl CpuState {
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.entries.get(uid)?.get(container)
    }

    #[must_use]
    pub fn own_or_shared(&self, uid: &str, container: &str) -> &CpuSet {
        self.own(uid, container).unwrap_or(&self.shared)
    }

    /// Every CPU that is somebody's alone.
    #[must_use]
    pub fn exclusive(&self) -> CpuSet {
        self.entries.values().flat_map(BTreeMap::values).flat_map(CpuSet::iter).collect()
    }
}

// === impl StaticCpus ===

impl StaticCpus {
    /// The policy with so many CPUs reserved, or these. `single_numa`: the topology policy lets nothing span nodes.
    pub fn new(
        topology: CpuTopology,
        options: Options,
        reserved: usize,
        named: &CpuSet,
        single_numa: bool,
    ) -> Result<Self, String> {
        let refused = |why: String| format!("new static policy error: {why}");
        check_sockets(&topology, options, single_numa).map_err(refused)?;
        let mut policy = Self {
            topology,
            options,
            reserved: named.clone(),
            reserved_cores: CpuSet::default(),
            reusable: Default::default(),
            state: CpuState::default(),
            figures: CpuFigures::default(),
        };
        if named.is_empty() {
            policy.reserved = policy.take(&policy.topology.all.cpus(), reserved).unwrap_or_default();
        }
        if policy.reserved.len() != reserved {
            return Err(refused(format!(
                "[cpumanager] unable to reserve the required amount of CPUs (size of {} did not equal {reserved})",
                policy.reserved
            )));
        }
        for cpu in policy.reserved.iter() {
            let place = policy.topology.all.place(cpu).ok_or_else(|| {
                refused(format!(
                    "[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {cpu}"
                ))
            })?;
            let core = policy.topology.all.cpus_in(Level::Core, &[place.core]);
            policy.reserved_cores = policy.reserved_cores.union(&core);
        }
        Ok(policy)
    }

    /// Goes on from what an earlier life of the agent left, if that can be true of this machine.
    pub fn resume(&mut self, state: CpuState) -> Result<(), String> {
        let mut all = self.topology.all.cpus();
        if self.options.strict_reservation {
            all = all.without(&self.reserved);
        }
        if state.shared.is_empty() {
            if !state.entries.is_empty() {
                return Err("default cpuset cannot be empty".to_owned());
            }
            self.state.shared = all;
            return Ok(());
        }
        self.check_reserved(&state.shared)?;
        for (uid, containers) in &state.entries {
            for (container, cpus) in containers {
                if !cpus.intersection(&state.shared).is_empty() {
                    return Err(format!(
                        "pod: {uid}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{}\"",
                        state.shared
                    ));
                }
            }
        }
        let known = state.shared.union(&state.exclusive());
        if known != all {
            return Err(format!(
                "current set of available CPUs \"{all}\" doesn't match with CPUs in state \"{known}\""
            ));
        }
        self.state = state;
        Ok(())
    }

    fn check_reserved(&self, shared: &CpuSet) -> Result<(), String> {
        let both = self.reserved.intersection(shared);
        if self.options.strict_reservation && !both.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: \"{both}\" are present in defaultCpuSet: \"{shared}\""
            ));
        }
        if !self.options.strict_reservation && both != self.reserved {
            return Err(format!(
                "not all reserved cpus: \"{}\" are present in defaultCpuSet: \"{shared}\"",
                self.reserved
            ));
        }
        Ok(())
    }

    #[must_use]
    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// Every CPU that somebody may have for himself.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        self.topology.all.cpus().without(&self.reserved)
    }

    /// Those that nobody has.
    #[must_use]
    pub fn available(&self) -> CpuSet {
        self.state.shared.without(&self.reserved)
    }

    /// Gives the container its CPUs, from near the hint's nodes first. One that has some keeps them.
    pub fn allocate(
        &mut self,
        pod: &PodWant,
        container: &ContainerWant,
        hint: Hint,
    ) -> Result<(), AdmissionError> {
        if container.cpus == 0 {
            return Ok(());
        }
        self.figures.requests += 1;
        let done = self.try_allocate(pod, container, hint);
        let whole = u64::from(self.options.full_cores);
        match done {
            Ok(()) => self.figures.whole_cores += whole,
            Err(_) => {
                self.figures.errors += 1;
                self.figures.no_whole_cores += whole;
            }
        }
        done
    }

    fn try_allocate(
        &mut self,
        pod: &PodWant,
        container: &ContainerWant,
        hint: Hint,
    ) -> Result<(), AdmissionError> {
        self.check_threads(container.cpus)?;
        if let Some(own) = self.state.own(&pod.uid, &container.name).cloned() {
            self.remember(pod, container, &own);
            return Ok(());
        }
        let free = self.available().union(self.reusable_by(&pod.uid));
        let near = hint.nodes.map(|nodes| self.near(nodes, &free)).unwrap_or_default();
        let mut cpus = self.take(&near, near.len().min(container.cpus))?;
        let rest = container.cpus - cpus.len();
        cpus = cpus.union(&self.take(&free.without(&cpus), rest)?);
        self.state.shared = self.state.shared.without(&cpus);
        self.figures.one_cache += u64::from(self.topology.share_a_cache(&cpus));
        self.figures.allocations += 1;
        self.remember(pod, container, &cpus);
        self.state.entries.entry(pod.uid.clone()).or_default().insert(container.name.clone(), cpus);
        Ok(())
    }

    /// With whole cores promised, nobody may ask for half a core, or for more than there are.
    fn check_threads(&self, count: usize) -> Result<(), AdmissionError> {
        let per_core = self.topology.cpus_per_core().max(1);
        if !self.options.full_cores {
            return Ok(());
        }
        if !count.is_multiple_of(per_core) {
            return Err(AdmissionError::smt(format!(
                "requested {count} cpus not multiple cpus per core = {per_core}"
            )));
        }
        let free = self.state.shared.without(&self.reserved_cores).len();
        if count > free {
            return Err(AdmissionError::smt(format!(
                "not enough free physical CPUs: available physical CPUs = {free}, requested CPUs = {count}, CPUs per core = {per_core}"
            )));
        }
        Ok(())
    }

    fn reusable_by(&self, uid: &str) -> &CpuSet {
        const NONE: &CpuSet = &CpuSet::EMPTY;
        if self.reusable.0 == uid { &self.reusable.1 } else { NONE }
    }

    /// What an init container had, the next containers of its Pod may have.
    fn remember(&mut self, pod: &PodWant, container: &ContainerWant, cpus: &CpuSet) {
        let before = self.reusable_by(&pod.uid);
        let after = match container.lasting {
            Lasting::Init => before.union(cpus),
            Lasting::Sidecar | Lasting::Regular => before.without(cpus),
        };
        self.reusable = (pod.uid.clone(), after);
    }

    /// Takes back what the container has and no other container of its Pod holds too.
    pub fn release(&mut self, uid: &str, container: &str) {
        let Some(containers) = self.state.entries.get_mut(uid) else { return };
        let Some(cpus) = containers.remove(container) else { return };
        let still: CpuSet = containers.values().flat_map(CpuSet::iter).collect();
        if containers.is_empty() {
            self.state.entries.remove(uid);
        }
        self.state.shared = self.state.shared.union(&cpus.without(&still));
    }

    fn take(&self, free: &CpuSet, count: usize) -> Result<CpuSet, TakeError> {
        let order = if self.options.across_cores { Order::Spread } else { Order::Packed };
        if self.options.across_numa {
            let group = if self.options.full_cores { self.topology.cpus_per_core() } else { 1 };
            return distribute::take_evenly(&self.topology, free, count, group, order);
        }
        take(&self.topology, free, count, Manner { order, by_cache: self.options.by_cache })
    }

    /// The free CPUs on these nodes, or in their sockets.
    fn near(&self, nodes: NumaMask, free: &CpuSet) -> CpuSet {
        let all = &self.topology.all;
        let nodes: Vec<u32> = nodes.nodes().collect();
        if !self.options.by_socket {
            return free.intersection(&all.cpus_in(Level::Numa, &nodes));
        }
        let sockets: Vec<u32> = all.groups_in(Level::Socket, Level::Numa, &nodes).into_iter().collect();
        free.intersection(&all.cpus_in(Level::Socket, &sockets))
    }

    /// Where the container's CPUs could come from.
    #[must_use]
    pub fn hints(&self, pod: &PodWant, container: &ContainerWant) -> Option<Wish> {
        if container.cpus == 0 {
            return None;
        }
        Some(match self.state.own(&pod.uid, &container.name) {
            Some(own) if own.len() != container.cpus => Wish::OneOf(Vec::new()),
            Some(own) => self.hints_for(own, &CpuSet::default(), container.cpus),
            None => self.hints_for(&self.available(), self.reusable_by(&pod.uid), container.cpus),
        })
    }

    /// Where the CPUs of the whole Pod could come from.
    #[must_use]
    pub fn pod_hints(&self, pod: &PodWant) -> Option<Wish> {
        let wanted = pod.cpus();
        if wanted == 0 {
            return None;
        }
        let mut assigned = CpuSet::default();
        for container in &pod.containers {
            let Some(own) = self.state.own(&pod.uid, &container.name) else { continue };
            if own.len() != container.cpus {
                return Some(Wish::OneOf(Vec::new()));
            }
            assigned = assigned.union(own);
        }
        if assigned.len() == wanted {
            return Some(self.hints_for(&assigned, &CpuSet::default(), wanted));
        }
        let reusable = self.reusable_by(&pod.uid).union(&assigned);
        Some(self.hints_for(&self.available(), &reusable, wanted))
    }

    /// Every set of nodes with enough free CPUs that has all reusable ones. The smallest that could do on an empty machine
    /// are preferred.
    fn hints_for(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Wish {
        let all = &self.topology.all;
        let nodes: Vec<u32> = all.groups(Level::Numa).into_iter().collect();
        let on = |cpu: u32| all.place(cpu).map_or(0, |p| p.numa);
        let mut least = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let mut masks = Vec::new();
        for mask in NumaMask::subsets(&nodes) {
            let ever: usize = mask.nodes().map(|n| all.count_in(Level::Numa, n)).sum();
            if ever >= count {
                least = least.min(mask.count());
            }
            if reusable.iter().any(|cpu| !mask.has(on(cpu))) {
                continue;
            }
            let here = available.iter().filter(|cpu| mask.has(on(*cpu))).count();
            if here + reusable.len() >= count {
                masks.push(mask);
            }
        }
        let hint = |mask: NumaMask| Hint {
            nodes: Some(mask),
            preferred: mask.count() == least || self.is_by_socket(mask, least),
        };
        Wish::OneOf(masks.into_iter().map(hint).collect())
    }

    /// Whether the nodes lie in as few sockets as so many nodes need.
    fn is_by_socket(&self, mask: NumaMask, least: u32) -> bool {
        let per_socket = self.topology.numa_nodes.checked_div(self.topology.sockets).unwrap_or(0);
        if !self.options.by_socket || per_socket == 0 {
            return false;
        }
        let nodes: Vec<u32> = mask.nodes().collect();
        let sockets = self.topology.all.groups_in(Level::Socket, Level::Numa, &nodes).len();
        sockets == (least as usize).div_ceil(per_socket)
    }
}

fn check_sockets(topology: &CpuTopology, options: Options, single_numa: bool) -> Result<(), String> {
    if !options.by_socket {
        return Ok(());
    }
    if single_numa {
        return Err(format!(
            "Topolgy manager single-numa-node policy is incompatible with CPUManager {} policy option",
            options::BY_SOCKET
        ));
    }
    if topology.sockets > topology.numa_nodes {
        return Err("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA".to_owned());
    }
    Ok(())
}

impl From<TakeError> for AdmissionError {
    fn from(error: TakeError) -> Self {
        AdmissionError::unexpected(&error.to_string())
    }
}

#[cfg(test)]
mod hint_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod take_tests;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
