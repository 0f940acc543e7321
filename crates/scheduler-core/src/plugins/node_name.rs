//! NodeName: a Pod that names its node goes nowhere else.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Resource};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::node::NodeInfo;
use crate::pod::Pod;
use crate::status::Rejection;

const REASON: &str = "node(s) didn't match the requested node name";

#[derive(Debug)]
struct NodeName;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(NodeName)
}

impl Plugin for NodeName {
    fn pre_filter(&self, _: &Cluster, pod: &Pod) -> PreFilter {
        if pod.node.is_empty() { PreFilter::Skip } else { PreFilter::Pass(State::default()) }
    }

    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        match *pod.node == *info.name() {
            true => Ok(()),
            false => Err(Rejection::unresolvable(REASON)),
        }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Node, Action::ADD)] }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn a_named_node_is_the_only_one() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = testing::cluster(["a", "b"].map(|n| testing::node(n, json!({}))));
        for (spec, expected) in [
            (json!({}), vec!["a", "b"]),
            (json!({"nodeName": "b"}), vec!["b"]),
            (json!({"nodeName": "c"}), vec![]),
        ] {
            assert_eq!(testing::passing(&plugin, &mut cluster, &testing::pod("p", spec)), expected);
        }
        let pod = testing::pod("p", json!({"nodeName": "c"}));
        assert_eq!(testing::filter(&plugin, &cluster, &pod, "a"), Err(Rejection::unresolvable(REASON)));
    }
}
