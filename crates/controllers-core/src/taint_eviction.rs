//! Taint eviction: Pods that do not tolerate a NoExecute taint of their Node leave it, at once or when their time is up.

use std::collections::HashMap;
use std::time::Duration;

use base::time::{Mono, Now};
use serde::Deserialize;

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::disruption;
use crate::object::Object;
use crate::plan::{Act, Event, Plan, Step};
use crate::resource::{NODES, PODS};
use crate::view::View;

pub(crate) const TAINT_EVICTION: Row = Row {
    name: "taint-eviction-controller",
    aliases: &[],
    identity: "node-controller",
    event_source: "taint-eviction-controller",
    queue: "noexec_taint_pod",
    workers: |_| 8,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch::itself(PODS), Watch { resource: NODES, keys: pods_on }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Evictions::default()),
};

/// When Pods that tolerate a taint for a while have to go. Counted from when it was first noticed: a restart begins anew.
#[derive(Debug, Default)]
struct Evictions(HashMap<Key, (Box<str>, Mono)>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeDoc {
    spec: NodeSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Option<Vec<Taint>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Taint {
    key: String,
    value: Option<String>,
    pub(crate) effect: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodDoc {
    spec: PodSpec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PodSpec {
    tolerations: Option<Vec<Toleration>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Toleration {
    key: Option<String>,
    operator: Option<String>,
    value: Option<String>,
    effect: Option<String>,
    toleration_seconds: Option<i64>,
}

/// How long a Pod may stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    Forever,
    For(Duration),
}

// === impl Evictions ===

impl Controller for Evictions {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let pod = view
            .get(PODS, &key.namespace, &key.name)
            .filter(|pod| !pod.is_deleting() && !pod.meta.node.is_empty());
        let Some(pod) = pod else {
            self.0.remove(key);
            return Plan::nothing();
        };
        let node = view.get(NODES, "", &pod.meta.node);
        let taints = node.as_deref().map(no_execute).unwrap_or_default();
        let doc: PodDoc = match pod.part() {
            Ok(doc) => doc,
            Err(error) => return Plan::unreadable(&pod, &error),
        };
        let tolerations = doc.spec.tolerations.unwrap_or_default();
        match stay(&taints, &tolerations) {
            Stay::Forever => self.call_off(key, &pod),
            Stay::For(Duration::ZERO) => self.evict(key, &pod, now),
            Stay::For(time) => {
                let known = self.0.get(key).filter(|(uid, _)| *uid == pod.meta.uid).map(|(_, at)| *at);
                let at = known.unwrap_or(now.mono + time);
                self.0.insert(key.clone(), (pod.meta.uid.clone(), at));
                match at.since(now.mono) {
                    Duration::ZERO => self.evict(key, &pod, now),
                    left => Plan::nothing().wake(Some(left)),
                }
            }
        }
    }
}

impl Evictions {
    fn evict(&mut self, key: &Key, pod: &Object, now: Now) -> Plan {
        self.0.remove(key);
        let told = disruption::announce(
            pod,
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            now,
        );
        let event = Event::normal(pod, "TaintManagerEviction", format!("Marking for deletion Pod {key}"));
        Plan::of(Step::in_turn([told, Act::delete(pod)])).event(event)
    }

    fn call_off(&mut self, key: &Key, pod: &Object) -> Plan {
        match self.0.remove(key) {
            Some((uid, _)) if uid == pod.meta.uid => {
                let message = format!("Cancelling deletion of Pod {key}");
                Plan::nothing().event(Event::normal(pod, "TaintManagerEviction", message))
            }
            _ => Plan::nothing(),
        }
    }
}

// === impl Toleration ===

impl Toleration {
    pub(crate) fn tolerates(&self, taint: &Taint) -> bool {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let is_effect = given(&self.effect).is_none_or(|effect| effect == taint.effect);
        let key = given(&self.key);
        let is_value = match self.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            // Without a key only Exists means everything.
            "" | "Equal" => {
                key.is_some()
                    && self.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            _ => false,
        };
        is_effect && is_value && key.is_none_or(|key| key == taint.key)
    }
}

/// Every taint needs a toleration; the first that matches counts, and the shortest time of all of them.
fn stay(taints: &[Taint], tolerations: &[Toleration]) -> Stay {
    let mut stay = Stay::Forever;
    for taint in taints {
        let Some(toleration) = tolerations.iter().find(|toleration| toleration.tolerates(taint)) else {
            return Stay::For(Duration::ZERO);
        };
        let Some(seconds) = toleration.toleration_seconds else { continue };
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        stay = match stay {
            Stay::For(known) if known < time => stay,
            _ => Stay::For(time),
        };
    }
    stay
}

/// All taints of a Node.
pub(crate) fn taints(node: &Object) -> Vec<Taint> {
    let doc: NodeDoc = node.part().unwrap_or_default();
    doc.spec.taints.unwrap_or_default()
}

fn no_execute(node: &Object) -> Vec<Taint> {
    let mut taints = taints(node);
    taints.retain(|taint| taint.effect == "NoExecute");
    taints
}

/// A Node whose taints changed is looked at Pod by Pod.
fn pods_on(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let taints = |node: Option<&Object>| node.map(no_execute).unwrap_or_default();
    if taints(change.old.as_deref()) != taints(change.new.as_deref())
        && let Some(node) = &change.new
    {
        wakes.extend(view.on_node(&node.meta.name).iter().map(|pod| Key::of(pod)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Draft, World, at, draft, pod, said};

    const EVICTED: [&str; 3] = [
        "patch pods/status ns/a",
        "delete pods ns/a",
        "Normal TaintManagerEviction: Marking for deletion Pod ns/a",
    ];

    fn node(taints: Value) -> Draft {
        draft(NODES, "n").set("/spec/taints", taints)
    }

    fn on_node(tolerations: Value) -> Draft {
        pod("a").on("n").running().set("/spec/tolerations", tolerations)
    }

    #[test]
    fn a_pod_goes_when_it_tolerates_its_node_no_longer() {
        let out = json!([{"key": "k", "value": "v", "effect": "NoExecute"}, {"key": "soft", "effect": "NoSchedule"}]);
        let rows: [(&str, Value, bool, Option<u64>); 9] = [
            ("nothing tolerated", json!([]), true, None),
            ("another key", json!([{"key": "x", "operator": "Exists"}]), true, None),
            ("another value", json!([{"key": "k", "value": "w"}]), true, None),
            (
                "another effect",
                json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]),
                true,
                None,
            ),
            ("an empty key that equals", json!([{"value": "v"}]), true, None),
            ("for ever", json!([{"key": "k", "value": "v", "effect": "NoExecute"}]), false, None),
            ("everything", json!([{"operator": "Exists"}]), false, None),
            (
                "for a while",
                json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 300}]),
                false,
                Some(300),
            ),
            ("no time", json!([{"key": "k", "operator": "Exists", "tolerationSeconds": -1}]), true, None),
        ];
        for (row, tolerations, goes, wake) in rows {
            let world = World::new([node(out.clone()), on_node(tolerations)]);
            let plan = world.reconcile(&mut Evictions::default(), "a", at(10));
            assert_eq!(said(&plan), if goes { EVICTED.to_vec() } else { vec![] }, "{row}");
            assert_eq!(plan.wake, wake.map(Duration::from_secs), "{row}");
        }
    }

    #[test]
    fn the_time_runs_from_when_the_taint_was_first_noticed_and_ends_with_the_taint() {
        let gone = json!([{"key": "k", "effect": "NoExecute"}]);
        let patient = || on_node(json!([{"operator": "Exists", "tolerationSeconds": 60}]));
        let mut world = World::new([node(gone), patient()]);
        let mut evictions = Evictions::default();
        assert_eq!(world.reconcile(&mut evictions, "a", at(100)).wake, Some(Duration::from_secs(60)));
        assert_eq!(world.reconcile(&mut evictions, "a", at(130)).wake, Some(Duration::from_secs(30)));
        world.put(node(json!([])));
        let back = said(&world.reconcile(&mut evictions, "a", at(150)));
        assert_eq!(back, ["Normal TaintManagerEviction: Cancelling deletion of Pod ns/a"]);
        world.put(node(json!([{"key": "k", "effect": "NoExecute"}])));
        assert_eq!(world.reconcile(&mut evictions, "a", at(155)).wake, Some(Duration::from_secs(60)));
        assert_eq!(said(&world.reconcile(&mut evictions, "a", at(215))), EVICTED);
    }
}
