//! One thing broken at a time, and what is named.
#![allow(clippy::unwrap_used)]

use base::finding::{Grade, verdict};
use cni_core::doctor::{Device, Facts, Place, Probe, Way, examine};

fn device(index: u32, name: &str, addresses: &[&str]) -> Device {
    Device {
        index,
        name: name.into(),
        is_up: true,
        has_carrier: true,
        mtu: 1500,
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        ..Device::default()
    }
}

fn way(to: &str, gateway: Option<&str>, device: u32) -> Way {
    Way { to: to.parse().unwrap(), gateway: gateway.map(|ip| ip.parse().unwrap()), device, priority: 0 }
}

/// A Pod on a bridge that wants to reach a machine far away.
fn healthy() -> Facts {
    let container = Place {
        devices: vec![
            device(1, "lo", &["127.0.0.1/8"]),
            Device { peer: Some(7), ..device(2, "eth0", &["10.1.0.5/24"]) },
        ],
        ways: vec![way("10.1.0.0/24", None, 2), way("0.0.0.0/0", Some("10.1.0.1"), 2)],
    };
    let machine = Place {
        devices: vec![
            device(3, "ens3", &["192.0.2.10/24"]),
            Device { kind: "bridge".into(), ..device(6, "cni0", &["10.1.0.1/24"]) },
            Device { peer: Some(2), master: Some(6), ..device(7, "vethc1", &[]) },
        ],
        ways: vec![
            way("0.0.0.0/0", Some("192.0.2.1"), 3),
            way("192.0.2.0/24", None, 3),
            way("10.1.0.0/24", None, 6),
        ],
    };
    Facts {
        pod: "shop/web".into(),
        ip: "10.1.0.5".parse().unwrap(),
        dials: "203.0.113.9".parse().unwrap(),
        to: "203.0.113.9".parse().unwrap(),
        container: Some(container),
        machine,
        forwards: true,
        is_masqueraded: true,
        probe: Probe::Answered("a connection to 203.0.113.9:443".into()),
    }
}

#[test]
fn a_packet_that_arrives_is_followed_to_the_end() {
    let texts: Vec<String> =
        examine(&healthy()).into_iter().map(|f| format!("{:?} {}", f.grade, f.text)).collect();
    assert_eq!(
        texts,
        [
            "Good Pod shop/web has 10.1.0.5 on eth0, which is up",
            "Good the Pod sends to 203.0.113.9 by 10.1.0.1, on eth0 (0.0.0.0/0)",
            "Good it comes out of vethc1 on cni0",
            "Good the machine sends it on by 192.0.2.1, on ens3 (0.0.0.0/0)",
            "Good as if it came from the machine: 10.1.0.5 is masqueraded",
            "Good a connection to 203.0.113.9:443 was answered",
        ]
    );
}

#[test]
fn the_first_thing_that_is_wrong_is_named() {
    type Harm = fn(&mut Facts);
    let rows: [(Harm, &str); 11] = [
        (|f| f.container = None, "no network namespace of this machine has 10.1.0.5"),
        (|f| f.container.as_mut().unwrap().devices[1].is_up = false, "eth0 of Pod shop/web is down"),
        (
            |f| f.container.as_mut().unwrap().devices[1].has_carrier = false,
            "eth0 of Pod shop/web sees nobody",
        ),
        (|f| f.container.as_mut().unwrap().ways.truncate(1), "Pod shop/web has no route to 203.0.113.9"),
        (|f| f.machine.devices[2].is_up = false, "vethc1, the machine's end of the Pod's cable, is down"),
        (|f| f.machine.devices[1].is_up = false, "bridge cni0 is down"),
        (|f| f.machine.devices[1].addresses.clear(), "the gateway 10.1.0.1 of Pod shop/web is no address"),
        (
            |f| f.machine.ways.push(way("10.1.0.0/25", None, 3)),
            "sends answers to 10.1.0.5 by ens3, not by cni0",
        ),
        (|f| f.forwards = false, "net.ipv4.ip_forward is 0"),
        (|f| _ = f.machine.ways.remove(0), "the machine has no route to 203.0.113.9"),
        (|f| f.machine.devices[0].has_carrier = false, "by ens3, which sees nobody"),
    ];
    for (harm, why) in rows {
        let mut facts = healthy();
        harm(&mut facts);
        facts.probe = Probe::Silent("a connection to 203.0.113.9:443".into());
        let findings = examine(&facts);
        let first = verdict(&findings).unwrap();
        assert!(first.text.contains(why) && !first.advice.is_empty(), "{why}: {}", first.text);
        assert_eq!(findings.iter().filter(|f| f.grade == Grade::Wrong).count(), 2, "{why}: {findings:#?}");
    }
    // Everything is as it should be, and still nothing comes.
    let findings = examine(&Facts { probe: Probe::Silent("it".into()), ..healthy() });
    assert!(verdict(&findings).unwrap().advice.contains("nft list ruleset"));
}

#[test]
fn neighbours_and_the_machine_itself_need_no_route() {
    let to = |text: &str| Facts {
        dials: text.parse().unwrap(),
        to: text.parse().unwrap(),
        probe: Probe::None,
        forwards: false,
        ..healthy()
    };
    let last = |facts: &Facts| examine(facts).last().unwrap().text.clone();
    assert_eq!(last(&to("10.1.0.6")), "10.1.0.6 is on cni0 as well: the bridge passes it on");
    assert_eq!(last(&to("192.0.2.10")), "192.0.2.10 is the machine's own, on ens3");
    assert_eq!(last(&to("10.1.0.5")), "10.1.0.5 is the Pod's own: packets stay inside");
    // By a Service, the way is that to the endpoint.
    let service = Facts { dials: "10.96.0.7".parse().unwrap(), ..to("10.1.0.6") };
    let texts: Vec<String> = examine(&service).into_iter().map(|f| f.text).collect();
    assert_eq!(
        texts[1..4],
        [
            "the Pod sends to 10.96.0.7 by 10.1.0.1, on eth0 (0.0.0.0/0)",
            "it comes out of vethc1 on cni0",
            "kube-proxy sends it to 10.1.0.6"
        ]
    );
    assert!(examine(&to("10.1.0.6")).iter().all(|finding| finding.grade == Grade::Good));
}
