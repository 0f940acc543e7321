//! Topology domains: which nodes share a value of a label.

use std::collections::HashMap;

use crate::Name;
use crate::node::NodeInfo;

/// The domains of one topology key, by the node's place in the cluster's table.
#[derive(Clone, Debug, Default)]
pub struct Column {
    of: Vec<Option<u32>>,
    domains: usize,
}

// === impl Column ===

impl Column {
    #[must_use]
    pub fn new(key: &str, nodes: &[NodeInfo]) -> Column {
        let mut known: HashMap<&Name, u32> = HashMap::new();
        let of = nodes.iter().map(|info| {
            let value = info.node.as_ref()?.labels.get(key)?;
            let next = known.len() as u32;
            Some(*known.entry(value).or_insert(next))
        });
        let of = of.collect();
        Column { of, domains: known.len() }
    }

    /// The domain of a node; None where it has no such label.
    #[must_use]
    pub fn domain(&self, node: usize) -> Option<usize> {
        self.of.get(node).copied().flatten().map(|d| d as usize)
    }

    #[must_use]
    pub fn domains(&self) -> usize {
        self.domains
    }
}
