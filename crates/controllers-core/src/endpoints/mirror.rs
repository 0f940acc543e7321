//! Mirrors of Endpoints that users write, as slices: for Services that choose no Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::time::Now;
use serde_json::{Map, Value, json};

use super::slices::{MANAGED_BY, SERVICE_NAME, identity, plain, ports};
use super::trigger::ANNOTATION;
use super::{Family, Port, ServiceDoc};
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::names;
use crate::object::Object;
use crate::plan::{Act, Event, Plan, Step};
use crate::resource::{ENDPOINT_SLICES, ENDPOINTS, SERVICES};
use crate::view::View;

pub(crate) const ENDPOINT_SLICE_MIRRORING: Row = Row {
    name: "endpointslice-mirroring-controller",
    aliases: &["endpointslicemirroring"],
    identity: "endpointslicemirroring-controller",
    event_source: "endpoint-slice-mirroring-controller",
    queue: "endpoint_slice_mirroring",
    workers: |tuning| tuning.syncs("mirroring-service-endpoint", 5),
    retry: Retry { first: Duration::from_secs(1), last: Duration::from_secs(100), gives_up_after: Some(15) },
    is_on_by_default: true,
    watches: &[
        Watch::itself(ENDPOINTS),
        Watch { resource: SERVICES, keys: without_selector },
        Watch { resource: ENDPOINT_SLICES, keys: mirrored },
    ],
    reads: &[],
    is_single: false,
    make: |tuning| {
        let most = usize::try_from(tuning.mirroring_max_endpoints_per_subset).unwrap_or(1).max(1);
        Box::new(Mirror { most })
    },
};

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
const REPAIR: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Mirror {
    /// Addresses of one subset, which becomes one slice.
    most: usize,
}

/// Endpoints by family and ports.
type Wanted = BTreeMap<(Family, Vec<Port>), Vec<Value>>;

/// An address, and its Pod where it has one.
type Who = (String, String);

/// Addresses with what is said of them, and whether they are ready.
type Addresses = BTreeMap<Who, (bool, Value)>;

/// Slices that are there, by family and ports.
type Existing = BTreeMap<(Option<Family>, Vec<Port>), Vec<Arc<Object>>>;

#[derive(Debug, Default)]
struct Skipped {
    invalid: usize,
    all: usize,
}

// === impl Mirror ===

impl Controller for Mirror {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let slices = slices_of(view, key);
        let Some(endpoints) =
            view.get(ENDPOINTS, &key.namespace, &key.name).filter(|one| is_wanted(one, view))
        else {
            return Plan::nothing().then(Step::at_once(slices.iter().map(|slice| Act::delete(slice))));
        };
        let value = endpoints.value();
        let (wanted, skipped) = self.wanted(&value);
        let step = writes(&endpoints, &value, slices, &wanted);
        let Skipped { invalid, all } = skipped;
        let mut plan = Plan::nothing().then(step);
        if invalid > 0 {
            let message = format!("Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices");
            plan = plan.event(Event::warning(&endpoints, "InvalidIPAddress", message));
        }
        if all > invalid {
            let message = format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {all} addresses were skipped",
                self.most
            );
            plan = plan.event(Event::warning(&endpoints, "TooManyAddressesToMirror", message));
        }
        plan
    }
}

impl Mirror {
    fn wanted(&self, endpoints: &Value) -> (Wanted, Skipped) {
        let (mut wanted, mut skipped) = (Wanted::new(), Skipped::default());
        for (addresses, ports) in repacked(endpoints) {
            let mut added = 0;
            let count = addresses.len();
            // Those that are ready come first where not all have room.
            let (ready, unready): (Vec<_>, Vec<_>) =
                addresses.into_values().partition(|(is_ready, _)| *is_ready);
            for (is_ready, address) in ready.into_iter().chain(unready) {
                if added == self.most {
                    break;
                }
                let ip = address["ip"].as_str().unwrap_or_default();
                let Some(family) = Family::of(ip) else {
                    skipped.invalid += 1;
                    continue;
                };
                added += 1;
                wanted.entry((family, ports.clone())).or_default().push(endpoint(ip, is_ready, &address));
            }
            skipped.all += count - added;
        }
        (wanted, skipped)
    }
}

fn endpoint(ip: &str, is_ready: bool, address: &Value) -> Value {
    let mut endpoint = json!({"addresses": [ip], "conditions": {"ready": is_ready}});
    for key in ["targetRef", "nodeName", "hostname"] {
        if !address[key].is_null() && address[key] != "" {
            endpoint[key] = address[key].clone();
        }
    }
    endpoint
}

/// Each address once for each port; ports with the same addresses together. Who is not ready anywhere is not ready.
fn repacked(endpoints: &Value) -> Vec<(Addresses, Vec<Port>)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut by_port: BTreeMap<Option<Port>, Addresses> = BTreeMap::new();
    for subset in list(&endpoints["subsets"]) {
        let ports: Vec<Option<Port>> =
            list(&subset["ports"]).iter().map(|port| Some(Port::read(port))).collect();
        let ports = if ports.is_empty() { vec![None] } else { ports };
        for port in ports {
            let known = by_port.entry(port).or_default();
            for (key, is_ready) in [("addresses", true), ("notReadyAddresses", false)] {
                for address in list(&subset[key]) {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    let who = (text(&address["ip"]), text(&address["targetRef"]["uid"]));
                    known
                        .entry(who)
                        .and_modify(|(known, _)| *known &= is_ready)
                        .or_insert((is_ready, address));
                }
            }
        }
    }
    let mut merged: Vec<(Addresses, BTreeSet<Port>)> = Vec::new();
    for (port, addresses) in by_port {
        match merged.iter_mut().find(|(known, _)| *known == addresses) {
            Some((_, ports)) => ports.extend(port),
            None => merged.push((addresses, port.into_iter().collect())),
        }
    }
    merged.into_iter().map(|(addresses, ports)| (addresses, ports.into_iter().collect())).collect()
}

fn writes(endpoints: &Object, value: &Value, slices: Vec<Arc<Object>>, wanted: &Wanted) -> Step {
    let mut existing = Existing::new();
    for slice in slices {
        let value = slice.value();
        let family =
            [Family::V4, Family::V6].into_iter().find(|family| value["addressType"] == family.text());
        existing.entry((family, ports(&value))).or_default().push(slice);
    }
    let (mut create, mut update, mut delete) = (Vec::new(), Vec::new(), Vec::new());
    let head = metadata(endpoints, value);
    for ((family, ports), wanted) in wanted {
        let mut known = existing.remove(&(Some(*family), ports.clone())).unwrap_or_default().into_iter();
        let first = known.next();
        delete.extend(known);
        if first.as_ref().is_some_and(|slice| is_same(slice, endpoints, &head, wanted)) {
            continue;
        }
        let mut slice = json!({"metadata": head, "addressType": family.text(), "endpoints": wanted,
            "ports": ports.iter().map(Port::json).collect::<Vec<_>>()});
        match first {
            Some(first) => update.push(rewritten(&first, slice)),
            None => {
                slice["metadata"]["generateName"] = names::generate_name(&endpoints.meta.name).into();
                create.push((*family, slice));
            }
        }
    }
    delete.extend(existing.into_values().flatten());
    // One that would go takes the content of one that would be made, if it is of its family.
    create.retain(|(family, slice)| {
        let same = delete.iter().position(|old| old.value()["addressType"] == family.text());
        let Some(at) = same else { return true };
        update.push(rewritten(&delete.remove(at), slice.clone()));
        false
    });
    if endpoints.is_deleting() {
        create.clear();
    }
    let namespace = &endpoints.meta.namespace;
    let create = create.into_iter().map(|(_, slice)| Act::create(ENDPOINT_SLICES, namespace, slice));
    Step::in_turn(create.chain(update).chain(delete.iter().map(|slice| Act::delete(slice))))
}

fn rewritten(slice: &Object, content: Value) -> Act {
    Act::update(slice, |value| {
        for key in ["endpoints", "ports"] {
            value[key] = content[key].clone();
        }
        for key in ["labels", "annotations", "ownerReferences"] {
            value["metadata"][key] = content["metadata"][key].clone();
        }
    })
}

fn metadata(endpoints: &Object, value: &Value) -> Value {
    let own = |key: &str| value["metadata"][key].as_object().cloned().unwrap_or_default();
    let mut labels: Map<String, Value> = own("labels");
    labels.insert(SERVICE_NAME.to_owned(), (*endpoints.meta.name).into());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.into());
    let mut annotations = own("annotations");
    annotations.retain(|key, _| key != ANNOTATION && key != LAST_APPLIED);
    json!({"namespace": &*endpoints.meta.namespace, "labels": labels, "annotations": annotations,
        "ownerReferences": [endpoints.as_controller()]})
}

fn is_same(slice: &Object, endpoints: &Object, head: &Value, wanted: &[Value]) -> bool {
    let value = slice.value();
    let known = value["endpoints"].as_array().into_iter().flatten().map(plain);
    let known: BTreeMap<_, Value> = known.map(|endpoint| (identity(&endpoint), endpoint)).collect();
    let wanted: BTreeMap<_, Value> = wanted.iter().map(|one| (identity(one), one.clone())).collect();
    let map = |value: &Value| value.as_object().cloned().unwrap_or_default();
    known == wanted
        && map(&value["metadata"]["labels"]) == map(&head["labels"])
        && map(&value["metadata"]["annotations"]) == map(&head["annotations"])
        && slice.is_controlled_by(&endpoints.meta.uid)
}

/// Whether somebody writes these Endpoints for a Service that chooses no Pods.
fn is_wanted(endpoints: &Object, view: &dyn View) -> bool {
    let meta = &endpoints.meta;
    if endpoints.label(SKIP) == Some("true")
        || !endpoints.value()["metadata"]["annotations"][LEADER].is_null()
    {
        return false;
    }
    view.get(SERVICES, &meta.namespace, &meta.name).is_some_and(|service| !has_selector(&service))
}

fn has_selector(service: &Object) -> bool {
    let ServiceDoc { spec } = service.part().unwrap_or_default();
    spec.selector.is_some_and(|selector| !selector.is_empty())
}

fn slices_of(view: &dyn View, key: &Key) -> Vec<Arc<Object>> {
    let mut slices = view.list(ENDPOINT_SLICES, &key.namespace);
    slices.retain(|slice| {
        slice.label(SERVICE_NAME) == Some(&*key.name)
            && slice.label(MANAGED_BY) == Some(MANAGER)
            && !slice.is_deleting()
    });
    slices
}

/// A Service that comes or goes without a selector, or gets or loses it.
fn without_selector(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let has = |service: &Option<Arc<Object>>| service.as_deref().map(has_selector);
    let is_news = match (has(&change.old), has(&change.new)) {
        (Some(old), Some(new)) => old != new,
        (old, new) => old.or(new) == Some(false),
    };
    wakes.extend(change.object().filter(|_| is_news).map(|service| Key::of(service)));
}

/// Others' writes to a mirror, and its deletion.
fn mirrored(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let Some(slice) = change.object().filter(|slice| slice.label(MANAGED_BY) == Some(MANAGER)) else {
        return;
    };
    if let Some(name) = slice.label(SERVICE_NAME) {
        wakes.add_after(Key::new(&slice.meta.namespace, name), REPAIR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft, said};

    fn service() -> Draft {
        draft(SERVICES, "ext").set("/spec", json!({"ports": [{"port": 80}]}))
    }

    fn endpoints(subsets: Value) -> Draft {
        let labels = json!({"app": "x"});
        let draft = draft(ENDPOINTS, "ext").set("/metadata/labels", labels).set("/subsets", subsets);
        draft.annotation("note", "y").annotation(ANNOTATION, "now").annotation(LAST_APPLIED, "{}")
    }

    fn subset(ips: &[&str], ports: &[(&str, i32)]) -> Value {
        let addresses: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        let ports: Vec<Value> =
            ports.iter().map(|(name, port)| json!({"name": name, "port": port, "protocol": "TCP"})).collect();
        json!({"addresses": addresses, "ports": ports})
    }

    fn world(drafts: impl IntoIterator<Item = Draft>) -> (World, Mirror) {
        (World::new(drafts), Mirror { most: 3 })
    }

    fn slices(world: &World) -> Vec<Value> {
        world.cache.list(ENDPOINT_SLICES, "ns").iter().map(|slice| slice.value()).collect()
    }

    #[test]
    fn a_mirror_follows_what_is_written_changed_and_deleted() {
        let (mut world, mut mirror) =
            world([service(), endpoints(json!([subset(&["10.0.0.1", "fd00::1"], &[("http", 80)])]))]);
        let ran = world.sync(&mut mirror, "ext", at(1));
        assert_eq!(ran.said, ["2 x create endpointslices.discovery.k8s.io in ns"]);
        let made =
            slices(&world).into_iter().find(|slice| slice["addressType"] == "IPv4").unwrap_or_default();
        assert_eq!(made["endpoints"], json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]));
        let metadata = &made["metadata"];
        assert_eq!(metadata["annotations"], json!({"note": "y"}));
        assert_eq!(metadata["labels"], json!({"app": "x", SERVICE_NAME: "ext", MANAGED_BY: MANAGER}));
        assert_eq!(metadata["ownerReferences"][0]["kind"], "Endpoints");
        assert!(world.sync(&mut mirror, "ext", at(2)).said.is_empty(), "what is right is not written again");
        world.put(endpoints(json!([subset(&["10.0.0.2"], &[("http", 8080)])])));
        world.sync(&mut mirror, "ext", at(3));
        let now = slices(&world);
        assert_eq!(now.len(), 1, "one is used again, the other goes");
        assert_eq!(
            (&now[0]["endpoints"][0]["addresses"][0], &now[0]["ports"][0]["port"]),
            (&json!("10.0.0.2"), &json!(8080))
        );
        world.cache.remove(&endpoints(json!([])).object());
        world.sync(&mut mirror, "ext", at(4));
        assert!(slices(&world).is_empty());
    }

    #[test]
    fn not_everything_is_mirrored() {
        let usual = || endpoints(json!([subset(&["10.0.0.1"], &[("", 80)])]));
        for (row, drafts, want) in [
            ("mirrored", vec![service(), usual()], 1),
            ("no Service", vec![usual()], 0),
            (
                "the Service chooses Pods",
                vec![service().set("/spec/selector", json!({"a": "b"})), usual()],
                0,
            ),
            ("not wanted", vec![service(), usual().label(SKIP, "true")], 0),
            ("a lock", vec![service(), usual().annotation(LEADER, "{}")], 0),
        ] {
            let (mut world, mut mirror) = world(drafts);
            world.sync(&mut mirror, "ext", at(1));
            assert_eq!(slices(&world).len(), want, "{row}");
        }
    }

    #[test]
    fn what_cannot_be_mirrored_is_told() {
        let many = subset(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0"], &[("", 80)]);
        let (mut world, mut mirror) = world([service(), endpoints(json!([many]))]);
        let ran = world.sync(&mut mirror, "ext", at(1));
        assert_eq!(
            ran.said[1..],
            [
                "Warning InvalidIPAddress: Skipped 1 invalid IP addresses when mirroring to EndpointSlices",
                "Warning TooManyAddressesToMirror: A max of 3 addresses can be mirrored to EndpointSlices per Endpoints subset. 2 addresses were skipped"
            ]
        );
    }

    #[test]
    fn an_address_is_as_ready_as_it_is_where_it_is_least() {
        let twice = json!([subset(&["10.0.0.1"], &[("a", 1)]), {"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "a", "port": 1, "protocol": "TCP"}]},
            subset(&["10.0.0.1"], &[("b", 2), ("c", 3)])]);
        let (mut world, mut mirror) = world([service(), endpoints(twice)]);
        world.sync(&mut mirror, "ext", at(1));
        let mut all: Vec<(usize, Value)> = slices(&world)
            .iter()
            .map(|slice| {
                (
                    slice["ports"].as_array().map_or(0, Vec::len),
                    slice["endpoints"][0]["conditions"]["ready"].clone(),
                )
            })
            .collect();
        all.sort_by_key(|(ports, _)| *ports);
        assert_eq!(all, [(1, json!(false)), (2, json!(true))]);
    }

    #[test]
    fn who_changes_a_mirror_is_answered() {
        let world = World::new([]);
        let slice = draft(ENDPOINT_SLICES, "s").label(SERVICE_NAME, "ext").label(MANAGED_BY, MANAGER);
        assert_eq!(world.wakes(ENDPOINT_SLICE_MIRRORING.watches, Some(&slice), None), ["ns/ext"]);
        let chosen = service().set("/spec/selector", json!({"a": "b"}));
        assert_eq!(
            world.wakes(ENDPOINT_SLICE_MIRRORING.watches, Some(&service()), Some(&chosen)),
            ["ns/ext"]
        );
        assert!(world.wakes(ENDPOINT_SLICE_MIRRORING.watches, None, Some(&chosen)).is_empty());
        assert!(said(&Plan::nothing()).is_empty());
    }
}
