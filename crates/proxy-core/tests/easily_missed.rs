//! Twenty behaviours that re-implementations miss, as far as rules decide them; the rest is for the backends.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;

use proxy_core::flows::{Flow, is_stale};
use proxy_core::iptables;
use proxy_core::objects::{Cluster, Family, NodeView, Protocol, ServiceKey};
use proxy_core::rules::{Delta, HealthCheck, Host, Mode, NodePortAddresses, NodeRules, RuleSet, Rulebook};
use serde_json::{Value, json};
use support::{NODE, World, node, slice, slice_with, web};

fn world(service: Value, endpoints: &[&str]) -> World {
    let mut world = World::new(Mode::Nftables);
    world.services.push(web(service));
    world.slices.push(slice("web-1", endpoints));
    world
}

fn local(endpoints: &[&str]) -> World {
    let spec = json!({"spec": {"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}});
    world(spec, endpoints)
}

fn health(world: &World) -> Option<HealthCheck> {
    world.book(Family::V4).rules().health_checks.get(&ServiceKey::new("ns", "web")).copied()
}

#[test]
fn n01_local_pods_and_the_node_bypass_the_external_policy() {
    let world = local(&["10.244.1.5 there"]);
    assert_eq!(world.send("10.244.0.9@cni0 > 5.6.7.8:80"), "10.244.1.5:8080");
    assert_eq!(world.send("192.168.0.1 > 5.6.7.8:80"), "10.244.1.5:8080*");
}

#[test]
fn n02_reject_only_if_there_is_no_endpoint_at_all() {
    assert_eq!(local(&["10.244.1.5 there"]).send("8.8.8.8@eth0 > 5.6.7.8:80"), "drop");
    assert_eq!(local(&["10.244.1.5 there leaving"]).send("8.8.8.8@eth0 > 5.6.7.8:80"), "drop");
    assert_eq!(local(&["10.244.1.5 there unready"]).send("8.8.8.8@eth0 > 5.6.7.8:80"), "reject");
}

#[test]
fn n03_terminating_endpoints_stand_in_for_each_list_on_its_own() {
    let world = local(&["10.244.0.5 here leaving", "10.244.1.5 there"]);
    assert_eq!(world.send("8.8.8.8@eth0 > 5.6.7.8:80"), "10.244.0.5:8080");
    assert_eq!(world.send("10.244.0.9@cni0 > 5.6.7.8:80"), "10.244.1.5:8080");
}

#[test]
fn n04_the_health_check_ignores_terminating_endpoints() {
    let world = local(&["10.244.0.5 here leaving"]);
    assert_eq!(world.send("8.8.8.8@eth0 > 5.6.7.8:80"), "10.244.0.5:8080");
    assert_eq!(health(&world), Some(HealthCheck { port: 32000, local_endpoints: 0 }));
}

#[test]
fn n05_the_health_check_counts_addresses() {
    let mut world = local(&["10.244.0.5 here", "10.244.0.6 here", "10.244.1.5 there"]);
    world.slices.push(slice_with("web-2", json!([{"name": "http", "port": 9090}]), &["10.244.0.5 here"]));
    world.slices.push(slice_with("web-3", json!([{"name": "more", "port": 9091}]), &["10.244.0.6 here"]));
    assert_eq!(health(&world), Some(HealthCheck { port: 32000, local_endpoints: 2 }));
}

#[test]
fn the_health_check_is_for_load_balancers_with_policy_local() {
    let rows = [
        (json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}), true),
        (json!({"type": "LoadBalancer", "externalTrafficPolicy": "Cluster"}), false),
        (json!({"type": "NodePort", "externalTrafficPolicy": "Local"}), false),
        (json!({"type": "ClusterIP", "externalTrafficPolicy": "Local"}), false),
        (json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 0}), false),
    ];
    for (spec, expected) in rows {
        let mut world = local(&["10.244.0.5 here"]);
        world.services[0] = web(json!({"spec": {"healthCheckNodePort": 32000}}));
        let mut made = serde_json::to_value(&world.services[0]).unwrap();
        support::overlay(&mut made, json!({"spec": spec}));
        world.services[0] = serde_json::from_value(made).unwrap();
        assert_eq!(health(&world).is_some(), expected, "{spec}");
    }
}

#[test]
fn n06_hints_count_only_if_every_ready_endpoint_has_one() {
    let both = "10.244.0.5:8080 10.244.1.5:8080";
    let to = "10.244.0.9@cni0 > 10.96.0.10:80";
    assert_eq!(world(json!({}), &["10.244.0.5 here zone=a", "10.244.1.5 there"]).send(to), both);
    assert_eq!(
        world(json!({}), &["10.244.0.5 here zone=a", "10.244.1.5 there zone=b"]).send(to),
        "10.244.0.5:8080"
    );
}

#[test]
fn n07_policy_local_ignores_hints() {
    let world = local(&["10.244.0.5 here zone=b", "10.244.0.6 here zone=a", "10.244.1.5 there zone=a"]);
    assert_eq!(world.send("8.8.8.8@eth0 > 5.6.7.8:80"), "10.244.0.5:8080 10.244.0.6:8080");
    assert_eq!(world.send("10.244.0.9@cni0 > 5.6.7.8:80"), "10.244.0.6:8080 10.244.1.5:8080");
}

#[test]
fn n08_source_ranges_never_guard_node_ports() {
    let world =
        world(json!({"spec": {"loadBalancerSourceRanges": ["203.0.113.0/24"]}}), &["10.244.0.5 here"]);
    assert_eq!(world.send("8.8.8.8@eth0 > 192.168.0.1:30080"), "10.244.0.5:8080*");
    assert_eq!(world.send("8.8.8.8@eth0 > 5.6.7.8:80"), "drop");
}

#[test]
fn n09_an_ingress_that_proxies_is_left_alone() {
    let ingress = json!([{"ip": "5.6.7.8", "ipMode": "Proxy"}]);
    let world = world(json!({"status": {"loadBalancer": {"ingress": ingress}}}), &["10.244.0.5 here"]);
    assert_eq!(world.send("10.244.0.9@cni0 > 5.6.7.8:80"), "pass");
}

#[test]
fn n10_the_node_may_come_from_the_load_balancers_address() {
    let world =
        world(json!({"spec": {"loadBalancerSourceRanges": ["192.168.0.0/24"]}}), &["10.244.0.5 here"]);
    assert_eq!(world.send("5.6.7.8 > 5.6.7.8:80"), "10.244.0.5:8080*");
    assert_eq!(world.send("5.6.7.9 > 5.6.7.8:80"), "drop");
}

fn udp(endpoints: &[&str], port: u16) -> RuleSet {
    let mut world = World::new(Mode::Nftables);
    world.services.push(web(
        json!({"spec": {"ports": [{"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053}]}}),
    ));
    world.slices.push(slice_with(
        "web-1",
        json!([{"name": "dns", "protocol": "UDP", "port": port}]),
        endpoints,
    ));
    world.book(Family::V4).rules().clone()
}

fn host() -> Host {
    world(json!({}), &[]).host
}

fn flow(to: &str, answers_from: &str) -> Flow {
    let to: SocketAddr = to.parse().unwrap();
    Flow {
        protocol: Protocol::Udp,
        destination: to.ip(),
        port: to.port(),
        answers_from: answers_from.parse().unwrap(),
    }
}

#[test]
fn n11_serving_endpoints_keep_their_flows() {
    let rows: &[(&[&str], bool)] = &[
        (&["10.244.0.5 here"], false),
        (&["10.244.0.5 here leaving"], false),
        (&["10.244.0.5 here leaving", "10.244.1.5 there"], false),
        (&["10.244.0.5 here gone", "10.244.1.5 there"], true),
        (&["10.244.1.5 there"], true),
        // The last endpoint leaves: upstream forgets to look, and the client talks to nobody for hours.
        (&[], true),
    ];
    for (endpoints, stale) in rows {
        let rules = udp(endpoints, 5353);
        for to in ["10.96.0.10:53", "172.16.0.5:53", "5.6.7.8:53", "192.168.0.1:30053"] {
            assert_eq!(is_stale(&rules, &host(), &flow(to, "10.244.0.5:5353")), *stale, "{endpoints:?} {to}");
        }
        assert!(!is_stale(&rules, &host(), &flow("9.9.9.9:53", "10.244.0.5:5353")), "not ours");
        assert!(
            !is_stale(&rules, &host(), &flow("10.244.0.7:30053", "10.244.0.7:30053")),
            "straight to a Pod"
        );
        let before_the_rules = flow("192.168.0.1:30053", "192.168.0.1:30053");
        assert!(is_stale(&rules, &host(), &before_the_rules), "to the node, before there were rules");
    }
}

#[test]
fn n12_a_new_target_port_makes_flows_stale() {
    let rules = udp(&["10.244.0.5 here"], 5354);
    assert!(is_stale(&rules, &host(), &flow("10.96.0.10:53", "10.244.0.5:5353")));
    assert!(!is_stale(&rules, &host(), &flow("10.96.0.10:53", "10.244.0.5:5354")));
    let tcp = Flow { protocol: Protocol::Tcp, ..flow("10.96.0.10:53", "10.244.0.5:5353") };
    assert!(!is_stale(&rules, &host(), &tcp), "TCP finds out by itself");
}

#[test]
fn n13_no_rules_before_both_lists() {
    let full = local(&["10.244.0.5 here"]);
    let mut cluster = Cluster::new(NODE);
    assert_eq!(cluster.take_changes(Family::V4), None);
    cluster.replace_services(&full.services);
    assert_eq!(cluster.take_changes(Family::V4), None);
    cluster.put_slice(&full.slices[0]);
    assert_eq!(cluster.take_changes(Family::V4), None, "an event is no list");
    cluster.replace_slices(&full.slices);
    assert_eq!(cluster.take_changes(Family::V4).unwrap().0, [ServiceKey::new("ns", "web")].into());
    let mut other = Cluster::new(NODE);
    other.replace_slices(&full.slices);
    assert_eq!(other.take_changes(Family::V4), None);
}

#[test]
fn n14_after_a_failure_the_whole_set_is_at_hand() {
    let book = local(&["10.244.0.5 here"]).book(Family::V4);
    let mut kernel = RuleSet::empty(Family::V4, NodeRules::unknown(Mode::Nftables));
    let delta = Delta::between(&kernel, book.rules());
    assert!(delta.node.is_some());
    assert!(delta.vips.iter().all(|change| change.old.is_none()) && delta.vips.len() == 3);
    kernel.apply(&delta);
    assert_eq!(&kernel, book.rules());
}

#[test]
fn n15_a_node_about_to_go_is_not_eligible() {
    let rows = [
        (json!({}), true),
        (
            json!({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}}),
            false,
        ),
        (json!({"spec": {"taints": [{"key": "other", "effect": "NoSchedule"}]}}), true),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
    ];
    for (over, eligible) in rows {
        assert_eq!(NodeView::read(&node(over.clone())).is_eligible, eligible, "{over}");
    }
    let mut cluster = Cluster::new(NODE);
    assert!(!cluster.node().is_eligible, "never seen");
    cluster.put_node(&node(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z1"}}})));
    let before = cluster.node().clone();
    assert!(before.zone.is_some());
    assert!(!cluster.remove_node(), "nothing is new");
    assert!(cluster.node().is_eligible, "deleted, but last seen well");
    assert_eq!(*cluster.node(), before, "Services with hints go on as they did");
}

/// A bit that is set twice stays set, and a packet that comes by again without it is left alone.
#[test]
fn n16_the_mark_is_set_by_or_and_cleared_by_xor() {
    let book = world(json!({}), &["10.244.0.5 here"]).book(Family::V4);
    let options =
        iptables::Options { mark: 0x4000, random_fully: true, be_liberal: false, has_accounts: false };
    let script = iptables::Renderer::new(options).whole(book.rules(), &iptables::Saved::read("")).to_string();
    let rules = |chain: &str| -> Vec<String> {
        let begin = format!("-A {chain} ");
        script.lines().filter_map(|line| Some(line.strip_prefix(&begin)?.to_owned())).collect()
    };
    assert_eq!(rules("KUBE-MARK-MASQ"), ["-j MARK --or-mark 0x4000"]);
    let post = rules("KUBE-POSTROUTING");
    assert_eq!(post[..2], ["-m mark ! --mark 0x4000/0x4000 -j RETURN", "-j MARK --xor-mark 0x4000"]);
    assert!(post[2].ends_with("-j MASQUERADE --random-fully") && post.len() == 3, "{post:?}");

    let content = proxy_core::nft::Renderer::new(Family::V4, 14).whole(book.rules());
    let bitwise = |name: &str| {
        let (_, rules) = content.chains.iter().find(|(chain, _)| &*chain.name == name).unwrap();
        rules[0].exprs.iter().rev().find_map(|expr| match expr {
            nft::Expr::Bitwise { mask, xor, .. } => Some((mask.to_vec(), xor.to_vec())),
            _ => None,
        })
    };
    let bytes = |number: u32| number.to_ne_bytes().to_vec();
    assert_eq!(bitwise("mark-for-masquerade"), Some((bytes(!0x4000), bytes(0x4000))));
    assert_eq!(bitwise("masquerading"), Some((bytes(u32::MAX), bytes(0x4000))));
}

/// Whatever goes, chains stay: kernels before 6.2 let go of a chain later than of the element that led to it.
#[test]
fn n17_no_change_deletes_a_chain() {
    let full = local(&["10.244.0.5 here", "10.244.0.6 here", "10.244.1.5 there"]);
    let mut cluster = full.cluster();
    let mut book = Rulebook::new(Family::V4, full.settings.clone());
    let mut renderer = proxy_core::nft::Renderer::new(Family::V4, 14);
    let changed = cluster.take_changes(Family::V4).unwrap();
    book.update(&cluster, &full.host, changed);
    renderer.whole(book.rules());
    let mut step = |cluster: &mut Cluster| {
        let changed = cluster.take_changes(Family::V4).unwrap();
        let delta = book.update(cluster, &full.host, changed);
        let messages = renderer.change(book.rules(), &delta);
        assert!(!messages.is_empty());
        let is_deleted = |message: &nft::Message| matches!(message, nft::Message::DeleteChain(_));
        assert!(!messages.iter().any(is_deleted), "{messages:?}");
    };
    cluster.put_slice(&slice("web-1", &["10.244.0.5 here"]));
    step(&mut cluster);
    cluster.put_slice(&slice("web-1", &[]));
    step(&mut cluster);
    cluster.remove_service(&ServiceKey::new("ns", "web"));
    step(&mut cluster);
}

#[test]
fn n18_node_ports_of_nftables_are_on_the_primary_address() {
    let world = world(json!({}), &["10.244.0.5 here"]);
    assert_eq!(world.send("8.8.8.8@eth0 > 192.168.0.1:30080"), "10.244.0.5:8080*");
    assert_eq!(world.send("8.8.8.8@eth0 > 10.244.0.1:30080"), "pass");
    assert_eq!(world.send("127.0.0.1 > 127.0.0.1:30080"), "pass");
}

/// Upstream reads the addresses once, at its start.
#[test]
fn n18_a_node_whose_addresses_are_not_told_any_more_keeps_them() {
    let full = world(json!({}), &["10.244.0.5 here"]);
    let mut cluster = full.cluster();
    let primary = |cluster: &Cluster| {
        let of = |family| NodeRules::compile(&full.settings, cluster, &full.host, family).node_port_addresses;
        Family::BOTH.map(of)
    };
    let before = primary(&cluster);
    assert_eq!(before[0], NodePortAddresses::Only(support::ips(&["192.168.0.1"])));
    let only = |ip: &str| node(json!({"status": {"addresses": [{"type": "InternalIP", "address": ip}]}}));
    for (told, wanted) in [
        (node(json!({"status": {"addresses": []}})), before.clone()),
        (only("fd01::1"), before.clone()),
        (only("10.244.0.1"), [NodePortAddresses::Only(support::ips(&["10.244.0.1"])), before[1].clone()]),
    ] {
        cluster.put_node(&told);
        assert_eq!(primary(&cluster), wanted, "{told:?}");
    }
}

#[test]
fn n19_of_duplicate_endpoints_the_staying_one_counts() {
    for names in [["web-1", "web-2"], ["web-2", "web-1"]] {
        let mut world = world(json!({"spec": {"internalTrafficPolicy": "Local"}}), &[]);
        world.slices =
            vec![slice(names[0], &["10.244.0.5 here gone"]), slice(names[1], &["10.244.0.5 here"])];
        assert_eq!(world.send("10.244.0.9@cni0 > 10.96.0.10:80"), "10.244.0.5:8080");
    }
}
