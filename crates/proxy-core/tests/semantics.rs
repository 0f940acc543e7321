//! What Services mean, row by row: inputs, selection, the matrix of policies, and where modes differ. Every
//! packet sent here is also held against the reference model.
#![allow(clippy::unwrap_used)]

mod support;

use proxy_core::objects::Family;
use proxy_core::rules::{LocalTraffic, Mode, NodePortChoice};
use proxy_core::trace::Fate;
use serde_json::{Value, json};
use support::{World, cidrs, packet, service_cidr, slice, slice_with, web};

const HERE: &str = "10.244.0.5 here";
const THERE: &str = "10.244.1.5 there";
const MODES: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];

fn world(mode: Mode, service: Value, endpoints: &[&str]) -> World {
    let mut world = World::new(mode);
    world.services.push(web(service));
    world.slices.push(slice("web-1", endpoints));
    world
}

fn check(what: &str, world: &World, rows: &[(&str, &str)]) {
    for (packet, fate) in rows {
        assert_eq!(world.send(packet), *fate, "{what}, {:?}: {packet}", world.settings.mode);
    }
}

// Inputs.

/// With the gate off, an address that anybody may write into a Service takes nobody's traffic.
#[test]
fn external_addresses_count_unless_the_gate_is_off() {
    for mode in MODES {
        let mut world = world(mode, json!({}), &[HERE]);
        check("allowed", &world, &[("8.8.8.8@eth0 > 172.16.0.5:80", "10.244.0.5:8080*")]);
        world.settings.allows_external_ips = false;
        let others = [
            ("8.8.8.8@eth0 > 172.16.0.5:80", "pass"),
            ("8.8.8.8@eth0 > 5.6.7.8:80", "10.244.0.5:8080*"),
            ("8.8.8.8@eth0 > 192.168.0.1:30080", "10.244.0.5:8080*"),
        ];
        check("not allowed", &world, &others);
    }
}

/// Who calls is hidden only for the sake of endpoints elsewhere.
#[test]
fn a_source_is_kept_where_every_endpoint_is_here_and_that_is_wanted() {
    for mode in MODES {
        let mut world = world(mode, json!({}), &[HERE]);
        world.settings.keeps_sources = true;
        let kept = [
            ("8.8.8.8@eth0 > 5.6.7.8:80", "10.244.0.5:8080"),
            ("8.8.8.8@eth0 > 172.16.0.5:80", "10.244.0.5:8080"),
            ("8.8.8.8@eth0 > 192.168.0.1:30080", "10.244.0.5:8080"),
            ("10.244.0.9@cni0 > 5.6.7.8:80", "10.244.0.5:8080"),
        ];
        check("all are here", &world, &kept);
        world.slices = vec![slice("web-1", &[HERE, THERE])];
        let both = "10.244.0.5:8080* 10.244.1.5:8080*";
        check("one is elsewhere", &world, &[("8.8.8.8@eth0 > 5.6.7.8:80", both)]);
        world.slices = vec![slice("web-1", &[])];
        check("there is none", &world, &[("8.8.8.8@eth0 > 5.6.7.8:80", "reject")]);
    }
}

#[test]
fn services_that_are_not_ours_are_not_served() {
    let rows = [
        ("headless", json!({"spec": {"clusterIP": "None", "clusterIPs": ["None"]}})),
        ("not allocated", json!({"spec": {"clusterIP": "", "clusterIPs": []}})),
        ("ExternalName", json!({"spec": {"type": "ExternalName"}})),
        ("label", json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "x"}}})),
        ("empty label", json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": ""}}})),
    ];
    for (what, service) in rows {
        let world = world(Mode::Iptables, service, &[HERE]);
        let all = ["10.96.0.10:80", "172.16.0.5:80", "5.6.7.8:80", "192.168.0.1:30080"];
        for to in all {
            check(what, &world, &[(&format!("8.8.8.8@eth0 > {to}"), "pass")]);
        }
        assert_eq!(world.book(Family::V4).rules().ports.len(), 0, "{what}");
    }
}

#[test]
fn slices_that_are_not_ours_are_not_used() {
    let rows = [
        ("headless", json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}})),
        ("no label", json!({"metadata": {"labels": {"kubernetes.io/service-name": null}}})),
        ("empty label", json!({"metadata": {"labels": {"kubernetes.io/service-name": ""}}})),
        ("another Service", json!({"metadata": {"labels": {"kubernetes.io/service-name": "wob"}}})),
        ("another namespace", json!({"metadata": {"namespace": "other"}})),
        ("names", json!({"addressType": "FQDN"})),
        ("wrong family", json!({"addressType": "IPv6"})),
        ("no port name", json!({"ports": [{"port": 8080}]})),
        ("another port name", json!({"ports": [{"name": "https", "port": 8080}]})),
        ("another protocol", json!({"ports": [{"name": "http", "port": 8080, "protocol": "UDP"}]})),
        ("no port number", json!({"ports": [{"name": "http"}]})),
        ("port zero", json!({"ports": [{"name": "http", "port": 0}]})),
        ("no ports", json!({"ports": null})),
        (
            "managed by somebody",
            json!({"metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "me"}}}),
        ),
    ];
    for (what, over) in rows {
        let mut world = world(Mode::Nftables, json!({}), &[]);
        let mut made = serde_json::to_value(slice("web-1", &[HERE])).unwrap();
        support::overlay(&mut made, over);
        if what == "no label" {
            made["metadata"]["labels"].as_object_mut().unwrap().clear();
        }
        world.slices = vec![serde_json::from_value(made).unwrap()];
        let expected = if what == "managed by somebody" { "10.244.0.5:8080" } else { "reject" };
        check(what, &world, &[("10.244.0.9@cni0 > 10.96.0.10:80", expected)]);
    }
}

#[test]
fn endpoints_are_read_as_the_api_means_them() {
    let first_only = json!({"addresses": ["10.244.0.5", "10.244.0.6"]});
    let rows = [
        ("nothing said", json!({"addresses": ["10.244.0.5"]}), "10.244.0.5:8080"),
        ("null conditions", json!({"addresses": ["10.244.0.5"], "conditions": {}}), "10.244.0.5:8080"),
        ("only the first address", first_only, "10.244.0.5:8080"),
        ("not ready", json!({"addresses": ["10.244.0.5"], "conditions": {"ready": false}}), "reject"),
        (
            "not serving but ready",
            json!({"addresses": ["10.244.0.5"], "conditions": {"serving": false}}),
            "10.244.0.5:8080",
        ),
    ];
    for (what, endpoint, expected) in rows {
        let mut world = world(Mode::Nftables, json!({}), &[]);
        world.slices[0].endpoints = Some(vec![serde_json::from_value(endpoint).unwrap()]);
        check(what, &world, &[("10.244.0.9@cni0 > 10.96.0.10:80", expected)]);
    }
}

#[test]
fn one_port_name_may_be_several_numbers() {
    let mut world = world(Mode::Nftables, json!({}), &[HERE]);
    world.slices.push(slice_with("web-2", json!([{"name": "http", "port": 9090}]), &[THERE]));
    check("named port", &world, &[("10.244.0.9@cni0 > 10.96.0.10:80", "10.244.0.5:8080 10.244.1.5:9090")]);
}

#[test]
fn every_protocol_has_its_own_ports() {
    let ports = json!([
        {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 30053},
        {"name": "dns", "protocol": "TCP", "port": 53, "nodePort": 30053},
        {"name": "sigtran", "protocol": "SCTP", "port": 2905},
    ]);
    let mut world = world(Mode::Nftables, json!({"spec": {"ports": ports}}), &[]);
    let targets = json!([
        {"name": "dns", "protocol": "UDP", "port": 5353},
        {"name": "dns", "port": 5354},
        {"name": "sigtran", "protocol": "SCTP", "port": 2906},
    ]);
    world.slices = vec![slice_with("web-1", targets, &[HERE])];
    check(
        "protocols",
        &world,
        &[
            ("10.244.0.9@cni0 > 10.96.0.10:53/udp", "10.244.0.5:5353"),
            ("10.244.0.9@cni0 > 10.96.0.10:53/tcp", "10.244.0.5:5354"),
            ("10.244.0.9@cni0 > 10.96.0.10:53/sctp", "reject"),
            ("10.244.0.9@cni0 > 10.96.0.10:2905/sctp", "10.244.0.5:2906"),
            ("8.8.8.8@eth0 > 192.168.0.1:30053/udp", "10.244.0.5:5353*"),
            ("8.8.8.8@eth0 > 192.168.0.1:30053/tcp", "10.244.0.5:5354*"),
        ],
    );
}

#[test]
fn dual_stack_goes_by_the_index_of_the_family() {
    let both = json!({"spec": {
        "clusterIP": "fd96::10", "clusterIPs": ["fd96::10", "10.96.0.10"], "ipFamilies": ["IPv6", "IPv4"],
        "externalIPs": ["172.16.0.5", "fd05::5"],
    }});
    let mut world = world(Mode::Nftables, both, &[HERE]);
    world.slices.push(slice("web-6", &["fd44::5 here"]));
    check(
        "dual stack",
        &world,
        &[
            ("10.244.0.9@cni0 > 10.96.0.10:80", "10.244.0.5:8080"),
            ("fd44::9@cni0 > [fd96::10]:80", "[fd44::5]:8080"),
            ("8.8.8.8@eth0 > 172.16.0.5:80", "10.244.0.5:8080*"),
            ("2001:db8::1@eth0 > [fd05::5]:80", "[fd44::5]:8080*"),
            ("2001:db8::1@eth0 > [fd01::1]:30080", "[fd44::5]:8080*"),
        ],
    );
    world.services[0].spec.as_mut().unwrap().ip_families = Some(vec!["IPv6".into()]);
    world.services[0].spec.as_mut().unwrap().cluster_ips = Some(vec!["fd96::10".into()]);
    check(
        "single stack again",
        &world,
        &[("8.8.8.8@eth0 > 172.16.0.5:80", "pass"), ("8.8.8.8@eth0 > 192.168.0.1:30080", "pass")],
    );
}

// Selection.

#[test]
fn endpoints_are_chosen_by_state_and_topology() {
    let both = "10.244.0.5:8080 10.244.1.5:8080";
    let (here, there) = ("10.244.0.5:8080", "10.244.1.5:8080");
    let rows: &[(&str, &[&str], &str, &str)] = &[
        // what, endpoints, cluster list, local list
        ("all ready", &[HERE, THERE], both, here),
        ("one unready", &["10.244.0.5 here unready", THERE], there, "drop"),
        ("leaving ones wait", &["10.244.0.5 here leaving", THERE], there, here),
        ("leaving ones take over", &["10.244.0.5 here leaving", "10.244.1.5 there leaving"], both, here),
        ("gone ones never do", &["10.244.0.5 here gone", "10.244.1.5 there gone"], "reject", "reject"),
        ("none", &[], "reject", "reject"),
        ("only remote", &[THERE], there, "drop"),
        ("same node", &["10.244.0.5 here node=here", "10.244.1.5 there node=there"], here, here),
        (
            "same node, hinted away",
            &["10.244.0.5 here node=there", "10.244.1.5 there node=here"],
            there,
            here,
        ),
        ("no node hint for us", &["10.244.0.5 here node=x", "10.244.1.5 there node=y"], both, here),
        ("one without node hint", &["10.244.0.5 here node=here", THERE], both, here),
        ("same zone", &["10.244.0.5 here zone=b", "10.244.1.5 there zone=a"], there, here),
        ("no zone hint for us", &["10.244.0.5 here zone=b", "10.244.1.5 there zone=c"], both, here),
        ("one without zone hint", &["10.244.0.5 here zone=a", THERE], both, here),
        ("unready ones need no hint", &["10.244.0.5 here zone=a", "10.244.1.5 there unready"], here, here),
        (
            "node before zone",
            &["10.244.0.5 here node=here zone=b", "10.244.1.5 there node=x zone=a"],
            here,
            here,
        ),
        (
            "zone after node",
            &["10.244.0.5 here node=x zone=b", "10.244.1.5 there node=y zone=a"],
            there,
            here,
        ),
        (
            "hints of leaving ones",
            &["10.244.0.5 here leaving zone=b", "10.244.1.5 there leaving zone=b"],
            both,
            here,
        ),
    ];
    for (what, endpoints, cluster, local) in rows {
        for mode in [Mode::Nftables, Mode::Iptables] {
            let open = world(mode, json!({}), endpoints);
            check(what, &open, &[("10.244.0.9@cni0 > 10.96.0.10:80", cluster)]);
            let shut = world(mode, json!({"spec": {"internalTrafficPolicy": "Local"}}), endpoints);
            check(what, &shut, &[("10.244.0.9@cni0 > 10.96.0.10:80", local)]);
        }
    }
}

#[test]
fn traffic_distribution_is_for_those_who_write_hints() {
    for value in ["PreferClose", "PreferSameZone", "PreferSameNode"] {
        let service = json!({"spec": {"trafficDistribution": value}});
        let world = world(Mode::Nftables, service, &[HERE, THERE]);
        check(value, &world, &[("10.244.0.9@cni0 > 10.96.0.10:80", "10.244.0.5:8080 10.244.1.5:8080")]);
    }
}

// The matrix.

const OUTSIDE: [&str; 3] = ["192.168.0.1:30080", "172.16.0.5:80", "5.6.7.8:80"];

#[test]
fn cluster_ip_traffic_is_masqueraded_only_from_afar() {
    for mode in MODES {
        let mut world = world(mode, json!({}), &[HERE, THERE]);
        let plain = "10.244.0.5:8080 10.244.1.5:8080";
        let masqueraded = "10.244.0.5:8080* 10.244.1.5:8080*";
        let to = "10.96.0.10:80";
        let rows = [
            (format!("10.244.0.9@cni0 > {to}"), plain),
            (format!("8.8.8.8@eth0 > {to}"), masqueraded),
            (format!("192.168.0.1 > {to}"), masqueraded),
            (format!("10.244.0.5@cni0 > {to}"), "10.244.0.5:8080* 10.244.1.5:8080"),
        ];
        for (packet, fate) in &rows {
            check("cluster IP", &world, &[(packet, fate)]);
        }
        world.settings.masquerade_all = true;
        check("masquerade all", &world, &[(&rows[0].0, masqueraded)]);
        world.settings.masquerade_all = false;
        world.settings.local_traffic = LocalTraffic::ClusterCidr(Vec::new());
        check("no detector", &world, &[(&rows[1].0, plain), (&rows[2].0, plain)]);
        let from_vip = if mode == Mode::Ipvs { masqueraded } else { plain };
        check("no detector, from a ClusterIP", &world, &[("10.96.0.10 > 10.96.0.10:80", from_vip)]);
    }
}

#[test]
fn external_traffic_under_policy_cluster_is_always_masqueraded() {
    for (mode, to) in MODES.into_iter().flat_map(|mode| OUTSIDE.map(|to| (mode, to))) {
        let world = world(mode, json!({}), &[HERE, THERE]);
        for from in ["8.8.8.8@eth0", "10.244.0.9@cni0", "192.168.0.1", "10.244.0.5@cni0"] {
            let masqueraded = "10.244.0.5:8080* 10.244.1.5:8080*";
            check("policy Cluster", &world, &[(&format!("{from} > {to}"), masqueraded)]);
        }
    }
}

#[test]
fn external_traffic_under_policy_local_stays_unless_it_is_ours() {
    for (mode, to) in MODES.into_iter().flat_map(|mode| OUTSIDE.map(|to| (mode, to))) {
        let local = json!({"spec": {"externalTrafficPolicy": "Local"}});
        let mut world = world(mode, local, &[HERE, THERE]);
        let is_ipvs = mode == Mode::Ipvs;
        let choose = |others: &'static str, ipvs: &'static str| if is_ipvs { ipvs } else { others };
        let here = "10.244.0.5:8080";
        let rows = [
            ("8.8.8.8@eth0", here),
            ("10.244.0.9@cni0", choose("10.244.0.5:8080 10.244.1.5:8080", here)),
            ("192.168.0.1", choose("10.244.0.5:8080* 10.244.1.5:8080*", here)),
            ("10.244.0.5@cni0", choose("10.244.0.5:8080* 10.244.1.5:8080", "10.244.0.5:8080*")),
        ];
        for (from, fate) in rows {
            check("policy Local", &world, &[(&format!("{from} > {to}"), fate)]);
        }
        world.settings.local_traffic = LocalTraffic::ClusterCidr(Vec::new());
        check("no detector, no Pods", &world, &[(&format!("10.244.0.9@cni0 > {to}"), here)]);
        world.slices = vec![slice("web-1", &[THERE])];
        let there = "10.244.1.5:8080";
        check("none local", &world, &[(&format!("8.8.8.8@eth0 > {to}"), choose("drop", there))]);
        let from_node = (&*format!("192.168.0.1 > {to}"), choose("10.244.1.5:8080*", there));
        check("none local, the node", &world, &[from_node]);
        world.slices.clear();
        check("none anywhere", &world, &[(&format!("8.8.8.8@eth0 > {to}"), "reject")]);
        check("none anywhere, the node", &world, &[(&format!("192.168.0.1 > {to}"), "reject")]);
    }
}

#[test]
fn policy_local_needs_a_service_with_an_outside() {
    let rows = [
        ("ClusterIP with external addresses", json!({"type": "ClusterIP"}), "10.244.0.5:8080"),
        ("NodePort", json!({"type": "NodePort"}), "10.244.0.5:8080"),
        ("LoadBalancer", json!({}), "10.244.0.5:8080"),
    ];
    for (what, mut spec, fate) in rows {
        spec["externalTrafficPolicy"] = json!("Local");
        let world = world(Mode::Nftables, json!({"spec": spec}), &[HERE, THERE]);
        check(what, &world, &[("8.8.8.8@eth0 > 172.16.0.5:80", fate)]);
    }
    let lonely = json!({"spec": {"type": "ClusterIP", "externalIPs": [], "externalTrafficPolicy": "Local"}});
    let world = world(Mode::Nftables, lonely, &[HERE, THERE]);
    check("stale status", &world, &[("8.8.8.8@eth0 > 5.6.7.8:80", "10.244.0.5:8080* 10.244.1.5:8080*")]);
}

#[test]
fn modes_differ_where_nobody_serves() {
    // what, packet, nftables, iptables, ipvs
    let rows = [
        ("unused port of a ClusterIP", "10.244.0.9@cni0 > 10.96.0.10:81", "reject", "pass", "reject"),
        ("unused protocol of a ClusterIP", "10.244.0.9@cni0 > 10.96.0.10:80/udp", "reject", "pass", "reject"),
        ("unallocated Service address", "10.244.0.9@cni0 > 10.96.7.7:80", "drop", "pass", "pass"),
        ("unused port of an external address", "8.8.8.8@eth0 > 172.16.0.5:81", "pass", "pass", "reject"),
        ("somewhere else", "10.244.0.9@cni0 > 1.1.1.1:80", "pass", "pass", "pass"),
        ("unused node port", "8.8.8.8@eth0 > 192.168.0.1:30081", "pass", "pass", "pass"),
    ];
    for (what, packet, nftables, iptables, ipvs) in rows {
        for (mode, fate) in [(Mode::Nftables, nftables), (Mode::Iptables, iptables), (Mode::Ipvs, ipvs)] {
            let mut world = world(mode, json!({}), &[HERE]);
            check(what, &world, &[(packet, fate)]);
            world.service_cidrs = vec![service_cidr("other", &["10.97.0.0/16"])];
            let fate = if what.starts_with("unallocated") { "pass" } else { fate };
            check(what, &world, &[(packet, fate)]);
        }
    }
}

#[test]
fn a_service_address_that_the_machine_has_is_the_machines() {
    let mut world = world(Mode::Nftables, json!({}), &[HERE]);
    world.host.addresses.extend(support::ips(&["10.96.0.10", "10.96.7.7"]));
    let rows = [("10.244.0.9@cni0 > 10.96.0.10:81", "pass"), ("10.244.0.9@cni0 > 10.96.7.7:80", "pass")];
    check("local address", &world, &rows);
    check("but its ports are served", &world, &[("10.244.0.9@cni0 > 10.96.0.10:80", "10.244.0.5:8080")]);
}

#[test]
fn internal_policy_local_without_local_endpoints() {
    let only = json!({"spec": {
        "internalTrafficPolicy": "Local", "type": "ClusterIP", "externalIPs": [],
        "ports": [{"name": "http", "port": 80}],
    }, "status": {"loadBalancer": {"ingress": []}}});
    let to = "10.244.0.9@cni0 > 10.96.0.10:80";
    check("nftables", &world(Mode::Nftables, only.clone(), &[THERE]), &[(to, "drop")]);
    check("iptables", &world(Mode::Iptables, only.clone(), &[THERE]), &[(to, "drop")]);
    check("ipvs has no other list", &world(Mode::Ipvs, only, &[THERE]), &[(to, "reject")]);
    let outside = json!({"spec": {"internalTrafficPolicy": "Local"}});
    check("ipvs", &world(Mode::Ipvs, outside.clone(), &[THERE]), &[(to, "10.244.1.5:8080")]);
    check("no outside help", &world(Mode::Nftables, outside, &[THERE]), &[(to, "drop")]);
}

#[test]
fn ingress_is_intercepted_only_where_packets_arrive_as_sent() {
    let rows = [
        ("no mode", json!({"ip": "5.6.7.8"}), "10.244.0.5:8080*"),
        ("VIP", json!({"ip": "5.6.7.8", "ipMode": "VIP"}), "10.244.0.5:8080*"),
        ("Proxy", json!({"ip": "5.6.7.8", "ipMode": "Proxy"}), "pass"),
        ("a name", json!({"hostname": "lb.example.org"}), "pass"),
    ];
    for (mode, (what, ingress, fate)) in
        MODES.into_iter().flat_map(|mode| rows.clone().map(|row| (mode, row)))
    {
        let service = json!({"status": {"loadBalancer": {"ingress": [ingress]}}});
        check(what, &world(mode, service, &[HERE]), &[("8.8.8.8@eth0 > 5.6.7.8:80", fate)]);
    }
}

#[test]
fn source_ranges_guard_the_load_balancer_and_nothing_else() {
    let sent = "10.244.0.5:8080*";
    // what, ranges, packet, fate
    let rows = [
        ("inside", json!(["203.0.113.0/24"]), "203.0.113.9@eth0 > 5.6.7.8:80", sent),
        ("outside", json!(["203.0.113.0/24"]), "8.8.8.8@eth0 > 5.6.7.8:80", "drop"),
        ("blanks", json!([" 203.0.113.0/24 "]), "203.0.113.9@eth0 > 5.6.7.8:80", sent),
        ("everybody", json!(["203.0.113.0/24", "0.0.0.0/0"]), "8.8.8.8@eth0 > 5.6.7.8:80", sent),
        ("the other family's", json!(["fd00::/8"]), "8.8.8.8@eth0 > 5.6.7.8:80", sent),
        (
            "the other family's everybody",
            json!(["203.0.113.0/24", "::/0"]),
            "8.8.8.8@eth0 > 5.6.7.8:80",
            "drop",
        ),
        ("node port", json!(["203.0.113.0/24"]), "8.8.8.8@eth0 > 192.168.0.1:30080", sent),
        ("external address", json!(["203.0.113.0/24"]), "8.8.8.8@eth0 > 172.16.0.5:80", sent),
        ("ClusterIP", json!(["203.0.113.0/24"]), "8.8.8.8@eth0 > 10.96.0.10:80", sent),
        ("Pods too", json!(["203.0.113.0/24"]), "10.244.0.9@cni0 > 5.6.7.8:80", "drop"),
        ("from the address, node inside", json!(["192.168.0.0/24"]), "5.6.7.8 > 5.6.7.8:80", sent),
        ("from the address, node outside", json!(["203.0.113.0/24"]), "5.6.7.8 > 5.6.7.8:80", "drop"),
        ("the node inside", json!(["192.168.0.0/24"]), "192.168.0.1 > 5.6.7.8:80", sent),
    ];
    for (mode, (what, ranges, packet, fate)) in
        MODES.into_iter().flat_map(|m| rows.clone().map(|row| (m, row)))
    {
        let service = json!({"spec": {"loadBalancerSourceRanges": ranges}});
        check(what, &world(mode, service, &[HERE]), &[(packet, fate)]);
    }
}

#[test]
fn source_ranges_without_endpoints() {
    let service = json!({"spec": {"loadBalancerSourceRanges": ["203.0.113.0/24"]}});
    for (mode, stranger) in [(Mode::Nftables, "drop"), (Mode::Iptables, "reject"), (Mode::Ipvs, "drop")] {
        let world = world(mode, service.clone(), &[]);
        check(
            "no endpoints",
            &world,
            &[("8.8.8.8@eth0 > 5.6.7.8:80", stranger), ("203.0.113.9@eth0 > 5.6.7.8:80", "reject")],
        );
    }
}

#[test]
fn affinity_has_its_timeout() {
    let rows = [
        ("none", json!({}), None),
        ("None", json!({"sessionAffinity": "None"}), None),
        ("default", json!({"sessionAffinity": "ClientIP"}), Some(10800)),
        (
            "said",
            json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}),
            Some(60),
        ),
    ];
    for (what, spec, expected) in rows {
        let world = world(Mode::Nftables, json!({"spec": spec}), &[HERE]);
        for to in ["10.96.0.10:80", "5.6.7.8:80", "192.168.0.1:30080"] {
            match world.fate(&packet(&format!("8.8.8.8@eth0 > {to}"))) {
                Fate::Sent { affinity, .. } => assert_eq!(affinity, expected, "{what} {to}"),
                other => panic!("{what} {to}: {other:?}"),
            }
        }
    }
}

// Settings.

#[test]
fn pods_of_the_node_are_known_by_source_or_interface() {
    let rows = [
        (
            "first cluster range",
            LocalTraffic::ClusterCidr(cidrs(&["10.244.0.0/16", "10.99.0.0/16"])),
            "10.244.7.7@eth0",
            true,
        ),
        (
            "not the second",
            LocalTraffic::ClusterCidr(cidrs(&["10.244.0.0/16", "10.99.0.0/16"])),
            "10.99.0.1@eth0",
            false,
        ),
        ("only the other family's", LocalTraffic::ClusterCidr(cidrs(&["fd44::/32"])), "8.8.8.8@eth0", true),
        ("node range", LocalTraffic::NodeCidr, "10.244.0.7@eth0", true),
        ("another node's range", LocalTraffic::NodeCidr, "10.244.1.7@eth0", false),
        ("not the second node range", LocalTraffic::NodeCidr, "10.245.0.7@eth0", false),
        ("bridge", LocalTraffic::BridgeInterface("cni0".into()), "8.8.8.8@cni0", true),
        ("not the bridge", LocalTraffic::BridgeInterface("cni0".into()), "10.244.0.7@cni00", false),
        ("prefix", LocalTraffic::InterfaceNamePrefix("veth".into()), "8.8.8.8@veth123", true),
        ("not the prefix", LocalTraffic::InterfaceNamePrefix("veth".into()), "10.244.0.7@eth0", false),
        ("the node has no interface", LocalTraffic::InterfaceNamePrefix("veth".into()), "192.168.0.1", false),
    ];
    for (what, local_traffic, from, is_local) in rows {
        let mut world = world(Mode::Nftables, json!({}), &[HERE]);
        world.settings.local_traffic = local_traffic;
        let fate = if is_local { "10.244.0.5:8080" } else { "10.244.0.5:8080*" };
        check(what, &world, &[(&format!("{from} > 10.96.0.10:80"), fate)]);
    }
}

#[test]
fn node_ports_listen_where_they_are_told() {
    use NodePortChoice::{Cidrs, Primary, Unset};
    let all = ["192.168.0.1", "10.244.0.1", "169.254.7.7", "127.0.0.1", "9.9.9.9"];
    let inner = || Cidrs(cidrs(&["10.244.0.0/16", "127.0.0.0/8"]));
    let rows: [(Mode, NodePortChoice, &[&str]); 13] = [
        (Mode::Nftables, Unset, &["192.168.0.1"]),
        (Mode::Iptables, Unset, &["192.168.0.1", "10.244.0.1", "169.254.7.7", "127.0.0.1"]),
        (Mode::Ipvs, Unset, &["192.168.0.1", "10.244.0.1"]),
        (Mode::Nftables, Primary, &["192.168.0.1"]),
        (Mode::Iptables, Primary, &["192.168.0.1"]),
        (Mode::Ipvs, Primary, &["192.168.0.1"]),
        (Mode::Nftables, inner(), &["10.244.0.1"]),
        (Mode::Iptables, inner(), &["10.244.0.1", "127.0.0.1"]),
        (Mode::Ipvs, inner(), &["10.244.0.1"]),
        (Mode::Nftables, Cidrs(cidrs(&["0.0.0.0/0"])), &["192.168.0.1", "10.244.0.1", "169.254.7.7"]),
        (Mode::Nftables, Cidrs(cidrs(&["fd00::/8"])), &["192.168.0.1", "10.244.0.1", "169.254.7.7"]),
        (Mode::Nftables, Cidrs(cidrs(&["198.51.100.0/24"])), &[]),
        (Mode::Iptables, Cidrs(cidrs(&["198.51.100.0/24"])), &[]),
    ];
    for (mode, choice, listening) in rows {
        let mut world = world(mode, json!({}), &[HERE]);
        world.settings.node_port_addresses = choice.clone();
        for ip in all {
            let fate = if listening.contains(&ip) { "10.244.0.5:8080*" } else { "pass" };
            check(&format!("{choice:?}"), &world, &[(&format!("8.8.8.8@eth0 > {ip}:30080"), fate)]);
        }
    }
}

#[test]
fn node_ports_of_iptables() {
    let mut world = world(Mode::Iptables, json!({}), &[HERE]);
    check("localhost", &world, &[("127.0.0.1 > 127.0.0.1:30080", "10.244.0.5:8080*")]);
    world.settings.localhost_node_ports = false;
    check("no localhost", &world, &[("127.0.0.1 > 127.0.0.1:30080", "pass")]);
    world.settings.node_port_addresses = NodePortChoice::Primary;
    world.slices.clear();
    check(
        "refused everywhere",
        &world,
        &[("8.8.8.8@eth0 > 10.244.0.1:30080", "reject"), ("8.8.8.8@eth0 > 9.9.9.9:30080", "pass")],
    );
}
