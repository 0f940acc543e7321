//! One Pod, all nodes: which fit, and which of those is best.

use std::collections::HashMap;
use std::sync::Arc;

use base::rng::Rng;

use crate::classes::ClassId;
use crate::cluster::Cluster;
use crate::framework::{Plugin, PreFilter, PreScore, State};
use crate::node::NodeInfo;
use crate::plugins::{PluginId, Point};
use crate::pod::Pod;
use crate::profile::Profile;
use crate::status::{Code, Diagnosis, NodeStatus, Rejection};
use crate::{Name, plugins};

/// What is said when there is no node at all.
pub const NO_NODES: &str = "no nodes available to schedule pods";
/// No fewer nodes than this are looked for, however many there are.
const LEAST_NODES: usize = 100;
const LEAST_PERCENTAGE: usize = 5;

/// Which nodes are looked at, when there are too many for all of them.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    /// Of all nodes; 0: by their number.
    pub percentage: i32,
    /// Where the search begins, so that every node has its turn.
    pub start: usize,
    /// Somebody beside the plugins filters.
    pub extenders_filter: bool,
    pub extenders_score: bool,
    /// The node that the Pod was promised will not do: somebody beside the plugins says so.
    pub ignores_nomination: bool,
}

/// A Pod's way through its profile's plugins.
#[derive(Clone, Debug)]
pub struct Cycle {
    pub pod: Arc<Pod>,
    pub profile: Arc<Profile>,
    filters: Vec<Active>,
}

#[derive(Clone, Debug)]
struct Active {
    id: PluginId,
    plugin: Arc<dyn Plugin>,
    state: State,
}

/// What the search for nodes came to.
#[derive(Clone, Debug)]
pub enum Found {
    NoNodes,
    /// Nodes that fit, by index; none if the diagnosis says why.
    Nodes {
        feasible: Vec<usize>,
        evaluated: usize,
        diagnosis: Diagnosis,
    },
    Error(String),
}

/// A node with the score it was chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub node: usize,
    pub score: i64,
    /// How many nodes had the same.
    pub ties: usize,
}

// === impl Sampling ===

impl Sampling {
    /// How many feasible nodes are enough.
    #[must_use]
    pub fn enough(&self, profile: &Profile, nodes: usize) -> usize {
        if !profile.scores() && !self.extenders_score && !self.extenders_filter {
            return 1;
        }
        if nodes < LEAST_NODES {
            return nodes;
        }
        let percentage = match profile.percentage.unwrap_or(self.percentage) {
            p if p > 0 => p as usize,
            _ => 50_usize.saturating_sub(nodes / 125).max(LEAST_PERCENTAGE),
        };
        (nodes * percentage / 100).max(LEAST_NODES)
    }
}

// === impl Cycle ===

impl Cycle {
    /// Looks for nodes on which the Pod fits.
    pub fn find(
        profile: &Arc<Profile>,
        cluster: &mut Cluster,
        pod: &Arc<Pod>,
        sampling: &mut Sampling,
    ) -> (Cycle, Found) {
        let order = cluster.order();
        let mut cycle = Cycle { pod: pod.clone(), profile: profile.clone(), filters: Vec::new() };
        if order.is_empty() {
            return (cycle, Found::NoNodes);
        }
        let mut diagnosis = Diagnosis { nodes: order.len(), ..Diagnosis::default() };
        let only = match cycle.pre_filter(cluster, &mut diagnosis) {
            Ok(only) => only,
            Err(error) => return (cycle, Found::Error(error)),
        };
        if diagnosis.pre_filter.is_some() {
            return (cycle, Found::Nodes { feasible: Vec::new(), evaluated: 0, diagnosis });
        }
        if let Some(node) = cluster.node_index(&pod.nominated).filter(|_| !sampling.ignores_nomination)
            && cycle.check(cluster, cluster.info(node)).is_ok()
        {
            return (cycle, Found::Nodes { feasible: vec![node], evaluated: 1, diagnosis });
        }
        let nodes: Arc<[usize]> = match &only {
            Some(names) => names.iter().filter_map(|name| cluster.node_index(name)).collect(),
            None => order.clone(),
        };
        let feasible = cycle.filter(cluster, &nodes, sampling, &mut diagnosis);
        let evaluated = feasible.len() + diagnosis.statuses.len();
        sampling.start = (sampling.start + evaluated) % order.len();
        (cycle, Found::Nodes { feasible, evaluated, diagnosis })
    }

    /// Asks every plugin once; a rejection is written down.
    fn pre_filter(
        &mut self,
        cluster: &Cluster,
        diagnosis: &mut Diagnosis,
    ) -> Result<Option<Vec<Name>>, String> {
        let profile = self.profile.clone();
        let asks = |id: PluginId| {
            // Plugins without this point use it to step aside early.
            let has_point = plugins::row(id).is_some_and(|row| row.points.contains(&Point::PreFilter));
            profile.has(Point::PreFilter, id) || !has_point
        };
        let mut only: Option<(Vec<Name>, Vec<PluginId>)> = None;
        let mut rejected: Option<(Rejection, PluginId)> = None;
        for (id, _, plugin) in profile.at(Point::Filter) {
            let answer = match asks(id) {
                true => plugin.pre_filter(cluster, &self.pod),
                false => PreFilter::Pass(State::default()),
            };
            let (state, names) = match answer {
                PreFilter::Skip => continue,
                PreFilter::Pass(state) => (state, None),
                PreFilter::Only(state, names) => (state, Some(names)),
                PreFilter::Error(error) => {
                    return Err(format!("running PreFilter plugin \"{}\": {error}", id.name()));
                }
                PreFilter::Reject(rejection) => {
                    diagnosis.plugins.insert(id);
                    let is_final = rejection.code == Code::UnschedulableAndUnresolvable;
                    rejected = Some((rejection, id));
                    if is_final {
                        break;
                    }
                    continue;
                }
            };
            self.filters.push(Active { id, plugin: plugin.clone(), state });
            if let Some(names) = names {
                let (known, by) = only.get_or_insert_with(|| (names.clone(), Vec::new()));
                known.retain(|name| names.contains(name));
                by.push(id);
                if known.is_empty() {
                    let text = match by.as_slice() {
                        [one] => format!("node(s) didn't satisfy plugin {}", one.name()),
                        all => format!("node(s) didn't satisfy plugin(s) {} simultaneously", listed(all)),
                    };
                    let rejection = Rejection::said(Code::UnschedulableAndUnresolvable, text);
                    rejected = Some((rejection, id));
                    break;
                }
            }
        }
        if let Some((rejection, id)) = rejected {
            diagnosis.pre_filter = Some(rejection.message());
            diagnosis.plugins.insert(id);
            diagnosis.absent = Some((rejection, id));
            return Ok(None);
        }
        Ok(only.map(|(names, by)| {
            let text = format!("node(s) didn't satisfy plugin(s) {}", listed(&by));
            by.iter().for_each(|id| diagnosis.plugins.insert(*id));
            diagnosis.absent =
                by.first().map(|id| (Rejection::said(Code::UnschedulableAndUnresolvable, text), *id));
            names
        }))
    }

    fn filter(
        &self,
        cluster: &Cluster,
        nodes: &[usize],
        sampling: &Sampling,
        diagnosis: &mut Diagnosis,
    ) -> Vec<usize> {
        let enough = sampling.enough(&self.profile, nodes.len());
        let mut feasible = Vec::with_capacity(enough.min(nodes.len()));
        for i in 0..nodes.len() {
            let node = nodes[(sampling.start + i) % nodes.len()];
            match self.check(cluster, cluster.info(node)) {
                Ok(()) => {
                    feasible.push(node);
                    if feasible.len() >= enough {
                        break;
                    }
                }
                Err((plugin, rejection)) => {
                    diagnosis.plugins.insert(plugin);
                    diagnosis.statuses.push(NodeStatus { node, plugin, rejection });
                }
            }
        }
        feasible
    }

    /// Whether a node fits, with the Pods that it was promised to and without them: they may come or not.
    pub(crate) fn check(&self, cluster: &Cluster, info: &NodeInfo) -> Result<(), (PluginId, Rejection)> {
        let promised = cluster.nominations.on(info.name());
        let counts = |p: &&Arc<Pod>| p.priority >= self.pod.priority && p.uid != self.pod.uid;
        if promised.iter().any(|p| counts(&p)) {
            let (mut trial, mut with) = (self.clone(), info.clone());
            for other in promised.iter().filter(counts) {
                trial.add(cluster, &mut with, other, ClassId::NOBODY);
            }
            trial.ask(cluster, &with)?;
        }
        self.ask(cluster, info)
    }

    fn ask(&self, cluster: &Cluster, info: &NodeInfo) -> Result<(), (PluginId, Rejection)> {
        for Active { id, plugin, state } in &self.filters {
            plugin.filter(cluster, &self.pod, state, info).map_err(|rejection| (*id, rejection))?;
        }
        Ok(())
    }

    /// A trial: what if that Pod were there?
    pub(crate) fn add(&mut self, cluster: &Cluster, info: &mut NodeInfo, other: &Arc<Pod>, class: ClassId) {
        info.add(other.clone(), class);
        for Active { plugin, state, .. } in &mut self.filters {
            plugin.update(cluster, &self.pod, state, other, info, 1);
        }
    }

    /// A trial: what if that Pod were gone?
    pub(crate) fn remove(
        &mut self,
        cluster: &Cluster,
        info: &mut NodeInfo,
        other: &Arc<Pod>,
        class: ClassId,
    ) {
        if info.remove(&other.uid, class) {
            for Active { plugin, state, .. } in &mut self.filters {
                plugin.update(cluster, &self.pod, state, other, info, -1);
            }
        }
    }

    /// Scores of nodes: the sum of all plugins' by weight.
    pub fn score(&self, cluster: &Cluster, feasible: &[usize]) -> Result<Vec<i64>, String> {
        let nodes: Vec<&NodeInfo> = feasible.iter().map(|node| cluster.info(*node)).collect();
        let mut total = vec![0; nodes.len()];
        let mut scores = vec![0; nodes.len()];
        for (id, weight, plugin) in self.profile.at(Point::Score) {
            let none = State::default();
            let filtered = self.filters.iter().find(|a| a.id == id).map_or(&none, |a| &a.state);
            let state = match plugin.pre_score(cluster, &self.pod, filtered, &nodes) {
                PreScore::Skip => continue,
                PreScore::Pass(state) => state,
                PreScore::Error(error) => {
                    return Err(format!("running PreScore plugin \"{}\": {error}", id.name()));
                }
            };
            scores.fill(0);
            plugin.score(cluster, &self.pod, &state, &nodes, &mut scores);
            plugin.normalise(&state, &mut scores);
            total.iter_mut().zip(&scores).for_each(|(total, score)| *total += score * weight);
        }
        Ok(total)
    }

    /// The best of the nodes; among equals by chance. `extra` is what extenders add.
    pub fn choose(
        &self,
        cluster: &Cluster,
        feasible: &[usize],
        extra: &HashMap<usize, i64>,
        rng: &mut Rng,
    ) -> Result<Option<Choice>, String> {
        if let [node] = feasible {
            return Ok(Some(Choice { node: *node, score: 0, ties: 1 }));
        }
        let scores = self.score(cluster, feasible)?;
        let mut best: Option<Choice> = None;
        for (node, score) in feasible.iter().zip(scores) {
            let score = score + extra.get(node).copied().unwrap_or(0);
            best = Some(match best {
                Some(best) if best.score > score => best,
                Some(Choice { score: known, ties, node: old }) if known == score => {
                    let takes = rng.below(ties as u64 + 1) == 0;
                    Choice { node: if takes { *node } else { old }, score, ties: ties + 1 }
                }
                _ => Choice { node: *node, score, ties: 1 },
            });
        }
        Ok(best)
    }

    /// Whether the plugin that speaks for claims has looked at the Pod: else nothing is preempted for it.
    pub(crate) fn was_looked_at_by_dynamic_resources(&self, diagnosis: &Diagnosis) -> bool {
        let ended_by = diagnosis.absent.as_ref().filter(|_| diagnosis.pre_filter.is_some());
        ended_by.is_none_or(|(_, by)| *by >= plugins::PluginId::DynamicResources)
    }
}

fn listed(ids: &[PluginId]) -> String {
    let mut names: Vec<&str> = ids.iter().map(|id| id.name()).collect();
    names.sort_unstable();
    format!("[{}]", names.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    fn schedule(cluster: &mut Cluster, pod: &Pod, seed: u64) -> Result<String, String> {
        let profile = Arc::new(Profile::default());
        let (cycle, found) = Cycle::find(&profile, cluster, &Arc::new(pod.clone()), &mut Sampling::default());
        let Found::Nodes { feasible, diagnosis, .. } = found else { return Err(format!("{found:?}")) };
        if feasible.is_empty() {
            return Err(diagnosis.message());
        }
        let choice = cycle.choose(cluster, &feasible, &HashMap::new(), &mut Rng::new(seed))?;
        Ok(choice.map(|c| cluster.info(c.node).name().to_owned()).unwrap_or_default())
    }

    #[test]
    fn the_sample_shrinks_as_clusters_grow() {
        let (profile, sampling) = (Profile::default(), Sampling::default());
        for (nodes, enough) in
            [(1, 1), (99, 99), (100, 100), (250, 120), (1000, 420), (5000, 500), (6000, 300)]
        {
            assert_eq!(sampling.enough(&profile, nodes), enough, "{nodes}");
        }
        let sampling = Sampling { percentage: 50, ..Sampling::default() };
        assert_eq!(sampling.enough(&profile, 1000), 500);
    }

    #[test]
    fn the_emptier_node_is_chosen_and_a_full_cluster_says_why() {
        let mut cluster = testing::cluster(["a", "b"].map(|n| testing::node(n, json!({}))));
        testing::put(&mut cluster, &testing::asking("x", json!({"cpu": "3"})), "a");
        assert_eq!(schedule(&mut cluster, &testing::asking("p", json!({"cpu": "1"})), 1).as_deref(), Ok("b"));
        testing::put(&mut cluster, &testing::asking("y", json!({"cpu": "3"})), "b");
        assert_eq!(
            schedule(&mut cluster, &testing::asking("p", json!({"cpu": "2"})), 1),
            Err("0/2 nodes are available: 2 Insufficient cpu.".to_owned())
        );
        let selecting = testing::pod("p", json!({"nodeSelector": {"none": "x"}}));
        assert_eq!(
            schedule(&mut cluster, &selecting, 1),
            Err("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.".to_owned())
        );
    }

    #[test]
    fn equals_are_chosen_by_chance_and_only_equals() {
        let mut cluster = testing::cluster(["a", "b", "c"].map(|n| testing::node(n, json!({}))));
        testing::put(&mut cluster, &testing::asking("x", json!({"cpu": "2"})), "a");
        let pod = testing::asking("p", json!({"cpu": "1"}));
        let chosen: std::collections::BTreeSet<String> =
            (0..64).filter_map(|seed| schedule(&mut cluster, &pod, seed).ok()).collect();
        assert_eq!(chosen.into_iter().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn a_promised_node_is_full_for_less_important_pods_only() {
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        let mut promised = testing::asking("q", json!({"cpu": "3"}));
        promised.priority = 10;
        cluster.nominations.set(Arc::new(promised), &"a".into());
        let mut pod = testing::asking("p", json!({"cpu": "2"}));
        assert!(schedule(&mut cluster, &pod, 1).is_err());
        pod.priority = 11;
        assert_eq!(schedule(&mut cluster, &pod, 1).as_deref(), Ok("a"));
    }

    #[test]
    fn a_named_node_that_does_not_exist_counts_under_its_plugin() {
        let mut cluster = testing::cluster(["a", "b"].map(|n| testing::node(n, json!({}))));
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["c"]});
        let spec = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": [field]}]}}}});
        assert_eq!(
            schedule(&mut cluster, &testing::pod("p", spec), 1),
            Err("0/2 nodes are available: 2 node(s) didn't satisfy plugin(s) [NodeAffinity].".to_owned())
        );
    }
}
