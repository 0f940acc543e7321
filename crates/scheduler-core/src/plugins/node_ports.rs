//! NodePorts: a host port is given once.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::node::NodeInfo;
use crate::pod::{Pod, Port};
use crate::status::Rejection;

const REASON: &str = "node(s) didn't have free ports for the requested pod ports";

#[derive(Debug)]
struct NodePorts;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(NodePorts)
}

fn conflicts(wanted: &[Port], taken: &[Port]) -> bool {
    let meets = |a: &Port, b: &Port| {
        a.port == b.port && a.protocol == b.protocol && (a.ip.is_none() || b.ip.is_none() || a.ip == b.ip)
    };
    wanted.iter().any(|a| taken.iter().any(|b| meets(a, b)))
}

impl Plugin for NodePorts {
    fn pre_filter(&self, _: &Cluster, pod: &Pod) -> PreFilter {
        if pod.ports.is_empty() { PreFilter::Skip } else { PreFilter::Pass(State::default()) }
    }

    fn filter(&self, _: &Cluster, pod: &Pod, _: &State, info: &NodeInfo) -> Verdict {
        match conflicts(&pod.ports, &info.ports) {
            true => Err(Rejection::unschedulable(REASON)),
            false => Ok(()),
        }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Pod, Action::DELETE), (Resource::Node, Action::ADD)] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Pod(Some(gone), None) => {
                (gone.is_bound() || !gone.nominated.is_empty()) && conflicts(&pod.ports, &gone.ports)
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

    fn with(name: &str, port: Value) -> Pod {
        testing::pod(name, json!({"containers": [{"name": "c", "ports": [port]}]}))
    }

    #[test]
    fn a_port_conflicts_on_the_same_address_or_on_all() {
        let plugin = make(&PluginArgs::default());
        let port = |ip: &str, protocol: &str, port: i32| json!({"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol});
        for (taken, wanted, passes) in [
            (port("", "TCP", 80), port("", "TCP", 80), false),
            (port("", "TCP", 80), port("", "", 80), false),
            (port("", "TCP", 80), port("", "UDP", 80), true),
            (port("", "TCP", 80), port("", "TCP", 81), true),
            (port("10.0.0.1", "TCP", 80), port("10.0.0.2", "TCP", 80), true),
            (port("10.0.0.1", "TCP", 80), port("10.0.0.1", "TCP", 80), false),
            (port("10.0.0.1", "TCP", 80), port("0.0.0.0", "TCP", 80), false),
            (port("0.0.0.0", "TCP", 80), port("10.0.0.1", "TCP", 80), false),
            (port("", "TCP", 0), port("", "TCP", 0), true),
        ] {
            let mut cluster = testing::cluster([testing::node("n", json!({}))]);
            testing::put(&mut cluster, &with("old", taken.clone()), "n");
            let expected = if passes { Ok(()) } else { Err(Rejection::unschedulable(REASON)) };
            assert_eq!(
                testing::filter(&plugin, &cluster, &with("new", wanted.clone()), "n"),
                expected,
                "{taken} {wanted}"
            );
        }
    }

    #[test]
    fn only_a_pod_that_held_the_port_wakes() {
        let plugin = make(&PluginArgs::default());
        let (cluster, pod) = (Cluster::default(), with("p", json!({"containerPort": 1, "hostPort": 80})));
        for (port, expected) in [(80, true), (81, false)] {
            let gone = Arc::new(with("q", json!({"containerPort": 1, "hostPort": port})).on("n"));
            assert_eq!(plugin.wakes(&cluster, &pod, &Event::of_pod(Some(gone), None)), expected);
        }
    }
}
