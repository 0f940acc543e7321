//! NodeAffinity: what a Pod, and the configuration for all Pods, says about labels and names of nodes.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, PreScore, State, Verdict, normalise_by_most};
use crate::labels::{NodeSelector, NodeTerm};
use crate::node::{Node, NodeInfo};
use crate::pod::Pod;
use crate::status::Rejection;

const REASON: &str = "node(s) didn't match Pod's node affinity/selector";
const ENFORCED: &str = "node(s) didn't match scheduler-enforced node affinity";
const CONFLICT: &str = "pod affinity terms conflict";

#[derive(Debug)]
struct NodeAffinity {
    required: Option<NodeSelector>,
    preferred: Vec<(i32, NodeTerm)>,
}

pub fn make(args: &PluginArgs) -> Arc<dyn Plugin> {
    let added = args.node_affinity.added_affinity.clone().unwrap_or_default();
    let required = added.required_during_scheduling_ignored_during_execution;
    let preferred = added.preferred_during_scheduling_ignored_during_execution;
    Arc::new(NodeAffinity {
        required: required.map(|s| NodeSelector::read(&s.node_selector_terms)),
        preferred: preferred.iter().flatten().map(|t| (t.weight, NodeTerm::read(&t.preference))).collect(),
    })
}

impl NodeAffinity {
    fn enforces(&self, node: &Node) -> bool {
        self.required.as_ref().is_none_or(|s| s.matches(&node.labels, &node.name))
    }
}

impl Plugin for NodeAffinity {
    fn pre_filter(&self, _: &Cluster, pod: &Pod) -> PreFilter {
        if self.required.is_none() && pod.selects.labels.is_none() && pod.selects.required.is_none() {
            return PreFilter::Skip;
        }
        match pod.selects.required.as_ref().and_then(NodeSelector::named) {
            Some(names) if names.is_empty() => PreFilter::Reject(Rejection::unresolvable(CONFLICT)),
            Some(names) => PreFilter::Only(State::default(), names),
            None => PreFilter::Pass(State::default()),
        }
    }

    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        let Some(node) = &info.node else { return Err(Rejection::unresolvable(REASON)) };
        if !self.enforces(node) {
            return Err(Rejection::unresolvable(ENFORCED));
        }
        match pod.selects.allows(&node.labels, &node.name) {
            true => Ok(()),
            false => Err(Rejection::unresolvable(REASON)),
        }
    }

    fn pre_score(&self, _: &Cluster, pod: &Pod, _: &State, _: &[&NodeInfo]) -> PreScore {
        match self.preferred.is_empty() && pod.selects.preferred.is_empty() {
            true => PreScore::Skip,
            false => PreScore::Pass(State::default()),
        }
    }

    fn score(&self, _: &Cluster, pod: &Pod, _: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        for (info, score) in nodes.iter().zip(scores) {
            let Some(node) = &info.node else { continue };
            let terms = self.preferred.iter().chain(&pod.selects.preferred);
            let matching = terms.filter(|(_, term)| term.matches(&node.labels, &node.name));
            *score = matching.map(|(weight, _)| i64::from(*weight)).sum();
        }
    }

    fn normalise(&self, _: &State, scores: &mut [i64]) {
        normalise_by_most(scores, false);
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Node, Action::ADD.or(Action::NODE_LABEL))] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        let What::Node(old, Some(new)) = &event.what else { return true };
        let fits = |node: &Node| self.enforces(node) && pod.selects.allows(&node.labels, &node.name);
        fits(new) && old.as_ref().is_none_or(|old| !fits(old))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn required(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn selector_and_terms_must_both_hold() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = testing::cluster([
            testing::node("a", json!({"zone": "x", "disk": "ssd"})),
            testing::node("b", json!({"zone": "y", "disk": "ssd"})),
            testing::node("c", json!({})),
        ]);
        let zone =
            |value: &str| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]});
        let mut both = required(json!([zone("y"), zone("x")]));
        both["nodeSelector"] = json!({"disk": "ssd"});
        for (spec, expected) in [
            (json!({}), vec!["a", "b", "c"]),
            (json!({"nodeSelector": {"zone": "x"}}), vec!["a"]),
            (both, vec!["a", "b"]),
            (required(json!([zone("z")])), vec![]),
            (required(json!([{}])), vec![]),
        ] {
            assert_eq!(
                testing::passing(&plugin, &mut cluster, &testing::pod("p", spec.clone())),
                expected,
                "{spec}"
            );
        }
        let pod = testing::pod("p", json!({"nodeSelector": {"zone": "q"}}));
        assert_eq!(testing::filter(&plugin, &cluster, &pod, "a"), Err(Rejection::unresolvable(REASON)));
    }

    #[test]
    fn terms_that_name_nodes_narrow_the_search_and_conflicts_are_told() {
        let plugin = make(&PluginArgs::default());
        let field = |name: &str| json!({"key": "metadata.name", "operator": "In", "values": [name]});
        let cluster = Cluster::default();
        let pod = testing::pod(
            "p",
            required(json!([{"matchFields": [field("b")]}, {"matchFields": [field("a")]}])),
        );
        let PreFilter::Only(_, names) = plugin.pre_filter(&cluster, &pod) else { panic!("no names") };
        assert_eq!(names, [testing::name("a"), testing::name("b")]);
        let pod = testing::pod("p", required(json!([{"matchFields": [field("b"), field("a")]}])));
        let PreFilter::Reject(rejection) = plugin.pre_filter(&cluster, &pod) else { panic!("no conflict") };
        assert_eq!(rejection, Rejection::unresolvable(CONFLICT));
    }

    #[test]
    fn what_the_configuration_adds_counts_for_every_pod() {
        let mut args = PluginArgs::default();
        args.node_affinity.added_affinity =
            serde_json::from_value(json!({"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}}))
            .ok();
        let plugin = make(&args);
        let cluster = testing::cluster([testing::node("a", json!({}))]);
        let verdict = testing::filter(&plugin, &cluster, &testing::pod("p", json!({})), "a");
        assert_eq!(verdict, Err(Rejection::unresolvable(ENFORCED)));
    }

    #[test]
    fn preferences_score_in_proportion_to_the_best() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = testing::cluster([
            testing::node("a", json!({"x": "1", "y": "1"})),
            testing::node("b", json!({"x": "1"})),
            testing::node("c", json!({})),
        ]);
        let term = |key: &str, weight: i32| json!({"weight": weight, "preference": {"matchExpressions": [{"key": key, "operator": "Exists"}]}});
        let spec = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term("x", 2), term("y", 4)]}}});
        assert_eq!(testing::scores(&plugin, &mut cluster, &testing::pod("p", spec)), Some(vec![100, 33, 0]));
        assert_eq!(testing::scores(&plugin, &mut cluster, &testing::pod("p", json!({}))), None);
    }
}
