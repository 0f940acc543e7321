//! A small world for the tests: objects as the API server would send them, and packets as text.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod drafts;
pub(crate) mod reference;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use proxy_core::objects::{Cidr, Cluster, Family, Protocol};
use proxy_core::rules::{Host, LocalTraffic, Mode, Rulebook, Settings};
use proxy_core::trace::{Arrival, Fate, Packet, trace};
use serde_json::{Value, json};

pub(crate) const NODE: &str = "here";

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) host: Host,
    pub(crate) node: Node,
    pub(crate) services: Vec<Service>,
    pub(crate) slices: Vec<EndpointSlice>,
    pub(crate) service_cidrs: Vec<ServiceCIDR>,
}

impl World {
    /// One node of two, with Pods in 10.244.0.0/24 of 10.244.0.0/16, and the same in IPv6.
    pub(crate) fn new(mode: Mode) -> Self {
        let addresses =
            ["192.168.0.1", "10.244.0.1", "127.0.0.1", "169.254.7.7", "fd01::1", "::1", "fe80::1"];
        let mut settings = Settings::new(mode);
        settings.local_traffic = LocalTraffic::ClusterCidr(cidrs(&["10.244.0.0/16", "fd44::/32"]));
        Self {
            settings,
            host: Host { addresses: addresses.iter().map(|ip| ip.parse().unwrap()).collect() },
            node: node(json!({})),
            services: Vec::new(),
            slices: Vec::new(),
            service_cidrs: vec![service_cidr("default", &["10.96.0.0/16", "fd96::/108"])],
        }
    }

    pub(crate) fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::new(NODE);
        cluster.put_node(&self.node);
        for range in &self.service_cidrs {
            cluster.put_service_cidr(range);
        }
        cluster.replace_services(&self.services);
        cluster.replace_slices(&self.slices);
        cluster
    }

    pub(crate) fn book(&self, family: Family) -> Rulebook {
        let mut cluster = self.cluster();
        let mut book = Rulebook::new(family, self.settings.clone());
        let changed = cluster.take_changes(family).expect("both kinds are listed");
        book.update(&cluster, &self.host, changed);
        book
    }

    pub(crate) fn fate(&self, packet: &Packet) -> Fate {
        let book = self.book(Family::of(packet.destination));
        trace(book.rules(), &self.host, packet)
    }

    /// The fate of a packet as text: targets with a star if masqueraded, or one word.
    pub(crate) fn send(&self, text: &str) -> String {
        let packet = packet(text);
        let fate = self.fate(&packet);
        assert_eq!(fate, reference::fate(self, &packet), "the reference model disagrees about {text}");
        show(&fate)
    }
}

pub(crate) fn show(fate: &Fate) -> String {
    match fate {
        Fate::Sent { targets, .. } => {
            let show = |t: &proxy_core::trace::Target| {
                format!("{}{}", t.endpoint, if t.is_masqueraded { "*" } else { "" })
            };
            targets.iter().map(show).collect::<Vec<_>>().join(" ")
        }
        Fate::Rejected => "reject".into(),
        Fate::Dropped => "drop".into(),
        Fate::Passed => "pass".into(),
    }
}

/// `source@interface > destination:port/protocol`; without an interface the node sends it; TCP if not said.
pub(crate) fn packet(text: &str) -> Packet {
    let (from, to) = text.split_once(" > ").expect("a packet goes somewhere");
    let (source, arrival) = match from.split_once('@') {
        Some((source, interface)) => (source, Arrival::Interface(interface.into())),
        None => (from, Arrival::Node),
    };
    let (to, protocol) = to.split_once('/').unwrap_or((to, "tcp"));
    let to: SocketAddr = to.parse().unwrap();
    Packet {
        source: source.parse().unwrap(),
        destination: to.ip(),
        port: to.port(),
        protocol: Protocol::read(Some(&protocol.to_uppercase())).unwrap(),
        arrival,
    }
}

pub(crate) fn cidrs(list: &[&str]) -> Vec<Cidr> {
    list.iter().map(|cidr| Cidr::parse(cidr).unwrap()).collect()
}

pub(crate) fn ips(list: &[&str]) -> BTreeSet<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

/// The fields of `over` replace those of `base`, object by object.
pub(crate) fn overlay(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                overlay(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

/// Service `ns/web`, 10.96.0.10:80, node port 30080, changed as told.
pub(crate) fn web(over: Value) -> Service {
    let mut base = json!({
        "metadata": {"namespace": "ns", "name": "web"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"],
            "externalIPs": ["172.16.0.5"],
            "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "5.6.7.8"}]}},
    });
    overlay(&mut base, over);
    serde_json::from_value(base).unwrap()
}

pub(crate) fn node(over: Value) -> Node {
    let mut base = json!({
        "metadata": {"name": NODE, "labels": {"topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDRs": ["10.244.0.0/24", "fd44::/64", "10.245.0.0/24"]},
        "status": {"addresses": [
            {"type": "Hostname", "address": NODE},
            {"type": "ExternalIP", "address": "203.0.113.1"},
            {"type": "InternalIP", "address": "192.168.0.1"},
            {"type": "InternalIP", "address": "192.168.0.2"},
            {"type": "ExternalIP", "address": "fd01::1"},
        ]},
    });
    overlay(&mut base, over);
    serde_json::from_value(base).unwrap()
}

pub(crate) fn service_cidr(name: &str, ranges: &[&str]) -> ServiceCIDR {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"cidrs": ranges}})).unwrap()
}

/// A slice of `ns/web`, port `http` on 8080. Each endpoint is an address and words about it: `here` or
/// `there`, `unready`, `leaving` (terminating, still serving), `gone` (terminating, not serving),
/// `leaving-ready` (publishNotReadyAddresses), `zone=…`, `node=…`.
pub(crate) fn slice(name: &str, endpoints: &[&str]) -> EndpointSlice {
    slice_with(name, json!([{"name": "http", "protocol": "TCP", "port": 8080}]), endpoints)
}

pub(crate) fn slice_with(name: &str, ports: Value, endpoints: &[&str]) -> EndpointSlice {
    let endpoints: Vec<Value> = endpoints.iter().map(|text| endpoint(text)).collect();
    let is_v6 = endpoints.iter().any(|e| e["addresses"][0].as_str().is_some_and(|a| a.contains(':')));
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": if is_v6 { "IPv6" } else { "IPv4" },
        "ports": ports,
        "endpoints": endpoints,
    }))
    .unwrap()
}

fn endpoint(text: &str) -> Value {
    let mut words = text.split(' ');
    let mut made = json!({"addresses": [words.next().unwrap()]});
    for word in words {
        let conditions = |ready: bool, serving: bool, terminating: bool| json!({"conditions": {"ready": ready, "serving": serving, "terminating": terminating}});
        let said = match word.split_once('=') {
            Some(("zone", zone)) => json!({"hints": {"forZones": [{"name": zone}]}}),
            Some(("node", node)) => json!({"hints": {"forNodes": [{"name": node}]}}),
            _ => match word {
                "here" | "there" => json!({"nodeName": word}),
                "unready" => conditions(false, false, false),
                "leaving" => conditions(false, true, true),
                "gone" => conditions(false, false, true),
                "leaving-ready" => conditions(true, true, true),
                _ => panic!("what is {word}?"),
            },
        };
        overlay(&mut made, said);
    }
    made
}
