//! PodTopologySpread: Pods that are alike are spread over domains.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::Name;
use crate::classes::Answers;
use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict};
use crate::labels::Selector;
use crate::node::{HOSTNAME, Node, NodeInfo};
use crate::pod::{Class, Pod, Spread};
use crate::status::Rejection;
use crate::topology::Column;

const REASON: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
const ZONE: &str = "topology.kubernetes.io/zone";

#[derive(Debug)]
struct PodTopologySpread {
    /// For Pods that say nothing themselves; without selectors.
    defaults: Vec<Spread>,
    is_system: bool,
}

/// One hard constraint with what was counted.
#[derive(Clone)]
struct Counted {
    constraint: Spread,
    column: Arc<Column>,
    /// None for a domain that does not count.
    counts: Vec<Option<i64>>,
    least: i64,
    matches_itself: bool,
}

/// Soft constraints with what was counted.
#[derive(Clone)]
struct Soft {
    constraints: Vec<SoftCount>,
    /// Nodes without all of the labels, by place.
    ignored: Vec<bool>,
}

#[derive(Clone)]
struct SoftCount {
    constraint: Spread,
    column: Arc<Column>,
    /// By domain; by node for host names.
    counts: Vec<i64>,
    is_host: bool,
    weight: f64,
}

pub fn make(args: &PluginArgs) -> Arc<dyn Plugin> {
    let args = &args.pod_topology_spread;
    let is_system = args.defaulting_type != "List";
    let soft = |key: &str, max_skew: i64| Spread {
        max_skew,
        topology_key: key.into(),
        is_hard: false,
        selector: Selector::NOTHING,
        min_domains: 1,
        honours_affinity: true,
        honours_taints: false,
    };
    let read = |c| Spread::read(c, &crate::labels::Labels::default());
    let defaults = match is_system {
        true => vec![soft(HOSTNAME, 3), soft(ZONE, 5)],
        false => args.default_constraints.iter().map(read).collect(),
    };
    Arc::new(PodTopologySpread { defaults, is_system })
}

impl PodTopologySpread {
    /// The Pod's own constraints, or the defaults for those that its owners select.
    fn constraints(&self, cluster: &Cluster, pod: &Pod, is_hard: bool) -> Vec<Spread> {
        if !pod.spread.is_empty() {
            return pod.spread.iter().filter(|c| c.is_hard == is_hard).cloned().collect();
        }
        let wanted: Vec<&Spread> = self.defaults.iter().filter(|c| c.is_hard == is_hard).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        let selector = owners_selector(cluster, pod);
        if selector.is_empty() {
            return Vec::new();
        }
        wanted.into_iter().map(|c| Spread { selector: selector.clone(), ..c.clone() }).collect()
    }
}

/// What all that selects a Pod selects together; empty if nothing does.
fn owners_selector(cluster: &Cluster, pod: &Pod) -> Selector {
    let workloads = &cluster.workloads;
    let mut all = Selector::everything();
    let namespace = &pod.key.namespace;
    for service in workloads.services.values().filter(|s| s.key.namespace == *namespace) {
        if service.selector.matches(pod.labels()) {
            all = all.and(&service.selector);
        }
    }
    let Some(owner) = &pod.owner else { return all };
    let key = crate::Key { namespace: namespace.clone(), name: owner.name.clone() };
    let selecting = match &*owner.kind {
        "ReplicationController" => workloads.replication_controllers.get(&key),
        "ReplicaSet" => workloads.replica_sets.get(&key),
        "StatefulSet" => workloads.stateful_sets.get(&key),
        _ => None,
    };
    selecting.map_or(all.clone(), |s| all.and(&s.selector))
}

fn counts(constraint: &Spread, pod: &Pod, node: &Node) -> bool {
    (!constraint.honours_affinity || pod.selects.allows(&node.labels, &node.name))
        && (!constraint.honours_taints || node.untolerated(&pod.tolerations).is_none())
}

/// How many Pods of the namespace on a node a selector takes; those that go do not count.
fn matching(
    cluster: &Cluster,
    answers: &mut Answers<bool>,
    selector: &Selector,
    namespace: &Name,
    info: &NodeInfo,
) -> i64 {
    if selector.is_empty() {
        return 0;
    }
    let ask = |class: &Class| class.namespace == *namespace && selector.matches(&class.labels);
    let classes = info.classes.iter();
    let counted = classes.filter(|c| answers.of(&cluster.classes, c.class, ask).copied().unwrap_or(false));
    counted.map(|c| c.all - c.terminating).sum()
}

impl Counted {
    fn refresh(&mut self) {
        let known = self.counts.iter().flatten();
        let domains = known.clone().count() as i64;
        let least = known.min().copied().unwrap_or(i64::from(i32::MAX));
        self.least = if domains < self.constraint.min_domains { 0 } else { least };
    }
}

impl Plugin for PodTopologySpread {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        let constraints = self.constraints(cluster, pod, true);
        if constraints.is_empty() {
            return PreFilter::Skip;
        }
        let mut all: Vec<Counted> = constraints
            .into_iter()
            .map(|constraint| {
                let column = cluster.column(&constraint.topology_key);
                Counted {
                    matches_itself: constraint.selector.matches(pod.labels()),
                    counts: vec![None; column.domains()],
                    least: 0,
                    constraint,
                    column,
                }
            })
            .collect();
        let mut answers: Vec<Answers<bool>> = all.iter().map(|_| Answers::new(&cluster.classes)).collect();
        for info in cluster.infos() {
            let Some(node) = &info.node else { continue };
            if all.iter().any(|c| c.column.domain(info.index).is_none()) {
                continue;
            }
            for (counted, answers) in all.iter_mut().zip(&mut answers) {
                let Some(domain) = counted.column.domain(info.index) else { continue };
                if counts(&counted.constraint, pod, node) {
                    let n =
                        matching(cluster, answers, &counted.constraint.selector, &pod.key.namespace, info);
                    *counted.counts[domain].get_or_insert(0) += n;
                }
            }
        }
        all.iter_mut().for_each(Counted::refresh);
        PreFilter::Pass(State::new(all))
    }

    fn filter(&self, _: &Cluster, _: &Pod, state: &State, info: &NodeInfo) -> Verdict {
        for counted in state.get::<Vec<Counted>>().into_iter().flatten() {
            let Some(domain) = counted.column.domain(info.index) else {
                return Err(Rejection::unresolvable(NO_LABEL));
            };
            let here = counted.counts.get(domain).copied().flatten().unwrap_or(0);
            if here + i64::from(counted.matches_itself) - counted.least > counted.constraint.max_skew {
                return Err(Rejection::unschedulable(REASON));
            }
        }
        Ok(())
    }

    fn update(&self, _: &Cluster, pod: &Pod, state: &mut State, other: &Pod, info: &NodeInfo, by: i64) {
        let (Some(all), Some(node)) = (state.get_mut::<Vec<Counted>>(), &info.node) else { return };
        if other.key.namespace != pod.key.namespace
            || all.iter().any(|c| c.column.domain(info.index).is_none())
        {
            return;
        }
        for counted in all {
            let Some(domain) = counted.column.domain(info.index) else { continue };
            if counted.constraint.selector.matches(other.labels()) && counts(&counted.constraint, pod, node) {
                *counted.counts[domain].get_or_insert(0) += by;
                counted.refresh();
            }
        }
    }

    fn pre_score(&self, cluster: &Cluster, pod: &Pod, _: &State, nodes: &[&NodeInfo]) -> PreScore {
        let constraints = self.constraints(cluster, pod, false);
        if constraints.is_empty() {
            return PreScore::Skip;
        }
        let needs_all = !pod.spread.is_empty() || !self.is_system;
        let columns: Vec<_> = constraints.iter().map(|c| cluster.column(&c.topology_key)).collect();
        let lacks = |index: usize| needs_all && columns.iter().any(|c| c.domain(index).is_none());
        let mut ignored = vec![false; cluster.infos().len()];
        nodes.iter().for_each(|info| ignored[info.index] = lacks(info.index));
        let used = nodes.iter().filter(|info| !ignored[info.index]).count();
        let mut all = Vec::with_capacity(constraints.len());
        for (constraint, column) in constraints.into_iter().zip(&columns) {
            let is_host = *constraint.topology_key == *HOSTNAME;
            // Upstream takes nodes without the label for one domain more.
            let mut present = vec![false; column.domains() + 1];
            for info in nodes.iter().filter(|info| !ignored[info.index]) {
                present[column.domain(info.index).unwrap_or(column.domains())] = true;
            }
            let size = if is_host { used } else { present.iter().filter(|p| **p).count() };
            let mut answers = Answers::new(&cluster.classes);
            let mut of = |info: &NodeInfo| {
                matching(cluster, &mut answers, &constraint.selector, &pod.key.namespace, info)
            };
            let mut counted = vec![0; if is_host { cluster.infos().len() } else { column.domains() }];
            if is_host {
                nodes.iter().for_each(|info| counted[info.index] = of(info));
            } else {
                for info in cluster.infos() {
                    let (Some(node), Some(domain)) = (&info.node, column.domain(info.index)) else {
                        continue;
                    };
                    if present[domain] && !lacks(info.index) && counts(&constraint, pod, node) {
                        counted[domain] += of(info);
                    }
                }
            }
            let weight = ((size + 2) as f64).ln();
            all.push(SoftCount { constraint, column: column.clone(), counts: counted, is_host, weight });
        }
        PreScore::Pass(State::new(Soft {
            constraints: all,
            ignored: nodes.iter().map(|i| ignored[i.index]).collect(),
        }))
    }

    fn score(&self, _: &Cluster, _: &Pod, state: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let Some(soft) = state.get::<Soft>() else { return };
        for ((info, score), ignored) in nodes.iter().zip(scores).zip(&soft.ignored) {
            if *ignored {
                continue;
            }
            let mut sum = 0.0;
            for c in &soft.constraints {
                let Some(domain) = c.column.domain(info.index) else { continue };
                let count = c.counts[if c.is_host { info.index } else { domain }];
                sum += count as f64 * c.weight + (c.constraint.max_skew - 1) as f64;
            }
            *score = sum.round() as i64;
        }
    }

    fn normalise(&self, state: &State, scores: &mut [i64]) {
        let Some(soft) = state.get::<Soft>() else { return };
        let used = || scores.iter().zip(&soft.ignored).filter(|(_, ignored)| !**ignored).map(|(s, _)| *s);
        let (least, most) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
        for (score, ignored) in scores.iter_mut().zip(&soft.ignored) {
            *score = match (ignored, most) {
                (true, _) => 0,
                (false, 0) => MAX_SCORE,
                (false, most) => MAX_SCORE * (most + least - *score) / most,
            };
        }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const NODE: Action = Action::ADD.or(Action::DELETE).or(Action::NODE_LABEL).or(Action::NODE_TAINT);
        const POD: Action = Action::ADD.or(Action::POD_LABEL).or(Action::POD_TOLERATION).or(Action::DELETE);
        const { &[(Resource::Pod, POD), (Resource::Node, NODE)] }
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event) -> bool {
        let constraints = self.constraints(cluster, pod, true);
        match &event.what {
            What::Pod(old, new) => {
                let counts = |other: &Arc<Pod>| {
                    let is_placed = other.is_bound() || !other.nominated.is_empty();
                    other.uid == pod.uid || (is_placed && other.key.namespace == pod.key.namespace)
                };
                let meant = |c: &Spread, other: &Arc<Pod>| c.selector.matches(other.labels());
                old.iter().chain(new).all(counts)
                    && match (old, new) {
                        (Some(old), Some(new)) => {
                            let tolerates_more = new.uid == pod.uid && old.tolerations != new.tolerations;
                            (tolerates_more && constraints.iter().any(|c| c.honours_taints))
                                || constraints.iter().any(|c| meant(c, old) != meant(c, new))
                        }
                        (one, other) => {
                            one.iter().chain(other).any(|p| constraints.iter().any(|c| meant(c, p)))
                        }
                    }
            }
            What::Node(old, new) => {
                let has_all = |n: &Arc<Node>| constraints.iter().all(|c| n.labels.has(&c.topology_key));
                let (was, is) = (old.as_ref().is_some_and(has_all), new.as_ref().is_some_and(has_all));
                let moved = || match (old, new) {
                    (Some(old), Some(new)) => {
                        let has_moved =
                            |c: &Spread| old.labels.get(&c.topology_key) != new.labels.get(&c.topology_key);
                        old.taints != new.taints || constraints.iter().any(has_moved)
                    }
                    _ => true,
                };
                (was || is) && (was != is || moved())
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn zoned() -> Cluster {
        let node = |name: &str, zone: &str| testing::node(name, json!({"zone": zone, HOSTNAME: name}));
        testing::cluster([node("a", "x"), node("b", "x"), node("c", "y"), testing::node("d", json!({}))])
    }

    fn web(name: &str, constraints: Value) -> Pod {
        testing::labelled(name, json!({"app": "web"}), json!({"topologySpreadConstraints": constraints}))
    }

    fn constraint(key: &str, skew: i32, when: &str) -> Value {
        json!({"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "web"}}})
    }

    #[test]
    fn a_domain_that_is_ahead_takes_no_more() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        testing::put(&mut cluster, &web("1", json!([])), "a");
        let pod = web("p", json!([constraint("zone", 1, "DoNotSchedule")]));
        assert_eq!(testing::passing(&plugin, &mut cluster, &pod), ["c"]);
        assert_eq!(testing::filter(&plugin, &cluster, &pod, "a"), Err(Rejection::unschedulable(REASON)));
        assert_eq!(testing::filter(&plugin, &cluster, &pod, "d"), Err(Rejection::unresolvable(NO_LABEL)));
        testing::put(&mut cluster, &web("2", json!([])), "c");
        assert_eq!(testing::passing(&plugin, &mut cluster, &pod).len(), 3);
        let both = web(
            "p",
            json!([constraint("zone", 1, "DoNotSchedule"), constraint(HOSTNAME, 1, "DoNotSchedule")]),
        );
        assert_eq!(testing::passing(&plugin, &mut cluster, &both), ["b"]);
    }

    #[test]
    fn too_few_domains_count_as_an_empty_one() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        for (i, node) in ["a", "c"].into_iter().enumerate() {
            testing::put(&mut cluster, &web(&i.to_string(), json!([])), node);
        }
        let mut wide = constraint("zone", 1, "DoNotSchedule");
        wide["minDomains"] = json!(3);
        assert!(testing::passing(&plugin, &mut cluster, &web("p", json!([wide]))).is_empty());
    }

    #[test]
    fn nodes_that_the_pod_may_not_use_make_no_domain_unless_told_to() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        testing::put(&mut cluster, &web("1", json!([])), "a");
        let spec = |policy: &str| {
            let mut c = constraint("zone", 1, "DoNotSchedule");
            c["nodeAffinityPolicy"] = json!(policy);
            json!({"topologySpreadConstraints": [c], "nodeSelector": {"zone": "x"}})
        };
        let pod = |policy| testing::labelled("p", json!({"app": "web"}), spec(policy));
        assert!(testing::filter(&plugin, &cluster, &pod("Honor"), "a").is_ok(), "y is no domain");
        assert!(testing::filter(&plugin, &cluster, &pod("Ignore"), "a").is_err(), "y is one, and empty");
    }

    #[test]
    fn terminating_and_foreign_pods_do_not_count_and_trials_are_followed() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        let going = json!({"labels": {"app": "web"}, "deletionTimestamp": "2026-01-01T00:00:00Z"});
        testing::put(&mut cluster, &testing::pod_with("1", going, json!({}), json!({})), "a");
        let foreign = json!({"labels": {"app": "web"}, "namespace": "other"});
        testing::put(&mut cluster, &testing::pod_with("2", foreign, json!({}), json!({})), "a");
        let pod = web("p", json!([constraint("zone", 1, "DoNotSchedule")]));
        assert!(testing::filter(&plugin, &cluster, &pod, "a").is_ok());
        let PreFilter::Pass(mut state) = plugin.pre_filter(&cluster, &pod) else { panic!("skipped") };
        let info = testing::info(&cluster, "a");
        plugin.update(&cluster, &pod, &mut state, &web("3", json!([])), info, 1);
        assert!(plugin.filter(&cluster, &pod, &state, info).is_err());
        plugin.update(&cluster, &pod, &mut state, &web("3", json!([])), info, -1);
        assert!(plugin.filter(&cluster, &pod, &state, info).is_ok());
    }

    #[test]
    fn soft_constraints_prefer_the_emptier_domain_and_never_a_node_without_labels() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        for (i, node) in ["a", "a", "c"].into_iter().enumerate() {
            testing::put(&mut cluster, &web(&i.to_string(), json!([])), node);
        }
        let pod = web("p", json!([constraint("zone", 1, "ScheduleAnyway")]));
        // Two domains: ln 4 = 1.386; x has 2 (2.77, rounded 3), y has 1 (1.39, rounded 1).
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod), Some(vec![33, 33, 100, 0]));
    }

    #[test]
    fn pods_of_an_owner_are_spread_without_asking() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        let owned = |name: &str| {
            let owner = json!([{"kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "rs", "uid": "u", "controller": true}]);
            testing::pod_with(
                name,
                json!({"labels": {"app": "web"}, "ownerReferences": owner}),
                json!({}),
                json!({}),
            )
        };
        assert_eq!(testing::scores(&plugin, &mut cluster, &owned("p")), None, "nobody knows the owner");
        let key = crate::Key::new("default", "rs");
        let selector = Selector::exactly(&[("app".to_owned(), "web".to_owned())].into());
        let set = crate::objects::Selecting { key: key.clone(), selector };
        cluster.workloads.replica_sets.insert(key, set);
        testing::put(&mut cluster, &owned("1"), "a");
        let scores = testing::scores(&plugin, &mut cluster, &owned("p")).unwrap_or_default();
        assert!(scores[0] < scores[1], "{scores:?}");
    }
}
