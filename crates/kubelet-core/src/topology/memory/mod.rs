//! The memory manager: from which NUMA nodes a container's memory comes. Upstream's policies `None` and `Static`.

pub mod checkpoint;
mod hints;
pub mod reserved;
pub mod state;

use std::collections::BTreeMap;

use super::admission_error::AdmissionError;
use super::machine::NumaNode;
use super::mask::{Hint, NumaMask, Wish};
use super::wants::{ContainerWant, Lasting, Memory, PodWant};
use hints::{Left, best, is_enough, violates_groups};
use reserved::Reserved;
use state::{Block, MemoryState, Nodes, counted};

/// The static policy.
#[derive(Clone, Debug)]
pub struct StaticMemory {
    untouched: Nodes,
    /// What the last Pod's init containers had.
    reusable: (String, Left),
    pub state: MemoryState,
    pub figures: MemoryFigures,
}

/// What the metrics tell beyond the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryFigures {
    pub requests: u64,
    pub errors: u64,
    pub blocks: u64,
    pub containers: u64,
}

// === impl StaticMemory ===

impl StaticMemory {
    #[must_use]
    pub fn new(nodes: &[NumaNode], reserved: &Reserved) -> Self {
        Self {
            untouched: reserved::untouched(nodes, reserved),
            reusable: Default::default(),
            state: MemoryState::default(),
            figures: MemoryFigures::default(),
        }
    }

    /// Goes on from what an earlier life of the agent left, if that can be true of this machine.
    pub fn resume(&mut self, state: MemoryState) -> Result<(), String> {
        if state.nodes.is_empty() {
            if !state.entries.is_empty() {
                return Err("[memorymanager] machine state can not be empty when it has memory assignments"
                    .to_owned());
            }
            self.state.nodes = self.untouched.clone();
            return Ok(());
        }
        let expected = self.expected(&state)?;
        if !are_alike(&state.nodes, &expected) {
            return Err(
                "[memorymanager] the expected machine state is different from the real one".to_owned()
            );
        }
        self.state = state;
        Ok(())
    }

    /// The machine as it would be with these blocks given.
    fn expected(&self, state: &MemoryState) -> Result<Nodes, String> {
        let nodes = &self.untouched;
        for (uid, containers) in &state.entries {
            for (container, blocks) in containers {
                for block in blocks {
                    let wrong = |what: &str| {
                        format!(
                            "[memorymanager] (pod: {uid}, container: {container}) the memory assignment uses {what}"
                        )
                    };
                    for id in &block.nodes {
                        let node = nodes.get(id).ok_or_else(|| wrong("the NUMA that does not exist"))?;
                        if !node.memory.contains_key(&block.kind) {
                            return Err(wrong("memory resource that does not exist"));
                        }
                    }
                }
            }
        }
        Ok(counted(nodes, &state.entries))
    }

    /// What each node could give, had nobody anything.
    #[must_use]
    pub fn allocatable(&self) -> Vec<Block> {
        let of = |(id, node): (&u32, &state::NodeState)| {
            let block = |(kind, table): (&String, &state::Table)| Block {
                nodes: vec![*id],
                kind: kind.clone(),
                size: table.allocatable,
            };
            node.memory.iter().map(block).filter(|b| b.size > 0).collect::<Vec<_>>()
        };
        self.untouched.iter().flat_map(of).collect()
    }

    /// Gives the container its memory, from the hint's nodes if there are any. One that has some keeps it.
    pub fn allocate(
        &mut self,
        pod: &PodWant,
        container: &ContainerWant,
        hint: Hint,
    ) -> Result<(), AdmissionError> {
        let Some(wanted) = &container.memory else { return Ok(()) };
        self.figures.requests += 1;
        if let Some(blocks) = self.state.blocks(&pod.uid, &container.name).map(<[Block]>::to_vec) {
            self.remember(pod, container, &blocks);
            return Ok(());
        }
        let done = self.choose(pod, wanted, hint).map_err(|why| AdmissionError::unexpected(&why));
        match done {
            Ok(nodes) => self.give(pod, container, wanted, nodes),
            Err(_) => self.figures.errors += 1,
        }
        done.map(drop)
    }

    /// The nodes the memory comes from.
    fn choose(&self, pod: &PodWant, wanted: &Memory, hint: Hint) -> Result<NumaMask, String> {
        let mut chosen = hint;
        if hint.nodes.is_none() {
            let hints = self.hints_for(pod, wanted);
            if hints.is_empty() || wanted.is_empty() {
                return Err("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available".to_owned());
            }
            chosen = best(hints);
            if !chosen.preferred && hint.preferred {
                return Err("[memorymanager] failed to find the default preferred hint".to_owned());
            }
        }
        let nodes = chosen.nodes.unwrap_or_default();
        if !is_enough(&self.state.nodes, nodes, wanted) {
            let with = |h: &Hint| h.nodes.is_some_and(|n| n.contains(nodes));
            let larger: Vec<Hint> = self.hints_for(pod, wanted).into_iter().filter(with).collect();
            if larger.is_empty() {
                return Err("[memorymanager] failed to find NUMA nodes to extend the current topology hint"
                    .to_owned());
            }
            let preferred = chosen.preferred;
            chosen = best(larger);
            if !chosen.preferred && preferred {
                return Err("[memorymanager] failed to find the extended preferred hint".to_owned());
            }
        }
        let nodes = chosen.nodes.unwrap_or_default();
        if violates_groups(&self.state.nodes, nodes) {
            return Err("[memorymanager] preferred hint violates NUMA node allocation".to_owned());
        }
        Ok(nodes)
    }

    fn give(&mut self, pod: &PodWant, container: &ContainerWant, wanted: &Memory, nodes: NumaMask) {
        let ids: Vec<u32> = nodes.nodes().collect();
        let mut blocks = Vec::new();
        for (kind, size) in wanted {
            blocks.push(Block { nodes: ids.clone(), kind: kind.clone(), size: *size });
            self.figures.blocks += 1;
        }
        self.figures.containers += 1;
        self.remember(pod, container, &blocks);
        self.state.entries.entry(pod.uid.clone()).or_default().insert(container.name.clone(), blocks.clone());
        self.shrink_init_containers(pod, container, &blocks);
        self.state.nodes = counted(&self.untouched, &self.state.entries);
    }

    fn reusable_on(&self, uid: &str, nodes: NumaMask, kind: &str) -> u64 {
        let (of, left) = &self.reusable;
        if of != uid {
            return 0;
        }
        left.get(&nodes).and_then(|m| m.get(kind)).copied().unwrap_or(0)
    }

    /// What an init container has, the next containers of its Pod may have.
    fn remember(&mut self, pod: &PodWant, container: &ContainerWant, blocks: &[Block]) {
        if self.reusable.0 != pod.uid {
            self.reusable = (pod.uid.clone(), Left::new());
        }
        for block in blocks {
            let nodes = NumaMask::new(block.nodes.iter().copied());
            let here = self.reusable.1.entry(nodes).or_default().entry(block.kind.clone()).or_default();
            *here = match container.lasting {
                Lasting::Init => (*here).max(block.size),
                Lasting::Sidecar | Lasting::Regular => here.saturating_sub(block.size),
            };
        }
    }

    /// What a container has again, its init containers no longer count, so that the sum over the Pod is what it has.
    fn shrink_init_containers(&mut self, pod: &PodWant, container: &ContainerWant, blocks: &[Block]) {
        let Some(containers) = self.state.entries.get_mut(&pod.uid) else { return };
        for block in blocks {
            let mut size = block.size;
            for init in pod.containers.iter().take_while(|c| c.name != container.name) {
                if init.lasting != Lasting::Init {
                    continue;
                }
                for theirs in containers.get_mut(&init.name).into_iter().flatten() {
                    if theirs.kind == block.kind && same_nodes(&theirs.nodes, &block.nodes) {
                        let less = theirs.size.min(size);
                        theirs.size -= less;
                        size -= less;
                    }
                }
            }
        }
    }

    /// Takes back what the container has.
    pub fn release(&mut self, uid: &str, container: &str) {
        let Some(containers) = self.state.entries.get_mut(uid) else { return };
        if containers.remove(container).is_none() {
            return;
        }
        if containers.is_empty() {
            self.state.entries.remove(uid);
        }
        self.state.nodes = counted(&self.untouched, &self.state.entries);
    }

    /// Takes back what the init containers before this one have: they have ended.
    pub fn started(&mut self, pod: &PodWant, container: &str) {
        for init in pod.containers.iter().take_while(|c| c.name != container) {
            if init.lasting == Lasting::Init {
                self.release(&pod.uid, &init.name);
            }
        }
    }

    fn hints_for(&self, pod: &PodWant, wanted: &Memory) -> Vec<Hint> {
        hints::hints(&self.state.nodes, wanted, |mask, kind| self.reusable_on(&pod.uid, mask, kind))
    }

    /// Where each kind of the container's memory could come from.
    #[must_use]
    pub fn hints(&self, pod: &PodWant, container: &ContainerWant) -> BTreeMap<String, Wish> {
        let Some(wanted) = &container.memory else { return BTreeMap::new() };
        match self.state.blocks(&pod.uid, &container.name) {
            Some(blocks) => again(blocks, wanted),
            None => self.wishes(pod, wanted),
        }
    }

    /// Where each kind of the Pod's memory could come from.
    #[must_use]
    pub fn pod_hints(&self, pod: &PodWant) -> BTreeMap<String, Wish> {
        let Some(wanted) = pod.memory().filter(|m| !m.is_empty()) else { return BTreeMap::new() };
        let mut given = pod.containers.iter().filter_map(|c| self.state.blocks(&pod.uid, &c.name));
        match given.next() {
            Some(blocks) => again(blocks, &wanted),
            None => self.wishes(pod, &wanted),
        }
    }

    /// No way at all is told as no opinion, as upstream has it: the allocation fails and says why.
    fn wishes(&self, pod: &PodWant, wanted: &Memory) -> BTreeMap<String, Wish> {
        let hints = self.hints_for(pod, wanted);
        if hints.is_empty() {
            return BTreeMap::new();
        }
        wanted.keys().map(|kind| (kind.clone(), Wish::OneOf(hints.clone()))).collect()
    }
}

/// The hints that led to these blocks. No opinion if they are not what is wanted now.
fn again(blocks: &[Block], wanted: &Memory) -> BTreeMap<String, Wish> {
    let fits = |b: &Block| wanted.get(&b.kind) == Some(&b.size);
    if blocks.len() != wanted.len() || !blocks.iter().all(fits) {
        return BTreeMap::new();
    }
    let wish = |b: &Block| (b.kind.clone(), Wish::OneOf(vec![Hint::new(b.nodes.iter().copied(), true)]));
    blocks.iter().map(wish).collect()
}

fn same_nodes(a: &[u32], b: &[u32]) -> bool {
    NumaMask::new(a.iter().copied()) == NumaMask::new(b.iter().copied())
}

/// Whether both speak of the same machine with as much given. Nodes that are used together are looked at together: which
/// of them gave what depends on the order of the allocations.
fn are_alike(ours: &Nodes, theirs: &Nodes) -> bool {
    let sums = |nodes: &Nodes, cells: &[u32], kind: &str| {
        let tables = cells.iter().filter_map(|c| nodes.get(c)?.memory.get(kind));
        tables.fold((0, 0), |(free, reserved), t| (free + t.free, reserved + t.reserved))
    };
    ours.len() == theirs.len()
        && ours.iter().all(|(id, a)| {
            let Some(b) = theirs.get(id) else { return false };
            a.assignments == b.assignments
                && same_nodes(&a.cells, &b.cells)
                && a.memory.len() == b.memory.len()
                && a.memory.iter().all(|(kind, x)| {
                    b.memory.get(kind).is_some_and(|y| {
                        (x.total, x.system_reserved, x.allocatable)
                            == (y.total, y.system_reserved, y.allocatable)
                            && sums(ours, &a.cells, kind) == sums(theirs, &a.cells, kind)
                    })
                })
        })
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
