//! From which NUMA nodes memory could come.

use std::collections::BTreeMap;

use super::super::mask::{Hint, NumaMask};
use super::super::wants::Memory;
use super::state::Nodes;

/// Every set of nodes that has what is wanted. `reusable` is what the Pod's init containers leave on a set of nodes.
pub(super) fn hints(nodes: &Nodes, wanted: &Memory, reusable: impl Fn(NumaMask, &str) -> u64) -> Vec<Hint> {
    let ids: Vec<u32> = nodes.keys().copied().collect();
    let mut least = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let mut masks = Vec::new();
    for mask in NumaMask::subsets(&ids) {
        let sum = |of: &dyn Fn(u32) -> u64| mask.nodes().map(of).sum::<u64>();
        let ever = |(kind, size): (&String, &u64)| sum(&|n| nodes[&n].allocatable(kind)) >= *size;
        if !wanted.iter().all(ever) {
            continue;
        }
        least = least.min(mask.count());
        let now = |(kind, size): (&String, &u64)| {
            sum(&|n| nodes[&n].free(kind)).saturating_add(reusable(mask, kind)) >= *size
        };
        if may_be_used_together(nodes, mask) && wanted.iter().all(now) {
            masks.push(mask);
        }
    }
    masks.into_iter().map(|m| Hint { nodes: Some(m), preferred: m.count() == least }).collect()
}

/// A node is used alone or always with the same others.
fn may_be_used_together(nodes: &Nodes, mask: NumaMask) -> bool {
    if mask.count() == 1 {
        return mask.nodes().all(|n| nodes[&n].cells.len() <= 1);
    }
    !violates_groups(nodes, mask)
}

/// Whether one of the nodes is in use alone, or with others than these.
pub(super) fn violates_groups(nodes: &Nodes, mask: NumaMask) -> bool {
    let in_use = |n: &u32| nodes.get(n).is_some_and(|node| node.assignments > 0);
    let other_group = |n: u32| {
        let cells = &nodes[&n].cells;
        cells.len() == 1 || NumaMask::new(cells.iter().copied()) != mask
    };
    mask.count() > 1 && mask.nodes().filter(in_use).any(other_group)
}

/// Whether these nodes have so much free.
pub(super) fn is_enough(nodes: &Nodes, mask: NumaMask, wanted: &Memory) -> bool {
    let free = |kind: &str| mask.nodes().filter_map(|n| Some(nodes.get(&n)?.free(kind))).sum::<u64>();
    wanted.iter().all(|(kind, size)| free(kind) >= *size)
}

/// The narrowest of the preferred ones, else of all.
pub(super) fn best(hints: impl IntoIterator<Item = Hint>) -> Hint {
    let better = |best: Hint, hint: Hint| match (best.nodes, hint.nodes) {
        (None, _) => hint,
        (Some(a), Some(b)) if hint.preferred == best.preferred && b.is_narrower(a) => hint,
        _ if hint.preferred && !best.preferred => hint,
        _ => best,
    };
    hints.into_iter().fold(Hint::default(), better)
}

/// What init containers leave, by nodes and kind.
pub(super) type Left = BTreeMap<NumaMask, Memory>;
