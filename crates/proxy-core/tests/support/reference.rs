//! The reference model: the fate of a packet straight from the API objects, one question after the other.
//! It shares nothing with the rules but the words for the answer, and cares for clarity only.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::Endpoint;
use proxy_core::objects::{PortKey, Protocol, ServiceKey};
use proxy_core::rules::{LocalTraffic, Mode, NodePortChoice};
use proxy_core::trace::{Arrival, Fate, Packet, Target};

use super::{NODE, World};

/// How a packet met a Service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    ClusterIp,
    OtherIp,
}

pub(crate) fn fate(world: &World, packet: &Packet) -> Fate {
    let mut hits: Vec<(Met, PortKey, &Service)> = Vec::new();
    let mut node_ports: Vec<(PortKey, &Service)> = Vec::new();
    let v6 = packet.destination.is_ipv6();
    for service in world.services.iter().filter(|s| cluster_ip(s, v6).is_some()) {
        for port in service.spec.iter().flat_map(|s| s.ports.iter().flatten()) {
            if protocol(port.protocol.as_deref()) != Some(packet.protocol) {
                continue;
            }
            let key = port_key(service, port, packet.protocol);
            if port.port == i32::from(packet.port) {
                if cluster_ip(service, v6) == Some(packet.destination) {
                    hits.push((Met::ClusterIp, key.clone(), service));
                } else if external_ips(world, service).contains(&packet.destination)
                    || vips(service).contains(&packet.destination)
                {
                    hits.push((Met::OtherIp, key.clone(), service));
                }
            }
            if port.node_port == Some(i32::from(packet.port)) {
                node_ports.push((key, service));
            }
        }
    }
    hits.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    node_ports.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some((met, key, service)) = hits.first() {
        return match met {
            Met::ClusterIp => internal(world, packet, key, service),
            Met::OtherIp if is_shut_out(world, packet, key, service) => Fate::Dropped,
            Met::OtherIp => external(world, packet, key, service),
        };
    }
    if let Some((key, service)) = node_ports.first() {
        if serves_node_ports(world, packet.destination) {
            return external(world, packet, key, service);
        }
        // iptables refuses on every local address what it serves on some.
        if world.settings.mode == Mode::Iptables && is_own(world, packet.destination) {
            let all = endpoints(world, key, v6);
            if usable(&all).is_empty() {
                return Fate::Rejected;
            }
            if is_local_policy(service) && local_list(&all).is_empty() {
                return Fate::Dropped;
            }
        }
    }
    nobody(world, packet)
}

fn nobody(world: &World, packet: &Packet) -> Fate {
    if is_own(world, packet.destination) {
        return Fate::Passed;
    }
    let v6 = packet.destination.is_ipv6();
    let is_cluster_ip =
        world.services.iter().any(|s| cluster_ip(s, v6) == Some(packet.destination) && !ports(s).is_empty());
    // With ipvs every address is the node's, on a device of its own.
    let is_any_ip = |s: &Service| {
        external_ips(world, s).contains(&packet.destination) || vips(s).contains(&packet.destination)
    };
    let is_bound =
        world.services.iter().any(|s| cluster_ip(s, v6).is_some() && !ports(s).is_empty() && is_any_ip(s));
    let ranges = world.service_cidrs.iter().filter_map(|c| c.spec.as_ref()?.cidrs.as_ref()).flatten();
    let is_allocatable = ranges.into_iter().any(|range| inside(range, packet.destination));
    match world.settings.mode {
        Mode::Nftables | Mode::Ipvs if is_cluster_ip => Fate::Rejected,
        Mode::Ipvs if is_bound => Fate::Rejected,
        Mode::Nftables if is_allocatable => Fate::Dropped,
        _ => Fate::Passed,
    }
}

fn internal(world: &World, packet: &Packet, key: &PortKey, service: &Service) -> Fate {
    let all = endpoints(world, key, packet.destination.is_ipv6());
    if usable(&all).is_empty() {
        return Fate::Rejected;
    }
    let is_local = service.spec.as_ref().unwrap().internal_traffic_policy.as_deref() == Some("Local");
    let list = if !is_local { cluster_list(world, &all) } else { local_list(&all) };
    if list.is_empty() {
        // ipvs has a cluster list to fall back to only if something else needs it.
        return match world.settings.mode {
            Mode::Ipvs if is_reachable_from_outside(world, service, key, packet) => {
                sent(world, packet, key, service, &cluster_list(world, &all), from_afar(world, packet))
            }
            Mode::Ipvs => Fate::Rejected,
            _ => Fate::Dropped,
        };
    }
    sent(world, packet, key, service, &list, from_afar(world, packet))
}

fn external(world: &World, packet: &Packet, key: &PortKey, service: &Service) -> Fate {
    let all = endpoints(world, key, packet.destination.is_ipv6());
    let everywhere = cluster_list(world, &all);
    if everywhere.is_empty() {
        return Fate::Rejected;
    }
    let are_all_here = all.iter().all(|(_, endpoint)| is_here(endpoint));
    let stays = is_local_policy(service) || (world.settings.keeps_sources && are_all_here);
    if !stays {
        return sent(world, packet, key, service, &everywhere, true);
    }
    let here = local_list(&all);
    match world.settings.mode {
        Mode::Ipvs if here.is_empty() => sent(world, packet, key, service, &everywhere, false),
        Mode::Ipvs => sent(world, packet, key, service, &here, false),
        _ if is_pod_here(world, packet) == Some(true) => {
            sent(world, packet, key, service, &everywhere, false)
        }
        _ if is_own(world, packet.source) => sent(world, packet, key, service, &everywhere, true),
        _ if here.is_empty() => Fate::Dropped,
        _ => sent(world, packet, key, service, &here, false),
    }
}

fn sent(
    world: &World,
    packet: &Packet,
    key: &PortKey,
    service: &Service,
    list: &[(SocketAddr, &Endpoint)],
    masquerade: bool,
) -> Fate {
    let target = |(address, endpoint): &(SocketAddr, &Endpoint)| {
        let can_meet = world.settings.mode == Mode::Iptables || is_here(endpoint);
        let is_masqueraded = masquerade || (address.ip() == packet.source && can_meet);
        Target { endpoint: *address, is_masqueraded }
    };
    let spec = service.spec.as_ref().unwrap();
    let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
        config.and_then(|c| c.timeout_seconds).unwrap_or(10800) as u32
    });
    Fate::Sent { port: key.clone(), targets: list.iter().map(target).collect(), affinity }
}

/// Whether a packet to a ClusterIP has its source hidden.
fn from_afar(world: &World, packet: &Packet) -> bool {
    let v6 = packet.source.is_ipv6();
    match is_pod_here(world, packet) {
        _ if world.settings.masquerade_all => true,
        Some(is_local) => !is_local,
        None => {
            world.settings.mode == Mode::Ipvs
                && world
                    .services
                    .iter()
                    .filter(|s| cluster_ip(s, v6) == Some(packet.source))
                    .any(|s| has_port(s, packet))
        }
    }
}

fn has_port(service: &Service, packet: &Packet) -> bool {
    let is_it = |port: &&ServicePort| {
        port.port == i32::from(packet.port) && protocol(port.protocol.as_deref()) == Some(packet.protocol)
    };
    service.spec.iter().flat_map(|s| s.ports.iter().flatten()).any(|port| is_it(&port))
}

/// `None`: there is no way to tell.
fn is_pod_here(world: &World, packet: &Packet) -> Option<bool> {
    let v6 = packet.destination.is_ipv6();
    let interface = match &packet.arrival {
        Arrival::Interface(name) => Some(name.as_str()),
        Arrival::Node => None,
    };
    match &world.settings.local_traffic {
        LocalTraffic::ClusterCidr(all) => {
            let first = all.iter().map(ToString::to_string).find(|cidr| cidr.contains(':') == v6)?;
            Some(inside(&first, packet.source))
        }
        LocalTraffic::NodeCidr => {
            let all = world.node.spec.as_ref()?.pod_cidrs.as_ref()?;
            Some(inside(all.iter().find(|cidr| cidr.contains(':') == v6)?, packet.source))
        }
        LocalTraffic::BridgeInterface(bridge) => Some(interface == Some(bridge)),
        LocalTraffic::InterfaceNamePrefix(prefix) => Some(interface.is_some_and(|i| i.starts_with(prefix))),
    }
}

fn is_shut_out(world: &World, packet: &Packet, key: &PortKey, service: &Service) -> bool {
    let v6 = packet.destination.is_ipv6();
    if !vips(service).contains(&packet.destination) {
        return false;
    }
    let ranges = service.spec.as_ref().unwrap().load_balancer_source_ranges.iter().flatten();
    let ranges: Vec<&str> = ranges.map(|r| r.trim()).filter(|r| r.contains(':') == v6).collect();
    if ranges.is_empty() {
        return false;
    }
    let is_admitted = |ip: IpAddr| ranges.iter().any(|range| inside(range, ip));
    let loops_back = vips(service).contains(&packet.source) && node_ip(world, v6).is_some_and(is_admitted);
    let says_so = world.settings.mode != Mode::Iptables || !usable(&endpoints(world, key, v6)).is_empty();
    says_so && !is_admitted(packet.source) && !loops_back
}

fn serves_node_ports(world: &World, ip: IpAddr) -> bool {
    let mode = world.settings.mode;
    let may_be_loopback = mode == Mode::Iptables && ip.is_ipv4() && world.settings.localhost_node_ports;
    if !is_own(world, ip) || (ip.is_loopback() && !may_be_loopback) {
        return false;
    }
    let is_link_local = ip.to_string().starts_with("169.254.") || ip.to_string().starts_with("fe80:");
    if mode == Mode::Ipvs && is_link_local {
        return false;
    }
    match &world.settings.node_port_addresses {
        NodePortChoice::Unset if mode != Mode::Nftables => true,
        NodePortChoice::Unset | NodePortChoice::Primary => {
            node_ip(world, ip.is_ipv6()).is_none_or(|primary| primary == ip)
        }
        NodePortChoice::Cidrs(all) => {
            let mut ours =
                all.iter().map(ToString::to_string).filter(|c| c.contains(':') == ip.is_ipv6()).peekable();
            ours.peek().is_none() || ours.any(|cidr| inside(&cidr, ip))
        }
    }
}

fn is_own(world: &World, ip: IpAddr) -> bool {
    ip.is_loopback() || world.host.addresses.contains(&ip)
}

fn node_ip(world: &World, v6: bool) -> Option<IpAddr> {
    if let Some(ip) = world.settings.bind_address.filter(|ip| ip.is_ipv6() == v6 && !ip.is_unspecified()) {
        return Some(ip);
    }
    let addresses = world.node.status.as_ref()?.addresses.as_ref()?;
    let of = |kind: &str| {
        let ips =
            addresses.iter().filter(|a| a.type_ == kind).filter_map(|a| a.address.parse::<IpAddr>().ok());
        ips.into_iter().find(|ip| ip.is_ipv6() == v6)
    };
    of("InternalIP").or(of("ExternalIP"))
}

// What a Service says.

fn cluster_ip(service: &Service, v6: bool) -> Option<IpAddr> {
    let spec = service.spec.as_ref()?;
    let labels = service.metadata.labels.clone().unwrap_or_default();
    if labels.contains_key("service.kubernetes.io/service-proxy-name")
        || spec.type_.as_deref() == Some("ExternalName")
        || matches!(spec.cluster_ip.as_deref(), None | Some("" | "None"))
    {
        return None;
    }
    let mut all = spec.cluster_ips.clone().unwrap_or_default();
    all.push(spec.cluster_ip.clone()?);
    all.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()).find(|ip| ip.is_ipv6() == v6)
}

fn external_ips(world: &World, service: &Service) -> Vec<IpAddr> {
    let counts = world.settings.allows_external_ips;
    let named =
        service.spec.iter().flat_map(|s| s.external_ips.iter().flatten()).filter_map(|ip| ip.parse().ok());
    named.filter(|_| counts).collect()
}

fn vips(service: &Service) -> Vec<IpAddr> {
    let ingress = service.status.iter().filter_map(|s| s.load_balancer.as_ref()?.ingress.as_ref()).flatten();
    ingress
        .filter(|i| i.ip_mode.as_deref() != Some("Proxy"))
        .filter_map(|i| i.ip.as_ref()?.parse().ok())
        .collect()
}

fn ports(service: &Service) -> Vec<&ServicePort> {
    service.spec.iter().flat_map(|s| s.ports.iter().flatten()).collect()
}

fn is_local_policy(service: &Service) -> bool {
    let spec = service.spec.as_ref().unwrap();
    let is_cluster_ip_only = !matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
        && spec.external_ips.as_ref().is_none_or(Vec::is_empty);
    spec.external_traffic_policy.as_deref() == Some("Local") && !is_cluster_ip_only
}

fn is_reachable_from_outside(world: &World, service: &Service, key: &PortKey, packet: &Packet) -> bool {
    let v6 = packet.destination.is_ipv6();
    let has_node_port = ports(service).iter().any(|p| {
        port_key(service, p, key.protocol) == *key
            && protocol(p.protocol.as_deref()) == Some(key.protocol)
            && p.node_port.unwrap_or(0) != 0
    });
    has_node_port || external_ips(world, service).iter().chain(&vips(service)).any(|ip| ip.is_ipv6() == v6)
}

fn port_key(service: &Service, port: &ServicePort, protocol: Protocol) -> PortKey {
    let (namespace, name) = (&service.metadata.namespace, &service.metadata.name);
    PortKey {
        service: ServiceKey::new(namespace.as_ref().unwrap(), name.as_ref().unwrap()),
        port: port.name.clone().unwrap_or_default().into(),
        protocol,
    }
}

fn protocol(text: Option<&str>) -> Option<Protocol> {
    match text.unwrap_or("TCP") {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        _ => None,
    }
}

// What EndpointSlices say.

/// All endpoints of a port, by address, each once.
fn endpoints<'a>(world: &'a World, key: &PortKey, v6: bool) -> Vec<(SocketAddr, &'a Endpoint)> {
    let mut found: BTreeMap<SocketAddr, &Endpoint> = BTreeMap::new();
    for slice in &world.slices {
        let labels = slice.metadata.labels.clone().unwrap_or_default();
        if labels.get("kubernetes.io/service-name").map(String::as_str) != Some(&*key.service.name)
            || slice.metadata.namespace.as_deref() != Some(&*key.service.namespace)
            || labels.contains_key("service.kubernetes.io/headless")
            || slice.address_type != if v6 { "IPv6" } else { "IPv4" }
        {
            continue;
        }
        for port in slice.ports.iter().flatten() {
            let is_it = port.name.as_deref() == Some(&*key.port)
                && protocol(port.protocol.as_deref()) == Some(key.protocol)
                && port.port.unwrap_or(0) != 0;
            for endpoint in slice.endpoints.iter().flatten().filter(|_| is_it) {
                let Ok(ip) = endpoint.addresses[0].parse::<IpAddr>() else { continue };
                let address = SocketAddr::new(ip, port.port.unwrap() as u16);
                match found.get(&address) {
                    Some(other) if goodness(other) >= goodness(endpoint) => {}
                    _ => drop(found.insert(address, endpoint)),
                }
            }
        }
    }
    found.into_iter().collect()
}

/// Staying is better than leaving; the rest only makes the choice definite.
fn goodness(e: &Endpoint) -> (bool, bool, bool, bool, u8, Vec<String>) {
    let node_hints = node_hints(e);
    let about_us = if node_hints.iter().any(|n| n == NODE) { 2 } else { u8::from(!node_hints.is_empty()) };
    (!is_terminating(e), is_ready(e), is_serving(e), is_here(e), about_us, zone_hints(e))
}

fn is_ready(e: &Endpoint) -> bool {
    e.conditions.as_ref().and_then(|c| c.ready) != Some(false)
}

fn is_serving(e: &Endpoint) -> bool {
    e.conditions.as_ref().and_then(|c| c.serving) != Some(false)
}

fn is_terminating(e: &Endpoint) -> bool {
    e.conditions.as_ref().and_then(|c| c.terminating) == Some(true)
}

fn is_here(e: &Endpoint) -> bool {
    e.node_name.as_deref() == Some(NODE)
}

fn node_hints(e: &Endpoint) -> Vec<String> {
    e.hints.iter().flat_map(|h| h.for_nodes.iter().flatten()).map(|n| n.name.clone()).collect()
}

fn zone_hints(e: &Endpoint) -> Vec<String> {
    e.hints.iter().flat_map(|h| h.for_zones.iter().flatten()).map(|z| z.name.clone()).collect()
}

type Listed<'a> = Vec<(SocketAddr, &'a Endpoint)>;

fn usable<'a>(all: &Listed<'a>) -> Listed<'a> {
    all.iter().filter(|(_, e)| is_ready(e) || (is_serving(e) && is_terminating(e))).copied().collect()
}

fn ready_or_lingering<'a>(all: &Listed<'a>) -> Listed<'a> {
    let ready: Listed<'a> = all.iter().filter(|(_, e)| is_ready(e)).copied().collect();
    if ready.is_empty() { usable(all) } else { ready }
}

fn local_list<'a>(all: &Listed<'a>) -> Listed<'a> {
    ready_or_lingering(&all.iter().filter(|(_, e)| is_here(e)).copied().collect())
}

fn cluster_list<'a>(world: &World, all: &Listed<'a>) -> Listed<'a> {
    let list = ready_or_lingering(all);
    if !list.iter().any(|(_, e)| is_ready(e)) {
        return list;
    }
    let zone = world.node.metadata.labels.as_ref().and_then(|l| l.get("topology.kubernetes.io/zone"));
    let on_node: Listed<'a> =
        list.iter().filter(|(_, e)| node_hints(e).iter().any(|n| n == NODE)).copied().collect();
    let in_zone: Listed<'a> = match zone {
        Some(zone) => list.iter().filter(|(_, e)| zone_hints(e).contains(zone)).copied().collect(),
        None => Vec::new(),
    };
    if list.iter().all(|(_, e)| !node_hints(e).is_empty()) && !on_node.is_empty() {
        on_node
    } else if list.iter().all(|(_, e)| !zone_hints(e).is_empty()) && !in_zone.is_empty() {
        in_zone
    } else {
        list
    }
}

/// Whether an address is in a prefix: bit by bit.
fn inside(cidr: &str, ip: IpAddr) -> bool {
    let (network, length) = cidr.split_once('/').unwrap();
    let (network, length): (IpAddr, usize) = (network.parse().unwrap(), length.parse().unwrap());
    let bits = |ip: IpAddr| -> Vec<bool> {
        let octets = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        octets.iter().flat_map(|o| (0..8).rev().map(move |i| o >> i & 1 == 1)).collect()
    };
    network.is_ipv4() == ip.is_ipv4() && bits(network)[..length] == bits(ip)[..length]
}
