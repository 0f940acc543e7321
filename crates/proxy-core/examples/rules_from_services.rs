//! Reads Services, EndpointSlices, ServiceCIDRs and a Node (a list, or YAML documents, on standard input) and
//! prints the rules of nftables mode on that node. A document `{kind: Packet, from: 8.8.8.8, to: "10.96.0.10:53"}`
//! asks for a packet's fate.
//!
//! `kubectl get services,endpointslices,nodes -A -o yaml | cargo run -p proxy-core --example rules_from_services`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;

use proxy_core::objects::{Cluster, Family, Protocol};
use proxy_core::rules::{Host, Mode, Rulebook, Settings};
use proxy_core::trace::{Arrival, Packet, trace};
use serde_json::{Value, from_value};

fn main() -> Result<(), Box<dyn Error>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut objects = Vec::new();
    for document in text.split("\n---").filter(|document| !document.trim().is_empty()) {
        let mut value = api::yaml::to_value(document.as_bytes(), api::yaml::DuplicateKeys::Reject)?;
        match value["items"].as_array_mut() {
            Some(items) => objects.append(items),
            None => objects.push(value),
        }
    }
    let of_kind = |kind: &str| objects.iter().filter(move |o| o["kind"] == *kind).collect::<Vec<_>>();
    let node = of_kind("Node").first().and_then(|node| node["metadata"]["name"].as_str()).unwrap_or("node");
    let mut cluster = Cluster::new(node);
    objects.iter().try_for_each(|object| put(&mut cluster, object.clone()))?;
    let host = Host { addresses: Family::BOTH.iter().filter_map(|f| cluster.node().ip(*f)).collect() };
    let books = Family::BOTH.map(|family| {
        let mut book = Rulebook::new(family, Settings::new(Mode::Nftables));
        book.update(&cluster, &host, Default::default());
        book
    });
    for book in &books {
        let rules = book.rules();
        for (key, vip) in &rules.vips {
            println!("{} {} {}: {:?} {}", key.ip, key.protocol, key.port, vip.scope, vip.owner);
        }
        for (key, owner) in &rules.node_ports {
            println!("node port {} {}: {owner}", key.protocol, key.port);
        }
        for (key, port) in &rules.ports {
            let list = |list: &[_]| list.iter().map(address).collect::<Vec<_>>().join(" ");
            println!("{key}: internal {:?}, external {:?}", port.internal, port.external);
            println!("  cluster [{}] local [{}]", list(&port.cluster), list(&port.local));
        }
    }
    for packet in of_kind("Packet") {
        let word = |key: &str| packet[key].as_str().unwrap_or_default();
        let (source, to) = (word("from").parse()?, word("to").parse::<SocketAddr>()?);
        let arrival = Arrival::Interface("eth0".into());
        let (destination, port) = (to.ip(), to.port());
        let sent = Packet { source, destination, port, protocol: Protocol::Tcp, arrival };
        let rules = books[Family::of(destination) as usize].rules();
        println!("{source} > {to}: {:?}", trace(rules, &host, &sent));
    }
    Ok(())
}

fn put(cluster: &mut Cluster, object: Value) -> Result<(), serde_json::Error> {
    match object["kind"].as_str() {
        Some("Service") => cluster.put_service(&from_value(object)?),
        Some("EndpointSlice") => cluster.put_slice(&from_value(object)?),
        Some("Node") => cluster.put_node(&from_value(object)?),
        Some("ServiceCIDR") => cluster.put_service_cidr(&from_value(object)?),
        _ => false,
    };
    Ok(())
}

fn address(endpoint: &proxy_core::rules::Endpoint) -> String {
    endpoint.address.to_string()
}
