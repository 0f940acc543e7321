//! NodeUnschedulable: a cordoned node takes only Pods that tolerate it.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, State, Verdict};
use crate::node::{Node, NodeInfo};
use crate::pod::{Effect, Pod};
use crate::status::Rejection;

const TAINT: &str = "node.kubernetes.io/unschedulable";
const REASON: &str = "node(s) were unschedulable";

#[derive(Debug)]
struct NodeUnschedulable;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(NodeUnschedulable)
}

fn takes(node: &Node, pod: &Pod) -> bool {
    !node.is_unschedulable || pod.tolerations.iter().any(|t| t.tolerates(TAINT, "", Effect::NoSchedule))
}

impl Plugin for NodeUnschedulable {
    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        match &info.node {
            Some(node) if takes(node, pod) => Ok(()),
            _ => Err(Rejection::unresolvable(REASON)),
        }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Node, Action::ADD.or(Action::NODE_TAINT)), (Resource::Pod, Action::POD_TOLERATION)] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Node(old, Some(new)) => takes(new, pod) && old.as_ref().is_none_or(|old| !takes(old, pod)),
            What::Pod(_, Some(new)) => new.uid == pod.uid,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn a_cordoned_node_takes_only_who_tolerates_it() {
        let plugin = make(&PluginArgs::default());
        let cordoned = testing::node_with("a", json!({}), json!({"unschedulable": true}), json!({}));
        let mut cluster = testing::cluster([cordoned, testing::node("b", json!({}))]);
        let tolerating =
            json!({"tolerations": [{"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}]});
        for (spec, expected) in [(json!({}), vec!["b"]), (tolerating, vec!["a", "b"])] {
            assert_eq!(testing::passing(&plugin, &mut cluster, &testing::pod("p", spec)), expected);
        }
    }

    #[test]
    fn uncordoning_wakes_and_cordoning_does_not() {
        let plugin = make(&PluginArgs::default());
        let node = |flag: bool| {
            Arc::new(testing::node_with("a", json!({}), json!({"unschedulable": flag}), json!({})))
        };
        let (cluster, pod) = (Cluster::default(), testing::pod("p", json!({})));
        for (old, new, expected) in [(true, false, true), (false, true, false), (true, true, false)] {
            let event = Event {
                resource: Resource::Node,
                action: Action::NODE_TAINT,
                what: What::Node(Some(node(old)), Some(node(new))),
            };
            assert_eq!(plugin.wakes(&cluster, &pod, &event), expected);
        }
    }
}
