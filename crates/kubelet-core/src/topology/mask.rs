//! Sets of NUMA nodes, and hints that name them.

use std::cmp::Ordering;

/// NUMA nodes as bits, the lowest for node 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumaMask(u64);

/// One way to have what a container asks for: from these nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// None: any node will do.
    pub nodes: Option<NumaMask>,
    /// No smaller set of nodes could ever do.
    pub preferred: bool,
}

/// What one provider says about one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// It does not matter where the resource comes from.
    Any,
    /// It comes from one of these. None of them: it cannot be had.
    OneOf(Vec<Hint>),
}

// === impl NumaMask ===

impl NumaMask {
    /// Numbers above 63 are no node's.
    pub fn new(nodes: impl IntoIterator<Item = u32>) -> Self {
        Self(nodes.into_iter().filter(|n| *n < 64).fold(0, |mask, n| mask | 1 << n))
    }

    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    #[must_use]
    pub fn has(self, node: u32) -> bool {
        node < 64 && self.0 & (1 << node) != 0
    }

    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.and(other) == other
    }

    /// From the lowest on.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |n| self.has(*n))
    }

    /// Fewer nodes; among as many, lower numbers.
    #[must_use]
    pub fn narrowness(self, other: Self) -> Ordering {
        self.count().cmp(&other.count()).then(self.0.cmp(&other.0))
    }

    #[must_use]
    pub fn is_narrower(self, other: Self) -> bool {
        self.narrowness(other) == Ordering::Less
    }

    /// Lower numbers.
    #[must_use]
    pub fn is_lower(self, other: Self) -> bool {
        self.0 < other.0
    }

    /// Every set of these nodes except the empty one, smaller ones first.
    #[must_use]
    pub fn subsets(nodes: &[u32]) -> Vec<NumaMask> {
        let mut all = Vec::new();
        (1..=nodes.len()).for_each(|size| add_subsets(nodes, size, NumaMask::default(), &mut all));
        all
    }
}

fn add_subsets(nodes: &[u32], size: usize, mask: NumaMask, all: &mut Vec<NumaMask>) {
    if size == 0 {
        all.push(mask);
        return;
    }
    for (i, node) in nodes.iter().enumerate() {
        add_subsets(&nodes[i + 1..], size - 1, NumaMask(mask.0 | NumaMask::new([*node]).0), all);
    }
}

// === impl Hint ===

impl Hint {
    #[must_use]
    pub fn new(nodes: impl IntoIterator<Item = u32>, preferred: bool) -> Self {
        Self { nodes: Some(NumaMask::new(nodes)), preferred }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_come_by_size_and_number() {
        let all = NumaMask::subsets(&[0, 1, 3]);
        let all: Vec<Vec<u32>> = all.into_iter().map(|m| m.nodes().collect()).collect();
        assert_eq!(all, [vec![0], vec![1], vec![3], vec![0, 1], vec![0, 3], vec![1, 3], vec![0, 1, 3]]);
    }

    #[test]
    fn fewer_nodes_are_narrower_and_then_lower_ones() {
        let mask = |nodes: &[u32]| NumaMask::new(nodes.iter().copied());
        assert!(mask(&[3]).is_narrower(mask(&[0, 1])));
        assert!(mask(&[0]).is_narrower(mask(&[1])));
        assert!(!mask(&[1]).is_narrower(mask(&[1])));
        assert!(mask(&[0, 3]).is_narrower(mask(&[1, 3])));
    }
}
