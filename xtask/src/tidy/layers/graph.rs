//! Who knows whom among modules that are siblings, and where that ends where it began.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::references::{Source, Tree};

/// The siblings of one level and the references between them.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// From, to, and where the first reference stands.
    arcs: BTreeMap<String, BTreeMap<String, String>>,
}

/// Modules of which each reaches all the others, and the shortest way around.
#[derive(Debug)]
pub(super) struct Circle {
    pub modules: Vec<String>,
    pub shortest: Vec<Arc>,
}

#[derive(Debug)]
pub(super) struct Arc {
    pub from: String,
    pub to: String,
    pub reference: String,
}

// === impl Graph ===

impl Graph {
    /// One graph for each module that has children; the root has the empty path.
    pub(super) fn by_level(sources: &[Source]) -> BTreeMap<Vec<String>, Self> {
        let tree = Tree::new(sources);
        let mut levels: BTreeMap<Vec<String>, Self> = BTreeMap::new();
        for source in sources.iter().filter(|source| !tree.is_test(&source.module)) {
            for reference in &source.references {
                let target = tree.resolve(&reference.path);
                let from = &reference.module;
                let shared = from.iter().zip(&target).take_while(|(a, b)| a == b).count();
                let (Some(own), Some(other)) = (from.get(shared), target.get(shared)) else { continue };
                let place = format!("{}:{}", source.file, reference.line);
                let arcs = &mut levels.entry(from[..shared].to_vec()).or_default().arcs;
                arcs.entry(own.clone()).or_default().entry(other.clone()).or_insert(place);
            }
        }
        levels
    }

    pub(super) fn circles(&self) -> Vec<Circle> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.arcs.keys().map(|from| (from.as_str(), self.reachable(from))).collect();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut circles = Vec::new();
        for (from, all) in &reach {
            if !all.contains(from) || seen.contains(from) {
                continue;
            }
            let returns = |to: &&&str| reach.get(**to).is_some_and(|back| back.contains(from));
            let members: BTreeSet<&str> = all.iter().filter(returns).copied().collect();
            seen.extend(&members);
            let shortest = members.iter().filter_map(|member| self.way_back(member)).min_by_key(Vec::len);
            circles.push(Circle {
                modules: members.into_iter().map(str::to_owned).collect(),
                shortest: shortest.unwrap_or_default(),
            });
        }
        circles
    }

    fn reachable<'a>(&'a self, from: &'a str) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            let next = self.arcs.get(at).into_iter().flat_map(BTreeMap::keys);
            open.extend(next.map(String::as_str).filter(|to| found.insert(*to)));
        }
        found
    }

    /// The shortest way from a module back to itself.
    fn way_back(&self, start: &str) -> Option<Vec<Arc>> {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut open = VecDeque::from([start]);
        while let Some(at) = open.pop_front() {
            for to in self.arcs.get(at).into_iter().flat_map(BTreeMap::keys).map(String::as_str) {
                if came_from.contains_key(to) {
                    continue;
                }
                came_from.insert(to, at);
                if to == start {
                    return Some(self.arcs_of(start, &came_from));
                }
                open.push_back(to);
            }
        }
        None
    }

    fn arcs_of(&self, start: &str, came_from: &BTreeMap<&str, &str>) -> Vec<Arc> {
        let mut arcs = Vec::new();
        let mut to = start;
        while let Some(from) = came_from.get(to).copied() {
            let reference = self.arcs[from][to].clone();
            arcs.push(Arc { from: from.to_owned(), to: to.to_owned(), reference });
            to = from;
            if to == start {
                break;
            }
        }
        arcs.reverse();
        arcs
    }
}
