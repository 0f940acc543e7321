//! Real packets through the nftables backend: every kind of client, to every kind of address, in both families
//! and over both protocols, meets the fate that the rules say.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use fixture::Tools;
use proxy::backend::nft::NftDataplane;
use proxy::ports::Dataplane;
use proxy_core::objects::{Family, Protocol};
use proxy_core::rules::{NodePortChoice, Settings};
use serde_json::json;
use support::matrix::{Kernel, check, objects};
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};
use support::{lasting, strange};

fn open(family: Family) -> Box<dyn Dataplane> {
    Box::new(NftDataplane::open(family, MASQUERADE_BIT).unwrap())
}

#[test]
fn every_packet_meets_the_fate_the_rules_say() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    let (services, slices) = objects(&lab);
    cluster.replace_services(&services);
    cluster.replace_slices(&slices);
    let mut kernels = Kernel::both(&lab, &settings(), open);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    show(&lab);
    check(&lab, &kernels);
}

#[test]
fn what_the_kernel_refuses_harms_nobody_else() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    strange::harms_nobody(&lab, &mut Kernel::both(&lab, &settings(), open));
}

#[test]
fn node_ports_on_every_address_and_pods_known_by_their_interface() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    let mut settings = settings();
    settings.local_traffic = proxy_core::rules::LocalTraffic::InterfaceNamePrefix("veth-".into());
    let everything = ["0.0.0.0/0", "::/0"].map(|cidr| proxy_core::objects::Cidr::parse(cidr).unwrap());
    settings.node_port_addresses = NodePortChoice::Cidrs(everything.to_vec());
    // Rules that were built up change by change do the same.
    cluster.replace_services(&[]);
    cluster.replace_slices(&[]);
    let mut kernels = Kernel::both(&lab, &settings, open);
    let (services, slices) = objects(&lab);
    for service in &services {
        cluster.put_service(service);
        kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    }
    for slice in &slices {
        cluster.put_slice(slice);
    }
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    check(&lab, &kernels);
}

#[test]
fn a_client_keeps_its_endpoint_until_it_goes() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    let seconds = json!({"clientIP": {"timeoutSeconds": 600}});
    let over = json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": seconds}});
    cluster.replace_services(&[service("sticky", 10, over)]);
    let everybody = [&lab.pods[0], &lab.pods[1], &lab.there];
    cluster.replace_slices(&slices("sticky", &everybody));
    let mut kernels = Kernel::both(&lab, &settings(), open);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    for (family, vip) in [(Family::V4, "10.96.0.10:80"), (Family::V6, "[fd96::10]:80")] {
        let to: SocketAddr = vip.parse().unwrap();
        for client in [&lab.pods[2], &lab.outside, &lab.node] {
            let had = client.calls(to, Protocol::Tcp, 12);
            assert_eq!(had.len(), 1, "{} {had:?}", client.name);
            let Some(Answer::From { name, .. }) = had.first() else { panic!("{had:?}") };
            let left: Vec<&Party> = everybody.iter().copied().filter(|p| p.name != name).collect();
            cluster.replace_slices(&slices("sticky", &left));
            kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
            let now = client.calls(to, Protocol::Tcp, 12);
            assert_eq!(now.len(), 1, "{} {now:?}", client.name);
            assert_ne!(now, had, "{family:?}");
            cluster.replace_slices(&slices("sticky", &everybody));
            kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
            // The endpoint is back, but the client has another now.
            assert_eq!(client.calls(to, Protocol::Tcp, 12), now);
        }
    }
}

#[test]
fn a_client_keeps_its_endpoint_at_every_address_of_a_service() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    let ports = json!([{"name": "tcp", "port": 80, "nodePort": 30010}]);
    let over = json!({"spec": {"type": "NodePort", "sessionAffinity": "ClientIP", "ports": ports}});
    cluster.replace_services(&[service("sticky", 10, over)]);
    cluster.replace_slices(&slices("sticky", &[&lab.pods[0], &lab.pods[1], &lab.there]));
    let mut kernels = Kernel::both(&lab, &settings(), open);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    for (vip, family) in [("10.96.0.10:80", Family::V4), ("[fd96::10]:80", Family::V6)] {
        let node = SocketAddr::new(lab.node.ip(family), 30010);
        let frontends: [SocketAddr; 2] = [vip.parse().unwrap(), node];
        for client in [&lab.pods[2], &lab.outside] {
            // Twelve calls at each: were they on their own, that they agree would be a miracle.
            let had = frontends.map(|to| client.calls(to, Protocol::Tcp, 12));
            let names: BTreeSet<&str> = had.iter().flatten().map(answerer).collect();
            assert_eq!(names.len(), 1, "{} {had:?}", client.name);
        }
    }
}

/// Services grow and shrink; what they needed on the way does not stay for ever.
#[test]
fn chains_that_nobody_needs_any_more_go_after_a_while() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    cluster.replace_services(&[service("web", 10, json!({}))]);
    let mut kernels = Kernel::both(&lab, &settings(), open);
    let everybody = [&lab.pods[0], &lab.pods[1], &lab.there];
    let count = || {
        let read = || NftDataplane::open(Family::V4, MASQUERADE_BIT).unwrap().read().unwrap();
        lab.node.ns.within(read).chains.len()
    };
    let mut turn_to = |kernels: &mut [Kernel; 2], who: &[&Party]| {
        cluster.replace_slices(&slices("web", who));
        kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    };
    turn_to(&mut kernels, &everybody[..1]);
    let least = count();
    for many in [2, 3, 1] {
        turn_to(&mut kernels, &everybody[..many]);
    }
    assert!(count() > least, "they stay for a while");
    for _ in 0..3 {
        kernels.iter_mut().for_each(|kernel| assert_eq!(kernel.verify(&lab), Vec::<String>::new()));
    }
    assert_eq!(count(), least);
    // Whoever needs them again has them.
    turn_to(&mut kernels, &everybody);
    let to = "10.96.0.10:80".parse().unwrap();
    assert!(matches!(lab.pods[2].call(to, Protocol::Tcp), Answer::From { .. }));
}

#[test]
fn connections_outlive_changes_and_restarts() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lasting::connections(&lab, &mut Kernel::both(&lab, &settings(), open), open);
}

#[test]
fn a_client_that_was_silent_for_long_is_forgotten() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lasting::affinity(&lab, &mut Kernel::both(&lab, &settings(), open));
}

#[test]
fn with_masquerade_all_every_client_looks_like_the_node() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let mut cluster = support::cluster();
    cluster.replace_services(&[service("web", 10, json!({}))]);
    cluster.replace_slices(&slices("web", &[&lab.pods[0], &lab.there]));
    for is_all in [false, true] {
        let settings = Settings { masquerade_all: is_all, ..settings() };
        let mut kernels = Kernel::both(&lab, &settings, open);
        cluster.replace_services(&[]);
        cluster.replace_services(&[service("web", 10, json!({}))]);
        kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
        for to in ["10.96.0.10:80", "[fd96::10]:80"] {
            for answer in lab.pods[2].calls(to.parse().unwrap(), Protocol::Tcp, 6) {
                let Answer::From { source, .. } = answer else { panic!("{to} {answer:?}") };
                assert_eq!(lab.host.is_local(source), is_all, "{to} {source}");
            }
        }
    }
}

fn answerer(answer: &Answer) -> &str {
    match answer {
        Answer::From { name, .. } => name,
        other => panic!("{other:?}"),
    }
}

/// `nft` can read what we wrote, and it says what people look for.
fn show(lab: &Lab) {
    let Some(nft) = Tools::nft_from_env() else { return };
    for family in ["ip", "ip6"] {
        let out = lab
            .node
            .ns
            .command(&nft.display().to_string())
            .args(["list", "table", family, "kube-proxy"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8_lossy(&out.stdout);
        if let Some(path) = std::env::var_os("LONGSHORE_SHOW_TABLE") {
            std::fs::write(path, &*text).unwrap();
        }
        let parts = [
            "comment \"rules for kube-proxy\"",
            "map all-service-ips",
            "comment \"ns/plain:tcp\"",
            "chain nat-prerouting",
            "type nat hook prerouting priority dstnat",
            "numgen random mod 3",
            "map @service-endpoints",
            "masquerade fully-random",
            "@rejected-services goto reject-chain",
            "update @affinities",
        ];
        for part in parts {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
