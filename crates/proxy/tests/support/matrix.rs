//! Every kind of Service, client and address, and whether what happens is what the rules say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::ports::Dataplane;
use proxy::yield_flag::{Outcome, YieldFlag};
use proxy_core::objects::{Cluster, Family, Protocol};
use proxy_core::rules::{RuleSet, Rulebook, Settings};
use proxy_core::trace::{Arrival, Fate, Packet, trace};
use serde_json::{Value, json};

use super::{Answer, Lab, Party, ZONE, overlay, service, slices};

/// One family's rules, in the kernel of the lab's node.
pub(crate) struct Kernel {
    pub(crate) book: Rulebook,
    plane: Box<dyn Dataplane>,
    is_first: bool,
}

impl Kernel {
    /// `open` is called inside of the node.
    pub(crate) fn both(
        lab: &Lab,
        settings: &Settings,
        open: impl Fn(Family) -> Box<dyn Dataplane> + Sync,
    ) -> [Kernel; 2] {
        Family::BOTH.map(|family| Kernel {
            book: Rulebook::new(family, settings.clone()),
            plane: lab.node.ns.within(|| open(family)),
            is_first: true,
        })
    }

    pub(crate) fn update(&mut self, lab: &Lab, cluster: &mut Cluster) {
        let changed = cluster.take_changes(self.book.rules().family).unwrap();
        let delta = self.book.update(cluster, &lab.host, changed);
        let is_first = std::mem::take(&mut self.is_first);
        let (plane, rules) = (&mut self.plane, self.book.rules());
        lab.node.ns.within(|| {
            if is_first {
                plane.verify(rules, &YieldFlag::default()).unwrap();
            } else {
                plane.apply(rules, &delta).unwrap();
            }
            assert_eq!(plane.verify(rules, &YieldFlag::default()).unwrap(), Outcome::Done(Vec::new()));
        });
    }

    /// Compares with the kernel; what was wrong there.
    pub(crate) fn verify(&mut self, lab: &Lab) -> Vec<String> {
        let (plane, rules) = (&mut self.plane, self.book.rules());
        match lab.node.ns.within(|| plane.verify(rules, &YieldFlag::default()).unwrap()) {
            Outcome::Done(faults) => faults,
            Outcome::Left => panic!("nobody asked to yield"),
        }
    }

    /// What comes after a change.
    pub(crate) fn tidy(&mut self, lab: &Lab) {
        let (plane, rules) = (&mut self.plane, self.book.rules());
        lab.node.ns.within(|| assert_eq!(plane.tidy(rules, &YieldFlag::default()), Outcome::Done(())));
    }

    /// As if the proxy had been started anew: what it finds is all that it knows. What was wrong in the kernel.
    pub(crate) fn restart(
        &mut self,
        lab: &Lab,
        open: impl Fn(Family) -> Box<dyn Dataplane> + Sync,
    ) -> Vec<String> {
        let family = self.book.rules().family;
        self.plane = lab.node.ns.within(|| open(family));
        self.verify(lab)
    }
}

pub(crate) fn objects(lab: &Lab) -> (Vec<Service>, Vec<EndpointSlice>) {
    let (a, b, there) = (&lab.pods[0], &lab.pods[1], &lab.there);
    let outside = |kind: &str, node_port: i32, over: Value| {
        let ports = ["TCP", "UDP"].map(|protocol| {
            json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 80, "nodePort": node_port})
        });
        let mut spec = json!({"spec": {"type": kind, "ports": ports}});
        overlay(&mut spec, over);
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
    let behind = |ip: &str| json!({"ip": ip, "ipMode": "Proxy"});
    let proxied = json!({"status": {"loadBalancer": {"ingress": [behind("5.6.7.4"), behind("fd05::4")]}}});
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
        ("leaving", json!({}), vec![a, b]),
        ("near", json!({}), vec![a, there]),
        ("proxied", outside("LoadBalancer", 30013, proxied), vec![a]),
    ];
    let mut made = (Vec::new(), Vec::new());
    for (number, (name, over, endpoints)) in rows.into_iter().enumerate() {
        made.0.push(service(name, 10 + number as u8, over));
        made.1.extend(slices(name, &endpoints).into_iter().map(|slice| specially(name, slice)));
    }
    made
}

/// What some Services say of their endpoints.
fn specially(name: &str, mut slice: EndpointSlice) -> EndpointSlice {
    let endpoints = slice.endpoints.iter_mut().flatten();
    for (place, endpoint) in endpoints.enumerate() {
        match (name, place) {
            // One serves to the end, and the other does not any more.
            ("leaving", _) => {
                let state = json!({"ready": false, "serving": place == 0, "terminating": true});
                endpoint.conditions = serde_json::from_value(state).unwrap();
            }
            // The first is for this zone.
            ("near", _) => {
                let zone = if place == 0 { ZONE } else { "elsewhere" };
                endpoint.hints = serde_json::from_value(json!({"forZones": [{"name": zone}]})).unwrap();
            }
            _ => {}
        }
    }
    slice
}

/// Everywhere that somebody might call, in one family.
pub(crate) fn destinations(family: Family) -> Vec<SocketAddr> {
    let (node, others): (&str, [&str; 6]) = match family {
        Family::V4 => {
            ("192.168.0.1", ["5.6.7.1", "5.6.7.2", "5.6.7.3", "5.6.7.4", "172.16.0.9", "10.96.9.9"])
        }
        Family::V6 => ("fd01::1", ["fd05::1", "fd05::2", "fd05::3", "fd05::4", "fd16::9", "fd96::99"]),
    };
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let cluster_ips = (10..24).map(|number| match family {
        Family::V4 => at(&format!("10.96.0.{number}"), 80),
        Family::V6 => at(&format!("fd96::{number}"), 80),
    });
    let node_ports = [30002, 30005, 30006, 30007, 30008, 30010, 30013].map(|port| at(node, port));
    let unused = cluster_ips.clone().next().map(|to| SocketAddr::new(to.ip(), 81));
    cluster_ips.chain(node_ports).chain(others.map(|ip| at(ip, 80))).chain(unused).collect()
}

/// Whether what happened is what the rules say. Where the address of a Service is the node's own, the node calls it from
/// that very address.
fn is_as_said(lab: &Lab, fate: &Fate, packet: &Packet, answers: &BTreeSet<Answer>) -> bool {
    let client = packet.source;
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
                    false => {
                        *source == client || (lab.host.is_local(client) && *source == packet.destination)
                    }
                };
                is_it && is_source
            })
        }),
    }
}

pub(crate) fn check(lab: &Lab, kernels: &[Kernel; 2]) {
    let rules = kernels.each_ref().map(|kernel| kernel.book.rules());
    let faults: Vec<String> = thread::scope(|scope| {
        let callers: Vec<_> = lab
            .pods
            .iter()
            .chain([&lab.node, &lab.outside])
            .map(|party| scope.spawn(move || check_party(lab, rules, party)))
            .collect();
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn check_party(lab: &Lab, rules: [&RuleSet; 2], party: &Party) -> Vec<String> {
    let mut faults = Vec::new();
    for family in Family::BOTH {
        let rules = rules[family as usize];
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
                if !is_as_said(lab, &fate, &packet, &answers) {
                    faults.push(format!("{} to {to}/{protocol}: {fate:?} but {answers:?}", party.name));
                }
            }
        }
    }
    faults
}
