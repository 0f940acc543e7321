//! EndpointSlice: the Pods behind a Service, a hundred to an object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::time::Now;
use serde_json::{Value, json};

use super::fill::{Existing, fill};
use super::topology::{self, Capacity};
use super::trigger::{ANNOTATION, Triggers};
use super::{Behind, Family, Port, Service, ZONE, services_of};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::names;
use crate::object::Object;
use crate::plan::{Act, Done, Event, Plan, Step};
use crate::resource::{ENDPOINT_SLICES, NODES, PODS, SERVICES};
use crate::view::View;

pub(crate) const ENDPOINT_SLICE_CONTROLLER: Row = Row {
    name: "endpointslice-controller",
    aliases: &["endpointslice"],
    identity: "endpointslice-controller",
    event_source: "endpoint-slice-controller",
    queue: "endpoint_slice",
    workers: |tuning| tuning.syncs("service-endpoint", 5),
    retry: Retry { first: Duration::from_secs(1), last: Duration::from_secs(1000), gives_up_after: Some(15) },
    is_on_by_default: true,
    watches: &[
        Watch::itself(SERVICES),
        Watch { resource: PODS, keys: services_of },
        Watch { resource: ENDPOINT_SLICES, keys: service_of_slice },
        Watch { resource: NODES, keys: services_on_node },
    ],
    reads: &[],
    is_single: false,
    make: |tuning| {
        let most = usize::try_from(tuning.max_endpoints_per_slice).unwrap_or(1).max(1);
        Box::new(Slices { most, triggers: Triggers::default(), hints: BTreeMap::new() })
    },
};

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslice-controller.k8s.io";
/// Whoever changes our slices is answered after this, so that two who disagree do not fill the store.
const REPAIR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Slices {
    most: usize,
    triggers: Triggers,
    /// What was said last of hints by zone, to be told once: None where there are some.
    hints: BTreeMap<(Key, Family), Option<String>>,
}

/// Slices never mix families or sets of ports.
type Group = (Family, Vec<Port>);

/// The endpoints that there should be.
type Wanted = BTreeMap<Group, Vec<Value>>;

/// An endpoint is the same as long as this is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    addresses: Vec<String>,
    hostname: String,
    target: (String, String),
}

/// What one slice is to have.
#[derive(Debug)]
struct Content<'a> {
    family: Family,
    ports: &'a [Port],
    endpoints: Vec<Value>,
}

/// The writes of one sync, in the order in which they are made.
#[derive(Debug, Default)]
struct Writes {
    create: Vec<Value>,
    update: Vec<(Arc<Object>, Value)>,
    delete: Vec<Arc<Object>>,
}

// === impl Slices ===

impl Controller for Slices {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(object) = view.get(SERVICES, &key.namespace, &key.name) else {
            self.triggers.forget(key);
            self.hints.retain(|(known, _), _| known != key);
            return Plan::nothing();
        };
        let service = match Service::read(object.clone()) {
            Ok(Some(service)) => service,
            Ok(None) => return Plan::nothing(),
            Err(error) => return Plan::unreadable(&object, &error),
        };
        let pods = service.pods(view);
        let since = self.triggers.since(key, &service.object, &pods);
        let (mut wanted, unknown) = wanted(&service, &pods, view);
        let events = self.hint(key, &service, &mut wanted, view);
        let writes = self.writes(&service, slices_of(&service, view), &wanted, since.as_deref());
        let plan = Plan { events, ..Plan::of(writes.step(&key.namespace)) };
        match unknown {
            Some(node) => Plan { failure: Some(format!("node {node:?} not found")), ..plan },
            None => plan,
        }
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let (Some(failure), Some(service)) = (done.failure(), view.get(SERVICES, &key.namespace, &key.name))
        else {
            return Plan::nothing();
        };
        let message = format!("Error updating Endpoint Slices for Service {key}: {failure}");
        Plan::nothing().event(Event::warning(&service, "FailedToUpdateEndpointSlices", message))
    }
}

impl Slices {
    /// Hints by zone, for Services that ask for them.
    fn hint(&mut self, key: &Key, service: &Service, wanted: &mut Wanted, view: &dyn View) -> Vec<Event> {
        let is_asked = topology::is_asked(&service.object.value());
        let shares = is_asked.then(|| topology::shares(view)).flatten();
        let mut events = Vec::new();
        for family in service.families() {
            let of_family = wanted.iter_mut().filter(|((of, _), _)| *of == family);
            let said = match is_asked {
                true => {
                    topology::assign(of_family.flat_map(|(_, all)| all.iter_mut()), shares.as_ref()).err()
                }
                false => Some("Topology Aware Hints has been disabled".to_owned()),
            };
            let at = (key.clone(), family);
            let known = if is_asked { self.hints.insert(at, said.clone()) } else { self.hints.remove(&at) };
            let about = |said: &str| format!("{said}, addressType: {}", family.text());
            match said {
                _ if known.as_ref() == Some(&said) => {}
                // Nobody asks, and nobody was told that there are any.
                Some(_) if !is_asked && known != Some(None) => {}
                Some(why) => {
                    events.push(Event::warning(&service.object, "TopologyAwareHintsDisabled", about(&why)));
                }
                None => {
                    let message = about("Topology Aware Hints has been enabled");
                    events.push(Event::normal(&service.object, "TopologyAwareHintsEnabled", message));
                }
            }
        }
        events
    }

    fn writes(
        &self,
        service: &Service,
        existing: Vec<Arc<Object>>,
        wanted: &Wanted,
        since: Option<&str>,
    ) -> Writes {
        type Both<'a> = (Vec<Arc<Object>>, &'a [Value]);
        let mut groups: BTreeMap<Group, Both<'_>> =
            wanted.iter().map(|(key, endpoints)| (key.clone(), (Vec::new(), &endpoints[..]))).collect();
        let (mut writes, families) = (Writes::default(), service.families());
        for slice in existing {
            let value = slice.value();
            match families.iter().find(|family| value["addressType"] == family.text()) {
                Some(family) => groups.entry((*family, ports(&value))).or_default().0.push(slice),
                None => writes.delete.push(slice),
            }
        }
        for family in families {
            let mut of_family = Writes::default();
            let mut unchanged = 0;
            for ((_, ports), (slices, endpoints)) in groups.iter().filter(|((of, _), _)| *of == family) {
                unchanged += self.group(&mut of_family, service, family, ports, slices, endpoints, since);
            }
            of_family.leave_a_placeholder(service, family, unchanged, since);
            of_family.recycle();
            writes.create.append(&mut of_family.create);
            writes.update.append(&mut of_family.update);
            writes.delete.append(&mut of_family.delete);
        }
        writes
    }

    /// The slices of one family with one set of ports. Says how many stay as they are.
    #[allow(clippy::too_many_arguments)] // They are the coordinates of a group.
    fn group(
        &self,
        writes: &mut Writes,
        service: &Service,
        family: Family,
        ports: &[Port],
        slices: &[Arc<Object>],
        endpoints: &[Value],
        since: Option<&str>,
    ) -> usize {
        let labels = json!(slice_labels(service));
        let existing = slices.iter().map(|slice| {
            let value = slice.value();
            let endpoints = value["endpoints"].as_array().cloned().unwrap_or_default();
            let is_stale = value["metadata"]["labels"] != labels;
            Existing { slice: slice.clone(), endpoints: endpoints.iter().map(plain).collect(), is_stale }
        });
        let wanted = endpoints.iter().map(|endpoint| (identity(endpoint), endpoint.clone())).collect();
        let filled = fill(existing.collect(), wanted, identity, self.most);
        let body = |endpoints| Content { family, ports, endpoints };
        writes
            .create
            .extend(filled.create.into_iter().map(|endpoints| body(endpoints).new_slice(service, since)));
        for (slice, endpoints) in filled.update {
            let value = body(endpoints).into_slice(&slice, service, since);
            writes.update.push((slice, value));
        }
        writes.delete.extend(filled.delete);
        filled.unchanged
    }
}

// === impl Writes ===

impl Writes {
    /// A Service of which nobody is ready has one empty slice per family, so that its readers know that this is known.
    fn leave_a_placeholder(
        &mut self,
        service: &Service,
        family: Family,
        unchanged: usize,
        since: Option<&str>,
    ) {
        if unchanged > 0 || !self.create.is_empty() || !self.update.is_empty() {
            return;
        }
        let empty = || Content { family, ports: &[], endpoints: Vec::new() };
        let is_placeholder = |slice: &Arc<Object>| {
            let value = slice.value();
            let has_none = |key: &str| value[key].as_array().is_none_or(Vec::is_empty);
            has_none("endpoints")
                && has_none("ports")
                && value["metadata"]["labels"] == json!(slice_labels(service))
        };
        match self.delete.iter().position(is_placeholder) {
            Some(at) => _ = self.delete.remove(at),
            None => self.create.push(empty().new_slice(service, since)),
        }
    }

    /// A slice that would go takes the content of one that would be made.
    fn recycle(&mut self) {
        while !self.create.is_empty()
            && let Some(slice) = self.delete.pop()
            && let Some(content) = self.create.pop()
        {
            let mut value = slice.value();
            for key in ["endpoints", "ports"] {
                value[key] = content[key].clone();
            }
            value["metadata"]["labels"] = content["metadata"]["labels"].clone();
            annotate(&mut value, content["metadata"]["annotations"][ANNOTATION].as_str());
            self.update.push((slice, value));
        }
    }

    fn step(self, namespace: &str) -> Step {
        let create = self.create.into_iter().map(|slice| Act::create(ENDPOINT_SLICES, namespace, slice));
        let update = self.update.into_iter().map(|(slice, to)| Act::update(&slice, |value| *value = to));
        let delete = self.delete.iter().map(|slice| Act::delete(slice));
        Step::in_turn(create.chain(update).chain(delete))
    }
}

// === impl Content ===

impl Content<'_> {
    fn new_slice(self, service: &Service, since: Option<&str>) -> Value {
        let name = names::generate_name(&service.object.meta.name);
        let mut slice = json!({
            "metadata": {"generateName": name, "namespace": &*service.object.meta.namespace, "labels": slice_labels(service),
                "ownerReferences": [service.object.as_controller()]},
            "addressType": self.family.text(),
            "endpoints": self.endpoints,
            "ports": self.ports.iter().map(Port::json).collect::<Vec<_>>(),
        });
        annotate(&mut slice, since);
        slice
    }

    fn into_slice(self, slice: &Object, service: &Service, since: Option<&str>) -> Value {
        let mut value = slice.value();
        value["endpoints"] = json!(self.endpoints);
        value["metadata"]["labels"] = json!(slice_labels(service));
        annotate(&mut value, since);
        value
    }
}

fn slice_labels(service: &Service) -> BTreeMap<String, String> {
    service.labels(&[(SERVICE_NAME, Some(&service.object.meta.name)), (MANAGED_BY, Some(MANAGER))])
}

fn annotate(slice: &mut Value, since: Option<&str>) {
    let metadata = &mut slice["metadata"];
    match since {
        Some(since) => metadata["annotations"][ANNOTATION] = json!(since),
        None => {
            if let Some(annotations) = metadata["annotations"].as_object_mut() {
                annotations.remove(ANNOTATION);
            }
        }
    }
}

/// The slices that are ours to write. One that is being deleted counts no more.
fn slices_of(service: &Service, view: &dyn View) -> Vec<Arc<Object>> {
    let meta = &service.object.meta;
    let mut slices = view.list(ENDPOINT_SLICES, &meta.namespace);
    slices.retain(|slice| {
        slice.label(SERVICE_NAME) == Some(&*meta.name)
            && slice.label(MANAGED_BY) == Some(MANAGER)
            && !slice.is_deleting()
    });
    slices
}

/// Endpoints by family and ports, and the name of a Node that nobody knows.
fn wanted(service: &Service, pods: &[Behind], view: &dyn View) -> (Wanted, Option<String>) {
    let (mut all, mut unknown) = (BTreeMap::<_, Vec<Value>>::new(), None);
    for pod in pods {
        let name = &pod.object.meta.node;
        let node = Some(name).filter(|name| !name.is_empty()).map(|name| view.get(NODES, "", name));
        if let Some(None) = node
            && !service.publishes_not_ready()
        {
            unknown = Some(name.to_string());
            continue;
        }
        let zone = node.flatten().and_then(|node| node.label(ZONE).map(str::to_owned));
        let mut ports = service.ports_of(&pod.doc);
        ports.sort();
        for family in service.families() {
            let addresses = pod.addresses(family);
            if !addresses.is_empty() {
                let endpoint = endpoint(service, pod, addresses, zone.as_deref());
                all.entry((family, ports.clone())).or_default().push(endpoint);
            }
        }
    }
    (all, unknown)
}

fn endpoint(service: &Service, pod: &Behind, addresses: Vec<String>, zone: Option<&str>) -> Value {
    let is_ready = service.publishes_not_ready() || (pod.is_ready && !pod.is_terminating);
    let conditions = json!({"ready": is_ready, "serving": pod.is_ready, "terminating": pod.is_terminating});
    let mut endpoint =
        json!({"addresses": addresses, "conditions": conditions, "targetRef": pod.reference()});
    let node = &pod.object.meta.node;
    let texts = [
        ("hostname", pod.hostname(service)),
        ("nodeName", Some(&**node).filter(|node| !node.is_empty())),
        ("zone", zone),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            endpoint[key] = json!(value);
        }
    }
    if let Some(hints) = hints(service, is_ready, zone, node) {
        endpoint["hints"] = hints;
    }
    endpoint
}

/// Where a client should be for this endpoint to be the right one. The older annotation wins over the field.
fn hints(service: &Service, is_ready: bool, zone: Option<&str>, node: &str) -> Option<Value> {
    if !is_ready || topology::is_asked(&service.object.value()) {
        return None;
    }
    let zones = json!([{"name": zone?}]);
    match service.spec.traffic_distribution.as_deref()? {
        "PreferClose" | "PreferSameZone" => Some(json!({ "forZones": zones })),
        "PreferSameNode" => Some(json!({"forZones": zones, "forNodes": [{"name": node}]})),
        _ => None,
    }
}

/// What an endpoint says, without what says nothing: an API server may write what was left out.
pub(super) fn plain(endpoint: &Value) -> Value {
    let mut endpoint = endpoint.clone();
    if let Some(fields) = endpoint.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    endpoint
}

pub(super) fn identity(endpoint: &Value) -> Identity {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut addresses: Vec<String> =
        endpoint["addresses"].as_array().into_iter().flatten().map(text).collect();
    addresses.sort_unstable();
    let target = &endpoint["targetRef"];
    Identity {
        addresses,
        hostname: text(&endpoint["hostname"]),
        target: (text(&target["namespace"]), text(&target["name"])),
    }
}

pub(super) fn ports(slice: &Value) -> Vec<Port> {
    let mut ports: Vec<Port> = slice["ports"].as_array().into_iter().flatten().map(Port::read).collect();
    ports.sort();
    ports
}

/// Others' writes to a slice, and its deletion, wake its Service.
fn service_of_slice(change: &Change, _view: &dyn View, wakes: &mut Wakes) {
    let Some(slice) = change.object().filter(|slice| slice.label(MANAGED_BY) == Some(MANAGER)) else {
        return;
    };
    if let Some(name) = slice.label(SERVICE_NAME)
        && change.old.is_some()
    {
        wakes.add_after(Key::new(&slice.meta.namespace, name), REPAIR);
    }
}

/// A Node that comes, or moves to another zone, changes what is said of the Pods on it; what changes the share of its zone
/// changes the hints of all Services that go by shares.
fn services_on_node(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let capacity = |node: &Option<Arc<Object>>| node.as_deref().map(Capacity::of);
    if capacity(&change.old) != capacity(&change.new) {
        let services = view.list(SERVICES, "");
        let asking = services.iter().filter(|service| topology::is_asked(&service.value()));
        wakes.extend(asking.map(|service| Key::of(service)));
    }
    let zone = |node: &Option<Arc<Object>>| node.as_ref().map(|node| node.label(ZONE).map(str::to_owned));
    let Some(node) = change.new.as_ref().filter(|_| zone(&change.old) != zone(&change.new)) else { return };
    let pods = view.on_node(&node.meta.name);
    pods.into_iter().for_each(|pod| services_of(&Change { old: None, new: Some(pod) }, view, wakes));
}
