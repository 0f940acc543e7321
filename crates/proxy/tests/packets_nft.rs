//! Real packets through the nftables backend: every kind of client, to every kind of address, in both families
//! and over both protocols, meets the fate that the rules say.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::thread;

use fixture::Tools;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::backend::nft::NftDataplane;
use proxy::ports::Dataplane;
use proxy_core::objects::{Cluster, Family, Protocol};
use proxy_core::rules::{NodePortChoice, Rulebook, Settings};
use proxy_core::trace::{Arrival, Fate, Packet, trace};
use serde_json::{Value, json};
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};

/// One family's rules, in the kernel of the lab's node.
struct Kernel {
    book: Rulebook,
    plane: NftDataplane,
    is_first: bool,
}

impl Kernel {
    fn both(lab: &Lab, settings: &Settings) -> [Kernel; 2] {
        Family::BOTH.map(|family| Kernel {
            book: Rulebook::new(family, settings.clone()),
            plane: lab.node.ns.within(|| NftDataplane::open(family, MASQUERADE_BIT).unwrap()),
            is_first: true,
        })
    }

    fn update(&mut self, lab: &Lab, cluster: &mut Cluster) {
        let changed = cluster.take_changes(self.book.rules().family).unwrap();
        let delta = self.book.update(cluster, &lab.host, changed);
        if std::mem::take(&mut self.is_first) {
            self.plane.verify(self.book.rules()).unwrap();
        } else {
            self.plane.apply(self.book.rules(), &delta).unwrap();
        }
        assert_eq!(self.plane.verify(self.book.rules()).unwrap(), Vec::<String>::new());
    }
}

fn objects(lab: &Lab) -> (Vec<Service>, Vec<EndpointSlice>) {
    let (a, b, there) = (&lab.pods[0], &lab.pods[1], &lab.there);
    let outside = |kind: &str, node_port: i32, over: Value| {
        let ports = ["TCP", "UDP"].map(|protocol| {
            json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "nodePort": node_port})
        });
        let mut spec = json!({"spec": {"type": kind, "ports": ports}});
        support::overlay(&mut spec, over);
        spec
    };
    let ingress = |v4: &str, v6: &str| json!({"loadBalancer": {"ingress": [{"ip": v4}, {"ip": v6}]}});
    let local = json!({"spec": {"externalTrafficPolicy": "Local"}, "status": ingress("5.6.7.1", "fd05::1")});
    let guarded = json!({
        "spec": {"loadBalancerSourceRanges": ["10.244.0.6/32", "10.0.0.0/8", "fd44::6/128"]},
        "status": ingress("5.6.7.2", "fd05::2"),
    });
    let empty_here =
        json!({"spec": {"externalTrafficPolicy": "Local"}, "status": ingress("5.6.7.3", "fd05::3")});
    let sticky = json!({"spec": {"sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local"}});
    let rows: Vec<(&str, Value, Vec<&Party>)> = vec![
        ("plain", json!({}), vec![a, b, there]),
        ("alone", json!({}), vec![a]),
        ("empty", outside("NodePort", 30002, json!({})), vec![]),
        ("inner", json!({"spec": {"internalTrafficPolicy": "Local"}}), vec![b, there]),
        ("elsewhere", json!({"spec": {"internalTrafficPolicy": "Local"}}), vec![there]),
        ("port", outside("NodePort", 30005, json!({})), vec![a, there]),
        ("local", outside("LoadBalancer", 30006, local), vec![a, there]),
        ("guarded", outside("LoadBalancer", 30007, guarded), vec![a, b]),
        ("away", outside("LoadBalancer", 30008, empty_here), vec![there]),
        ("extern", json!({"spec": {"externalIPs": ["172.16.0.9", "fd16::9"]}}), vec![b]),
        ("sticky", outside("NodePort", 30010, sticky), vec![a, b, there]),
    ];
    let mut made = (Vec::new(), Vec::new());
    for (number, (name, over, endpoints)) in rows.into_iter().enumerate() {
        made.0.push(service(name, 10 + number as u8, over));
        made.1.extend(slices(name, &endpoints));
    }
    made
}

/// Everywhere that somebody might call, in one family.
fn destinations(family: Family) -> Vec<SocketAddr> {
    let (node, others): (&str, [&str; 5]) = match family {
        Family::V4 => ("192.168.0.1", ["5.6.7.1", "5.6.7.2", "5.6.7.3", "172.16.0.9", "10.96.9.9"]),
        Family::V6 => ("fd01::1", ["fd05::1", "fd05::2", "fd05::3", "fd16::9", "fd96::99"]),
    };
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let cluster_ips = (10..21).map(|number| match family {
        Family::V4 => at(&format!("10.96.0.{number}"), 80),
        Family::V6 => at(&format!("fd96::{number}"), 80),
    });
    let node_ports = [30002, 30005, 30006, 30007, 30008, 30010].map(|port| at(node, port));
    let unused = cluster_ips.clone().next().map(|to| SocketAddr::new(to.ip(), 81));
    cluster_ips.chain(node_ports).chain(others.map(|ip| at(ip, 80))).chain(unused).collect()
}

/// Whether what happened is what the rules say.
fn is_as_said(lab: &Lab, fate: &Fate, client: IpAddr, answers: &BTreeSet<Answer>) -> bool {
    let only = |answer: Answer| *answers == BTreeSet::from([answer]);
    match fate {
        Fate::Rejected | Fate::Dropped if lab.host.is_local(client) && only(Answer::Forbidden) => true,
        Fate::Rejected => only(Answer::Refused),
        Fate::Dropped => only(Answer::Silence),
        Fate::Passed => true,
        Fate::Sent { targets, .. } => answers.iter().all(|answer| {
            let Answer::From { name, source } = answer else { return false };
            targets.iter().any(|target| {
                let is_it = lab.parties().any(|p| p.name == name && p.ips.contains(&target.endpoint.ip()));
                let is_source = match target.is_masqueraded {
                    true => lab.host.is_local(*source),
                    false => *source == client,
                };
                is_it && is_source
            })
        }),
    }
}

fn check(lab: &Lab, kernels: &[Kernel; 2]) {
    let faults: Vec<String> = thread::scope(|scope| {
        let callers: Vec<_> = lab
            .pods
            .iter()
            .chain([&lab.node, &lab.outside])
            .map(|party| scope.spawn(move || check_party(lab, kernels, party)))
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn check_party(lab: &Lab, kernels: &[Kernel; 2], party: &Party) -> Vec<String> {
    let mut faults = Vec::new();
    for family in Family::BOTH {
        let rules = kernels[family as usize].book.rules();
        for to in destinations(family) {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let packet = Packet {
                    source: party.ip(family),
                    destination: to.ip(),
                    protocol,
                    port: to.port(),
                    arrival: party.interface.map_or(Arrival::Node, |name| Arrival::Interface(name.into())),
                };
                let fate = trace(rules, &lab.host, &packet);
                let answers = match fate {
                    Fate::Sent { .. } => party.calls(to, protocol, 4),
                    Fate::Rejected => party.calls(to, protocol, 1),
                    Fate::Dropped | Fate::Passed => party.call_in_vain(to, protocol),
                };
                if !is_as_said(lab, &fate, packet.source, &answers) {
                    faults.push(format!("{} to {to}/{protocol}: {fate:?} but {answers:?}", party.name));
                }
            }
        }
    }
    faults
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
    let mut kernels = Kernel::both(&lab, &settings());
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
    let mut kernels = Kernel::both(&lab, &settings);
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
    let mut kernels = Kernel::both(&lab, &settings());
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
