//! Who makes way for a Pod that fits nowhere: what the DefaultPreemption plugin does after a failed search.

use std::sync::Arc;

use base::rng::Rng;

use crate::classes::ClassId;
use crate::cluster::Cluster;
use crate::cycle::Cycle;
use crate::node::NodeInfo;
use crate::objects::Budget;
use crate::plugins::{PluginId, Point, dynamic_resources};
use crate::pod::Pod;
use crate::status::{Code, Diagnosis, NodeStatus, Rejection};

const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";
const NEVER: &str = "not eligible due to preemptionPolicy=Never.";
const LEAVING: &str = "not eligible due to a terminating pod on the nominated node.";

/// A node that fits once these are gone.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub node: usize,
    /// The most important first.
    pub victims: Vec<Arc<Pod>>,
    pub violations: usize,
}

/// What can be done for a Pod that fits nowhere.
#[derive(Clone, Debug)]
pub enum Preemption {
    Candidates(Vec<Candidate>),
    /// Nothing; and what is said about that. The nomination the Pod had is kept, or it ends.
    Nothing {
        message: String,
        keeps_nomination: bool,
    },
}

/// Runs the PostFilter plugins.
#[must_use]
pub fn post_filter(cycle: &Cycle, cluster: &Cluster, diagnosis: &Diagnosis, rng: &mut Rng) -> Preemption {
    let mut said: Vec<String> = Vec::new();
    let mut keeps = cycle.profile.at(Point::PostFilter).next().is_some();
    for (id, _, _) in cycle.profile.at(Point::PostFilter) {
        match id {
            PluginId::DynamicResources => {
                // Upstream's plugin fails where it has not seen the Pod before, and nobody else is asked then.
                if !cycle.was_looked_at_by_dynamic_resources(diagnosis) {
                    return Preemption::Nothing { message: "not found".to_owned(), keeps_nomination: true };
                }
                said.push(dynamic_resources::NOTHING_TO_FREE.to_owned());
            }
            PluginId::DefaultPreemption => match preempt(cycle, cluster, diagnosis, rng) {
                Ok(candidates) => return Preemption::Candidates(candidates),
                Err((message, keeps_nomination)) => {
                    said.push(format!("preemption: {message}"));
                    keeps = keeps_nomination;
                }
            },
            _ => {}
        }
    }
    Preemption::Nothing { message: said.join(", "), keeps_nomination: keeps }
}

fn preempt(
    cycle: &Cycle,
    cluster: &Cluster,
    diagnosis: &Diagnosis,
    rng: &mut Rng,
) -> Result<Vec<Candidate>, (String, bool)> {
    let pod = &cycle.pod;
    is_eligible(pod, cluster, diagnosis).map_err(|why| (why.to_owned(), true))?;
    let nodes: Vec<usize> = match &diagnosis.absent {
        Some((rejection, _)) if rejection.code == Code::Unschedulable => {
            let all = cluster.infos().iter().filter(|i| i.node.is_some()).map(|i| i.index);
            all.filter(|n| diagnosis.status_of(*n).is_some_and(|r| r.code == Code::Unschedulable)).collect()
        }
        _ => diagnosis
            .statuses
            .iter()
            .filter(|s| s.rejection.code == Code::Unschedulable)
            .map(|s| s.node)
            .collect(),
    };
    let args = &cycle.profile.args.default_preemption;
    let share = nodes.len() * args.min_candidate_nodes_percentage.max(0) as usize / 100;
    let enough = share.max(args.min_candidate_nodes_absolute.max(0) as usize).min(nodes.len());
    let offset = rng.below(nodes.len() as u64) as usize;
    let (mut clean, mut violating, mut statuses) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..nodes.len() {
        let node = nodes[(offset + i) % nodes.len()];
        match victims_on(cycle, cluster, cluster.info(node)) {
            Ok(candidate) if candidate.violations == 0 => clean.push(candidate),
            Ok(candidate) => violating.push(candidate),
            Err((plugin, rejection)) => statuses.push(NodeStatus { node, plugin, rejection }),
        }
        if !clean.is_empty() && clean.len() + violating.len() >= enough {
            break;
        }
    }
    clean.append(&mut violating);
    if !clean.is_empty() {
        return Ok(clean);
    }
    let absent = Some((Rejection::unresolvable(NOT_HELPFUL), PluginId::DefaultPreemption));
    let why = Diagnosis { nodes: diagnosis.nodes, statuses, absent, ..Diagnosis::default() };
    Err((why.message(), false))
}

fn is_eligible(pod: &Pod, cluster: &Cluster, diagnosis: &Diagnosis) -> Result<(), &'static str> {
    if pod.never_preempts {
        return Err(NEVER);
    }
    let Some(node) = cluster.node_index(&pod.nominated) else { return Ok(()) };
    if diagnosis.status_of(node).is_some_and(|r| r.code == Code::UnschedulableAndUnresolvable) {
        return Ok(());
    }
    let leaves = |p: &Arc<Pod>| p.priority < pod.priority && p.is_terminating && p.is_preempted;
    if cluster.info(node).pods.iter().any(leaves) { Err(LEAVING) } else { Ok(()) }
}

/// Who has to leave a node: all less important Pods, but for those that can stay after all.
fn victims_on(cycle: &Cycle, cluster: &Cluster, info: &NodeInfo) -> Result<Candidate, (PluginId, Rejection)> {
    let id = PluginId::DefaultPreemption;
    let mut lower: Vec<Arc<Pod>> =
        info.pods.iter().filter(|p| p.priority < cycle.pod.priority).cloned().collect();
    if lower.is_empty() {
        return Err((id, Rejection::unresolvable(NO_VICTIMS)));
    }
    let (mut trial, mut node) = (cycle.clone(), info.clone());
    let class = |p: &Pod| cluster.class_of(p).unwrap_or(ClassId::NOBODY);
    for pod in &lower {
        trial.remove(cluster, &mut node, pod, class(pod));
    }
    trial.check(cluster, &node)?;
    lower.sort_by(importance);
    let (violating, others) = split_by_budget(&lower, cluster.budgets.values());
    let mut victims = Vec::new();
    let mut violations = 0;
    for (pods, is_violating) in [(violating, true), (others, false)] {
        for pod in pods {
            trial.add(cluster, &mut node, &pod, class(&pod));
            if trial.check(cluster, &node).is_err() {
                trial.remove(cluster, &mut node, &pod, class(&pod));
                victims.push(pod);
                violations += usize::from(is_violating);
            }
        }
    }
    victims.sort_by(importance);
    match victims.is_empty() {
        true => Err((id, Rejection::unresolvable(NO_VICTIMS))),
        false => Ok(Candidate { node: info.index, victims, violations }),
    }
}

/// The more important first: by priority, then who has run longer.
fn importance(a: &Arc<Pod>, b: &Arc<Pod>) -> std::cmp::Ordering {
    let started = |p: &Arc<Pod>| p.started.unwrap_or(i64::MAX);
    b.priority.cmp(&a.priority).then(started(a).cmp(&started(b)))
}

/// Pods whose end would break a budget, and the others.
fn split_by_budget<'a>(
    pods: &[Arc<Pod>],
    budgets: impl Iterator<Item = &'a Budget>,
) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let mut budgets: Vec<(&Budget, i64)> = budgets.map(|b| (b, b.allowed)).collect();
    let (mut violating, mut others) = (Vec::new(), Vec::new());
    for pod in pods {
        let mut breaks = false;
        for (budget, left) in &mut budgets {
            let is_meant = !pod.labels().is_empty()
                && budget.key.namespace == pod.key.namespace
                && !budget.selector.is_empty()
                && budget.selector.matches(pod.labels())
                && !budget.disrupted.contains(&pod.key.name);
            if is_meant {
                *left -= 1;
                breaks |= *left < 0;
            }
        }
        if breaks { violating.push(pod.clone()) } else { others.push(pod.clone()) }
    }
    (violating, others)
}

/// The node whose Pods are missed least.
#[must_use]
pub fn select(candidates: &[Candidate]) -> Option<&Candidate> {
    let rank = |c: &Candidate| {
        let top = c.victims.first().map_or(i32::MIN, |p| p.priority);
        let sum: i64 = c.victims.iter().map(|p| i64::from(p.priority) + (1 << 31)).sum();
        let most_important = c.victims.iter().filter(|p| p.priority == top);
        let earliest = most_important.map(|p| p.started.unwrap_or(i64::MAX)).min().unwrap_or(i64::MAX);
        (c.violations, top, sum, c.victims.len(), std::cmp::Reverse(earliest))
    };
    candidates.iter().min_by_key(|c| rank(c))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Key;
    use crate::cycle::{Found, Sampling};
    use crate::labels::Selector;
    use crate::profile::Profile;
    use crate::testing;

    fn run(cluster: &mut Cluster, pod: &Pod) -> Preemption {
        let profile = Arc::new(Profile::default());
        let (cycle, found) = Cycle::find(&profile, cluster, &Arc::new(pod.clone()), &mut Sampling::default());
        let Found::Nodes { feasible, diagnosis, .. } = found else { panic!("{found:?}") };
        assert!(feasible.is_empty(), "it fits");
        post_filter(&cycle, cluster, &diagnosis, &mut Rng::new(7))
    }

    fn chosen(cluster: &mut Cluster, pod: &Pod) -> (String, Vec<String>) {
        let Preemption::Candidates(all) = run(cluster, pod) else { panic!("nobody makes way") };
        let Some(best) = select(&all) else { panic!("no candidate") };
        let victims = best.victims.iter().map(|p| p.key.name.to_string()).collect();
        (cluster.info(best.node).name().to_owned(), victims)
    }

    fn said(cluster: &mut Cluster, pod: &Pod) -> String {
        match run(cluster, pod) {
            Preemption::Nothing { message, .. } => message,
            Preemption::Candidates(all) => panic!("{all:?}"),
        }
    }

    fn ranked(name: &str, cpu: &str, priority: i32) -> Pod {
        Pod { priority, ..testing::asking(name, json!({"cpu": cpu})) }
    }

    #[test]
    fn only_as_many_as_needed_go_the_least_important_first() {
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        for (name, cpu, priority) in [("low", "1", 1), ("mid", "1", 2), ("high", "2", 9)] {
            testing::put(&mut cluster, &ranked(name, cpu, priority), "a");
        }
        assert_eq!(chosen(&mut cluster, &ranked("p", "1", 5)), ("a".into(), vec!["low".into()]));
        assert_eq!(
            chosen(&mut cluster, &ranked("p", "2", 5)),
            ("a".into(), vec!["mid".into(), "low".into()])
        );
        assert_eq!(cluster.info(0).pods.len(), 3, "a trial leaves the cluster as it is");
    }

    #[test]
    fn refusals_are_told_word_for_word() {
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        testing::put(&mut cluster, &ranked("x", "4", 5), "a");
        let none = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
        assert_eq!(said(&mut cluster, &ranked("p", "1", 5)), none);
        let useless = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
        assert_eq!(said(&mut cluster, &ranked("p", "9", 9)), useless);
        let mut never = ranked("p", "1", 9);
        never.never_preempts = true;
        assert_eq!(
            said(&mut cluster, &never),
            "no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        );
        let claim = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
        assert_eq!(said(&mut cluster, &testing::pod("p", claim)), "not found");
    }

    #[test]
    fn where_nothing_runs_after_the_filters_a_nomination_ends() {
        let mut points = Profile::default_points();
        points.remove(&Point::PostFilter);
        let profile =
            Arc::new(Profile::new("x", points, api::config::scheduler::PluginArgs::default(), None));
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        let pod = Arc::new(ranked("p", "9", 9));
        let (cycle, found) = Cycle::find(&profile, &mut cluster, &pod, &mut Sampling::default());
        let Found::Nodes { diagnosis, .. } = found else { panic!("{found:?}") };
        let answer = post_filter(&cycle, &cluster, &diagnosis, &mut Rng::new(7));
        assert!(
            matches!(&answer, Preemption::Nothing { message, keeps_nomination: false } if message.is_empty())
        );
    }

    #[test]
    fn nobody_else_goes_while_a_victim_still_leaves_the_nominated_node() {
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        let going = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        let condition = json!({"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]});
        let mut leaving = testing::pod_with(
            "x",
            going,
            json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]}),
            condition,
        );
        leaving.priority = 1;
        testing::put(&mut cluster, &leaving, "a");
        let mut pod = ranked("p", "2", 9);
        pod.nominated = "a".into();
        let text = "no new claims to deallocate, preemption: not eligible due to a terminating pod on the nominated node.";
        assert_eq!(said(&mut cluster, &pod), text);
    }

    #[test]
    fn a_node_without_a_broken_budget_is_preferred_then_lower_priorities_then_fewer_pods() {
        let mut cluster = testing::cluster(["a", "b"].map(|n| testing::node(n, json!({}))));
        let kept = Pod {
            priority: 1,
            ..testing::pod_with(
                "kept",
                json!({"labels": {"app": "kept"}}),
                json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "4"}}}]}),
                json!({}),
            )
        };
        testing::put(&mut cluster, &kept, "a");
        testing::put(&mut cluster, &ranked("mid", "4", 3), "b");
        assert_eq!(chosen(&mut cluster, &ranked("p", "4", 5)).0, "a", "its Pod is less important");
        let selector = Selector::exactly(&[("app".to_owned(), "kept".to_owned())].into());
        let key = Key::new("default", "b");
        let budget = Budget { key: key.clone(), selector, allowed: 0, disrupted: Vec::new() };
        cluster.budgets.insert(key, budget);
        assert_eq!(chosen(&mut cluster, &ranked("p", "4", 5)).0, "b", "the budget says no");
    }
}
