//! How long a kubelet may keep what it has read of Secrets and ConfigMaps: longer where there are many Nodes.

use base::time::Now;
use serde_json::json;

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::plan::{Act, PatchKind, Plan, Step};
use crate::resource::NODES;
use crate::view::View;

pub(crate) const NODE_TTL: Row = Row {
    name: "ttl-controller",
    aliases: &["ttl"],
    identity: "ttl-controller",
    event_source: "ttl-controller",
    queue: "ttlcontroller",
    workers: |_| 5,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch::itself(NODES)],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Ttl::default()),
};

const ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";
/// Fewest and most Nodes, and the seconds. They overlap, so that one Node more or less does not rewrite all of them.
const STEPS: &[(usize, usize, u32)] =
    &[(0, 100, 0), (90, 500, 15), (450, 1000, 30), (900, 2000, 60), (1800, usize::MAX, 300)];

#[derive(Debug, Default)]
struct Ttl {
    nodes: usize,
    step: usize,
}

impl Controller for Ttl {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(node) = view.get(NODES, "", &key.name) else { return Plan::nothing() };
        let seconds = STEPS[self.step].2.to_string();
        if node.value()["metadata"]["annotations"][ANNOTATION] == *seconds {
            return Plan::nothing();
        }
        let patch = json!({"metadata": {"annotations": {ANNOTATION: seconds}}});
        Plan::of(Step::in_turn([Act::patch(&node, PatchKind::Strategic, &patch)]))
    }

    fn observe(&mut self, change: &Change, _now: Now) {
        match (&change.old, &change.new) {
            (None, Some(_)) => self.nodes += 1,
            (Some(_), None) => self.nodes = self.nodes.saturating_sub(1),
            _ => return,
        }
        let (fewest, most, _) = STEPS[self.step];
        if self.nodes > most {
            self.step += 1;
        } else if self.nodes < fewest {
            self.step -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::{World, at, draft};

    #[test]
    fn many_nodes_keep_longer_and_the_step_back_comes_later() {
        let world = World::new([draft(NODES, "n")]);
        let node = Arc::new(draft(NODES, "n").object());
        let mut ttl = Ttl::default();
        let mut written = |come: usize, go: usize| {
            for _ in 0..come {
                ttl.observe(&Change { old: None, new: Some(node.clone()) }, at(1));
            }
            for _ in 0..go {
                ttl.observe(&Change { old: Some(node.clone()), new: None }, at(1));
            }
            let plan = ttl.reconcile(&world.cache, &Key::new("", "n"), at(1));
            let act = plan.acts().next().map(Act::body).unwrap_or_default();
            act["metadata"]["annotations"][ANNOTATION].clone()
        };
        assert_eq!(written(100, 0), "0");
        assert_eq!(written(1, 0), "15");
        assert_eq!(written(0, 11), "15", "90 are still enough");
        assert_eq!(written(0, 1), "0");
        assert_eq!(written(2000, 0), "300");
    }

    #[test]
    fn what_is_right_is_not_written() {
        let world = World::new([draft(NODES, "n").annotation(ANNOTATION, "0")]);
        let plan = Ttl::default().reconcile(&world.cache, &Key::new("", "n"), at(1));
        assert!(!plan.has_acts());
    }
}
