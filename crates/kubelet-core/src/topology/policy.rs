//! The topology manager: one answer to what all resources say about NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::cpu::options::go_bool;
use super::machine::NumaNode;
use super::mask::{Hint, NumaMask, Wish};

/// topologyManagerPolicy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyName {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

/// topologyManagerScope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

/// How hints become one.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub kind: PolicyName,
    pub scope: Scope,
    /// Nodes that are near each other before others.
    closest: bool,
    nodes: Vec<u32>,
    distances: BTreeMap<u32, Vec<u64>>,
}

/// So many NUMA nodes are too many to try all their sets, unless the operator says otherwise.
const MOST_NODES: usize = 8;

// === impl PolicyName ===

impl PolicyName {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "none" => Self::None,
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => return None,
        })
    }
}

// === impl Policy ===

impl Policy {
    pub fn new(
        name: &str,
        scope: &str,
        options: &BTreeMap<String, String>,
        nodes: &[NumaNode],
    ) -> Result<Self, String> {
        let kind = PolicyName::parse(name).ok_or_else(|| format!("unknown policy: \"{name}\""))?;
        if kind == PolicyName::None {
            return Ok(Self::default());
        }
        let (closest, most) = read_options(options)?;
        if closest && nodes.iter().any(|n| n.distances.is_empty()) {
            return Err(
                "cannot discover NUMA topology: error getting NUMA distances from cadvisor".to_owned()
            );
        }
        if nodes.len() > most {
            return Err(format!("unsupported on machines with more than {most} NUMA Nodes"));
        }
        let scope = match scope {
            "container" => Scope::Container,
            "pod" => Scope::Pod,
            _ => return Err(format!("unknown scope: \"{scope}\"")),
        };
        Ok(Self {
            kind,
            scope,
            closest,
            nodes: nodes.iter().map(|n| n.id).collect(),
            distances: nodes.iter().map(|n| (n.id, n.distances.clone())).collect(),
        })
    }

    /// Whether whoever is let in has everything from one node.
    #[must_use]
    pub fn guarantees_alignment(&self) -> bool {
        self.kind == PolicyName::SingleNumaNode
    }

    /// The nodes all resources should come from, and whether the container may run so. `wishes`: by provider and resource.
    #[must_use]
    pub fn merge(&self, wishes: &[BTreeMap<String, Wish>]) -> (Hint, bool) {
        if self.kind == PolicyName::None {
            return (Hint::default(), true);
        }
        let mut hints = flat(wishes);
        if self.kind == PolicyName::SingleNumaNode {
            let single = |h: &Hint| h.preferred && h.nodes.is_none_or(|n| n.count() == 1);
            hints.iter_mut().for_each(|of| of.retain(single));
        }
        let mut best = self.best(&hints);
        if self.kind == PolicyName::SingleNumaNode && best.nodes == Some(self.all()) {
            best.nodes = None;
        }
        (best, self.kind == PolicyName::BestEffort || best.preferred)
    }

    fn all(&self) -> NumaMask {
        NumaMask::new(self.nodes.iter().copied())
    }

    /// The best of all combinations of one hint per resource.
    fn best(&self, hints: &[Vec<Hint>]) -> Hint {
        let enough = widest_need(hints);
        let some = combined(hints, self.all()).into_iter().filter(|(nodes, _)| nodes.count() > 0);
        let best = some.reduce(|best, candidate| self.better(best, candidate, enough));
        let (nodes, preferred) = best.unwrap_or((self.all(), false));
        Hint { nodes: Some(nodes), preferred }
    }

    fn better(
        &self,
        current: (NumaMask, bool),
        candidate: (NumaMask, bool),
        enough: u32,
    ) -> (NumaMask, bool) {
        match (current.1, candidate.1) {
            (false, true) => return candidate,
            (true, false) => return current,
            (true, true) => return self.fitter(current, candidate),
            (false, false) => {}
        }
        // Neither is preferred: as many nodes as the neediest resource needs, if that can be had, and no more.
        let (now, then) = (current.0.count(), candidate.0.count());
        if now > enough {
            return self.fitter(current, candidate);
        }
        if now == enough {
            return if then == enough { self.fitter(current, candidate) } else { current };
        }
        match then {
            n if n > enough => current,
            n if n == enough || n > now => candidate,
            n if n < now => current,
            _ => self.fitter(current, candidate),
        }
    }

    fn fitter(&self, current: (NumaMask, bool), candidate: (NumaMask, bool)) -> (NumaMask, bool) {
        let (a, b) = (current.0, candidate.0);
        let by_distance = self.closest && self.kind != PolicyName::SingleNumaNode && a.count() == b.count();
        let keeps = if a == b {
            true
        } else if by_distance {
            let (near, far) = (self.mean_distance(a), self.mean_distance(b));
            if near == far { a.is_lower(b) } else { near < far }
        } else {
            a.is_narrower(b)
        };
        if keeps { current } else { candidate }
    }

    /// The sum over all pairs would do, but upstream divides, and ties hang on the rounding.
    fn mean_distance(&self, nodes: NumaMask) -> f64 {
        let place = |node: u32| self.nodes.iter().position(|n| *n == node).unwrap_or(0);
        let distance = |a: u32, b: u32| self.distances.get(&a).and_then(|d| d.get(place(b))).copied();
        let pairs = nodes.nodes().flat_map(|a| nodes.nodes().map(move |b| (a, b)));
        #[allow(clippy::cast_precision_loss)]
        let sum: f64 = pairs.map(|(a, b)| distance(a, b).unwrap_or(0) as f64).sum();
        sum / f64::from((nodes.count() * nodes.count()).max(1))
    }
}

fn read_options(given: &BTreeMap<String, String>) -> Result<(bool, usize), String> {
    let (mut closest, mut most) = (false, MOST_NODES);
    for (name, value) in given {
        match name.as_str() {
            "prefer-closest-numa-nodes" => {
                closest = go_bool(value).map_err(|e| format!("bad value for option {name:?}: {e}"))?;
            }
            "max-allowable-numa-nodes" => {
                most = value.parse().map_err(|_| {
                    format!("unable to convert policy option to integer {name:?}: strconv.Atoi: parsing {value:?}: invalid syntax")
                })?;
                if most < MOST_NODES {
                    return Err(format!(
                        "the minimum value of {name:?} should not be less than {MOST_NODES}"
                    ));
                }
            }
            _ => return Err(format!("unknown Topology Manager Policy option: {name:?}")),
        }
    }
    Ok((closest, most))
}

/// One list of hints per resource. Whoever has nothing to say is content with any node.
fn flat(wishes: &[BTreeMap<String, Wish>]) -> Vec<Vec<Hint>> {
    const CONTENT: Hint = Hint { nodes: None, preferred: true };
    const IMPOSSIBLE: Hint = Hint { nodes: None, preferred: false };
    let mut all = Vec::new();
    for of_provider in wishes {
        if of_provider.is_empty() {
            all.push(vec![CONTENT]);
        }
        all.extend(of_provider.values().map(|wish| match wish {
            Wish::Any => vec![CONTENT],
            Wish::OneOf(hints) if hints.is_empty() => vec![IMPOSSIBLE],
            Wish::OneOf(hints) => hints.clone(),
        }));
    }
    all
}

/// What can be common to one hint of each resource. It is preferred if each of them is, and if they are the same. Upstream
/// tries every combination, which are millions on a large machine; but few of them differ in what they come to.
fn combined(hints: &[Vec<Hint>], all: NumaMask) -> BTreeSet<(NumaMask, bool)> {
    // What is common so far, and while it is preferred, the nodes that every hint named.
    let mut states = BTreeSet::from([(all, None, true)]);
    for of_resource in hints {
        let mut next = BTreeSet::new();
        for (common, named, preferred) in states {
            for hint in of_resource {
                let is_same = hint.nodes.is_none_or(|n| named.is_none_or(|named| named == n));
                let preferred = preferred && hint.preferred && is_same;
                let common = hint.nodes.map_or(common, |n| common.and(n));
                next.insert((common, named.or(hint.nodes).filter(|_| preferred), preferred));
            }
        }
        states = next;
    }
    states.into_iter().map(|(common, _, preferred)| (common, preferred)).collect()
}

/// How many nodes the neediest resource needs at least.
fn widest_need(hints: &[Vec<Hint>]) -> u32 {
    let least = |of: &Vec<Hint>| of.iter().filter_map(|h| h.nodes).map(NumaMask::count).min();
    hints.iter().filter_map(least).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
