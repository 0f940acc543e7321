//! Real packets through the ipvs backend, on kernels that have it: every kind of client, to every kind of address, in
//! both families and over both protocols, meets the fate that the rules say.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use proxy::backend::iptables::cleanup as remove_rules;
use proxy::backend::ipvs::{IpvsDataplane, SCHEDULERS, cleanup};
use proxy::ports::Dataplane;
use proxy_core::ipvs::DEVICE;
use proxy_core::objects::{Cidr, Family, Protocol};
use proxy_core::rules::{Mode, Settings};
use serde_json::json;
use support::agent::until;
use support::held::{Held, serve};
use support::ipvs::{EXCLUDED, State, make_foreign, programs, set_sysctls, skipped};
use support::matrix::{Kernel, check, objects};
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices, strange};
use sys::ipset::{Entry, Ipsets, SetType};
use sys::ipvs::{Ipvs, Order, ServerId, Timeouts};
use sys::link::Links;

const PLAIN: [&str; 2] = ["10.96.0.10:80", "[fd96::10]:80"];
const STICKY: [&str; 2] = ["10.96.0.11:80", "[fd96::11]:80"];

fn mode() -> Settings {
    let mut settings = settings();
    settings.mode = Mode::Ipvs;
    settings
}

fn lab() -> Lab {
    let lab = Lab::new();
    set_sysctls(&lab);
    lab
}

fn open(scheduler: &str, family: Family) -> Box<dyn Dataplane> {
    let (programs, mark) = (programs(family).unwrap(), 1 << MASQUERADE_BIT);
    let excluded = vec![Cidr::parse(EXCLUDED).unwrap()];
    Box::new(IpvsDataplane::open(programs, mark, scheduler, excluded).unwrap())
}

fn kernels(lab: &Lab, scheduler: &str) -> [Kernel; 2] {
    Kernel::both(lab, &mode(), |family| open(scheduler, family))
}

fn set_timeouts(lab: &Lab, timeouts: Timeouts) {
    lab.node.ns.within(|| Ipvs::open().unwrap().set_timeouts(timeouts).unwrap());
}

#[test]
fn packets_meet_their_fate() {
    if skipped() {
        return;
    }
    let lab = lab();
    let alone = make_foreign(&lab);
    let mut kernels = kernels(&lab, "rr");
    let mut cluster = support::cluster();
    let (services, slices) = objects(&lab);
    cluster.replace_services(&[]);
    cluster.replace_slices(&slices);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    // Most of it comes as changes.
    cluster.replace_services(&services);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    check(&lab, &kernels);
    // Started anew, it has nothing to put right.
    let before = State::read(&lab);
    for kernel in &mut kernels {
        assert_eq!(kernel.restart(&lab, |family| open("rr", family)), Vec::<String>::new());
    }
    assert_eq!(State::read(&lab), before);
    // Whatever somebody else does to it is put right.
    for harm in [delete_servers, empty_sets, delete_device, flush_rules] {
        lab.node.ns.within(harm);
        assert_ne!(State::read(&lab), before);
        let faults: Vec<String> = kernels.iter_mut().flat_map(|kernel| kernel.verify(&lab)).collect();
        assert_ne!(faults, Vec::<String>::new());
        assert_eq!(State::read(&lab), before, "{faults:?}");
    }
    lab.node.ns.within(|| {
        for family in Family::BOTH {
            remove_rules(&programs(family).unwrap()).unwrap();
            cleanup(family).unwrap();
        }
    });
    assert_eq!(State::read(&lab), alone);
}

#[test]
fn what_the_kernel_refuses_harms_nobody_else() {
    if skipped() {
        return;
    }
    let lab = lab();
    strange::harms_nobody(&lab, &mut kernels(&lab, "rr"));
    let is = State::read(&lab);
    // It had no use for these.
    let strange = |ip: &std::net::IpAddr| ip.is_multicast();
    assert!(is.servers.values().all(|(_, reals)| !reals.keys().any(|real| strange(&real.ip()))), "{is:?}");
    assert!(is.addresses.contains(&"10.96.0.30".parse().unwrap()), "{is:?}");
    // Sets have no entry of ours to refuse, but they might.
    let refused = lab.node.ns.within(|| {
        let mut sets = Ipsets::open().unwrap();
        sets.create("ODD", SetType::Ip, false).unwrap();
        let mut entries: Vec<Entry> = (0..600u16)
            .map(|n| Entry { ip: Some([10, 0, (n >> 8) as u8, n as u8].into()), ..Entry::default() })
            .collect();
        entries[550] = Entry { ip: Some("fd00::1".parse().unwrap()), ..Entry::default() };
        let refused = sets.add("ODD", &entries).unwrap().0;
        assert_eq!(sets.list("ODD").unwrap()[0].entries.len(), entries.len() - 1);
        refused
    });
    assert!(matches!(refused.as_slice(), [(550, _)]), "{refused:?}");
}

fn delete_servers() {
    let mut ipvs = Ipvs::open().unwrap();
    let servers = ipvs.servers().unwrap().into_iter().map(|(id, _)| id);
    let ours = servers.filter(|id| id.address.port() == 80 && id.protocol == 17);
    let orders: Vec<Order> = ours.map(Order::Delete).collect();
    ipvs.carry_out(&orders).unwrap().none().unwrap();
}

fn empty_sets() {
    let mut sets = Ipsets::open().unwrap();
    for set in sets.list("KUBE-").unwrap() {
        sets.delete(&set.name, &set.entries).unwrap().none().unwrap();
    }
}

fn delete_device() {
    Links::open().unwrap().remove(DEVICE).unwrap();
}

fn flush_rules() {
    for family in Family::BOTH {
        remove_rules(&programs(family).unwrap()).unwrap();
    }
}

/// Who answers a few calls over TCP, in one family.
fn heard(lab: &Lab, to: &str, times: usize) -> Vec<String> {
    let to: SocketAddr = to.parse().unwrap();
    let name = |answer: Answer| match answer {
        Answer::From { name, .. } => name,
        other => panic!("{to}: {other:?}"),
    };
    (0..times).map(|_| name(lab.pods[2].call(to, Protocol::Tcp))).collect()
}

fn distinct(names: &[String]) -> usize {
    names.iter().collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn every_scheduler_serves_and_affinity_lasts() {
    if skipped() {
        return;
    }
    let lab = lab();
    let mut kernels = kernels(&lab, "lc");
    let mut cluster = support::cluster();
    let sticky = json!({"spec": {"sessionAffinity": "ClientIP"}});
    cluster.replace_services(&[service("plain", 10, json!({})), service("sticky", 11, sticky)]);
    let endpoints = [&lab.pods[0], &lab.pods[1], &lab.there];
    cluster.replace_slices(&[slices("plain", &endpoints), slices("sticky", &endpoints)].concat());
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    for scheduler in SCHEDULERS {
        // Another scheduler is a change of the virtual servers that are there.
        for kernel in &mut kernels {
            kernel.restart(&lab, |family| open(scheduler, family));
            assert_eq!(kernel.verify(&lab), Vec::<String>::new(), "{scheduler}");
        }
        assert!(State::read(&lab).servers.values().all(|(found, _)| found == scheduler));
        for (plain, sticky) in PLAIN.iter().zip(STICKY) {
            let served = heard(&lab, plain, 6);
            match scheduler {
                "rr" | "wrr" => assert_eq!(distinct(&served), 3, "{scheduler}: {served:?}"),
                // One client, or one destination, is one endpoint.
                "sh" | "dh" => assert_eq!(distinct(&served), 1, "{scheduler}: {served:?}"),
                _ => {}
            }
            assert_eq!(distinct(&heard(&lab, sticky, 6)), 1, "{scheduler}");
        }
    }
}

#[test]
fn a_client_keeps_its_endpoint_as_long_as_asked() {
    if skipped() {
        return;
    }
    let lab = lab();
    // A client is remembered while flows of its live.
    set_timeouts(&lab, Timeouts { udp: 1, ..Timeouts::default() });
    let mut kernels = kernels(&lab, "rr");
    let mut cluster = support::cluster();
    let affinity =
        json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 6}}});
    cluster.replace_services(&[service("sticky", 11, json!({"spec": affinity}))]);
    cluster.replace_slices(&slices("sticky", &[&lab.pods[0], &lab.pods[1]]));
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    for to in STICKY {
        let to: SocketAddr = to.parse().unwrap();
        let first = lab.pods[2].call(to, Protocol::Udp);
        assert!(matches!(first, Answer::From { .. }), "{first:?}");
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) {
            assert_eq!(lab.pods[2].call(to, Protocol::Udp), first);
            thread::sleep(Duration::from_millis(200));
        }
        // Its turn comes when it was silent for long enough.
        until("the client is forgotten", || {
            thread::sleep(Duration::from_secs(9));
            lab.pods[2].call(to, Protocol::Udp) != first
        });
    }
}

/// What is behind the virtual server of TCP in a family, with the weights.
fn weights(lab: &Lab, to: &str) -> BTreeMap<SocketAddr, u32> {
    let id = ServerId { protocol: 6, address: to.parse().unwrap() };
    State::read(lab).servers.remove(&id).unwrap().1
}

#[test]
fn an_endpoint_goes_when_its_last_connection_ends() {
    const PORT: u16 = 9000;
    if skipped() {
        return;
    }
    let lab = lab();
    let (a, b, client) = (&lab.pods[0], &lab.pods[1], &lab.pods[2]);
    serve(a, PORT);
    serve(b, PORT);
    let mut kernels = kernels(&lab, "rr");
    let mut cluster = support::cluster();
    let slices_of = |who: &[&Party]| {
        let mut all = [slices("plain", who), slices("sticky", who)].concat();
        for slice in &mut all {
            slice.ports.iter_mut().flatten().for_each(|port| port.port = Some(i32::from(PORT)));
        }
        all
    };
    let sticky = json!({"spec": {"sessionAffinity": "ClientIP"}});
    cluster.replace_services(&[service("plain", 10, json!({})), service("sticky", 11, sticky)]);
    let mut turn_to = |kernels: &mut [Kernel; 2], who: &[&Party]| {
        cluster.replace_slices(&slices_of(who));
        kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    };
    turn_to(&mut kernels, &[a]);
    let mut held: Vec<Held> = PLAIN.iter().chain(&STICKY).map(|to| Held::open(client, to)).collect();
    let mut talk = |when: &str| {
        held.iter_mut().for_each(|held| assert_eq!(held.ask().ok().as_deref(), Some("a"), "{when}"));
    };
    talk("at first");
    let is = |expected: &[(&Party, u32)], when: &str| {
        for (family, to) in Family::BOTH.into_iter().zip(PLAIN) {
            let expected =
                expected.iter().map(|(party, weight)| (SocketAddr::new(party.ip(family), PORT), *weight));
            assert_eq!(weights(&lab, to), expected.collect(), "{when}");
        }
    };
    turn_to(&mut kernels, &[b]);
    talk("after its endpoint went");
    is(&[(a, 0), (b, 1)], "after an endpoint went");
    // Who is bound to an endpoint that goes is not bound to it for what is new.
    for to in STICKY {
        assert_eq!(Held::open(client, to).ask().unwrap(), "b");
    }
    // It comes back, and goes again; and the proxy itself.
    turn_to(&mut kernels, &[a, b]);
    is(&[(a, 1), (b, 1)], "after it came back");
    turn_to(&mut kernels, &[b]);
    for kernel in &mut kernels {
        assert_eq!(kernel.restart(&lab, |family| open("rr", family)), Vec::<String>::new());
    }
    talk("after a restart of the proxy");
    is(&[(a, 0), (b, 1)], "after a restart of the proxy");
    held.drain(..).for_each(Held::reset);
    until("the endpoint is gone", || {
        thread::sleep(Duration::from_secs(1));
        kernels.iter_mut().for_each(|kernel| drop(kernel.verify(&lab)));
        PLAIN.iter().all(|to| weights(&lab, to).len() == 1)
    });
    is(&[(b, 1)], "at last");
}
