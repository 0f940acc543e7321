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
use proxy_core::rules::NodePortChoice;
use serde_json::json;
use support::matrix::{Kernel, check, objects};
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};

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
    let seconds = json!({"clientIP": {"timeoutSeconds": 2}});
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
        let doors: [SocketAddr; 2] = [vip.parse().unwrap(), node];
        for client in [&lab.pods[2], &lab.outside] {
            // Twelve calls at each: were they on their own, that they agree would be a miracle.
            let had = doors.map(|to| client.calls(to, Protocol::Tcp, 12));
            let names: BTreeSet<&str> = had.iter().flatten().map(answerer).collect();
            assert_eq!(names.len(), 1, "{} {had:?}", client.name);
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
            "map service-ips",
            "comment \"ns/plain:tcp\"",
            "chain nat-prerouting",
            "type nat hook prerouting priority dstnat",
            "numgen random mod 3",
            "map @service-endpoints",
            "masquerade fully-random",
            "@no-endpoint-services goto reject-chain",
            "update @affinities",
        ];
        for part in parts {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
    }
}
