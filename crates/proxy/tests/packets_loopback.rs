//! CVE-2020-8558: the services of a node on its loopback addresses are its own. Real packets of neighbours and Pods to
//! 127.0.0.1, in every mode that could let them in.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use fixture::Tools;
use proxy::backend::iptables::{IptablesDataplane, Programs};
use proxy_core::objects::{Family, Protocol};
use proxy_core::rules::Mode;
use support::agent::{Api, NODES, SERVICES, SLICES, answers_to, run_agent, until};
use support::matrix::{Kernel, objects};
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};
use tokio_util::sync::CancellationToken;

const OWN: &str = "127.0.0.1:9999";
const LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

/// Something of the node's own that listens on loopback alone, as kubelets and runtimes do.
fn serve_on_loopback(node: &Party) {
    let (tcp, udp) = node.ns.within(|| (TcpListener::bind(OWN).unwrap(), UdpSocket::bind(OWN).unwrap()));
    std::thread::spawn(move || {
        for stream in tcp.incoming() {
            let Ok(mut stream) = stream else { return };
            let Ok(peer) = stream.peer_addr() else { continue };
            let _ = write!(stream, "node {}", peer.ip());
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
            let _ = udp.send_to(format!("node {}", peer.ip()).as_bytes(), peer);
        }
    });
}

/// Root in a Pod or on a neighbour: from now on its packets to 127.0.0.1 go to the node.
fn attack(party: &Party, node: &Party) {
    let gateway = if party.name == "outside" { node.ip(Family::V4).to_string() } else { "10.244.0.1".into() };
    let own = party.ip(Family::V4);
    party.ns.sysctl(LOCALNET, "1").unwrap();
    party
        .ns
        .ip(&format!(
            "addr del 127.0.0.1/8 dev lo\n\
             route add 127.0.0.1/32 via {gateway} dev eth0 onlink src {own}\n"
        ))
        .unwrap();
}

fn attackers(lab: &Lab) -> [&Party; 2] {
    let all = [&lab.outside, &lab.pods[2]];
    all.iter().for_each(|party| attack(party, &lab.node));
    all
}

fn shut_out(attackers: &[&Party], when: &str) {
    for party in attackers {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let answer = party.call_in_vain(OWN.parse().unwrap(), protocol);
            assert_eq!(answer, BTreeSet::from([Answer::Silence]), "{} {protocol:?} {when}", party.name);
        }
    }
}

fn reaches(party: &Party, protocol: Protocol) -> bool {
    let to: SocketAddr = OWN.parse().unwrap();
    matches!(party.call(to, protocol), Answer::From { name, .. } if name == "node")
}

/// Node ports on loopback need `route_localnet`; what it opens besides is shut by a rule.
#[test]
fn with_iptables_no_packet_of_the_network_reaches_the_nodes_loopback() {
    if support::skipped() {
        return;
    }
    for flavour in ["nft", "legacy"] {
        let Some(dir) = Tools::iptables_from_env(flavour) else { return };
        let lab = Lab::new();
        serve_on_loopback(&lab.node);
        let attackers = attackers(&lab);
        shut_out(&attackers, "while nobody has opened loopback");
        lab.node.ns.sysctl(LOCALNET, "1").unwrap();
        for party in attackers {
            assert!(reaches(party, Protocol::Tcp) && reaches(party, Protocol::Udp), "the attack is none");
        }
        let settings = proxy_core::rules::Settings { mode: Mode::Iptables, ..settings() };
        let mut kernels = Kernel::both(&lab, &settings, |family| {
            let programs = Programs::of(family, dir.clone(), Vec::new());
            let mark = 1 << MASQUERADE_BIT;
            Box::new(IptablesDataplane::open(programs, mark, true, Duration::from_secs(30), Arc::default()))
        });
        let mut cluster = support::cluster();
        let (services, slices) = objects(&lab);
        cluster.replace_services(&services);
        cluster.replace_slices(&slices);
        kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
        shut_out(&attackers, flavour);
        assert!(reaches(&lab.node, Protocol::Tcp), "its own are served");
    }
}

/// nf_tables serves no node port on loopback, so the proxy has no reason to open it.
#[test]
fn with_nftables_loopback_is_never_opened() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    serve_on_loopback(&lab.node);
    let attackers = attackers(&lab);
    let api = Api::new();
    api.put(SERVICES, &[service("web", 10, serde_json::json!({"spec": {"type": "NodePort"}}))]);
    api.put(SLICES, &slices("web", &[&lab.pods[0]]));
    api.put(NODES, &[support::node()]);
    let token = CancellationToken::new();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(&lab, api.clone(), &["--proxy-mode=nftables"], token.clone()));
        let _stop = token.clone().drop_guard();
        until("the Service answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Tcp, "a"));
        shut_out(&attackers, "with nftables");
        assert!(reaches(&lab.node, Protocol::Tcp) && reaches(&lab.node, Protocol::Udp));
        token.cancel();
        assert_eq!(agent.join().unwrap(), Ok(()));
    });
}
