//! The rules that upstream's kube-proxy 1.36.4 handed to iptables-restore for a cluster of odd Services (every type,
//! policy, affinity, hint and protocol, both families, endpoints in every state), and those that we render for it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy_core::iptables::{Options, Renderer, Saved};
use proxy_core::objects::{Cidr, Cluster, Family};
use proxy_core::rules::{Host, LocalTraffic, Mode, Rulebook, Settings};
use serde_json::Value;

/// Rules by table and chain.
type Chains = BTreeMap<(String, String), Vec<String>>;

/// Their rules concern different addresses and ports, and upstream writes them in the order of a Go map.
const IN_ANY_ORDER: [&str; 4] =
    ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"];

fn book(family: Family) -> Rulebook {
    let mut recorded: Value = serde_json::from_str(include_str!("recorded/services.json")).unwrap();
    let mut take = |what: &str| recorded[what].take();
    let node: Node = serde_json::from_value(take("node")).unwrap();
    let services: Vec<Service> = serde_json::from_value(take("services")).unwrap();
    let slices: Vec<EndpointSlice> = serde_json::from_value(take("slices")).unwrap();
    let mut settings = Settings::new(Mode::Iptables);
    let prefixes = ["10.244.0.0/16", "fd00:244::/48"].map(|text| Cidr::parse(text).unwrap());
    settings.local_traffic = LocalTraffic::ClusterCidr(prefixes.into());
    let addresses = ["127.0.0.1", "192.168.1.10", "10.20.30.40", "::1", "fd00::10"];
    let host = Host { addresses: addresses.map(|ip| ip.parse().unwrap()).into() };
    let mut cluster = Cluster::new("node1");
    cluster.put_node(&node);
    cluster.replace_services(&services);
    cluster.replace_slices(&slices);
    let mut book = Rulebook::new(family, settings);
    let changed = cluster.take_changes(family).unwrap();
    book.update(&cluster, &host, changed);
    book
}

/// Without what makes no difference: quotes around words, zeros before marks, the length of whole addresses.
fn plain(rule: &str) -> String {
    let long = format!("{rule} ").replace('"', "").replace("0x0000", "0x");
    long.replace("/32 ", " ").replace("/128 ", " ").trim().to_owned()
}

fn sorted(mut chains: Chains) -> Chains {
    for ((_, chain), rules) in &mut chains {
        // Sources that may pass are written in an order of their own; they all lead to the same place.
        if IN_ANY_ORDER.contains(&chain.as_str()) || chain.starts_with("KUBE-FW-") {
            rules.sort();
        }
    }
    chains
}

fn upstreams(family: Family) -> Chains {
    let text = match family {
        Family::V4 => include_str!("recorded/iptables-IPv4.txt"),
        Family::V6 => include_str!("recorded/iptables-IPv6.txt"),
    };
    let mut chains = Chains::new();
    for line in text.lines() {
        let (table, rule) = line.split_once(" -A ").unwrap();
        let (chain, rule) = rule.split_once(' ').unwrap();
        chains.entry((table.to_owned(), chain.to_owned())).or_default().push(plain(rule));
    }
    sorted(chains)
}

fn ours(family: Family) -> Chains {
    let options = Options { mark: 0x4000, random_fully: true, be_liberal: false, has_accounts: true };
    let script = Renderer::new(options).whole(book(family).rules(), &Saved::read("")).to_string();
    let (mut chains, mut table) = (Chains::new(), "");
    for line in script.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' ')) {
            chains.entry((table.to_owned(), chain.to_owned())).or_default().push(plain(rule));
        }
    }
    sorted(chains)
}

#[test]
fn our_rules_are_upstreams() {
    for family in Family::BOTH {
        let (ours, upstreams) = (ours(family), upstreams(family));
        assert!(upstreams.len() > 10);
        for (chain, rules) in &upstreams {
            assert_eq!(ours.get(chain), Some(rules), "{chain:?} {}", family.name());
        }
        assert_eq!(ours.keys().collect::<Vec<_>>(), upstreams.keys().collect::<Vec<_>>());
    }
}
