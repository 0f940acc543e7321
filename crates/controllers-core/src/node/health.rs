//! Heartbeats: a Node that was not heard of for a while is said to be unknown, and its Pods are evicted, unless the trouble is ours.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::config::controllers::Tuning;
use base::time::{Mono, Now, Wall};
use serde_json::{Value, json};

use super::{NOT_READY, UNREACHABLE, set_taints, status_of};
use crate::cache::Change;
use crate::conditions;
use crate::controller::{Controller, Key, Row, Watch};
use crate::object::Object;
use crate::plan::{Act, Event, PatchKind, Plan, Regarding, Step};
use crate::resource::{LEASES, NODES};
use crate::terms::timestamp;
use crate::view::View;

pub(crate) const NODE_HEALTH: Row = Row {
    queue: "node_lifecycle_controller_health",
    workers: |_| 1,
    // Changes are heard of by `observe`; the work is done when its time has come.
    watches: &[Watch { resource: NODES, keys: |_, _, _| () }, Watch { resource: LEASES, keys: |_, _, _| () }],
    is_single: true,
    make: |tuning| {
        Box::new(Health {
            tuning: tuning.clone(),
            nodes: HashMap::new(),
            zones: BTreeMap::new(),
            was_alone: false,
        })
    },
    ..super::NODE_TAINTS
};

/// Where kubelets keep their leases.
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Conditions that only a kubelet can know.
const KUBELETS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

#[derive(Debug)]
struct Health {
    tuning: Tuning,
    nodes: HashMap<Box<str>, Seen>,
    /// When the last Node of a zone was given up.
    zones: BTreeMap<String, Mono>,
    /// No zone had a ready Node at the last look.
    was_alone: bool,
}

/// What is remembered of a Node.
#[derive(Debug, Default)]
struct Seen {
    heard: Mono,
    heartbeat: String,
    renewal: String,
    was_ready: bool,
    /// To tell that it is gone.
    about: Option<Regarding>,
}

// === impl Health ===

impl Controller for Health {
    fn reconcile(&mut self, view: &dyn View, _key: &Key, now: Now) -> Plan {
        let nodes = view.list(NODES, "");
        let mut plan = Plan::nothing().wake(Some(self.tuning.node_monitor_period));
        plan.events = self.come_and_gone(&nodes, now);
        let mut acts = Vec::new();
        let mut states = Vec::new();
        for node in &nodes {
            let mut value = node.value();
            if let Some(status) = self.silence(node, &value, now) {
                acts.push(Act::patch_status(node, PatchKind::Strategic, &json!({ "status": status })));
                conditions_into(&mut value, &status);
            }
            let is_ready = status_of(&value, "Ready") == "True";
            if let Some(seen) = self.nodes.get_mut(&node.meta.name) {
                if seen.was_ready && !is_ready {
                    let message = format!("Node {} status is now: NodeNotReady", node.meta.name);
                    plan.events.push(Event::normal(node, "NodeNotReady", message));
                }
                seen.was_ready = is_ready;
            }
            states.push((node.clone(), status_of(&value, "Ready").to_owned()));
        }
        let evictions = self.evictions(&states, now);
        plan.then(Step::at_once(acts)).then(Step::at_once(evictions))
    }

    fn observe(&mut self, change: &Change, now: Now) {
        let Some(object) = &change.new else { return };
        let (value, is_lease) = (object.value(), object.meta.resource == LEASES);
        if is_lease && &*object.meta.namespace != LEASE_NAMESPACE {
            return;
        }
        let text = match is_lease {
            true => value["spec"]["renewTime"].as_str(),
            false => {
                conditions::find(&value["status"], "Ready").and_then(|c| c["lastHeartbeatTime"].as_str())
            }
        };
        let text = text.unwrap_or_default().to_owned();
        // A lease may outlive its Node, or come before it.
        let seen = self
            .nodes
            .entry(object.meta.name.clone())
            .or_insert_with(|| Seen { heard: now.mono, ..Seen::default() });
        let known = if is_lease { &mut seen.renewal } else { &mut seen.heartbeat };
        if *known != text {
            *known = text;
            seen.heard = now.mono;
        }
    }
}

impl Health {
    fn come_and_gone(&mut self, nodes: &[Arc<Object>], now: Now) -> Vec<Event> {
        let mut events = Vec::new();
        for node in nodes {
            let seen = self
                .nodes
                .entry(node.meta.name.clone())
                .or_insert_with(|| Seen { heard: now.mono, ..Seen::default() });
            let is_new = seen.about.as_ref().is_none_or(|about| *about.uid != *node.meta.uid);
            if is_new {
                let message = format!("Node {0} event: Registered Node {0} in Controller", node.meta.name);
                events.push(Event::normal(node, "RegisteredNode", message));
                seen.about = Some(Regarding::of(node));
                seen.was_ready = status_of(&node.value(), "Ready") == "True";
            }
        }
        self.nodes.retain(|name, seen| {
            let is_there = nodes.binary_search_by(|node| node.meta.name.cmp(name)).is_ok();
            if !is_there && let Some(about) = seen.about.take() {
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                events.push(Event { about, is_warning: false, reason: "RemovingNode".into(), message });
            }
            is_there
        });
        events
    }

    /// What is to be said of a Node that has been silent for too long; None of one that has not, or of which it is said already.
    fn silence(&self, node: &Object, value: &Value, now: Now) -> Option<Value> {
        let seen = self.nodes.get(&node.meta.name)?;
        let never_spoke = conditions::find(&value["status"], "Ready").is_none();
        let grace = match never_spoke {
            true => self.tuning.node_startup_grace_period,
            false => self.tuning.node_monitor_grace_period,
        };
        if now.mono.since(seen.heard) <= grace {
            return None;
        }
        let time = timestamp(now.wall);
        let created = node.meta.created.unwrap_or(Wall::from_secs(0));
        let unknown = KUBELETS.iter().filter_map(|kind| {
            let known = conditions::find(&value["status"], kind);
            if known.is_some_and(|condition| condition["status"] == "Unknown") {
                return None;
            }
            let (reason, message) = match known {
                Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
                None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
            };
            let mut condition = json!({"type": kind, "status": "Unknown", "reason": reason, "message": message,
                "lastTransitionTime": time});
            if known.is_none() {
                condition["lastHeartbeatTime"] = json!(timestamp(created));
            }
            Some(condition)
        });
        let unknown: Vec<Value> = unknown.collect();
        (!unknown.is_empty()).then(|| json!({ "conditions": unknown }))
    }

    /// NoExecute taints: on at the pace of the zone, off as soon as a Node is ready. Where no Node of any zone is ready, the network
    /// or we are broken, not they: nobody is evicted, and everybody gets his time anew when that is over.
    fn evictions(&mut self, states: &[(Arc<Object>, String)], now: Now) -> Vec<Act> {
        let is_alone = !states.is_empty() && states.iter().all(|(_, ready)| ready != "True");
        if self.was_alone && !is_alone {
            self.nodes.values_mut().for_each(|seen| seen.heard = now.mono);
        }
        self.was_alone = is_alone;
        let mut zones: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (node, ready) in states {
            let (all, bad) = zones.entry(zone(node)).or_default();
            *all += 1;
            *bad += usize::from(ready != "True");
        }
        let mut acts = Vec::new();
        for (node, ready) in states {
            let wanted = match ready.as_str() {
                _ if is_alone => None,
                "False" => Some(NOT_READY),
                "Unknown" => Some(UNREACHABLE),
                _ => None,
            };
            let wanted: Vec<&str> = wanted.into_iter().collect();
            let Some(act) = set_taints(node, "NoExecute", &[NOT_READY, UNREACHABLE], &wanted, now.wall)
            else {
                continue;
            };
            let is_new = !wanted.is_empty() && !has_eviction_taint(node);
            let (all, bad) = zones.get(&zone(node)).copied().unwrap_or_default();
            if !is_new || self.may_evict(&zone(node), all, bad, now) {
                acts.push(act);
            }
        }
        acts
    }

    /// Whether the zone may lose a Node now.
    fn may_evict(&mut self, zone: &str, all: usize, bad: usize, now: Now) -> bool {
        let is_partly_down =
            bad > 2 && bad as f64 / all.max(1) as f64 >= self.tuning.unhealthy_zone_threshold && bad < all;
        let is_large = all > usize::try_from(self.tuning.large_cluster_size_threshold).unwrap_or(0);
        let rate = match (is_partly_down, is_large) {
            (false, _) => self.tuning.node_eviction_rate,
            (true, true) => self.tuning.secondary_node_eviction_rate,
            (true, false) => 0.0,
        };
        if rate <= 0.0 {
            return false;
        }
        let pause = Duration::from_secs_f64(1.0 / rate);
        if self.zones.get(zone).is_some_and(|last| now.mono.since(*last) < pause) {
            return false;
        }
        self.zones.insert(zone.to_owned(), now.mono);
        true
    }
}

/// Whether it was given up before, for whichever reason: the other reason takes the place of the first at once.
fn has_eviction_taint(node: &Object) -> bool {
    let value = node.value();
    let taints = value["spec"]["taints"].as_array().into_iter().flatten();
    taints.into_iter().any(|taint| {
        taint["effect"] == "NoExecute" && (taint["key"] == NOT_READY || taint["key"] == UNREACHABLE)
    })
}

fn zone(node: &Object) -> String {
    let label = |key: &str| node.label(key).unwrap_or_default();
    format!("{}:{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

fn conditions_into(node: &mut Value, status: &Value) {
    let Some(new) = status["conditions"].as_array() else { return };
    let mut all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.retain(|condition| !new.iter().any(|other| other["type"] == condition["type"]));
    all.extend(new.iter().cloned());
    node["status"]["conditions"] = json!(all);
}
