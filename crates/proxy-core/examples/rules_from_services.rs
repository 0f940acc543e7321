//! Reads Services, EndpointSlices, a Node and ServiceCIDRs (a list, or YAML documents, on standard input) and
//! prints the rules that nftables would be given on the node named in the first argument. Further arguments are
//! packets, `source>destination:port`, and their fates.
//!
//! `kubectl get services,endpointslices,nodes -A -o json |
//!     cargo run -p proxy-core --example rules_from_services my-node '8.8.8.8>10.96.0.10:53'`
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::io::Read;
use std::net::SocketAddr;

use proxy_core::objects::{Cluster, Family, Protocol};
use proxy_core::rules::{Host, Mode, Rulebook, Settings};
use proxy_core::trace::{Arrival, Packet, trace};
use serde_json::{Value, from_value};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut cluster = Cluster::new(&args.next().unwrap_or_else(|| "node".into()));
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let text = String::from_utf8(text)?;
    for document in text.split("\n---").filter(|document| !document.trim().is_empty()) {
        let value = api::yaml::to_value(document.as_bytes(), api::yaml::DuplicateKeys::Reject)?;
        match value["items"].as_array() {
            Some(items) => items.iter().try_for_each(|item| put(&mut cluster, item.clone()))?,
            None => put(&mut cluster, value)?,
        }
    }
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
    for packet in args {
        let (source, to) = packet.split_once('>').ok_or("a packet is source>destination:port")?;
        let (source, to) = (source.parse()?, to.parse::<SocketAddr>()?);
        let arrival = Arrival::Interface("eth0".into());
        let (destination, port) = (to.ip(), to.port());
        let sent = Packet { source, destination, port, protocol: Protocol::Tcp, arrival };
        let rules = books[Family::of(to.ip()) as usize].rules();
        println!("{packet}: {:?}", trace(rules, &host, &sent));
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
