//! The whole agent in ipvs mode, on kernels that have it: from flags to the kernel, through a restart, into other modes and
//! out of all of them.
#![allow(clippy::unwrap_used)]

mod support;

use std::thread;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::agent;
use proxy::backend::iptables::Programs;
use proxy_core::objects::{Family, Protocol};
use serde_json::json;
use support::agent::{Api, NODES, RANGES, SERVICES, SLICES, Talker, answers_to, get, run_agent, until};
use support::held::{Held, serve};
use support::ipvs::{EXCLUDED, State, make_foreign, skipped};
use support::{Lab, Party, service, slices};
use tokio_util::sync::CancellationToken;

const WEB: [&str; 2] = ["10.96.0.10:80", "[fd96::10]:80"];
const LASTING: [&str; 2] = ["10.96.0.11:80", "[fd96::11]:80"];
const LASTING_PORT: u16 = 9000;

fn ipvs_flags() -> Vec<String> {
    let flags = [
        "--proxy-mode=ipvs",
        "--ipvs-min-sync-period=10ms",
        "--ipvs-scheduler=wrr",
        "--ipvs-strict-arp",
        "--ipvs-tcp-timeout=700s",
        "--ipvs-tcpfin-timeout=20s",
        "--ipvs-udp-timeout=40s",
    ];
    flags.into_iter().map(str::to_owned).chain([format!("--ipvs-exclude-cidrs={EXCLUDED}")]).collect()
}

/// A Service whose endpoint says a word and hangs up, and one whose endpoint goes on talking.
fn stage(lab: &Lab) -> Api {
    let api = Api::new();
    api.put(SERVICES, &[service("web", 10, json!({})), service("lasting", 11, json!({}))]);
    api.put(SLICES, &slices("web", &[&lab.pods[0]]));
    api.put(SLICES, &lasting(&lab.pods[0]));
    api.put(NODES, &[support::node()]);
    api.put(RANGES, &[support::service_cidr()]);
    serve(&lab.pods[0], LASTING_PORT);
    api
}

fn lasting(party: &Party) -> Vec<EndpointSlice> {
    let mut all = slices("lasting", &[party]);
    for slice in &mut all {
        slice.ports.iter_mut().flatten().for_each(|port| port.port = Some(i32::from(LASTING_PORT)));
    }
    all
}

/// Runs an agent as long as something is done beside it.
fn beside_agent<T>(lab: &Lab, api: &Api, flags: &[String], work: impl FnOnce() -> T) -> T {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let token = CancellationToken::new();
    thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(lab, api.clone(), &flags, token.clone()));
        let stop = token.clone().drop_guard();
        let done = work();
        drop(stop);
        assert_eq!(agent.join().unwrap(), Ok(()));
        done
    })
}

/// Until both Services work through a mode, and the agent is content.
fn settle(lab: &Lab, mode: &str) {
    for to in WEB {
        until("the Service answers", || answers_to(lab, to, Protocol::Tcp, "a"));
        until("over UDP", || answers_to(lab, to, Protocol::Udp, "a"));
    }
    until("the agent is healthy", || {
        get(&lab.node, "127.0.0.1:10249", "/proxyMode").is_some_and(|(_, found)| found == mode)
            && get(&lab.node, "127.0.0.1:10256", "/healthz").is_some_and(|(code, _)| code == 200)
    });
}

/// For how many seconds IPVS remembers a protocol's flows that are in a state.
fn lifetimes(lab: &Lab, protocol: &str, state: &str) -> Vec<u32> {
    let text = lab.node.ns.within(|| std::fs::read_to_string("/proc/thread-self/net/ip_vs_conn")).unwrap();
    let words = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| words.first() == Some(&protocol) && words.get(7) == Some(&state))
        .filter_map(|words| words.get(8)?.parse().ok())
        .collect()
}

fn flags_are_in_the_kernel(lab: &Lab) {
    for (name, value) in [
        ("conf/all/arp_ignore", "1"),
        ("conf/all/arp_announce", "2"),
        ("vs/conntrack", "1"),
        ("vs/expire_nodest_conn", "1"),
        ("vs/expire_quiescent_template", "1"),
    ] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let found = lab.node.ns.within(|| std::fs::read_to_string(path)).unwrap();
        assert_eq!(found.trim(), value, "{name}");
    }
    for (protocol, state, seconds) in [("UDP", "UDP", 1..=40), ("TCP", "ESTABLISHED", 300..=700)] {
        let found = lifetimes(lab, protocol, state);
        assert!(
            !found.is_empty() && found.iter().all(|left| seconds.contains(left)),
            "{protocol}: {found:?}"
        );
    }
    let schedulers: Vec<String> = State::read(lab).servers.into_values().map(|(name, _)| name).collect();
    // One is somebody else's.
    assert_eq!(schedulers.iter().filter(|name| *name != "wrr").collect::<Vec<_>>(), ["rr"]);
}

fn flows_follow(lab: &Lab, api: &Api) {
    let talkers = WEB.map(|to| Talker::new(&lab.pods[2], to));
    let all = |who: Option<&str>| talkers.iter().all(|talker| talker.ask().as_deref() == who);
    let turn_to = |who: &[&Party]| {
        slices("web", who).into_iter().for_each(|slice| api.tell(SLICES, "MODIFIED", slice));
    };
    until("flows begin", || all(Some("a")));
    turn_to(&[&lab.pods[1]]);
    until("flows move", || all(Some("b")));
    turn_to(&[]);
    until("flows end", || all(None));
    turn_to(&[&lab.pods[0]]);
    until("flows find the new endpoint", || all(Some("a")));
}

#[test]
fn flags_reach_the_kernel_and_nothing_is_left_behind() {
    // The agent calls the iptables that everybody calls.
    if skipped() || !Programs::new(Family::V4).is_usable() {
        return;
    }
    let lab = Lab::new();
    lab.node.ns.ip("link set lo up\n").unwrap();
    let (api, alone) = (stage(&lab), make_foreign(&lab));
    let ipvs = ipvs_flags();
    let (mut held, before) = beside_agent(&lab, &api, &ipvs, || {
        settle(&lab, "ipvs");
        let mut held = LASTING.map(|to| Held::open(&lab.pods[2], to));
        held.iter_mut().for_each(|held| assert_eq!(held.ask().unwrap(), "a"));
        flags_are_in_the_kernel(&lab);
        flows_follow(&lab, &api);
        (held, State::read(&lab))
    });
    assert!(api.has_event("Starting") && api.has_event("IPVSDeprecation"));
    // Without an agent everything goes on, and another finds nothing to do.
    still_works(&lab);
    beside_agent(&lab, &api, &ipvs, || {
        settle(&lab, "ipvs");
        assert_eq!(State::read(&lab), before);
        held.iter_mut().for_each(|held| assert_eq!(held.ask().unwrap(), "a"));
    });
    // Other modes take over, and take away; what is somebody else's stays.
    for mode in ["nftables", "iptables"] {
        beside_agent(&lab, &api, &[format!("--proxy-mode={mode}")], || {
            settle(&lab, mode);
            let now = State::read(&lab);
            assert_eq!((&now.servers, &now.sets), (&alone.servers, &alone.sets), "{mode}");
            assert!(!now.has_device && now.addresses.is_empty(), "{mode}");
        });
        beside_agent(&lab, &api, &ipvs, || settle(&lab, "ipvs"));
    }
    lab.node.ns.within(|| agent::clean_up().unwrap());
    assert_eq!(State::read(&lab), alone);
    assert!(WEB.iter().all(|to| !answers_to(&lab, to, Protocol::Tcp, "a")));
}

fn still_works(lab: &Lab) {
    for to in WEB {
        assert!(answers_to(lab, to, Protocol::Tcp, "a"), "{to}");
    }
}
