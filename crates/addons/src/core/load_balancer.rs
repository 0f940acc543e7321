//! Which Service of type LoadBalancer gets which addresses: those of the Nodes, as long as its ports are free.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node as ApiNode, Service as ApiService};

/// Nodes with it get no traffic from load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) protocol: String,
    pub(crate) number: u16,
}

/// What matters of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    /// Seconds since 1970.
    created: i64,
    standing: Standing,
    ports: Vec<Port>,
    /// Whether it wants addresses of this family: IPv4, IPv6.
    families: (bool, bool),
    /// What its status says.
    pub(crate) addresses: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Ours to look after.
    Balanced,
    /// Some other controller's, by its class.
    Foreign,
    /// Of another type.
    Plain,
    /// On its way out.
    Leaving,
}

/// What matters of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Where it is reached from outside, else inside.
    addresses: Vec<IpAddr>,
}

/// Who has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    Service {
        namespace: String,
        name: String,
    },
    /// A Pod's `hostPort`.
    Pod {
        namespace: String,
        name: String,
    },
    /// A program on the machine.
    Socket,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Give(Vec<IpAddr>),
    /// A port is somebody else's.
    Taken(Port, Holder),
    NoAddress,
    /// It is no load balancer any more, and its status still says so.
    Clear,
}

// === impl Service ===

impl Service {
    pub(crate) fn of(service: ApiService) -> Service {
        let (meta, spec) = (service.metadata, service.spec.unwrap_or_default());
        let port = |port: k8s_openapi::api::core::v1::ServicePort| {
            let protocol = port.protocol.unwrap_or_else(|| "TCP".to_owned());
            Some(Port { protocol, number: u16::try_from(port.port).ok()? })
        };
        let standing = match (spec.type_.as_deref(), &spec.load_balancer_class) {
            _ if meta.deletion_timestamp.is_some() => Standing::Leaving,
            (Some("LoadBalancer"), None) => Standing::Balanced,
            (Some("LoadBalancer"), Some(_)) => Standing::Foreign,
            _ => Standing::Plain,
        };
        let families = spec.ip_families.unwrap_or_default();
        let has = |family: &str| families.iter().any(|f| f == family);
        let ingress = service.status.and_then(|status| status.load_balancer).and_then(|lb| lb.ingress);
        Service {
            namespace: meta.namespace.unwrap_or_default(),
            name: meta.name.unwrap_or_default(),
            uid: meta.uid.unwrap_or_default(),
            resource_version: meta.resource_version.unwrap_or_default(),
            created: meta.creation_timestamp.map_or(0, |time| time.0.as_second()),
            standing,
            ports: spec.ports.into_iter().flatten().filter_map(port).collect(),
            families: (families.is_empty() || has("IPv4"), has("IPv6")),
            addresses: ingress.into_iter().flatten().filter_map(|ingress| ingress.ip).collect(),
        }
    }

    /// It has none of the ports yet: whoever else has one is in the way.
    pub(crate) fn is_new(&self) -> bool {
        self.standing == Standing::Balanced && self.addresses.is_empty()
    }
}

// === impl Node ===

impl Node {
    pub(crate) fn of(node: ApiNode) -> Node {
        let is_excluded = node.metadata.labels.is_some_and(|labels| labels.contains_key(EXCLUDED));
        let all = node.status.and_then(|status| status.addresses).unwrap_or_default();
        let of_type = |wanted: &str| -> Vec<IpAddr> {
            let found = all.iter().filter(|address| address.type_ == wanted);
            found.filter_map(|address| address.address.parse().ok()).collect()
        };
        let (outside, inside) = (of_type("ExternalIP"), of_type("InternalIP"));
        let addresses = match (is_excluded, outside.is_empty()) {
            (true, _) => Vec::new(),
            (false, true) => inside,
            (false, false) => outside,
        };
        Node { addresses }
    }
}

/// What is to be done about each Service that it is our business to look after. Who was there first has the port. `held` are
/// the ports that others than Services have; they do not count against who has his addresses already.
pub(crate) fn decide<'a>(
    services: &'a [Service],
    nodes: &[Node],
    held: &BTreeMap<Port, Holder>,
) -> Vec<(&'a Service, Verdict)> {
    let mut ordered: Vec<&Service> = services.iter().collect();
    ordered.sort_by(|a, b| (a.created, &a.namespace, &a.name).cmp(&(b.created, &b.namespace, &b.name)));
    let mut claimed: BTreeMap<Port, Holder> = BTreeMap::new();
    let mut out = Vec::new();
    for service in ordered {
        match service.standing {
            Standing::Balanced => {}
            Standing::Plain if !service.addresses.is_empty() => {
                out.push((service, Verdict::Clear));
                continue;
            }
            _ => continue,
        }
        let holder = |port: &Port| {
            let by_others = held.get(port).filter(|_| service.is_new());
            claimed.get(port).or(by_others).map(|holder| (port.clone(), holder.clone()))
        };
        if let Some((port, holder)) = service.ports.iter().find_map(holder) {
            out.push((service, Verdict::Taken(port, holder)));
            continue;
        }
        let addresses = addresses(nodes, service.families);
        if addresses.is_empty() {
            out.push((service, Verdict::NoAddress));
            continue;
        }
        let us = || Holder::Service { namespace: service.namespace.clone(), name: service.name.clone() };
        claimed.extend(service.ports.iter().map(|port| (port.clone(), us())));
        out.push((service, Verdict::Give(addresses)));
    }
    out
}

fn addresses(nodes: &[Node], (v4, v6): (bool, bool)) -> Vec<IpAddr> {
    let all = nodes.iter().flat_map(|node| &node.addresses).copied();
    let mut fitting: Vec<IpAddr> = all.filter(|ip| if ip.is_ipv4() { v4 } else { v6 }).collect();
    fitting.sort();
    fitting.dedup();
    fitting
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.protocol)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Service { namespace, name } => write!(f, "Service {namespace}/{name}"),
            Holder::Pod { namespace, name } => write!(f, "the hostPort of Pod {namespace}/{name}"),
            Holder::Socket => f.write_str("a program that listens on the node"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(name: &str, second: u32, mut spec: Value, ip: Option<&str>) -> Service {
        if spec["type"].is_null() {
            spec["type"] = json!("LoadBalancer");
        }
        let ingress = ip.map(|ip| json!([{"ip": ip}]));
        let object = json!({
            "metadata": {"name": name, "namespace": "a", "uid": name,
                         "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")},
            "spec": spec, "status": {"loadBalancer": {"ingress": ingress}},
        });
        Service::of(serde_json::from_value(object).unwrap())
    }

    fn node(addresses: &[(&str, &str)]) -> Node {
        let all: Vec<Value> = addresses.iter().map(|(t, a)| json!({"type": t, "address": a})).collect();
        Node::of(serde_json::from_value(json!({"metadata": {}, "status": {"addresses": all}})).unwrap())
    }

    fn port(number: u16) -> Value {
        json!({"ports": [{"port": number}]})
    }

    /// `name: what`, in the order of the decisions.
    fn told(services: &[Service], nodes: &[Node], held: &BTreeMap<Port, Holder>) -> Vec<String> {
        let say = |(service, verdict): (&Service, Verdict)| {
            let what = match verdict {
                Verdict::Give(ips) => ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                Verdict::Taken(port, holder) => format!("{port} has {holder}"),
                Verdict::NoAddress => "none".to_owned(),
                Verdict::Clear => "clear".to_owned(),
            };
            format!("{}: {what}", service.name)
        };
        decide(services, nodes, held).into_iter().map(say).collect()
    }

    #[test]
    fn the_first_service_has_the_port_and_others_wait() {
        let nodes = [node(&[("InternalIP", "192.0.2.1"), ("Hostname", "n")])];
        let none = BTreeMap::new();
        let services = [
            service("late", 9, port(80), None),
            service("early", 1, port(80), None),
            service("b", 9, port(81), None),
        ];
        assert_eq!(
            told(&services, &nodes, &none),
            ["early: 192.0.2.1", "b: 192.0.2.1", "late: 80/TCP has Service a/early"]
        );
        let udp = json!({"ports": [{"port": 80, "protocol": "UDP"}]});
        let services = [service("tcp", 1, port(80), None), service("udp", 2, udp, None)];
        assert_eq!(told(&services, &nodes, &none), ["tcp: 192.0.2.1", "udp: 192.0.2.1"]);
    }

    #[test]
    fn a_socket_of_the_machine_is_not_shadowed_but_takes_nothing_away() {
        let nodes = [node(&[("InternalIP", "192.0.2.1")])];
        let held = BTreeMap::from([(Port { protocol: "TCP".into(), number: 22 }, Holder::Socket)]);
        let rows =
            [(None, "x: 22/TCP has a program that listens on the node"), (Some("192.0.2.1"), "x: 192.0.2.1")];
        for (has, want) in rows {
            assert_eq!(told(&[service("x", 1, port(22), has)], &nodes, &held), [want], "{has:?}");
        }
    }

    #[test]
    fn what_is_not_ours_is_left_alone_and_what_was_is_cleared() {
        let nodes = [node(&[("InternalIP", "192.0.2.1")])];
        let foreign = json!({"loadBalancerClass": "example.com/other", "ports": [{"port": 80}]});
        let plain = json!({"type": "ClusterIP", "ports": [{"port": 80}]});
        let services = [
            service("foreign", 1, foreign, Some("203.0.113.9")),
            service("plain", 2, plain.clone(), None),
            service("was", 3, plain, Some("192.0.2.1")),
            service("ours", 4, port(80), None),
        ];
        assert_eq!(told(&services, &nodes, &BTreeMap::new()), ["was: clear", "ours: 192.0.2.1"]);
    }

    #[test]
    fn addresses_are_those_from_outside_of_the_families_asked_for() {
        let both = json!({"ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 80}]});
        let six = json!({"ipFamilies": ["IPv6"], "ports": [{"port": 80}]});
        let all = [("InternalIP", "192.0.2.1"), ("ExternalIP", "203.0.113.1"), ("ExternalIP", "2001:db8::1")];
        let rows = [
            (both.clone(), vec![node(&all)], "x: 203.0.113.1,2001:db8::1"),
            (six.clone(), vec![node(&all)], "x: 2001:db8::1"),
            (port(80), vec![node(&all[..1]), node(&all[..1])], "x: 192.0.2.1"),
            (six, vec![node(&all[..1])], "x: none"),
            (both, vec![], "x: none"),
        ];
        for (spec, nodes, want) in rows {
            assert_eq!(told(&[service("x", 1, spec, None)], &nodes, &BTreeMap::new()), [want]);
        }
        let mut excluded: ApiNode = serde_json::from_value(json!({"metadata": {"labels": {EXCLUDED: ""}},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}}))
        .unwrap();
        assert_eq!(Node::of(excluded.clone()).addresses, Vec::<IpAddr>::new());
        excluded.metadata.labels = None;
        assert_eq!(Node::of(excluded).addresses.len(), 1);
    }
}
