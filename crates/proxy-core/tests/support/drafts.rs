//! Random clusters and packets from small pools, so that things meet.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use proxy_core::objects::{Cidr, Protocol};
use proxy_core::rules::{LocalTraffic, Mode, NodePortChoice};
use proxy_core::trace::{Arrival, Packet};
use serde_json::{Value, json};

use super::{World, node};

const CLUSTER_IPS: &[(&str, &str)] =
    &[("10.96.0.10", "fd96::10"), ("10.96.0.11", "fd96::11"), ("10.96.0.12", "fd96::12")];
const EXTERNAL_IPS: &[&str] =
    &["172.16.0.5", "5.6.7.8", "5.6.7.9", "192.168.0.1", "10.96.0.11", "fd05::5", "fd05::6"];
const RANGES: &[&str] =
    &["10.244.0.0/16", " 192.168.0.0/24 ", "203.0.113.0/24", "0.0.0.0/0", "fd44::/32", "fd05::/64", "::/0"];
const ENDPOINT_IPS: &[(&str, &str)] = &[
    ("10.244.0.5", "fd44::5"),
    ("10.244.0.6", "fd44::6"),
    ("10.244.1.5", "fd44:0:1::5"),
    ("192.168.0.1", "fd01::1"),
];
const SOURCES: &[&str] = &[
    "10.244.0.5",
    "10.244.0.9",
    "10.244.1.5",
    "192.168.0.1",
    "127.0.0.1",
    "203.0.113.77",
    "8.8.8.8",
    "5.6.7.8",
    "10.96.0.10",
    "fd44::5",
    "fd44:0:1::5",
    "fd01::1",
    "2001:db8::1",
    "fd05::5",
];
const DESTINATIONS: &[&str] = &[
    "10.96.0.10",
    "10.96.0.11",
    "10.96.0.12",
    "10.96.9.9",
    "172.16.0.5",
    "5.6.7.8",
    "5.6.7.9",
    "192.168.0.1",
    "10.244.0.1",
    "127.0.0.1",
    "169.254.7.7",
    "9.9.9.9",
    "fd96::10",
    "fd96::11",
    "fd96::9",
    "fd05::5",
    "fd05::6",
    "fd01::1",
    "::1",
    "fe80::1",
];
const PORTS: &[i32] = &[80, 443];
const NODE_PORTS: &[i32] = &[0, 0, 30080, 30443, 80];
const PROTOCOLS: &[&str] = &["TCP", "UDP", "SCTP", "TCP", "TCP"];

pub(crate) fn service() -> impl Strategy<Value = Service> {
    let port = (0..PORTS.len(), 0..NODE_PORTS.len(), 0..PROTOCOLS.len());
    let kind = prop_oneof![6 => Just("LoadBalancer"), 3 => Just("NodePort"), 3 => Just("ClusterIP"), 1 => Just("ExternalName")];
    let policy = || prop_oneof![Just("Cluster"), Just("Local")];
    let shape = (0..3usize, kind, 0..CLUSTER_IPS.len(), 0..4u8, prop::collection::vec(port, 1..3));
    let outside = (
        prop::collection::vec(prop::sample::select(EXTERNAL_IPS), 0..2),
        prop::collection::vec((prop::sample::select(EXTERNAL_IPS), 0..3u8), 0..2),
        prop::collection::vec(prop::sample::select(RANGES), 0..3),
    );
    let manner = (policy(), policy(), prop::option::of(prop::option::of(1..900)), 0..20u8);
    (shape, outside, manner).prop_map(|(shape, outside, manner)| {
        let (name, kind, ip, families, ports) = shape;
        let (external_ips, ingress, ranges) = outside;
        let (internal, external, affinity, oddity) = manner;
        let (v4, v6) = CLUSTER_IPS[ip];
        let (cluster_ips, ip_families) = match families {
            0 | 1 => (json!([v4]), json!(["IPv4"])),
            2 => (json!([v6]), json!(["IPv6"])),
            _ => (json!([v6, v4]), json!(["IPv6", "IPv4"])),
        };
        let mut made = json!({
            "metadata": {"namespace": "ns", "name": format!("s{name}")},
            "spec": {
                "type": kind, "clusterIP": cluster_ips[0], "clusterIPs": cluster_ips, "ipFamilies": ip_families,
                "externalIPs": external_ips, "loadBalancerSourceRanges": ranges,
                "internalTrafficPolicy": internal, "externalTrafficPolicy": external, "healthCheckNodePort": 32000,
                "ports": service_ports(&ports),
            },
            "status": {"loadBalancer": {"ingress": ingress.iter().map(|(ip, mode)| match mode {
                0 => json!({"ip": ip}),
                1 => json!({"ip": ip, "ipMode": "VIP"}),
                _ => json!({"ip": ip, "ipMode": "Proxy"}),
            }).collect::<Vec<_>>()}},
        });
        if let Some(timeout) = affinity {
            made["spec"]["sessionAffinity"] = json!("ClientIP");
            made["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": timeout}});
        }
        match oddity {
            0 => made["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"}),
            1 => made["spec"]["clusterIP"] = json!("None"),
            _ => {}
        }
        serde_json::from_value(made).unwrap()
    })
}

/// Named by place, so that names are unique; the API server would refuse the same number twice.
fn service_ports(drafts: &[(usize, usize, usize)]) -> Vec<Value> {
    let mut seen = Vec::new();
    let mut made = Vec::new();
    for (port, node_port, protocol) in drafts {
        if seen.contains(&(*port, PROTOCOLS[*protocol])) {
            continue;
        }
        seen.push((*port, PROTOCOLS[*protocol]));
        made.push(json!({
            "name": format!("p{}", made.len()), "protocol": PROTOCOLS[*protocol], "port": PORTS[*port], "nodePort": NODE_PORTS[*node_port],
        }));
    }
    made
}

pub(crate) fn slice() -> impl Strategy<Value = EndpointSlice> {
    let endpoint = (
        prop::sample::select(ENDPOINT_IPS),
        0..3u8,
        prop::sample::select(&[0u8, 0, 0, 1, 2, 3, 4][..]),
        0..4u8,
        0..4u8,
    );
    let numbers = prop::collection::vec(prop::sample::select(&[8080, 8080, 8080, 9090, 0][..]), 6);
    let body = (prop::collection::vec(endpoint, 1..6), numbers);
    (0..8usize, 0..3usize, 0..12u8, prop::bool::weighted(0.3), body).prop_map(|(name, service, oddity, v6, (endpoints, numbers))| {
        let endpoints = endpoints.iter();
        let mut made = json!({
            "metadata": {"namespace": "ns", "name": format!("slice{name}"),
                         "labels": {"kubernetes.io/service-name": format!("s{service}")}},
            "addressType": if v6 { "IPv6" } else { "IPv4" },
            "endpoints": endpoints.map(|(ip, place, state, zones, nodes)| {
                let ip = if v6 { ip.1 } else { ip.0 };
                let mut e = json!({"addresses": [ip, "198.51.100.1"], "hints": {}});
                // An address is on one node, in whatever slice.
                let is_here = !ip.starts_with("10.244.1.") && !ip.starts_with("fd44:0:1:");
                if is_here || *place < 2 {
                    e["nodeName"] = json!(if is_here { "here" } else { "there" });
                }
                let (ready, serving, terminating) = [(None, None, None), (Some(false), Some(false), None), (Some(false), Some(true), Some(true)),
                    (Some(false), Some(false), Some(true)), (Some(true), None, Some(true))][usize::from(*state)];
                e["conditions"] = json!({"ready": ready, "serving": serving, "terminating": terminating});
                if *zones > 0 {
                    e["hints"]["forZones"] = json!([{"name": (["a", "b", "a"][usize::from(*zones) - 1])}]);
                }
                if *nodes > 1 {
                    e["hints"]["forNodes"] = json!([{"name": (["here", "there"][usize::from(*nodes) - 2])}]);
                }
                e
            }).collect::<Vec<_>>(),
            "ports": numbers.iter().enumerate().map(|(i, number)| json!({
                "name": format!("p{}", i % 2), "protocol": PROTOCOLS[i / 2], "port": number,
            })).collect::<Vec<_>>(),
        });
        match oddity {
            0 => made["metadata"]["labels"]["service.kubernetes.io/headless"] = json!(""),
            1 => made["addressType"] = json!("FQDN"),
            _ => {}
        }
        serde_json::from_value(made).unwrap()
    })
}

pub(crate) fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Nftables), Just(Mode::Iptables), Just(Mode::Ipvs)]
}

pub(crate) fn world() -> impl Strategy<Value = World> {
    let cidrs = |list: &[&str]| super::cidrs(list);
    let local = prop_oneof![
        3 => Just(LocalTraffic::ClusterCidr(cidrs(&["10.244.0.0/16", "fd44::/32"]))),
        1 => Just(LocalTraffic::ClusterCidr(Vec::<Cidr>::new())),
        1 => Just(LocalTraffic::NodeCidr),
        1 => Just(LocalTraffic::BridgeInterface("cni0".into())),
        1 => Just(LocalTraffic::InterfaceNamePrefix("veth".into())),
    ];
    let node_ports = prop_oneof![
        Just(NodePortChoice::Unset),
        Just(NodePortChoice::Primary),
        Just(NodePortChoice::Cidrs(cidrs(&["10.244.0.0/16", "127.0.0.0/8"]))),
        Just(NodePortChoice::Cidrs(cidrs(&["0.0.0.0/0", "fd01::/64"]))),
    ];
    let settings = (
        mode(),
        local,
        node_ports,
        prop::bool::weighted(0.2),
        any::<bool>(),
        prop::option::of(Just("192.168.0.1")),
        any::<bool>(),
    );
    let objects = (prop::collection::vec(service(), 1..4), prop::collection::vec(slice(), 3..9), 0..3u8);
    (settings, objects).prop_map(|(settings, (services, slices, zone))| {
        let mut world = World::new(settings.0);
        (world.settings.local_traffic, world.settings.node_port_addresses) = (settings.1, settings.2);
        (world.settings.masquerade_all, world.settings.localhost_node_ports) = (settings.3, settings.4);
        world.settings.bind_address = settings.5.map(|ip| ip.parse().unwrap());
        world.settings.keeps_sources = settings.6;
        world.node = node(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": (["a", "b", ""][usize::from(zone)])}}}));
        for service in services {
            world.services.retain(|s| s.metadata.name != service.metadata.name);
            world.services.push(service);
        }
        for slice in slices {
            world.slices.retain(|s| s.metadata.name != slice.metadata.name);
            world.slices.push(slice);
        }
        world
    })
}

/// A packet to anywhere, or to where a Service is: see [`Shot::aim`].
#[derive(Clone, Debug)]
pub(crate) struct Shot {
    packet: Packet,
    source: prop::sample::Index,
    target: Option<(prop::sample::Index, prop::sample::Index)>,
}

pub(crate) fn shot() -> impl Strategy<Value = Shot> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    let arrival = prop_oneof![
        Just(Arrival::Node),
        Just(Arrival::Interface("eth0".into())),
        Just(Arrival::Interface("cni0".into())),
        Just(Arrival::Interface("veth7".into())),
    ];
    let port = prop::sample::select(&[80u16, 80, 443, 30080, 30443, 22][..]);
    let target = prop::option::weighted(0.8, (any::<prop::sample::Index>(), any::<prop::sample::Index>()));
    (prop::sample::select(DESTINATIONS), any::<prop::sample::Index>(), protocol, port, arrival, target)
        .prop_map(|(destination, source, protocol, port, arrival, target)| {
            let destination = destination.parse().unwrap();
            let packet = Packet { source: destination, destination, protocol, port, arrival };
            Shot { packet, source, target }
        })
}

impl Shot {
    pub(crate) fn aim(self, world: &World) -> Packet {
        let mut packet = self.packet;
        if let Some((service, port, address)) = self.target.and_then(|(service, port)| {
            let service = service.get(&world.services);
            let ports = service.spec.as_ref()?.ports.as_deref().filter(|ports| !ports.is_empty())?;
            Some((service, port.get(ports), port))
        }) {
            let spec = service.spec.as_ref().unwrap();
            let mut addresses = spec.cluster_ips.clone().unwrap();
            addresses.extend(spec.external_ips.clone().unwrap_or_default());
            let ingress = service.status.as_ref().unwrap().load_balancer.as_ref().unwrap().ingress.as_ref();
            addresses.extend(ingress.into_iter().flatten().filter_map(|i| i.ip.clone()));
            let node_port = port.node_port.filter(|n| *n != 0);
            addresses.extend(
                node_port.iter().flat_map(|_| ["192.168.0.1", "fd01::1", "127.0.0.1"].map(String::from)),
            );
            let chosen = address.get(&addresses);
            packet.destination = chosen.parse().unwrap();
            packet.protocol = Protocol::read(port.protocol.as_deref()).unwrap();
            let by_node_port = matches!(chosen.as_str(), "192.168.0.1" | "fd01::1" | "127.0.0.1");
            packet.port = node_port.filter(|_| by_node_port).unwrap_or(port.port) as u16;
        }
        let is_same = |s: &&&str| s.contains(':') == packet.destination.is_ipv6();
        let sources: Vec<_> = SOURCES.iter().filter(is_same).collect();
        packet.source = self.source.get(&sources).parse().unwrap();
        packet
    }
}
