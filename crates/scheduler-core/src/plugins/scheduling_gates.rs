//! SchedulingGates: a Pod with gates does not wait for its turn yet.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, Verdict};
use crate::pod::Pod;
use crate::status::{Code, Rejection};

#[derive(Debug)]
struct SchedulingGates;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(SchedulingGates)
}

impl Plugin for SchedulingGates {
    fn pre_enqueue(&self, pod: &Pod) -> Verdict {
        if pod.gates.is_empty() {
            return Ok(());
        }
        let reason = format!("waiting for scheduling gates: [{}]", pod.gates.join(" "));
        Err(Rejection::said(Code::UnschedulableAndUnresolvable, reason))
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Pod, Action::POD_GATES)] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        matches!(&event.what, What::Pod(_, Some(new)) if new.uid == pod.uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn gates_hold_a_pod_and_are_named() {
        let plugin = make(&PluginArgs::default());
        for (gates, expected) in [
            (json!([]), None),
            (json!([{"name": "a"}, {"name": "b"}]), Some("waiting for scheduling gates: [a b]")),
        ] {
            let pod = testing::pod("p", json!({"schedulingGates": gates}));
            let said = plugin.pre_enqueue(&pod).err().map(|r| r.message());
            assert_eq!(said.as_deref(), expected);
        }
    }

    #[test]
    fn only_its_own_gates_wake_a_pod() {
        let plugin = make(&PluginArgs::default());
        let gated = Arc::new(testing::pod("p", json!({"schedulingGates": [{"name": "a"}]})));
        let free = |name| Arc::new(testing::pod(name, json!({})));
        let cluster = Cluster::default();
        let own = Event::of_pod(Some(gated.clone()), Some(free("p")));
        assert!(own.action.meets(Action::POD_GATES) && plugin.wakes(&cluster, &gated, &own));
        assert!(!plugin.wakes(&cluster, &gated, &Event::of_pod(Some(free("q")), Some(free("q")))));
    }
}
