//! Who has memory of which NUMA node.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What there is of one kind of memory on one node, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Table {
    pub total: u64,
    #[serde(rename = "systemReserved")]
    pub system_reserved: u64,
    pub allocatable: u64,
    pub reserved: u64,
    pub free: u64,
}

/// A NUMA node and what was given of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct NodeState {
    /// Blocks that touch the node.
    #[serde(rename = "numberOfAssignments")]
    pub assignments: i64,
    #[serde(rename = "memoryMap")]
    pub memory: BTreeMap<String, Table>,
    /// The nodes that are used together with this one, itself among them.
    pub cells: Vec<u32>,
}

/// A piece of memory, from one or more nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Block {
    #[serde(rename = "numaAffinity")]
    pub nodes: Vec<u32>,
    #[serde(rename = "type")]
    pub kind: String,
    pub size: u64,
}

pub type Nodes = BTreeMap<u32, NodeState>;

/// Blocks by container, by Pod UID.
pub type Entries = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// What the state file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    pub nodes: Nodes,
    pub entries: Entries,
}

// === impl NodeState ===

impl NodeState {
    pub(super) fn free(&self, kind: &str) -> u64 {
        self.memory.get(kind).map_or(0, |t| t.free)
    }

    pub(super) fn allocatable(&self, kind: &str) -> u64 {
        self.memory.get(kind).map_or(0, |t| t.allocatable)
    }
}

// === impl MemoryState ===

impl MemoryState {
    #[must_use]
    pub fn blocks(&self, uid: &str, container: &str) -> Option<&[Block]> {
        self.entries.get(uid)?.get(container).map(Vec::as_slice)
    }

    /// The nodes a container's memory comes from; none if it may come from any.
    #[must_use]
    pub fn nodes_of(&self, uid: &str, container: &str) -> Vec<u32> {
        let blocks = self.blocks(uid, container).unwrap_or_default();
        let nodes: std::collections::BTreeSet<u32> = blocks.iter().flat_map(|b| b.nodes.clone()).collect();
        nodes.into_iter().collect()
    }
}

/// Takes so much of these nodes, the first of them first; every one of them counts the block.
fn occupy(nodes: &mut Nodes, affinity: &[u32], kind: &str, mut size: u64) {
    for id in affinity {
        let Some(node) = nodes.get_mut(id) else { continue };
        node.assignments += 1;
        node.cells = affinity.to_vec();
        let Some(table) = node.memory.get_mut(kind) else { continue };
        let here = table.free.min(size);
        table.reserved += here;
        table.free -= here;
        size -= here;
    }
}

/// The machine with these blocks given. It is counted anew whenever they change: which of its nodes a block of several came
/// from cannot be told from the block, and to guess it loses memory. A block of one node has to be there; one of several takes
/// what is left.
pub(super) fn counted(untouched: &Nodes, entries: &Entries) -> Nodes {
    let mut nodes = untouched.clone();
    let mut blocks: Vec<&Block> = entries.values().flat_map(BTreeMap::values).flatten().collect();
    blocks.sort_by_key(|b| b.nodes.len());
    blocks.iter().for_each(|b| occupy(&mut nodes, &b.nodes, &b.kind, b.size));
    nodes
}
