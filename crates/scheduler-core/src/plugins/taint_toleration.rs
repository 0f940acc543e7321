//! TaintToleration: taints keep Pods away, or make a node the worse choice.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, State, Verdict, normalise_by_most};
use crate::node::NodeInfo;
use crate::pod::{Effect, Pod, Toleration};
use crate::status::Rejection;

const REASON: &str = "node(s) had untolerated taint(s)";

#[derive(Debug)]
struct TaintToleration;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(TaintToleration)
}

impl Plugin for TaintToleration {
    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        let taint = info.node.as_ref().and_then(|node| node.untolerated(&pod.tolerations));
        if taint.is_some() { Err(Rejection::unresolvable(REASON)) } else { Ok(()) }
    }

    fn score(&self, _: &Cluster, pod: &Pod, _: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        // Only tolerations that can be about this effect.
        let matters = |t: &&Toleration| t.effect.is_none_or(|e| e == Effect::PreferNoSchedule);
        let tolerations: Vec<Toleration> = pod.tolerations.iter().filter(matters).cloned().collect();
        for (info, score) in nodes.iter().zip(scores) {
            let taints = info.node.iter().flat_map(|node| &node.taints);
            let counted =
                taints.filter(|t| t.effect == Effect::PreferNoSchedule && !t.is_tolerated(&tolerations));
            *score = counted.count() as i64;
        }
    }

    fn normalise(&self, _: &State, scores: &mut [i64]) {
        normalise_by_most(scores, true);
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Node, Action::ADD.or(Action::NODE_TAINT)), (Resource::Pod, Action::POD_TOLERATION)] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Node(old, Some(new)) => {
                let keeps_away = |node: &crate::node::Node| node.untolerated(&pod.tolerations).is_some();
                !keeps_away(new) && old.as_ref().is_none_or(|old| keeps_away(old))
            }
            What::Pod(_, Some(new)) => new.uid == pod.uid,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::node::Node;
    use crate::testing;

    fn tainted(name: &str, taints: Value) -> Node {
        testing::node_with(name, json!({}), json!({"taints": taints}), json!({}))
    }

    #[test]
    fn untolerated_taints_keep_pods_away_and_are_not_named() {
        let plugin = make(&PluginArgs::default());
        for (taints, tolerations, passes) in [
            (json!([]), json!([]), true),
            (json!([{"key": "a", "effect": "NoSchedule"}]), json!([]), false),
            (json!([{"key": "a", "effect": "NoExecute"}]), json!([]), false),
            (json!([{"key": "a", "effect": "PreferNoSchedule"}]), json!([]), true),
            (json!([{"key": "a", "effect": "Rubbish"}]), json!([]), true),
            (
                json!([{"key": "a", "value": "1", "effect": "NoSchedule"}]),
                json!([{"key": "a", "value": "1"}]),
                true,
            ),
            (
                json!([{"key": "a", "value": "1", "effect": "NoSchedule"}]),
                json!([{"key": "a", "value": "2"}]),
                false,
            ),
            (
                json!([{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]),
                json!([{"key": "a", "operator": "Exists"}]),
                false,
            ),
        ] {
            let cluster = testing::cluster([tainted("n", taints.clone())]);
            let pod = testing::pod("p", json!({"tolerations": tolerations}));
            let expected = if passes { Ok(()) } else { Err(Rejection::unresolvable(REASON)) };
            assert_eq!(testing::filter(&plugin, &cluster, &pod, "n"), expected, "{taints}");
        }
    }

    #[test]
    fn fewer_soft_taints_are_better() {
        let plugin = make(&PluginArgs::default());
        let soft = |key: &str| json!({"key": key, "effect": "PreferNoSchedule"});
        let mut cluster = testing::cluster([
            tainted("a", json!([])),
            tainted("b", json!([soft("x")])),
            tainted("c", json!([soft("x"), soft("y")])),
        ]);
        let pod = testing::pod("p", json!({}));
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod), Some(vec![100, 50, 0]));
        let pod =
            testing::pod("p", json!({"tolerations": [{"operator": "Exists", "effect": "PreferNoSchedule"}]}));
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod), Some(vec![100, 100, 100]));
    }

    #[test]
    fn a_taint_that_goes_wakes() {
        let plugin = make(&PluginArgs::default());
        let (cluster, pod) = (Cluster::default(), testing::pod("p", json!({})));
        let bad = Arc::new(tainted("n", json!([{"key": "a", "effect": "NoSchedule"}])));
        let good = Arc::new(tainted("n", json!([])));
        for (old, new, expected) in [
            (Some(&bad), &good, true),
            (Some(&good), &good, false),
            (Some(&good), &bad, false),
            (None, &good, true),
            (None, &bad, false),
        ] {
            let what = What::Node(old.cloned(), Some(new.clone()));
            let event = Event { resource: Resource::Node, action: Action::NODE_TAINT, what };
            assert_eq!(plugin.wakes(&cluster, &pod, &event), expected);
        }
    }
}
