//! Whose questions the node's DNS answers. Its address may be one of the Internet, and whoever answers everybody there is used
//! to flood others.

use std::net::IpAddr;

use api::config::up::Up;
use base::rng::Rng;
use client::reflector::{Objects, Reflector};
use client::{Client, Resource};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::agent_cmd;

/// Networks for private use are among those who are answered: a runtime of others has a network of its own for Pods.
const PRIVATE: [&str; 8] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fe80::/10",
];

/// Those who are known from the start: Pods, this machine, and who can only be near.
pub(super) fn of_the_start(up: &Up, node: IpAddr) -> Vec<IpNet> {
    let private = PRIVATE.iter().map(|text| (*text).to_owned());
    let all = private.chain([up.cluster_cidr.to_string(), "::1/128".to_owned()]);
    all.filter_map(|text| text.parse().ok()).chain([IpNet::from(node)]).collect()
}

/// And the other Nodes: what their Pods ask looks like them.
pub(super) async fn follow(admin: Client, known: Vec<IpNet>, clients: watch::Sender<Vec<IpNet>>) {
    let objects = Objects::keeping(admin.clone(), addresses);
    let rng = Rng::new(agent_cmd::seed());
    let mut nodes = Reflector::new(admin, Resource::new("/api/v1/nodes"), rng, objects);
    loop {
        nodes.next().await;
        if !nodes.cache().has_synced() {
            continue;
        }
        let mut all = known.clone();
        all.extend(nodes.cache().all().into_iter().flatten().map(IpNet::from));
        all.sort();
        all.dedup();
        clients.send_if_modified(|clients| {
            let is_news = *clients != all;
            *clients = all;
            is_news
        });
    }
}

fn addresses(node: Node) -> Vec<IpAddr> {
    let all = node.status.and_then(|status| status.addresses).unwrap_or_default();
    let ips = all.iter().filter(|address| matches!(address.type_.as_str(), "InternalIP" | "ExternalIP"));
    ips.filter_map(|address| address.address.parse().ok()).collect()
}
