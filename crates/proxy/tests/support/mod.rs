//! A node, its Pods, another node's Pod and a client outside, each in a network namespace of its own, with real
//! packets between them.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod agent;
pub(crate) mod held;
pub(crate) mod ipvs;
pub(crate) mod lasting;
pub(crate) mod matrix;
mod no_files;
pub(crate) mod strange;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use fixture::Netns;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use proxy_core::objects::{Cidr, Cluster, Family, Protocol};
use proxy_core::rules::{Host, LocalTraffic, Mode, Settings};
use serde_json::{Value, json};

pub(crate) const NODE: &str = "here";
pub(crate) const ZONE: &str = "zone-a";
pub(crate) const TARGET: u16 = 8080;
pub(crate) const MASQUERADE_BIT: u8 = 14;

/// How long nothing has to happen before it counts as silence.
const SILENCE: Duration = Duration::from_millis(400);

/// How long an answer or a refusal may take. Over IPv6 a connection is refused only when the kernel asks again,
/// a second later.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Skips where namespaces cannot be made.
pub(crate) fn skipped() -> bool {
    let why = Netns::available();
    #[allow(clippy::print_stderr)]
    if let Err(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_err()
}

/// Somebody with addresses of both families.
#[derive(Debug)]
pub(crate) struct Party {
    pub(crate) name: &'static str,
    pub(crate) ns: Netns,
    pub(crate) ips: [IpAddr; 2],
    /// The interface of the node that its packets come in by; none for the node itself.
    pub(crate) interface: Option<&'static str>,
}

#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) node: Party,
    /// Pods of this node: two that serve, one that does not.
    pub(crate) pods: Vec<Party>,
    /// A Pod of another node.
    pub(crate) there: Party,
    pub(crate) outside: Party,
    pub(crate) host: Host,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Answer {
    /// Who answered, and where it saw the packet come from.
    From {
        name: String,
        source: IpAddr,
    },
    Refused,
    /// The kernel would not even send it: how a packet of its own is dropped or refused on its way out.
    Forbidden,
    Silence,
    Other(String),
}

impl Lab {
    pub(crate) fn new() -> Self {
        let party = |name, v4: &str, v6: &str, interface| Party {
            name,
            ns: Netns::new().unwrap(),
            ips: [v4.parse().unwrap(), v6.parse().unwrap()],
            interface,
        };
        let lab = Self {
            node: party("node", "192.168.0.1", "fd01::1", None),
            pods: vec![
                party("a", "10.244.0.5", "fd44::5", Some("veth-a")),
                party("b", "10.244.0.6", "fd44::6", Some("veth-b")),
                party("c", "10.244.0.9", "fd44::9", Some("veth-c")),
            ],
            there: party("there", "10.244.1.5", "fd44:0:1::5", Some("veth-t")),
            outside: party("outside", "192.168.0.9", "fd01::9", Some("eth0")),
            host: Host {
                addresses: ["127.0.0.1", "::1", "192.168.0.1", "fd01::1", "10.244.0.1", "fd44::1"]
                    .iter()
                    .map(|ip| ip.parse().unwrap())
                    .collect(),
            },
        };
        lab.wire();
        lab.serve();
        lab
    }

    pub(crate) fn parties(&self) -> impl Iterator<Item = &Party> {
        self.pods.iter().chain([&self.node, &self.there, &self.outside])
    }

    fn wire(&self) {
        for party in self.parties() {
            for conf in ["all", "default"] {
                party.ns.sysctl(&format!("net/ipv4/conf/{conf}/rp_filter"), "0").unwrap();
                party.ns.sysctl(&format!("net/ipv6/conf/{conf}/accept_dad"), "0").unwrap();
                party.ns.sysctl(&format!("net/ipv6/conf/{conf}/forwarding"), "1").unwrap();
            }
            party.ns.sysctl("net/ipv4/ip_forward", "1").unwrap();
        }
        // A refusal each time somebody is refused.
        self.node.ns.sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
        self.node.ns.sysctl("net/ipv6/icmp/ratelimit", "0").unwrap();
        for party in self.pods.iter().chain([&self.there, &self.outside]) {
            self.connect(party);
        }
        let node = &self.node.ns;
        node.ip("addr add 192.168.0.1/24 dev eth0\naddr add fd01::1/64 dev eth0 nodad\n\
                 route add default via 192.168.0.9\nroute add default via fd01::9\n")
            .unwrap();
        self.outside
            .ns
            .ip("addr add 192.168.0.9/24 dev eth0\naddr add fd01::9/64 dev eth0 nodad\n\
                 route add default via 192.168.0.1\nroute add default via fd01::1\n")
            .unwrap();
    }

    /// A pair of interfaces; Pods are reached by a route of their own, as point-to-point networks do.
    fn connect(&self, party: &Party) {
        let here = party.interface.unwrap();
        let (pid, [v4, v6]) = (party.ns.pid(), party.ips);
        self.node
            .ns
            .ip(&format!("link add {here} type veth peer name eth0 netns {pid}\nlink set {here} up\n"))
            .unwrap();
        party.ns.ip("link set eth0 up\n").unwrap();
        if here == "eth0" {
            return;
        }
        self.node
            .ns
            .ip(&format!(
                "addr add 10.244.0.1/32 dev {here}\naddr add fd44::1/128 dev {here} nodad\n\
                 route add {v4}/32 dev {here}\nroute add {v6}/128 dev {here}\n"
            ))
            .unwrap();
        party
            .ns
            .ip(&format!(
                "addr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
                 route add 10.244.0.1/32 dev eth0\nroute add default via 10.244.0.1 onlink dev eth0\n\
                 route add fd44::1/128 dev eth0\nroute add default via fd44::1 onlink dev eth0\n"
            ))
            .unwrap();
    }

    /// Everybody who may be an endpoint says its name and whom it sees.
    fn serve(&self) {
        for party in self.pods.iter().take(2).chain([&self.there]) {
            for ip in party.ips {
                let (tcp, udp) = party.ns.within(|| {
                    let at = SocketAddr::new(ip, TARGET);
                    (TcpListener::bind(at).unwrap(), UdpSocket::bind(at).unwrap())
                });
                let name = party.name;
                thread::spawn(move || {
                    for stream in tcp.incoming() {
                        let Ok(mut stream) = stream else { return };
                        let Ok(peer) = stream.peer_addr() else { continue };
                        let _ = write!(stream, "{name} {}", peer.ip());
                    }
                });
                thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok((_, peer)) = udp.recv_from(&mut buffer) {
                        let _ = udp.send_to(format!("{name} {}", peer.ip()).as_bytes(), peer);
                    }
                });
            }
        }
    }
}

impl Party {
    pub(crate) fn ip(&self, family: Family) -> IpAddr {
        self.ips[family as usize]
    }

    /// Calls and waits long enough for an answer on a busy machine.
    pub(crate) fn call(&self, to: SocketAddr, protocol: Protocol) -> Answer {
        self.call_for(to, protocol, TIMEOUT)
    }

    fn call_for(&self, to: SocketAddr, protocol: Protocol, timeout: Duration) -> Answer {
        let from = self.ip(Family::of(to.ip()));
        self.ns.within(|| match protocol {
            Protocol::Tcp => call_tcp(to, timeout),
            _ => call_udp(from, to, timeout),
        })
    }

    /// What a few calls get, each kind once.
    pub(crate) fn calls(&self, to: SocketAddr, protocol: Protocol, times: usize) -> BTreeSet<Answer> {
        (0..times).map(|_| self.call(to, protocol)).collect()
    }

    /// A call that is to meet silence.
    pub(crate) fn call_in_vain(&self, to: SocketAddr, protocol: Protocol) -> BTreeSet<Answer> {
        BTreeSet::from([self.call_for(to, protocol, SILENCE)])
    }
}

fn call_tcp(to: SocketAddr, timeout: Duration) -> Answer {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, timeout)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    read(ask())
}

fn call_udp(from: IpAddr, to: SocketAddr, timeout: Duration) -> Answer {
    let ask = || -> std::io::Result<String> {
        let socket = UdpSocket::bind((from, 0))?;
        socket.set_read_timeout(Some(timeout))?;
        socket.connect(to)?;
        socket.send(b"?")?;
        let mut buffer = [0; 128];
        let len = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
    };
    read(ask())
}

fn read(answer: std::io::Result<String>) -> Answer {
    match answer {
        Ok(text) => match text.split_once(' ').map(|(name, source)| (name, source.parse())) {
            Some((name, Ok(source))) => Answer::From { name: name.into(), source },
            _ => Answer::Other(text),
        },
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Answer::Refused,
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Answer::Forbidden,
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Answer::Silence,
        Err(e) => Answer::Other(e.to_string()),
    }
}

// Objects.

pub(crate) fn settings() -> Settings {
    let mut settings = Settings::new(Mode::Nftables);
    let cidrs = ["10.244.0.0/16", "fd44::/32"];
    settings.local_traffic =
        LocalTraffic::ClusterCidr(cidrs.iter().map(|cidr| Cidr::parse(cidr).unwrap()).collect());
    settings
}

pub(crate) fn node() -> Node {
    let addresses = json!([
        {"type": "InternalIP", "address": "192.168.0.1"}, {"type": "InternalIP", "address": "fd01::1"},
    ]);
    let labels = json!({"topology.kubernetes.io/zone": ZONE});
    from(json!({"metadata": {"name": NODE, "labels": labels}, "status": {"addresses": addresses}}))
}

pub(crate) fn service_cidr() -> ServiceCIDR {
    from(json!({"metadata": {"name": "default"}, "spec": {"cidrs": ["10.96.0.0/16", "fd96::/108"]}}))
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A Service of both families and protocols with the addresses that go with its number.
pub(crate) fn service(name: &str, number: u8, over: Value) -> Service {
    let (v4, v6) = (format!("10.96.0.{number}"), format!("fd96::{number}"));
    let ports = ["TCP", "UDP"]
        .map(|protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": 80}));
    let mut made = json!({
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": v4, "clusterIPs": [v4, v6], "ipFamilies": ["IPv4", "IPv6"],
                 "ports": ports},
    });
    overlay(&mut made, over);
    from(made)
}

/// The slices of a Service: one per family.
pub(crate) fn slices(service: &str, endpoints: &[&Party]) -> Vec<EndpointSlice> {
    Family::BOTH
        .into_iter()
        .map(|family| {
            let endpoints: Vec<Value> = endpoints
                .iter()
                .map(|party| {
                    let node = if party.name == "there" { "there" } else { NODE };
                    json!({"addresses": [party.ip(family).to_string()], "nodeName": node})
                })
                .collect();
            let ports = ["TCP", "UDP"].map(
                |protocol| json!({"name": protocol.to_lowercase(), "protocol": protocol, "port": TARGET}),
            );
            from(json!({
                "metadata": {"namespace": "ns", "name": format!("{service}-{}", family.name().to_lowercase()),
                             "labels": {"kubernetes.io/service-name": service}},
                "addressType": family.name(), "endpoints": endpoints, "ports": ports,
            }))
        })
        .collect()
}

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

pub(crate) fn cluster() -> Cluster {
    let mut cluster = Cluster::new(NODE);
    cluster.put_node(&node());
    cluster.put_service_cidr(&service_cidr());
    cluster
}
