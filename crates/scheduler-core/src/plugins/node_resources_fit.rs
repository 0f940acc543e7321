//! NodeResourcesFit: a node has room for what a Pod asks for; and how full a node should be.

use std::borrow::Cow;
use std::sync::Arc;

use api::config::scheduler::{PluginArgs, ResourceSpec, UtilizationShapePoint};

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource as EventResource, What};
use crate::framework::{MAX_SCORE, Plugin, PreFilter, State, Verdict};
use crate::node::{Node, NodeInfo};
use crate::pod::Pod;
use crate::resources::{Resource, Resources, is_extended};
use crate::status::{Code, Reasons, Rejection};

#[derive(Debug)]
struct NodeResourcesFit {
    /// By name or by the part before the slash.
    ignored: Vec<String>,
    ignored_groups: Vec<String>,
    strategy: Strategy,
    resources: Vec<(Resource, i64)>,
}

#[derive(Debug)]
enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Utilization in percent and score, ascending.
    Ratio(Vec<(i64, i64)>),
}

pub fn make(args: &PluginArgs) -> Arc<dyn Plugin> {
    let fit = &args.node_resources_fit;
    let shape = fit.scoring_strategy.requested_to_capacity_ratio.as_ref();
    let point = |p: &UtilizationShapePoint| (i64::from(p.utilization), i64::from(p.score) * 10);
    Arc::new(NodeResourcesFit {
        ignored: fit.ignored_resources.iter().chain(&args.counted_by_extenders).cloned().collect(),
        ignored_groups: fit.ignored_resource_groups.clone(),
        strategy: match fit.scoring_strategy.kind.as_str() {
            "MostAllocated" => Strategy::MostAllocated,
            "RequestedToCapacityRatio" => {
                Strategy::Ratio(shape.iter().flat_map(|s| &s.shape).map(point).collect())
            }
            _ => Strategy::LeastAllocated,
        },
        resources: weighted(&fit.scoring_strategy.resources),
    })
}

/// Resources by name with their weights; silence is 1.
pub(super) fn weighted(specs: &[ResourceSpec]) -> Vec<(Resource, i64)> {
    specs.iter().map(|s| (Resource::named(&s.name), s.weight.max(1))).collect()
}

/// What a node has of a resource, and what of it is taken; None where it does not count for this Pod.
pub(super) fn share(
    info: &NodeInfo,
    taken: &Resources,
    resource: &Resource,
    asked: i64,
) -> Option<(i64, i64)> {
    let is_other = matches!(resource, Resource::Scalar(_));
    if is_other && asked == 0 {
        return None;
    }
    let allocatable = info.node.as_ref()?.allocatable.of(resource);
    // Only processors and memory are ever assumed.
    let taken = match resource {
        Resource::Cpu | Resource::Memory => taken.of(resource),
        _ => info.requested.of(resource),
    };
    (allocatable != 0).then_some((allocatable, taken))
}

impl NodeResourcesFit {
    fn is_ignored(&self, name: &str) -> bool {
        is_extended(name)
            && (self.ignored.iter().any(|i| i == name)
                || self.ignored_groups.iter().any(|g| name.split('/').next() == Some(g)))
    }

    fn check(&self, asked: &Resources, node: &Node, taken: &Resources, pods: usize) -> Verdict {
        let has_place = (pods as i64) < node.allowed_pods;
        let free = |own: fn(&Resources) -> i64| own(&node.allocatable) - own(taken);
        let fits = |own: fn(&Resources) -> i64| own(asked) <= 0 || own(asked) <= free(own);
        let is_usual = asked.scalars().is_empty();
        if has_place
            && is_usual
            && fits(|r| r.milli_cpu)
            && fits(|r| r.memory)
            && fits(|r| r.ephemeral_storage)
        {
            return Ok(());
        }
        let mut reasons: Vec<Cow<'static, str>> = Vec::new();
        let mut code = Code::Unschedulable;
        if !has_place {
            reasons.push("Too many pods".into());
        }
        let mut check = |asked: i64, has: i64, taken: i64, reason: Cow<'static, str>| {
            if asked > 0 && asked > has - taken {
                reasons.push(reason);
                if asked > has {
                    code = Code::UnschedulableAndUnresolvable;
                }
            }
        };
        let has = &node.allocatable;
        check(asked.milli_cpu, has.milli_cpu, taken.milli_cpu, "Insufficient cpu".into());
        check(asked.memory, has.memory, taken.memory, "Insufficient memory".into());
        let local = "Insufficient ephemeral-storage".into();
        check(asked.ephemeral_storage, has.ephemeral_storage, taken.ephemeral_storage, local);
        for (name, amount) in asked.scalars().iter().filter(|(name, _)| !self.is_ignored(name)) {
            check(*amount, has.scalar(name), taken.scalar(name), format!("Insufficient {name}").into());
        }
        if reasons.is_empty() { Ok(()) } else { Err(Rejection { code, reasons: Reasons::Many(reasons) }) }
    }

    fn score_one(&self, pod: &Pod, info: &NodeInfo) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for (resource, weight) in &self.resources {
            let asked = pod.score_requests.of(resource);
            let Some((has, taken)) = share(info, &info.score_requested, resource, asked) else { continue };
            let after = taken + asked;
            let score = match &self.strategy {
                Strategy::LeastAllocated if after > has => 0,
                Strategy::LeastAllocated => (has - after) * MAX_SCORE / has,
                Strategy::MostAllocated => after.min(has) * MAX_SCORE / has,
                Strategy::Ratio(shape) => match ratio_score(shape, after, has) {
                    // A resource that scores nothing does not count at all.
                    score if score <= 0 => continue,
                    score => score,
                },
            };
            sum += score * weight;
            weights += weight;
        }
        match (&self.strategy, weights) {
            (_, 0) => 0,
            (Strategy::Ratio(_), weights) => ((sum as f64) / (weights as f64)).round() as i64,
            (_, weights) => sum / weights,
        }
    }
}

fn ratio_score(shape: &[(i64, i64)], after: i64, has: i64) -> i64 {
    let at = if has == 0 || after > has { 100 } else { after * 100 / has };
    for (i, (utilization, score)) in shape.iter().enumerate() {
        if at <= *utilization {
            let Some((before, low)) = i.checked_sub(1).and_then(|i| shape.get(i)) else { return *score };
            return low + (score - low) * (at - before) / (utilization - before).max(1);
        }
    }
    shape.last().map_or(0, |(_, score)| *score)
}

impl Plugin for NodeResourcesFit {
    fn pre_filter(&self, _: &Cluster, _: &Pod) -> PreFilter {
        PreFilter::Pass(State::default())
    }

    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        let Some(node) = &info.node else { return Ok(()) };
        self.check(&pod.requests, node, &info.requested, info.pods.len())
    }

    fn score(&self, _: &Cluster, pod: &Pod, _: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        for (info, score) in nodes.iter().zip(scores) {
            *score = self.score_one(pod, info);
        }
    }

    fn interests(&self) -> &'static [(EventResource, Action)] {
        const {
            &[
                (EventResource::Pod, Action::DELETE.or(Action::POD_SCALE_DOWN)),
                (EventResource::Node, Action::ADD.or(Action::NODE_ALLOCATABLE)),
            ]
        }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Pod(Some(gone), None) => gone.is_bound() || !gone.nominated.is_empty(),
            What::Pod(Some(old), Some(new)) => new.uid == pod.uid || (new.is_bound() && frees(pod, old, new)),
            What::Node(old, Some(new)) => {
                self.check(&pod.requests, new, &Resources::default(), 0).is_ok()
                    && old.as_ref().is_none_or(|old| grew(pod, old, new))
            }
            _ => true,
        }
    }
}

/// Whether a Pod gave something back that is asked for.
fn frees(pod: &Pod, old: &Pod, new: &Pod) -> bool {
    any_asked(pod, |r| old.requests.of(r) > new.requests.of(r))
}

fn grew(pod: &Pod, old: &Node, new: &Node) -> bool {
    new.allowed_pods > old.allowed_pods || any_asked(pod, |r| new.allocatable.of(r) > old.allocatable.of(r))
}

fn any_asked(pod: &Pod, holds: impl Fn(&Resource) -> bool) -> bool {
    let scalars = pod.requests.scalars().iter().map(|(name, _)| Resource::Scalar(name.clone()));
    let all = [Resource::Cpu, Resource::Memory, Resource::EphemeralStorage].into_iter().chain(scalars);
    all.filter(|r| pod.requests.of(r) > 0).any(|r| holds(&r))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn sized(name: &str, allocatable: Value) -> Node {
        testing::node_with(name, json!({}), json!({}), json!({"allocatable": allocatable}))
    }

    #[test]
    fn everything_that_is_short_is_told_and_what_can_never_fit_is_unresolvable() {
        let plugin = make(&PluginArgs::default());
        let mut cluster =
            testing::cluster([sized("n", json!({"cpu": "2", "memory": "1Gi", "pods": "2", "a.b/c": "2"}))]);
        testing::put(&mut cluster, &testing::asking("old", json!({"cpu": "1", "a.b/c": "1"})), "n");
        for (requests, expected) in [
            (json!({}), None),
            (json!({"cpu": "1", "memory": "1Gi", "a.b/c": "1"}), None),
            (json!({"cpu": "1500m"}), Some((Code::Unschedulable, "Insufficient cpu"))),
            (json!({"cpu": "3"}), Some((Code::UnschedulableAndUnresolvable, "Insufficient cpu"))),
            (
                json!({"cpu": "2", "a.b/c": "2"}),
                Some((Code::Unschedulable, "Insufficient cpu, Insufficient a.b/c")),
            ),
            (
                json!({"ephemeral-storage": "1"}),
                Some((Code::UnschedulableAndUnresolvable, "Insufficient ephemeral-storage")),
            ),
            (json!({"x.y/z": "1"}), Some((Code::UnschedulableAndUnresolvable, "Insufficient x.y/z"))),
        ] {
            let verdict = testing::filter(&plugin, &cluster, &testing::asking("p", requests.clone()), "n");
            let said = verdict.err().map(|r| (r.code, r.message()));
            assert_eq!(said.as_ref().map(|(c, m)| (*c, m.as_str())), expected, "{requests}");
        }
        testing::put(&mut cluster, &testing::asking("older", json!({})), "n");
        let verdict = testing::filter(&plugin, &cluster, &testing::asking("p", json!({"cpu": "2"})), "n");
        assert_eq!(verdict.err().map(|r| r.message()).as_deref(), Some("Too many pods, Insufficient cpu"));
    }

    #[test]
    fn ignored_resources_are_somebody_elses() {
        let mut args = PluginArgs::default();
        args.node_resources_fit.ignored_resources = vec!["x.y/z".to_owned()];
        args.node_resources_fit.ignored_resource_groups = vec!["q.r".to_owned()];
        let plugin = make(&args);
        let cluster = testing::cluster([testing::node("n", json!({}))]);
        let pod = testing::asking("p", json!({"x.y/z": "1", "q.r/s": "5"}));
        assert_eq!(testing::filter(&plugin, &cluster, &pod, "n"), Ok(()));
    }

    #[test]
    fn each_strategy_scores_as_upstreams() {
        let strategy = |kind: &str, shape: &[(i32, i32)]| {
            let mut args = PluginArgs::default();
            args.node_resources_fit.scoring_strategy.kind = kind.to_owned();
            let shape = shape.iter().map(|(utilization, score)| UtilizationShapePoint {
                utilization: *utilization,
                score: *score,
            });
            args.node_resources_fit.scoring_strategy.requested_to_capacity_ratio =
                Some(api::config::scheduler::RequestedToCapacityRatio { shape: shape.collect() });
            make(&args)
        };
        let mut cluster = testing::cluster([
            sized("a", json!({"cpu": "4", "memory": "10000"})),
            sized("b", json!({"cpu": "6", "memory": "10000"})),
        ]);
        testing::put(&mut cluster, &testing::asking("old", json!({"cpu": "3", "memory": "5000"})), "b");
        let pod = testing::asking("p", json!({"cpu": "3", "memory": "5000"}));
        let least = testing::scores(&strategy("LeastAllocated", &[]), &mut cluster, &pod);
        // Node a: cpu (4-3)*100/4 = 25, memory 50. Node b: both are full.
        assert_eq!(least, Some(vec![37, 0]));
        assert_eq!(testing::scores(&strategy("MostAllocated", &[]), &mut cluster, &pod), Some(vec![62, 100]));
        let ratio = strategy("RequestedToCapacityRatio", &[(0, 10), (100, 0)]);
        // Node a: 75 of 100 scores 25, 50 of 100 scores 50: (25 + 50) / 2 = 37.5, rounded. Node b scores nothing.
        assert_eq!(testing::scores(&ratio, &mut cluster, &pod), Some(vec![38, 0]));
    }

    #[test]
    fn hints_look_at_what_is_asked_for() {
        let plugin = make(&PluginArgs::default());
        let (cluster, pod) = (Cluster::default(), testing::asking("p", json!({"cpu": "2"})));
        let node = |cpu: &str, memory: &str| {
            Arc::new(sized("n", json!({"cpu": cpu, "memory": memory, "pods": "1"})))
        };
        for (old, new, expected) in [
            (None, node("2", "1"), true),
            (None, node("1", "1"), false),
            (Some(node("2", "1")), node("3", "1"), true),
            (Some(node("2", "1")), node("2", "9"), false),
        ] {
            let what = What::Node(old, Some(new));
            let event = Event { resource: EventResource::Node, action: Action::NODE_ALLOCATABLE, what };
            assert_eq!(plugin.wakes(&cluster, &pod, &event), expected);
        }
        let other = |cpu: &str| Arc::new(testing::asking("q", json!({"cpu": cpu})).on("n"));
        assert!(plugin.wakes(&cluster, &pod, &Event::of_pod(Some(other("1")), None)));
        assert!(plugin.wakes(&cluster, &pod, &Event::of_pod(Some(other("2")), Some(other("1")))));
        let waiting = Arc::new(testing::asking("q", json!({"cpu": "1"})));
        assert!(!plugin.wakes(&cluster, &pod, &Event::of_pod(Some(waiting), None)));
    }
}
