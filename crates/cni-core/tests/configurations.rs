//! Configurations in, decisions out: what is read, what is named as wrong, what is answered in which version.
#![allow(clippy::unwrap_used)]

use cni_core::bandwidth::{self, Bandwidth};
use cni_core::bridge::{Bridge, Names, gateway_plan, is_ours};
use cni_core::fields::Fields;
use cni_core::portmap::{PortMap, Targets};
use cni_core::ranges::HostLocal;
use cni_core::request::{AttachmentId, Environment};
use cni_core::table::{self, SetId};
use cni_core::tuning::{Tuning, is_allowed};
use cni_core::{CniError, Request, Success, fixed};
use serde_json::{Value, json};

fn environment() -> Environment {
    Environment {
        command: "ADD".into(),
        container: "abc".into(),
        namespace: "/run/netns/abc".into(),
        interface: "eth0".into(),
        ..Environment::default()
    }
}

fn request_in(environment: &Environment, config: Value) -> Result<Request, CniError> {
    let mut whole = json!({"cniVersion": "1.0.0", "name": "pods", "type": "x"});
    for (key, value) in config.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let Value::Object(whole) = whole else { panic!("no object") };
    Request::new(environment, whole)
}

fn request(config: Value) -> Request {
    request_in(&environment(), config).unwrap()
}

/// What each plugin's reader says of a configuration that is wrong.
#[test]
fn what_is_wrong_is_named() {
    type Read = fn(&Request) -> Result<(), CniError>;
    let bridge: Read = |r| Bridge::read(r).map(drop);
    let ranges: Read = |r| HostLocal::read(r).and_then(|c| c.wishes()).map(drop);
    let ports: Read = |r| PortMap::read(r).map(drop);
    let limits: Read = |r| Bandwidth::read(r).map(drop);
    let tuning: Read = |r| Tuning::read(r).map(drop);
    let previous: Read = |r| r.previous().map(drop);
    let addresses: Read = |r| fixed::answer(r).map(drop);
    let range = |range: Value| json!({"ipam": {"type": "host-local", "ranges": [[range]]}});
    let port = |port: Value| json!({"runtimeConfig": {"portMappings": [port]}});
    let rows: Vec<(Read, Value, u64, &str)> = vec![
        (bridge, json!({"bridge": "a/b"}), 7, "bridge: \"a/b\" cannot be the name of a device"),
        (bridge, json!({"isGateway": "yes"}), 7, "isGateway: \"yes\" is not true or false"),
        (
            bridge,
            json!({"hairpinMode": true, "promiscMode": true}),
            7,
            "hairpinMode: a bridge cannot be in hairpin",
        ),
        (bridge, json!({"mtu": -1}), 7, "mtu: -1 is not a number from 0 to 65535"),
        (bridge, json!({"vlan": 4095}), 7, "vlan: 4095 is not a number from 0 to 4094"),
        (
            bridge,
            json!({"vlanTrunk": [{"minID": 9, "maxID": 3}]}),
            7,
            "vlanTrunk[0].minID: it is above maxID",
        ),
        (bridge, json!({"ipMasqBackend": "pf"}), 7, "ipMasqBackend: \"pf\" is not nftables or iptables"),
        (bridge, json!({"macspoofchk": true}), 2, "macspoofchk: "),
        (
            bridge,
            json!({"runtimeConfig": {"mac": "nonsense"}}),
            7,
            "runtimeConfig.mac: \"nonsense\" is not a hardware",
        ),
        (bridge, json!({"ipam": {"type": 7}}), 7, "ipam.type: 7 is not a text"),
        (ranges, json!({}), 7, "ipam: it is missing"),
        (ranges, json!({"ipam": {"type": "host-local"}}), 7, "ipam.ranges: it is missing"),
        (ranges, json!({"ipam": {"ranges": [[]]}}), 7, "ipam.ranges[0]: it is no list of ranges"),
        (ranges, range(json!({})), 7, "ipam.ranges[0][0].subnet: it is missing"),
        (
            ranges,
            range(json!({"subnet": "10.1.0.0"})),
            7,
            "ipam.ranges[0][0].subnet: \"10.1.0.0\" is not an address with",
        ),
        (
            ranges,
            range(json!({"subnet": "10.1.2.3/16"})),
            7,
            "has bits set beyond its length; the network is 10.1.0.0/16",
        ),
        (ranges, range(json!({"subnet": "10.1.0.0/31"})), 7, "is too small"),
        (
            ranges,
            range(json!({"subnet": "10.1.0.0/24", "rangeStart": "10.2.0.1"})),
            7,
            "rangeStart: 10.2.0.1 is not in 10.1.0.0/24",
        ),
        (
            ranges,
            range(json!({"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.3"})),
            7,
            "is behind rangeEnd",
        ),
        (
            ranges,
            range(json!({"subnet": "10.1.0.0/24", "gateway": "fd00::1"})),
            7,
            "gateway: fd00::1 is of another family",
        ),
        (
            ranges,
            json!({"ipam": {"ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.1.4.0/24"}]]}}),
            7,
            "have addresses in common",
        ),
        (
            ranges,
            json!({"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}]]}, "args": {"cni": {"ips": ["10.9.9.9"]}}}),
            7,
            "requested address 10.9.9.9 is in no range",
        ),
        (
            ranges,
            json!({"ipam": {"ranges": [[{"subnet": "10.1.0.0/24"}]]}, "runtimeConfig": {"ips": ["10.1.0.1/24"]}}),
            102,
            "10.1.0.1 is the gateway's",
        ),
        (
            ports,
            port(json!({"hostPort": 0, "containerPort": 80})),
            7,
            "runtimeConfig.portMappings[0].hostPort: 0 is not a number",
        ),
        (
            ports,
            port(json!({"hostPort": 80})),
            7,
            "runtimeConfig.portMappings[0].containerPort: it is missing",
        ),
        (
            ports,
            port(json!({"hostPort": 80, "containerPort": 80, "protocol": "quic"})),
            7,
            "protocol: \"quic\" is not tcp, udp or sctp",
        ),
        (
            ports,
            port(json!({"hostPort": 80, "containerPort": 80, "hostIP": "here"})),
            7,
            "hostIP: \"here\" is not an IP address",
        ),
        (ports, json!({"conditionsV4": ["-s", "1.2.3.4"]}), 2, "conditionsV4: "),
        (ports, json!({"markMasqBit": 13, "externalSetMarkChain": "X"}), 7, "markMasqBit: it excludes"),
        (limits, json!({"ingressRate": 8000}), 7, "ingressBurst: it is missing, and ingressRate is there"),
        (
            limits,
            json!({"runtimeConfig": {"bandwidth": {"egressBurst": 8000}}}),
            7,
            "runtimeConfig.bandwidth.egressRate: it is missing",
        ),
        (
            limits,
            json!({"ingressRate": 8000, "ingressBurst": 40_000_000_000_u64}),
            7,
            "ingressBurst: 40000000000 is not a number",
        ),
        (
            tuning,
            json!({"sysctl": {"kernel.hostname": "x"}}),
            7,
            "sysctl.kernel.hostname: it is no parameter of a network namespace",
        ),
        (tuning, json!({"sysctl": {"net/../kernel/x": "1"}}), 7, "it is not the name of a parameter"),
        (
            tuning,
            json!({"mac": "01:00:00:00:00:00"}),
            7,
            "mac: \"01:00:00:00:00:00\" is not a hardware address",
        ),
        (
            previous,
            json!({"prevResult": {"ips": [{"address": "10.0.0.1"}]}}),
            7,
            "prevResult.ips[0].address: \"10.0.0.1\" is not",
        ),
        (
            previous,
            json!({"prevResult": {"ips": [{"address": "10.0.0.1/8", "interface": 3}]}}),
            7,
            "prevResult.ips: one is of an interface that is not listed",
        ),
        (previous, json!({"prevResult": "none"}), 7, "prevResult: \"none\" is not an object"),
        (
            previous,
            json!({"prevResult": {"routes": [{"dst": "10.0.0.0/8", "gw": "fd00::1"}]}}),
            7,
            "prevResult.routes[0].gw: it is of another family",
        ),
        (addresses, json!({"ipam": {"addresses": [{}]}}), 7, "ipam.addresses[0].address: it is missing"),
    ];
    for (read, config, code, why) in rows {
        let error = read(&request(config.clone())).expect_err(&config.to_string());
        assert!(error.code == code && error.message.contains(why), "{config}\n{} {error}", error.code);
    }
}

#[test]
fn the_environment_is_checked_before_anything_is_done() {
    type Harm = fn(&mut Environment);
    let rows: [(Harm, u64, &str); 6] = [
        (|e| e.command = "MAKE".into(), 4, "CNI_COMMAND: \"MAKE\" is no command"),
        (|e| e.container = "../x".into(), 4, "CNI_CONTAINERID: "),
        (|e| e.interface = "a-name-of-sixteen".into(), 4, "CNI_IFNAME: "),
        (|e| e.namespace.clear(), 4, "CNI_NETNS: it is missing"),
        (|e| e.arguments = "IgnoreUnknown".into(), 4, "CNI_ARGS: \"IgnoreUnknown\" is not KEY=VALUE"),
        (|e| e.command = "GC".into(), 1, "cniVersion: 1.0.0 has no GC"),
    ];
    for (change, code, why) in rows {
        let mut environment = environment();
        change(&mut environment);
        let error = request_in(&environment, json!({})).unwrap_err();
        assert!(error.code == code && error.message.contains(why), "{} {error}", error.code);
    }
    let wrong = request_in(&environment(), json!({"cniVersion": "9.0.0"})).unwrap_err();
    assert_eq!((wrong.code, wrong.message.starts_with("cniVersion: \"9.0.0\" is none of")), (1, true));
    assert!(request_in(&environment(), json!({"name": "../etc"})).unwrap_err().message.starts_with("name: "));
    // Without a namespace a deletion still has something to do.
    let left = Environment { command: "DEL".into(), namespace: String::new(), ..environment() };
    assert!(request_in(&left, json!({})).is_ok());
}

#[test]
fn an_answer_is_the_same_in_every_version() {
    let full = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 1450, "sandbox": "/x"}],
        "ips": [{"interface": 0, "address": "10.1.0.5/24", "gateway": "10.1.0.1"}, {"interface": 0, "address": "fd00::5/64"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "priority": 5}],
        "dns": {"nameservers": ["10.1.0.1"], "search": ["x"]},
    });
    let value = full.clone();
    let success = Success::read(&Fields::of(&value, String::new()).unwrap()).unwrap();
    assert_eq!(success.to_json("1.1.0"), full);
    let old = success.to_json("0.4.0");
    assert_eq!(
        old["ips"][0],
        json!({"version": "4", "interface": 0, "address": "10.1.0.5/24", "gateway": "10.1.0.1"})
    );
    assert_eq!(
        (&old["routes"][0], old["interfaces"][0].get("mtu")),
        (&json!({"dst": "0.0.0.0/0", "gw": "10.1.0.1"}), None)
    );
    assert_eq!(success.to_json("0.3.1")["cniVersion"], "0.3.1");
    assert_eq!(
        success.to_json("0.2.0"),
        json!({
            "cniVersion": "0.2.0",
            "ip4": {"ip": "10.1.0.5/24", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]},
            "ip6": {"ip": "fd00::5/64"},
            "dns": {"nameservers": ["10.1.0.1"], "search": ["x"]},
        })
    );
    for version in cni_core::VERSIONS {
        let told = success.to_json(version);
        let read = Success::read(&Fields::of(&told, String::new()).unwrap()).unwrap();
        let ips = |s: &Success| s.ips.iter().map(|ip| (ip.address, ip.gateway)).collect::<Vec<_>>();
        assert_eq!((ips(&read), read.dns), (ips(&success), success.dns.clone()), "{version}");
    }
}

#[test]
fn a_bridge_completes_what_addresses_lead_to() {
    let config = json!({"isDefaultGateway": true, "ipam": {"type": "host-local"}});
    let bridge = Bridge::read(&request(config)).unwrap();
    let given = json!({"ips": [{"address": "10.1.4.5/16"}, {"address": "fd00::7/64"}],
        "routes": [{"dst": "10.0.0.0/8"}]});
    let mut success = Success::read(&Fields::of(&given, String::new()).unwrap()).unwrap();
    let gateways: Vec<String> =
        bridge.complete(&mut success).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(gateways, ["10.1.0.1/16", "fd00::1/64"]);
    let told = success.to_json("1.0.0");
    assert_eq!(told["ips"][0], json!({"interface": 2, "address": "10.1.4.5/16", "gateway": "10.1.0.1"}));
    assert_eq!(
        told["routes"],
        json!([{"dst": "10.0.0.0/8"}, {"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0", "gw": "fd00::1"}])
    );
}

#[test]
fn a_bridge_keeps_its_address_unless_it_is_forced() {
    let net = |text: &str| text.parse::<ipnet::IpNet>().unwrap();
    let plan = |has: &[&str], wanted: &str, force: bool| {
        let has: Vec<_> = has.iter().map(|text| net(text)).collect();
        gateway_plan("cni0", &has, net(wanted), force).map(|plan| (plan.delete, plan.add))
    };
    assert_eq!(plan(&["10.1.0.1/16"], "10.1.0.1/16", false), Ok((vec![], None)));
    assert_eq!(plan(&[], "10.1.0.1/16", false), Ok((vec![], Some(net("10.1.0.1/16")))));
    let error = plan(&["10.2.0.1/16"], "10.1.0.1/16", false).unwrap_err();
    assert!(error.message.contains("cni0 already has address 10.2.0.1/16"), "{error}");
    assert_eq!(
        plan(&["10.2.0.1/16"], "10.1.0.1/16", true),
        Ok((vec![net("10.2.0.1/16")], Some(net("10.1.0.1/16"))))
    );
    // Of version 6 there may be several, each of its own network.
    assert_eq!(
        plan(&["fe80::1/64", "10.2.0.1/16"], "fd00::1/64", false),
        Ok((vec![], Some(net("fd00::1/64"))))
    );
    assert!(plan(&["fd00::9/48"], "fd00::1/64", false).is_err());
}

#[test]
fn names_are_of_one_attachment_each() {
    let of = |network: &str, container: &str, interface: &str| {
        table::label(network, &AttachmentId { container: container.into(), interface: interface.into() })
    };
    let labels = [
        of("a", "b", "c"),
        of("a", "b", "d"),
        of("a", "x", "c"),
        of("y", "b", "c"),
        of("a", &"b".repeat(200), "c"),
    ];
    for (at, label) in labels.iter().enumerate() {
        assert!(label.len() <= 120, "{label}");
        assert!(label.starts_with(&table::label_of_network(if at == 3 { "y" } else { "a" })), "{label}");
        let names = Names::of(label);
        assert!(is_ours(&names.host) && names.host.len() == 15 && names.host_mac != names.container_mac);
        assert_eq!(labels.iter().filter(|other| Names::of(other) == names).count(), 1);
        assert_eq!(names.host_mac.0[0] & 3, 2);
    }
    // What others made has shorter names.
    assert!(!is_ours("vethc0ffee12"));
    // As upstream's plugin names it: the first digits of what `printf netid | sha512sum` prints.
    assert_eq!(bandwidth::device("net", "id"), "bwp30e7440e95de");
}

#[test]
fn ports_lead_to_the_first_address_of_a_family() {
    let config = json!({"runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 53, "containerPort": 53, "protocol": "UDP", "hostIP": "192.0.2.1"},
        {"hostPort": 54, "containerPort": 54, "protocol": "sctp", "hostIP": "::"},
    ]}});
    let map = PortMap::read(&request(config)).unwrap();
    let targets = Targets { v4: Some("10.1.0.5".parse().unwrap()), v6: Some("fd00::5".parse().unwrap()) };
    let entries = table::ports(&map, targets, "pods: abc/eth0");
    let count = |set: SetId| entries.iter().filter(|entry| entry.set == set).count();
    // 8080 in both families, 54 in one; 53 of one address.
    assert_eq!((count(SetId::HostPorts), count(SetId::AddressPorts)), (3, 1));
    assert_eq!((count(SetId::Hairpins), count(SetId::FromLoopback), count(SetId::HiddenCallers)), (2, 1, 0));
    assert!(entries.iter().all(|entry| entry.element.comment.as_deref() == Some("pods: abc/eth0")));
    let shown: Vec<String> = entries.iter().take(4).map(table::shown).collect();
    assert_eq!(shown, ["host port 8080/tcp", "host port 8080/tcp", "host port 53/udp", "host port 54/sctp"]);
    let first = &entries[0].element;
    assert_eq!(*first.key, [6, 0, 0, 0, 0x1f, 0x90, 0, 0]);
    assert_eq!(first.value, Some(nft::Value::Data([10, 1, 0, 5, 0, 80, 0, 0].into())));
}

#[test]
fn limits_are_bytes() {
    let config =
        json!({"ingressRate": 1_000_000, "ingressBurst": 80_000, "egressRate": 16, "egressBurst": 8});
    let bandwidth = Bandwidth::read(&request(config)).unwrap();
    let ingress = bandwidth.ingress.unwrap();
    assert_eq!((ingress.rate, ingress.burst, ingress.queue), (125_000, 10_000, 13_125));
    assert!(Bandwidth::read(&request(json!({"ingressRate": 0}))).unwrap().is_empty());
}

#[test]
fn parameters_are_of_the_container() {
    let config = json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/core/somaxconn": "500"}, "promisc": false});
    let tuning = Tuning::read(&request(config)).unwrap();
    let names: Vec<&str> = tuning.sysctls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["net/ipv4/conf/eth0/arp_filter", "net/core/somaxconn"]);
    assert!(tuning.change.is_empty());
    let list = "^net\\.ipv4\\..*$\n# all\nnet.core.somaxconn";
    for (name, is) in
        [("net/ipv4/ip_forward", true), ("net/core/somaxconn", true), ("net/core/somaxconn2", false)]
    {
        assert_eq!(is_allowed(list, name), is, "{name}");
    }
}

#[test]
fn fixed_addresses_are_replaced_by_those_asked_for() {
    let ipam = json!({"type": "static", "addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}]});
    let ips = |request: &Request| -> Vec<String> {
        fixed::answer(request).unwrap().ips.iter().map(|ip| ip.address.to_string()).collect()
    };
    assert_eq!(ips(&request(json!({"ipam": ipam}))), ["10.1.0.5/24"]);
    let asked = json!({"ipam": ipam, "runtimeConfig": {"ips": ["10.1.0.9/24"]}});
    assert_eq!(ips(&request(asked)), ["10.1.0.9/24"]);
    let told = Environment { arguments: "IP=10.1.0.8/24;GATEWAY=10.1.0.2".into(), ..environment() };
    let told = request_in(&told, json!({"ipam": ipam})).unwrap();
    let answer = fixed::answer(&told).unwrap();
    assert_eq!((answer.ips.len(), answer.ips[1].gateway), (2, Some("10.1.0.2".parse().unwrap())));
}
