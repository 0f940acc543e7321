//! CPUs spread evenly over NUMA nodes, where one node is not enough.

use std::collections::BTreeMap;

use super::super::cpu_set::CpuSet;
use super::super::layout::{CpuTopology, Level};
use super::take::{Manner, Order, Pile, TakeError, take};

/// A choice of nodes, and which of them give one group more than the others.
struct Choice {
    nodes: Vec<u32>,
    more: Vec<u32>,
    /// How unequal the nodes are afterwards.
    imbalance: f64,
}

/// Takes `count` CPUs in groups of `group`, equally many of each node that gives any; the fewest nodes that can do that.
/// Where no nodes can, they are taken as if nothing had been said.
pub(super) fn take_evenly(
    topology: &CpuTopology,
    free: &CpuSet,
    count: usize,
    group: usize,
    order: Order,
) -> Result<CpuSet, TakeError> {
    let manner = Manner { order, by_cache: false };
    if group == 0 || !count.is_multiple_of(group) {
        return take(topology, free, count, manner);
    }
    let mut pile = Pile::new(topology, free, count);
    if pile.has_enough() {
        return Ok(pile.taken);
    }
    if pile.cannot_do() {
        return Err(TakeError::NotEnough { requested: count, available: free.len() });
    }
    let nodes = pile.sorted(Level::Numa);
    for size in numbers_of_nodes(&pile, group) {
        let mut best: Option<Choice> = None;
        for combination in combinations(&nodes, size) {
            if best.as_ref().is_some_and(|b| b.imbalance == 0.0) {
                break;
            }
            let Some(choice) = weigh(&pile, &nodes, combination, group) else { continue };
            if best.as_ref().is_none_or(|b| choice.imbalance < b.imbalance) {
                best = Some(choice);
            }
        }
        if let Some(choice) = best {
            return carry_out(&mut pile, &choice, group, manner);
        }
    }
    take(topology, free, count, manner)
}

/// How many nodes may have to give something: from the fewest that could ever be enough.
fn numbers_of_nodes(pile: &Pile<'_>, group: usize) -> std::ops::RangeInclusive<usize> {
    let groups = pile.topology.all.len().div_ceil(group);
    let per_node = groups.div_ceil(pile.topology.numa_nodes.max(1));
    let needed = pile.needed.div_ceil(group);
    needed.div_ceil(per_node.max(1))..=needed.min(pile.free.groups(Level::Numa).len())
}

/// What would be left on every node if these gave the CPUs; none if they cannot.
fn weigh(pile: &Pile<'_>, nodes: &[u32], combination: Vec<u32>, group: usize) -> Option<Choice> {
    let free = |node: &u32| pile.free.count_in(Level::Numa, *node);
    let groups: usize = combination.iter().map(|n| free(n) / group).sum();
    let each = pile.needed / combination.len() / group * group;
    if groups * group < pile.needed || combination.iter().any(|n| free(n) < each) {
        return None;
    }
    let mut left: BTreeMap<u32, usize> = nodes.iter().map(|n| (*n, free(n))).collect();
    combination.iter().for_each(|n| *left.entry(*n).or_default() -= each);
    let rest = pile.needed - each * combination.len();
    if rest == 0 {
        return Some(Choice { nodes: combination, more: Vec::new(), imbalance: deviation(&left) });
    }
    let can: Vec<u32> = combination.iter().copied().filter(|n| left[n] >= group).collect();
    let mut best: Option<(f64, Vec<u32>)> = None;
    for size in (1..=can.len()).rev() {
        for more in combinations(&can, size) {
            let Some(after) = take_rest(&left, &more, rest, group) else { continue };
            let imbalance = deviation(&after);
            if best.as_ref().is_none_or(|(least, _)| imbalance < *least) {
                best = Some((imbalance, more));
            }
        }
    }
    best.map(|(imbalance, more)| Choice { nodes: combination, more, imbalance })
}

/// What is left when the rest was taken from these, a group at a time; none if they have not so much.
fn take_rest(
    left: &BTreeMap<u32, usize>,
    more: &[u32],
    mut rest: usize,
    group: usize,
) -> Option<BTreeMap<u32, usize>> {
    let mut left = left.clone();
    if more.iter().map(|n| left[n] / group * group).sum::<usize>() < rest {
        return None;
    }
    while rest > 0 {
        for node in more {
            let here = left.entry(*node).or_default();
            if rest > 0 && *here >= group {
                *here -= group;
                rest -= group;
            }
        }
    }
    Some(left)
}

fn carry_out(
    pile: &mut Pile<'_>,
    choice: &Choice,
    group: usize,
    manner: Manner,
) -> Result<CpuSet, TakeError> {
    let count = pile.needed;
    let each = count / choice.nodes.len() / group * group;
    let from = |pile: &mut Pile<'_>, node: u32, count: usize| {
        let here = pile.free.cpus_in(Level::Numa, &[node]);
        // As upstream: that too little was taken is found out in the end.
        let cpus = take(pile.topology, &here, count, manner).unwrap_or_default();
        pile.take(&cpus);
    };
    choice.nodes.iter().for_each(|node| from(pile, *node, each));
    let mut rest = count - each * choice.nodes.len();
    while rest > 0 && choice.more.iter().any(|n| pile.free.count_in(Level::Numa, *n) >= group) {
        for node in &choice.more {
            if rest > 0 && pile.free.count_in(Level::Numa, *node) >= group {
                from(pile, *node, group);
                rest -= group;
            }
        }
    }
    let missing = i64::try_from(count).unwrap_or(0) - i64::try_from(pile.taken.len()).unwrap_or(0);
    match missing {
        0 => Ok(std::mem::take(&mut pile.taken)),
        1.. => Err(TakeError::TooFew(missing)),
        _ => Err(TakeError::TooMany(missing)),
    }
}

/// The standard deviation, to the thousandth like upstream's: what is nearly equal is equal.
fn deviation(left: &BTreeMap<u32, usize>) -> f64 {
    #[allow(clippy::cast_precision_loss)]
    let values: Vec<f64> = left.values().map(|n| *n as f64).collect();
    #[allow(clippy::cast_precision_loss)]
    let count = values.len() as f64;
    let round = |x: f64| (x * 1000.0).round() / 1000.0;
    let mean = round(values.iter().sum::<f64>() / count);
    round((values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt())
}

/// Every choice of `size` of them, in their order.
fn combinations(of: &[u32], size: usize) -> Vec<Vec<u32>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (i, first) in of.iter().enumerate() {
        for mut rest in combinations(&of[i + 1..], size - 1) {
            rest.insert(0, *first);
            all.push(rest);
        }
    }
    all
}
