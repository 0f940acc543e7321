//! From one template to the next, Node by Node.

use std::sync::Arc;

use base::time::Now;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::fit::Place;
use super::{ByNode, DaemonSet, Site, Work};
use crate::object::Object;
use crate::terms::{Round, scaled};

/// The Pods of a Node: of the present template, and of another.
type Pair = (Option<Arc<Object>>, Option<Arc<Object>>);

impl DaemonSet {
    pub(super) fn allows_surge(&self) -> bool {
        let is_zero = |value: &IntOrString| scaled(value, 100, Round::Up).is_none_or(|number| number <= 0);
        self.rolling.as_ref().is_some_and(|rolling| !is_zero(&rolling.max_surge))
    }

    /// The next Pods to be replaced. A Node that another sync has to put right first counts, and is left to it.
    pub(super) fn roll(&self, sites: &[Site], by_node: &ByNode, hash: &str, now: Now) -> Work {
        let Some(rolling) = &self.rolling else { return Work::default() };
        let should_run = sites.iter().filter(|site| site.place == Place::Run);
        let desired = i32::try_from(should_run.clone().count()).unwrap_or(i32::MAX);
        let share = |value: &IntOrString| scaled(value, desired, Round::Up).unwrap_or(0).max(0);
        let (surge, mut unavailable) = (share(&rolling.max_surge), share(&rolling.max_unavailable));
        if surge == 0 && unavailable == 0 {
            unavailable = 1;
        }
        let empty = should_run.filter(|site| !by_node.contains_key(&site.name)).count();
        let mut nodes = Vec::new();
        for (node, pods) in by_node {
            nodes.push((node, self.pair(pods, hash)));
        }
        match surge {
            0 => self.replace(nodes, empty, usize::try_from(unavailable).unwrap_or(0), now),
            surge => self.surge(sites, nodes, usize::try_from(surge).unwrap_or(0), now),
        }
    }

    /// None: there are too many, or the same template twice.
    fn pair(&self, pods: &[Arc<Object>], hash: &str) -> Option<Pair> {
        let mut pair: Pair = (None, None);
        for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
            let place = if self.is_updated(pod, hash) { &mut pair.0 } else { &mut pair.1 };
            if place.replace(pod.clone()).is_some() {
                return None;
            }
        }
        Some(pair)
    }

    /// Old Pods that are not available go in any case, others as far as may be unavailable; new ones follow when they are gone.
    fn replace(&self, nodes: Vec<(&String, Option<Pair>)>, empty: usize, most: usize, now: Now) -> Work {
        let (mut unavailable, mut candidates, mut work) = (empty, Vec::new(), Work::default());
        for (_, pair) in nodes {
            match pair {
                Some((Some(new), None)) if self.is_available(&new, now) => {}
                Some((None, Some(old))) if self.is_available(&old, now) => candidates.push(old),
                Some((None, Some(old))) => {
                    unavailable += 1;
                    work.delete.push(old);
                }
                _ => unavailable += 1,
            }
        }
        work.delete.extend(candidates.into_iter().take(most.saturating_sub(unavailable)));
        work
    }

    /// New Pods beside the old ones, which go when the new ones are available.
    fn surge(&self, sites: &[Site], nodes: Vec<(&String, Option<Pair>)>, most: usize, now: Now) -> Work {
        let (mut surge, mut candidates, mut work) = (0, Vec::new(), Work::default());
        let should_run = |node: &str| sites.iter().any(|site| site.name == node && site.place == Place::Run);
        for (node, pair) in nodes {
            match pair {
                None => surge += 1,
                Some((_, None)) => {}
                Some((Some(new), Some(old))) if self.is_available(&new, now) => work.delete.push(old),
                Some((Some(_), Some(_))) => surge += 1,
                // Where no new one may start, the old one has nobody to wait for.
                Some((None, Some(old))) if !should_run(node) => work.delete.push(old),
                Some((None, Some(old))) if self.is_available(&old, now) => candidates.push(node.clone()),
                Some((None, Some(_))) => work.create.push(node.clone()),
            }
        }
        work.create.extend(candidates.into_iter().take(most.saturating_sub(surge)));
        work
    }
}
