//! reservedMemory: what of each NUMA node is kept for the system.

use std::collections::{BTreeMap, BTreeSet};

use super::super::machine::NumaNode;
use super::super::wants::Memory;
use super::state::{NodeState, Nodes, Table};
use base::quantity::Quantity;

/// Bytes by kind, by NUMA node.
pub type Reserved = BTreeMap<u32, Memory>;

/// Checks the configuration against the machine and against what Node Allocatable keeps back, as upstream does.
pub fn check(
    nodes: &[NumaNode],
    kept_back: &BTreeMap<String, Quantity>,
    given: &[(u32, BTreeMap<String, Quantity>)],
) -> Result<Reserved, String> {
    let mut reserved: Reserved = nodes.iter().map(|n| (n.id, Memory::new())).collect();
    let mut total: BTreeMap<String, i64> = BTreeMap::new();
    for (node, limits) in given {
        let of_node = reserved.get_mut(node).ok_or_else(|| {
            format!(
                "the reserved memory configuration references a NUMA node {node} that does not exist on this machine"
            )
        })?;
        for (kind, quantity) in limits {
            *total.entry(kind.clone()).or_default() += quantity.value();
            of_node.insert(kind.clone(), u64::try_from(quantity.value()).unwrap_or(0));
        }
    }
    let is_memory = |kind: &&String| *kind == "memory" || api::pod::resources::is_huge_pages(kind);
    let kinds: BTreeSet<&String> = total.keys().chain(kept_back.keys().filter(is_memory)).collect();
    for kind in kinds {
        let ours = total.get(kind).copied().unwrap_or(0);
        let wanted = kept_back.get(kind).map_or(0, |q| q.value());
        if ours != wanted {
            return Err(format!(
                "the total amount \"{}\" of type {kind:?} is not equal to the value \"{}\" determined by Node Allocatable feature",
                total_text(given, kind),
                kept_back.get(kind).map_or_else(|| "0".to_owned(), ToString::to_string),
            ));
        }
    }
    if reserved.values().filter_map(|m| m.get("memory")).sum::<u64>() == 0 {
        return Err("[memorymanager] you should specify the system reserved memory".to_owned());
    }
    Ok(reserved)
}

/// A sum is written as its only part is, where there is one only.
fn total_text(given: &[(u32, BTreeMap<String, Quantity>)], kind: &str) -> String {
    let parts: Vec<&Quantity> = given.iter().filter_map(|(_, limits)| limits.get(kind)).collect();
    match parts.as_slice() {
        [] => "0".to_owned(),
        [one] => one.to_string(),
        many => many.iter().map(|q| q.value()).sum::<i64>().to_string(),
    }
}

/// The machine's memory when nobody has any of it.
pub(super) fn untouched(nodes: &[NumaNode], reserved: &Reserved) -> Nodes {
    let table = |node: u32, kind: &str, total: u64, less: u64| {
        let system_reserved = reserved.get(&node).and_then(|m| m.get(kind)).copied().unwrap_or(0);
        let allocatable = total.saturating_sub(system_reserved).saturating_sub(less);
        Table { total, system_reserved, allocatable, reserved: 0, free: allocatable }
    };
    let node = |node: &NumaNode| {
        let huge = node.hugepages.iter().map(|(kind, bytes)| (kind.clone(), table(node.id, kind, *bytes, 0)));
        let mut memory: BTreeMap<String, Table> = huge.collect();
        let in_pages = node.hugepages.values().sum();
        memory.insert("memory".to_owned(), table(node.id, "memory", node.memory, in_pages));
        (node.id, NodeState { assignments: 0, memory, cells: vec![node.id] })
    };
    nodes.iter().map(node).collect()
}
