//! What counts as a change, whose change it is, and what a change costs.
#![allow(clippy::unwrap_used)]

mod support;

use proxy_core::objects::{Changed, Cluster, Family, PortKey, Protocol, ServiceKey};
use proxy_core::rules::{Mode, NoLocalEndpoints, Rulebook, Scope, VipKey};
use serde_json::json;
use support::{NODE, World, node, slice, slice_with, web};

fn web_key() -> ServiceKey {
    ServiceKey::new("ns", "web")
}

fn changed(cluster: &mut Cluster) -> [bool; 2] {
    Family::BOTH.map(|family| cluster.take_changes(family).unwrap().0.contains(&web_key()))
}

fn listed() -> Cluster {
    let mut cluster = Cluster::new(NODE);
    cluster.replace_services(&[web(json!({}))]);
    cluster.replace_slices(&[slice("web-1", &["10.244.0.5 here"])]);
    changed(&mut cluster);
    cluster
}

#[test]
fn only_what_matters_is_a_change() {
    let rows = [
        ("the same", json!({}), false),
        ("a label", json!({"metadata": {"labels": {"x": "y"}}}), false),
        ("a version", json!({"metadata": {"resourceVersion": "2"}}), false),
        ("a selector", json!({"spec": {"selector": {"x": "y"}}}), false),
        (
            "a target port",
            json!({"spec": {"ports": [{"name": "http", "port": 80, "nodePort": 30080, "targetPort": 1}]}}),
            false,
        ),
        ("the port", json!({"spec": {"ports": [{"name": "http", "port": 81, "nodePort": 30080}]}}), true),
        ("affinity", json!({"spec": {"sessionAffinity": "ClientIP"}}), true),
        (
            "no longer ours",
            json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}}),
            true,
        ),
        ("no longer an address", json!({"spec": {"clusterIP": "None"}}), true),
    ];
    for (what, over, expected) in rows {
        let mut cluster = listed();
        assert_eq!(cluster.put_service(&web(over)), expected, "{what}");
        assert_eq!(changed(&mut cluster), [expected, false], "{what}");
    }
    let mut cluster = listed();
    assert!(!cluster.put_slice(&slice("web-1", &["10.244.0.5 here"])));
    assert!(cluster.put_slice(&slice("web-1", &["10.244.0.5 there"])));
    assert!(!cluster.remove_slice("ns", "web-2"));
    assert!(!cluster.remove_service(&ServiceKey::new("ns", "wob")));
    assert!(!cluster.put_node(&node(json!({"metadata": {"name": "there"}}))), "another node");
    assert!(cluster.put_node(&node(json!({}))));
    assert!(!cluster.put_node(&node(json!({"metadata": {"annotations": {"x": "y"}}}))));
}

#[test]
fn a_family_hears_of_its_own_changes_only() {
    let mut cluster = listed();
    cluster.put_slice(&slice("web-6", &["fd44::5 here"]));
    assert_eq!(changed(&mut cluster), [false, true]);
    // A slice of one family comes back as one of the other under its name: both have to look.
    cluster.put_slice(&slice("web-6", &["10.244.0.6 here"]));
    assert_eq!(changed(&mut cluster), [true, true]);
    let both = json!({"spec": {"clusterIPs": ["10.96.0.10", "fd96::10"], "ipFamilies": ["IPv4", "IPv6"]}});
    cluster.put_service(&web(both));
    assert_eq!(changed(&mut cluster), [true, true]);
    cluster.remove_service(&web_key());
    assert_eq!(changed(&mut cluster), [true, true]);
}

#[test]
fn a_slice_that_moves_to_another_service_leaves_the_first() {
    let mut cluster = listed();
    let mut moved = slice("web-1", &["10.244.0.5 here"]);
    moved.metadata.labels = Some([("kubernetes.io/service-name".to_owned(), "wob".to_owned())].into());
    assert!(cluster.put_slice(&moved));
    let both = cluster.take_changes(Family::V4).unwrap();
    assert_eq!(both, Changed([web_key(), ServiceKey::new("ns", "wob")].into()));
    assert_eq!(cluster.slices(&web_key()).count(), 0);
    assert!(cluster.remove_slice("ns", "web-1"));
    assert_eq!(cluster.slices(&ServiceKey::new("ns", "wob")).count(), 0);
}

#[test]
fn a_new_list_takes_away_what_it_does_not_name() {
    let mut cluster = listed();
    cluster.replace_slices(&[slice("web-2", &["10.244.0.6 here"])]);
    assert_eq!(changed(&mut cluster), [true, false]);
    assert_eq!(cluster.slices(&web_key()).count(), 1);
    cluster.replace_slices(&[slice("web-2", &["10.244.0.6 here"])]);
    cluster.replace_services(&[web(json!({}))]);
    assert_eq!(changed(&mut cluster), [false, false], "the same lists again");
    cluster.replace_services(&[]);
    assert_eq!(changed(&mut cluster), [true, false]);
    assert!(cluster.service(&web_key()).is_none());
}

#[test]
fn an_endpoint_more_is_a_small_delta() {
    let mut world = World::new(Mode::Nftables);
    for i in 0..200 {
        let ip = format!("10.96.1.{i}");
        let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "externalIPs": [], "ports": [{"name": "http", "port": 80}]});
        let status = json!({"loadBalancer": {"ingress": []}});
        world
            .services
            .push(web(json!({"metadata": {"name": format!("s{i}")}, "spec": spec, "status": status})));
    }
    world.services.push(web(json!({})));
    let mut cluster = world.cluster();
    let mut book = Rulebook::new(Family::V4, world.settings.clone());
    let first = cluster.take_changes(Family::V4).unwrap();
    let all = book.update(&cluster, &world.host, first);
    assert_eq!((all.ports.len(), all.cluster_ips.len(), all.vips.len()), (201, 201, 203));
    cluster.put_slice(&slice("web-1", &["10.244.0.5 here"]));
    let next = cluster.take_changes(Family::V4).unwrap();
    let delta = book.update(&cluster, &world.host, next);
    assert_eq!((delta.ports.len(), delta.hairpins.len(), delta.len()), (1, 1, 2), "{delta:#?}");
    // A zone is ground that all Services stand on, but here it moves none of them.
    cluster.put_node(&node(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}})));
    let none = cluster.take_changes(Family::V4).unwrap();
    assert!(book.update(&cluster, &world.host, none).is_empty());
}

#[test]
fn an_address_claimed_twice_has_one_owner_and_an_heir() {
    let key = |port| VipKey { ip: "10.96.0.10".parse().unwrap(), protocol: Protocol::Tcp, port };
    let owner = |name: &str| PortKey {
        service: ServiceKey::new("ns", name),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let thief = |name: &str, ip: &str| {
        let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "externalIPs": ["10.96.0.10"]});
        web(json!({"metadata": {"name": name}, "spec": spec}))
    };
    let mut world = World::new(Mode::Nftables);
    world.services = vec![thief("a", "10.96.0.2"), thief("b", "10.96.0.3"), web(json!({}))];
    let mut cluster = world.cluster();
    let mut book = Rulebook::new(Family::V4, world.settings.clone());
    let mut owner_without = |gone: Option<&str>| {
        if let Some(name) = gone {
            cluster.remove_service(&ServiceKey::new("ns", name));
        }
        let changed = cluster.take_changes(Family::V4).unwrap();
        book.update(&cluster, &world.host, changed);
        book.rules().vips.get(&key(80)).map(|vip| (vip.scope, vip.owner.clone()))
    };
    assert_eq!(owner_without(None), Some((Scope::Internal, owner("web"))), "nobody takes a ClusterIP away");
    assert_eq!(owner_without(Some("web")), Some((Scope::External, owner("a"))));
    assert_eq!(owner_without(Some("b")), Some((Scope::External, owner("a"))));
    assert_eq!(owner_without(Some("a")), None);
}

#[test]
fn ports_without_local_endpoints_are_counted() {
    let rows: [(_, &[&str], usize, usize); 5] = [
        (
            json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"}),
            &["10.244.1.5 there"],
            1,
            1,
        ),
        (json!({"internalTrafficPolicy": "Local"}), &["10.244.1.5 there"], 1, 0),
        (json!({"externalTrafficPolicy": "Local"}), &["10.244.1.5 there"], 0, 1),
        (json!({"externalTrafficPolicy": "Local"}), &["10.244.0.5 here"], 0, 0),
        (json!({"externalTrafficPolicy": "Local"}), &[], 0, 0),
    ];
    for (spec, endpoints, internal, external) in rows {
        let mut world = World::new(Mode::Nftables);
        world.services.push(web(json!({"spec": spec})));
        world.slices.push(slice("web-1", endpoints));
        let counted = world.book(Family::V4).no_local_endpoints();
        assert_eq!(counted, NoLocalEndpoints { internal, external }, "{spec} {endpoints:?}");
    }
}

#[test]
fn the_node_ip_is_the_bind_address_or_the_nodes_own() {
    let mut world = World::new(Mode::Nftables);
    let ip =
        |world: &World, family| world.settings.node_ip(&world.cluster(), family).map(|ip| ip.to_string());
    assert_eq!(ip(&world, Family::V4).as_deref(), Some("192.168.0.1"), "first internal before external");
    assert_eq!(ip(&world, Family::V6).as_deref(), Some("fd01::1"), "external if there is no internal");
    world.settings.bind_address = Some("0.0.0.0".parse().unwrap());
    assert_eq!(ip(&world, Family::V4).as_deref(), Some("192.168.0.1"), "everywhere is nowhere");
    world.settings.bind_address = Some("192.168.0.9".parse().unwrap());
    assert_eq!(ip(&world, Family::V4).as_deref(), Some("192.168.0.9"));
    assert_eq!(ip(&world, Family::V6).as_deref(), Some("fd01::1"));
    assert_eq!(Cluster::new(NODE).node().ip(Family::V4), None);
}

#[test]
fn slices_with_several_ports_serve_several_ports() {
    let ports = json!([{"name": "a", "port": 1}, {"name": "b", "port": 2}]);
    let mut world = World::new(Mode::Nftables);
    world.services.push(web(json!({"spec": {"ports": ports}})));
    let targets = json!([{"name": "a", "port": 1001}, {"name": "b", "port": 1002}]);
    world.slices.push(slice_with("web-1", targets, &["10.244.0.5 here"]));
    assert_eq!(world.send("10.244.0.9@cni0 > 10.96.0.10:1"), "10.244.0.5:1001");
    assert_eq!(world.send("10.244.0.9@cni0 > 10.96.0.10:2"), "10.244.0.5:1002");
}
