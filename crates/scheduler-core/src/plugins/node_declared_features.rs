//! NodeDeclaredFeatures: what a Pod's fields need, its node must have declared.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::node::NodeInfo;
use crate::pod::Pod;
use crate::status::Rejection;

const REASON: &str = "node(s) didn't match Pod's required features";

#[derive(Debug)]
struct NodeDeclaredFeatures;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(NodeDeclaredFeatures)
}

impl Plugin for NodeDeclaredFeatures {
    fn pre_filter(&self, _: &Cluster, pod: &Pod) -> PreFilter {
        if pod.features.is_empty() { PreFilter::Skip } else { PreFilter::Pass(State::default()) }
    }

    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        let declares = |feature: &&'static str| {
            info.node.as_ref().is_some_and(|node| node.features.iter().any(|known| **known == **feature))
        };
        if pod.features.iter().all(declares) { Ok(()) } else { Err(Rejection::unresolvable(REASON)) }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Node, Action::ADD.or(Action::NODE_FEATURE)), (Resource::Pod, Action::ANY_UPDATE)] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Node(Some(old), Some(new)) => old.features != new.features,
            What::Pod(Some(old), Some(new)) => new.uid == pod.uid && old.features != new.features,
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
    fn a_feature_must_have_been_declared() {
        let plugin = make(&PluginArgs::default());
        let declared = json!({"declaredFeatures": ["UserNamespacesHostNetworkSupport"]});
        let nodes = [testing::node("a", json!({})), testing::node_with("b", json!({}), json!({}), declared)];
        let mut cluster = testing::cluster(nodes);
        let needy = json!({"hostNetwork": true, "hostUsers": false});
        for (spec, expected) in [(json!({}), vec!["a", "b"]), (needy, vec!["b"])] {
            assert_eq!(testing::passing(&plugin, &mut cluster, &testing::pod("p", spec)), expected);
        }
    }
}
