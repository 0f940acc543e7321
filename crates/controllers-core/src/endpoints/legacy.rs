//! Endpoints: the older form of what stands behind a Service, one object of its name.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Now;
use serde_json::{Value, json};

use super::trigger::{ANNOTATION, Triggers};
use super::{Behind, Port, Service, services_of};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Event, Plan, Step};
use crate::resource::{ENDPOINTS, PODS, SERVICES};
use crate::view::View;

pub(crate) const ENDPOINTS_CONTROLLER: Row = Row {
    name: "endpoints-controller",
    aliases: &["endpoint"],
    identity: "endpoint-controller",
    event_source: "endpoint-controller",
    queue: "endpoint",
    workers: |tuning| tuning.syncs("endpoint", 5),
    retry: Retry::DEFAULT.gives_up_after(15),
    is_on_by_default: true,
    watches: &[
        Watch::itself(SERVICES),
        Watch { resource: PODS, keys: services_of },
        Watch { resource: ENDPOINTS, keys: own },
    ],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Legacy { triggers: Triggers::default() }),
};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// Addresses in one object.
const MOST: usize = 1000;

#[derive(Debug)]
struct Legacy {
    triggers: Triggers,
}

/// Addresses, and whether they are ready, by their text and the UID of their Pod.
type Addresses = BTreeMap<(String, String), (bool, Value)>;

// === impl Legacy ===

impl Controller for Legacy {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let current = view.get(ENDPOINTS, &key.namespace, &key.name);
        let Some(object) = view.get(SERVICES, &key.namespace, &key.name) else {
            self.triggers.forget(key);
            let gone = current.filter(|endpoints| !endpoints.is_deleting());
            return Plan::of(Step::in_turn(gone.map(|endpoints| Act::delete(&endpoints))));
        };
        let service = match Service::read(object.clone()) {
            Ok(Some(service)) => service,
            Ok(None) => return Plan::nothing(),
            Err(error) => return Plan::unreadable(&object, &error),
        };
        let mut pods = service.pods(view);
        pods.retain(|pod| !pod.is_terminating || service.publishes_not_ready());
        let since = self.triggers.since(key, &service.object, &pods);
        let (subsets, is_truncated) = truncated(subsets(&service, &pods));
        let wanted = Wanted { labels: labels(&service), subsets, is_truncated };
        Plan::of(Step::in_turn(wanted.act(&service, current.as_deref(), since.as_deref())))
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let Some((act, outcome)) = done.last().first() else { return Plan::nothing() };
        let (Some(failure), true) = (outcome.error(), done.failure().is_some()) else {
            return Plan::nothing();
        };
        let (reason, verb) = match act {
            Act::Create { .. } => ("FailedToCreateEndpoint", "create"),
            _ => ("FailedToUpdateEndpoint", "update"),
        };
        let Some(about) = view
            .get(ENDPOINTS, &key.namespace, &key.name)
            .or_else(|| view.get(SERVICES, &key.namespace, &key.name))
        else {
            return Plan::nothing();
        };
        let message = format!("Failed to {verb} endpoint {key}: {failure}");
        Plan::nothing().event(Event::warning(&about, reason, message))
    }
}

/// What the object is to say.
#[derive(Debug)]
struct Wanted {
    labels: BTreeMap<String, String>,
    subsets: Value,
    is_truncated: bool,
}

// === impl Wanted ===

impl Wanted {
    fn act(self, service: &Service, current: Option<&Object>, since: Option<&str>) -> Option<Act> {
        let meta = &service.object.meta;
        let Some(current) = current else {
            let mut made = json!({"metadata": {"name": meta.name, "namespace": &*meta.namespace}});
            self.write(&mut made, since);
            return Some(Act::create(ENDPOINTS, &meta.namespace, made));
        };
        let value = current.value();
        let is_marked = !value["metadata"]["annotations"][OVER_CAPACITY].is_null();
        let is_same = same_subsets(&value["subsets"], &self.subsets)
            && value["metadata"]["labels"] == json!(self.labels)
            && is_marked == self.is_truncated;
        (!is_same).then(|| Act::update(current, |value| self.write(value, since)))
    }

    fn write(self, endpoints: &mut Value, since: Option<&str>) {
        endpoints["subsets"] = self.subsets;
        endpoints["metadata"]["labels"] = json!(self.labels);
        let marks = [(ANNOTATION, since), (OVER_CAPACITY, self.is_truncated.then_some("truncated"))];
        for (key, value) in marks {
            match value {
                Some(value) => endpoints["metadata"]["annotations"][key] = json!(value),
                None => {
                    if let Some(annotations) = endpoints["metadata"]["annotations"].as_object_mut() {
                        annotations.remove(key);
                    }
                }
            }
        }
    }
}

fn labels(service: &Service) -> BTreeMap<String, String> {
    service.labels(&[(MANAGED_BY, Some(MANAGER))])
}

/// Ports with the addresses that have them; ports with the same addresses stand together.
fn subsets(service: &Service, pods: &[Behind]) -> Vec<(Addresses, BTreeSet<Port>)> {
    let Some(family) = service.families().first().copied() else { return Vec::new() };
    let mut by_port: BTreeMap<Option<Port>, Addresses> = BTreeMap::new();
    for pod in pods {
        let Some(ip) = pod.addresses(family).into_iter().next() else { continue };
        let mut address = json!({"ip": ip, "targetRef": pod.reference()});
        let node = &pod.object.meta.node;
        let texts = [
            ("hostname", pod.hostname(service)),
            ("nodeName", Some(&**node).filter(|node| !node.is_empty())),
        ];
        for (key, value) in texts {
            if let Some(value) = value {
                address[key] = json!(value);
            }
        }
        let is_ready = service.publishes_not_ready() || pod.is_ready;
        let entry = ((ip, pod.object.meta.uid.to_string()), (is_ready, address));
        let has_ports = service.spec.ports.as_ref().is_some_and(|ports| !ports.is_empty());
        let ports = match has_ports {
            true => service.ports_of(&pod.doc).into_iter().map(Some).collect(),
            // A headless Service needs no port to name its Pods.
            false if service.is_headless() => vec![None],
            false => Vec::new(),
        };
        for port in ports {
            by_port.entry(port).or_default().insert(entry.0.clone(), entry.1.clone());
        }
    }
    let mut merged: Vec<(Addresses, BTreeSet<Port>)> = Vec::new();
    for (port, addresses) in by_port {
        match merged.iter_mut().find(|(known, _)| *known == addresses) {
            Some((_, ports)) => ports.extend(port),
            None => merged.push((addresses, port.into_iter().collect())),
        }
    }
    merged
}

/// At most a thousand addresses, those that are ready first.
fn truncated(mut subsets: Vec<(Addresses, BTreeSet<Port>)>) -> (Value, bool) {
    let count = |subsets: &[(Addresses, BTreeSet<Port>)], ready: bool| -> usize {
        subsets.iter().map(|(addresses, _)| addresses.values().filter(|(is, _)| *is == ready).count()).sum()
    };
    let is_truncated = count(&subsets, true) + count(&subsets, false) > MOST;
    if is_truncated {
        let (mut ready, mut unready) = (MOST, MOST.saturating_sub(count(&subsets, true)));
        for (addresses, _) in &mut subsets {
            addresses.retain(|_, (is_ready, _)| {
                let left = if *is_ready { &mut ready } else { &mut unready };
                let stays = *left > 0;
                *left = left.saturating_sub(1);
                stays
            });
        }
        subsets.retain(|(addresses, _)| !addresses.is_empty());
    }
    (subsets.into_iter().map(subset).collect(), is_truncated)
}

fn subset((addresses, ports): (Addresses, BTreeSet<Port>)) -> Value {
    let mut subset = json!({});
    for (key, ready) in [("addresses", true), ("notReadyAddresses", false)] {
        let some: Vec<&Value> =
            addresses.values().filter(|(is, _)| *is == ready).map(|(_, address)| address).collect();
        if !some.is_empty() {
            subset[key] = json!(some);
        }
    }
    if !ports.is_empty() {
        subset["ports"] = ports.iter().map(Port::json).collect();
    }
    subset
}

/// Whatever order they stand in, and whatever an API server leaves out.
fn same_subsets(current: &Value, wanted: &Value) -> bool {
    let sorted = |subsets: &Value| {
        let mut all: Vec<String> =
            subsets.as_array().into_iter().flatten().map(|subset| normal(subset).to_string()).collect();
        all.sort_unstable();
        all
    };
    sorted(current) == sorted(wanted)
}

fn normal(subset: &Value) -> Value {
    let mut normal = json!({});
    for key in ["addresses", "notReadyAddresses"] {
        let mut list = subset[key].as_array().cloned().unwrap_or_default();
        list.sort_by_key(|address| (address["ip"].to_string(), address["targetRef"]["uid"].to_string()));
        normal[key] = json!(list);
    }
    let mut ports: Vec<Port> = subset["ports"].as_array().into_iter().flatten().map(Port::read).collect();
    ports.sort();
    normal["ports"] = ports.iter().map(Port::json).collect();
    normal
}

/// A deletion brings the object back. One of ours that lost its Service while nobody looked is taken away; those of others are theirs.
fn own(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(endpoints) = change.object() else { return };
    let is_left_over = || {
        let key = &endpoints.meta;
        endpoints.label(MANAGED_BY) == Some(MANAGER)
            && change.old.is_none()
            && view.get(SERVICES, &key.namespace, &key.name).is_none()
    };
    if change.is_deletion() || is_left_over() {
        wakes.add(Key::of(endpoints));
    }
}
