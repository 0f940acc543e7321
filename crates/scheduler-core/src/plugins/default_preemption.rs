//! DefaultPreemption: less important Pods make way for a more important one that fits nowhere. Who does is found by
//! [`crate::preemption`]; the plugin itself keeps the Pod waiting until they were told.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource};
use crate::framework::Plugin;
use crate::pod::Pod;

/// Why a Pod does not wait for its turn while others make way for it.
pub const RUNNING: &str = "waiting for the preemption for this pod to be finished";

#[derive(Debug)]
struct DefaultPreemption;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(DefaultPreemption)
}

impl Plugin for DefaultPreemption {
    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Pod, Action::DELETE)] }
    }

    /// The end of the preemption itself brings the Pod back.
    fn wakes(&self, _: &Cluster, _: &Pod, _: &Event) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn no_event_wakes_a_pod_for_which_others_make_way() {
        let plugin = make(&PluginArgs::default());
        let (pod, gone) = (testing::pod("p", json!({})), Arc::new(testing::pod("q", json!({})).on("n")));
        assert!(!plugin.wakes(&Cluster::default(), &pod, &Event::of_pod(Some(gone), None)));
    }
}
