//! Finding out what there is to know about a Service: from the API server, from the kernel, and by calling it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use api::json::List;
use client::{Client, Config, Options, Request};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy_core::doctor::{Dial, Facts, Frontend, Treatment, examine};
pub use proxy_core::doctor::{Finding, Grade, verdict};
use proxy_core::flows::{Flow, is_stale};
use proxy_core::iptables::{Saved, look};
use proxy_core::ipvs;
use proxy_core::nft::{Content, walk};
use proxy_core::objects::{Cluster, Family, NodeView, ServiceKey};
use proxy_core::rules::{Host, Mode, NodePortKey, RuleSet, Rulebook, Settings, VipKey};
use proxy_core::trace::{Arrival, Packet, trace};
use sys::conntrack::{Conntrack, Entry};

use crate::backend::iptables::Programs;
use crate::backend::nft::NftDataplane;
use crate::dial::dial;
use crate::{backend, host, observed};

const HEALTH: &str = "127.0.0.1:10256";
const TIMEOUT: Duration = Duration::from_secs(2);
/// Of a Service with many endpoints, so many are called.
const MOST_CALLS: usize = 8;

/// What the kernel of this network namespace holds.
enum Kernel {
    Nftables(BTreeMap<Family, Content>),
    Iptables(BTreeMap<Family, String>),
    Ipvs(BTreeMap<Family, ipvs::Content>),
    Nothing,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Kubeconfig(#[from] client::ConfigError),
    #[error(transparent)]
    Client(#[from] client::ClientError),
}

/// The findings about one Service, seen from this machine.
pub async fn diagnose(
    kubeconfig: &Path,
    node: &str,
    namespace: &str,
    name: &str,
) -> Result<Vec<Finding>, Error> {
    let client = Client::new(Config::load(kubeconfig)?, Options::default()).await?;
    let key = ServiceKey::new(namespace, name);
    let facts = gather(&client, node, &key).await?;
    Ok(examine(&key, &facts))
}

/// Asks everybody. Only an API server that cannot be asked is an error.
pub async fn gather(client: &Client, node: &str, key: &ServiceKey) -> Result<Facts, client::ClientError> {
    let (namespace, name) = (&key.namespace, &key.name);
    let service = found(
        client.ask::<Service>(Request::get(format!("/api/v1/namespaces/{namespace}/services/{name}"))).await,
    )?;
    let pods = client.ask::<List<Pod>>(Request::get(format!("/api/v1/namespaces/{namespace}/pods"))).await?;
    let slices = format!(
        "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io/service-name%3D{name}"
    );
    let slices = client.ask::<List<EndpointSlice>>(Request::get(slices)).await?;
    let node_object = found(client.ask::<Node>(Request::get(format!("/api/v1/nodes/{node}"))).await)?;
    let mut facts = Facts { service, pods: pods.items, slices: slices.items, ..Facts::default() };
    let kernel = tokio::task::spawn_blocking(Kernel::read).await.unwrap_or(Kernel::Nothing);
    facts.mode = kernel.name();
    facts.is_proxy_healthy = ask_health().await;
    let own = host::addresses();
    for family in Family::BOTH {
        let rules = compile(&facts, node, node_object.as_ref(), &own, family, kernel.mode());
        // Of the addresses that serve node ports, every configuration but a strange one names the Node's own.
        let node_ip = node_object.as_ref().and_then(|node| NodeView::read(node).ip(family));
        let node_ip = node_ip.filter(|ip| own.is_local(*ip));
        let of_node =
            |port: &NodePortKey| Some(VipKey { ip: node_ip?, protocol: port.protocol, port: port.port });
        let keys: BTreeSet<VipKey> =
            rules.vips.keys().copied().chain(rules.node_ports.keys().filter_map(of_node)).collect();
        for key in keys {
            facts.frontends.push(look_at(key, &rules, &own, &kernel).await);
        }
        facts.stale_flows += count_stale(&rules, &own, family);
    }
    Ok(facts)
}

fn found<T>(answer: Result<T, client::ClientError>) -> Result<Option<T>, client::ClientError> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The rules of this one Service, as this node should have them.
fn compile(
    facts: &Facts,
    node: &str,
    object: Option<&Node>,
    own: &Host,
    family: Family,
    mode: Mode,
) -> RuleSet {
    let mut cluster = Cluster::new(node);
    if let Some(object) = object {
        cluster.put_node(object);
    }
    cluster.replace_services(facts.service.as_slice());
    cluster.replace_slices(&facts.slices);
    let mut book = Rulebook::new(family, Settings::new(mode));
    if let Some(changed) = cluster.take_changes(family) {
        book.update(&cluster, own, changed);
    }
    book.rules().clone()
}

async fn look_at(key: VipKey, rules: &RuleSet, own: &Host, kernel: &Kernel) -> Frontend {
    let packet = Packet {
        source: own_address(own, Family::of(key.ip)),
        destination: key.ip,
        protocol: key.protocol,
        port: key.port,
        arrival: Arrival::Node,
    };
    let address = SocketAddr::new(key.ip, key.port);
    let mut frontend = Frontend {
        address,
        is_cluster_ip: rules.cluster_ips.contains_key(&key.ip),
        protocol: key.protocol,
        does: kernel.treatment(&packet, own),
        should: Treatment::from(&trace(rules, own, &packet)),
        dial: None,
        endpoints: BTreeMap::new(),
    };
    frontend.dial = dial(key.protocol, address, key.port).await;
    let Treatment::Sent(endpoints) = &frontend.should else { return frontend };
    if frontend.dial.is_some_and(|dial| dial != Dial::Connected) {
        for endpoint in endpoints.iter().take(MOST_CALLS) {
            let direct = dial(key.protocol, *endpoint, key.port).await;
            frontend.endpoints.extend(direct.map(|direct| (*endpoint, direct)));
        }
    }
    frontend
}

/// An address that the node may call from.
fn own_address(own: &Host, family: Family) -> IpAddr {
    let mut of_family = own.addresses.iter().filter(|ip| Family::of(**ip) == family && !ip.is_loopback());
    of_family.next().copied().unwrap_or(match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    })
}

/// The status line of `/livez`; `None` if nobody answers.
async fn ask_health() -> Option<bool> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(HEALTH).await.ok()?;
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .ok()?;
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.ok()?;
        Some(head.ends_with(b"200"))
    };
    tokio::time::timeout(TIMEOUT, ask).await.ok().flatten()
}

fn count_stale(rules: &RuleSet, own: &Host, family: Family) -> usize {
    let is_wanted =
        |entry: &Entry| observed::flow(entry).is_some_and(|flow: Flow| is_stale(rules, own, &flow));
    let list = Conntrack::open().and_then(|mut table| table.list(family == Family::V6, is_wanted));
    list.map_or(0, |stale| stale.len())
}

// === impl Kernel ===

impl Kernel {
    /// Blocks.
    fn read() -> Self {
        let mut tables = BTreeMap::new();
        for family in Family::BOTH {
            let content = NftDataplane::open(family, 0).and_then(|mut plane| plane.read());
            if let Some(content) = content.ok().filter(|content| content.is_there) {
                tables.insert(family, content.sorted());
            }
        }
        if !tables.is_empty() {
            return Kernel::Nftables(tables);
        }
        let texts: BTreeMap<Family, String> =
            Family::BOTH.into_iter().filter_map(|f| Some((f, Programs::new(f).save_text().ok()?))).collect();
        let saved: Vec<Saved> = texts.values().map(|text| Saved::read(text)).collect();
        match () {
            () if saved.iter().any(Saved::is_of_ipvs) => {
                let read = |family| Some((family, backend::ipvs::read(family).ok()?));
                Kernel::Ipvs(Family::BOTH.into_iter().filter_map(read).collect())
            }
            () if saved.iter().any(Saved::has_anything) => Kernel::Iptables(texts),
            () => Kernel::Nothing,
        }
    }

    fn mode(&self) -> Mode {
        match self {
            Kernel::Nftables(_) | Kernel::Nothing => Mode::Nftables,
            Kernel::Iptables(_) => Mode::Iptables,
            Kernel::Ipvs(_) => Mode::Ipvs,
        }
    }

    fn name(&self) -> Option<&'static str> {
        match self {
            Kernel::Nftables(_) => Some("nftables"),
            Kernel::Iptables(_) => Some("iptables"),
            Kernel::Ipvs(_) => Some("ipvs"),
            Kernel::Nothing => None,
        }
    }

    fn treatment(&self, packet: &Packet, own: &Host) -> Treatment {
        let family = Family::of(packet.destination);
        match self {
            Kernel::Nothing => Treatment::Nothing,
            Kernel::Nftables(tables) => tables
                .get(&family)
                .map_or(Treatment::Nothing, |content| endings(walk::endings(content, own, packet))),
            Kernel::Iptables(texts) => {
                texts.get(&family).map_or(Treatment::Nothing, |text| look(text, packet, own))
            }
            Kernel::Ipvs(contents) => {
                contents.get(&family).map_or(Treatment::Nothing, |content| ipvs::look(content, packet))
            }
        }
    }
}

fn endings(found: BTreeSet<walk::Ending>) -> Treatment {
    let mut sent = BTreeSet::new();
    for ending in found {
        match ending {
            walk::Ending::Sent { endpoint, .. } => {
                sent.insert(endpoint);
            }
            walk::Ending::Rejected => return Treatment::Rejected,
            walk::Ending::Dropped => return Treatment::Dropped,
            walk::Ending::Passed | walk::Ending::Lost => return Treatment::Nothing,
        }
    }
    Treatment::Sent(sent)
}
