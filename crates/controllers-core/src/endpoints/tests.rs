use serde_json::{Value, json};

use super::*;
use crate::plan::Plan;
use crate::testing::{Draft, World, at, draft, pod, said};

fn service() -> Draft {
    draft(SERVICES, "web").label("app", "web").created(100).set(
        "/spec",
        json!({"selector": {"run": "web"}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"],
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}),
    )
}

fn node(name: &str, zone: &str) -> Draft {
    draft(crate::resource::NODES, name).label("topology.kubernetes.io/zone", zone)
}

fn backend(name: &str, ip: &str) -> Draft {
    pod(name)
        .label("run", "web")
        .on("n")
        .set("/spec/containers", json!([{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}]))
        .running()
        .ready(200)
        .set("/status/podIP", json!(ip))
        .set("/status/podIPs", json!([{ "ip": ip }]))
}

fn planned(row: &crate::controller::Row, world: &World) -> Plan {
    let mut controller = (row.make)(&api::config::controllers::Tuning::default());
    world.reconcile(&mut *controller, "web", at(1000))
}

/// The bodies of what is written.
fn written(row: &crate::controller::Row, objects: Vec<Draft>) -> Vec<Value> {
    planned(row, &World::new(objects)).acts().map(crate::plan::Act::body).collect()
}

/// The world after a plan that makes one object was carried out.
fn after(row: &crate::controller::Row, objects: Vec<Draft>) -> (World, Value) {
    let made = written(row, objects.clone()).remove(0);
    let mut world = World::new(objects);
    let mut value = made.clone();
    value["metadata"]["name"] = json!(made["metadata"]["name"].as_str().unwrap_or("web-x"));
    world.put(Draft::yaml(&value.to_string()));
    (world, made)
}

#[test]
fn a_slice_says_who_stands_behind_a_service() {
    let (world, slice) =
        after(&ENDPOINT_SLICE_CONTROLLER, vec![service(), node("n", "z"), backend("a", "10.1.0.1")]);
    assert_eq!(
        slice,
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"generateName": "web-", "namespace": "ns",
                "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "1970-01-01T00:01:40Z"},
                "labels": {"app": "web", "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u-web", "controller": true,
                    "blockOwnerDeletion": true}]},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "n", "zone": "z",
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "ns", "name": "a", "uid": "u-a"}}],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]})
    );
    assert!(!planned(&ENDPOINT_SLICE_CONTROLLER, &world).has_acts(), "what is right is not written again");
}

#[test]
fn conditions_follow_the_pod() {
    let conditions = |service: Draft, pod: Draft| {
        let slice = written(&ENDPOINT_SLICE_CONTROLLER, vec![service, node("n", "z"), pod]).remove(0);
        slice["endpoints"][0]["conditions"].clone()
    };
    let all =
        |ready, serving, terminating| json!({"ready": ready, "serving": serving, "terminating": terminating});
    let unready = || backend("a", "10.1.0.1").set("/status/conditions", json!([]));
    let early = || service().set("/spec/publishNotReadyAddresses", json!(true));
    assert_eq!(conditions(service(), unready()), all(false, false, false));
    assert_eq!(conditions(service(), backend("a", "10.1.0.1").deleting(true)), all(false, true, true));
    assert_eq!(conditions(early(), unready()), all(true, false, false));
    assert_eq!(
        conditions(service(), backend("a", "10.1.0.1").phase("Failed")),
        Value::Null,
        "who has ended is not there"
    );
}

#[test]
fn nobody_behind_a_service_leaves_one_empty_slice_per_family() {
    let dual = service().set("/spec/ipFamilies", json!(["IPv6", "IPv4"]));
    let slices = written(&ENDPOINT_SLICE_CONTROLLER, vec![dual]);
    let said: Vec<(&Value, &Value, &Value)> =
        slices.iter().map(|s| (&s["addressType"], &s["endpoints"], &s["ports"])).collect();
    let none = json!([]);
    assert_eq!(said, [(&json!("IPv6"), &none, &none), (&json!("IPv4"), &none, &none)]);
    let (world, _) = after(&ENDPOINT_SLICE_CONTROLLER, vec![service()]);
    assert!(!planned(&ENDPOINT_SLICE_CONTROLLER, &world).has_acts(), "the empty slice stays");
}

#[test]
fn a_slice_that_would_go_is_used_again() {
    let (mut world, _) = after(&ENDPOINT_SLICE_CONTROLLER, vec![service(), node("n", "z")]);
    world.put(backend("a", "10.1.0.1"));
    let plan = planned(&ENDPOINT_SLICE_CONTROLLER, &world);
    assert_eq!(said(&plan), ["update endpointslices.discovery.k8s.io ns/web-x"]);
    let body = plan.acts().next().map(crate::plan::Act::body).unwrap_or_default();
    assert_eq!(
        (&body["ports"][0]["port"], &body["endpoints"][0]["addresses"][0]),
        (&json!(8080), &json!("10.1.0.1"))
    );
}

#[test]
fn a_pod_on_a_node_nobody_knows_is_waited_for() {
    let plan = planned(&ENDPOINT_SLICE_CONTROLLER, &World::new([service(), backend("a", "10.1.0.1")]));
    assert!(plan.failure.is_some_and(|why| why.contains("\"n\"")));
    let early = service().set("/spec/publishNotReadyAddresses", json!(true));
    let plan = planned(&ENDPOINT_SLICE_CONTROLLER, &World::new([early, backend("a", "10.1.0.1")]));
    assert_eq!(plan.failure, None);
}

#[test]
fn pods_with_other_ports_are_in_another_slice() {
    let other = backend("b", "10.1.0.2")
        .set("/spec/containers", json!([{"name": "c", "ports": [{"name": "http", "containerPort": 9090}]}]));
    let slices =
        written(&ENDPOINT_SLICE_CONTROLLER, vec![service(), node("n", "z"), backend("a", "10.1.0.1"), other]);
    let ports: Vec<&Value> = slices.iter().map(|slice| &slice["ports"][0]["port"]).collect();
    assert_eq!(ports, [8080, 9090]);
}

#[test]
fn hints_are_given_where_they_are_asked_for() {
    let hints = |distribution: &str| {
        let service = service().set("/spec/trafficDistribution", json!(distribution));
        let slice =
            written(&ENDPOINT_SLICE_CONTROLLER, vec![service, node("n", "z"), backend("a", "10.1.0.1")])
                .remove(0);
        slice["endpoints"][0]["hints"].clone()
    };
    assert_eq!(hints("PreferClose"), json!({"forZones": [{"name": "z"}]}));
    assert_eq!(hints("PreferSameNode"), json!({"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]}));
    assert_eq!(hints("Nowhere"), Value::Null);
}

#[test]
fn a_service_without_a_selector_is_left_alone() {
    for spec in [
        json!({"clusterIP": "10.0.0.1"}),
        json!({"selector": {}}),
        json!({"selector": {"a": "b"}, "type": "ExternalName"}),
    ] {
        for row in [&ENDPOINT_SLICE_CONTROLLER, &ENDPOINTS_CONTROLLER] {
            let objects =
                vec![service().set("/spec", spec.clone()), node("n", "z"), backend("a", "10.1.0.1")];
            assert_eq!(written(row, objects), Vec::<Value>::new(), "{} {spec}", row.name);
        }
    }
}

#[test]
fn endpoints_say_the_same_in_the_older_form() {
    let unready = backend("b", "10.1.0.2").set("/status/conditions", json!([]));
    let objects = vec![
        service(),
        node("n", "z"),
        backend("a", "10.1.0.1"),
        unready,
        backend("c", "10.1.0.3").deleting(true),
    ];
    let (world, endpoints) = after(&ENDPOINTS_CONTROLLER, objects);
    let address = |name: &str, ip: &str| {
        json!({"ip": ip, "nodeName": "n",
            "targetRef": {"kind": "Pod", "namespace": "ns", "name": name, "uid": format!("u-{name}")}})
    };
    assert_eq!(
        endpoints["subsets"],
        json!([{"addresses": [address("a", "10.1.0.1")], "notReadyAddresses": [address("b", "10.1.0.2")],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]}])
    );
    assert_eq!(
        endpoints["metadata"]["labels"],
        json!({"app": "web", "endpoints.kubernetes.io/managed-by": "endpoint-controller"})
    );
    assert!(!planned(&ENDPOINTS_CONTROLLER, &world).has_acts(), "what is right is not written again");
}

#[test]
fn more_than_a_thousand_addresses_are_cut_and_the_ready_ones_stay() {
    let mut objects = vec![service(), node("n", "z")];
    for n in 0..1005 {
        let one = backend(&format!("p{n}"), &format!("10.1.{}.{}", n / 250, n % 250 + 1));
        objects.push(if n < 10 { one.set("/status/conditions", json!([])) } else { one });
    }
    let endpoints = written(&ENDPOINTS_CONTROLLER, objects).remove(0);
    let count = |key: &str| endpoints["subsets"][0][key].as_array().map_or(0, Vec::len);
    assert_eq!((count("addresses"), count("notReadyAddresses")), (995, 5));
    assert_eq!(endpoints["metadata"]["annotations"]["endpoints.kubernetes.io/over-capacity"], "truncated");
}

#[test]
fn endpoints_go_with_their_service() {
    let gone = World::new([draft(crate::resource::ENDPOINTS, "web")]);
    assert_eq!(said(&planned(&ENDPOINTS_CONTROLLER, &gone)), ["delete endpoints ns/web"]);
}

#[test]
fn a_pod_wakes_the_services_that_choose_it_when_something_changed() {
    let world =
        World::new([service(), draft(SERVICES, "other").set("/spec/selector", json!({"run": "other"}))]);
    let watches = ENDPOINT_SLICE_CONTROLLER.watches;
    let before = backend("a", "10.1.0.1");
    let wakes = |old: Option<&Draft>, new: Option<&Draft>| world.wakes(watches, old, new);
    assert_eq!(wakes(None, Some(&before)), ["ns/web"]);
    assert_eq!(wakes(Some(&before), None), ["ns/web"]);
    assert_eq!(wakes(Some(&before), Some(&before.clone().annotation("x", "y"))), [""; 0]);
    assert_eq!(wakes(Some(&before), Some(&before.clone().deleting(true))), ["ns/web"]);
    assert_eq!(wakes(Some(&before), Some(&before.clone().label("run", "other"))), ["ns/other", "ns/web"]);
}
