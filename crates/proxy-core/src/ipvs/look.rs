//! What virtual servers and sets that are there do with a packet.

use std::net::SocketAddr;

use crate::doctor::Treatment;
use crate::trace::Packet;

use super::content::{Content, ServerKey};
use super::sets::SetId;
use crate::iptables::Entry;

/// Every endpoint that the packet may be sent to, or what else becomes of it. Real servers that take no new connections do
/// not count.
pub fn look(is: &Content, packet: &Packet) -> Treatment {
    if is_shut_out(is, packet) {
        return Treatment::Dropped;
    }
    let address = SocketAddr::new(packet.destination, packet.port);
    let Some(server) = is.servers.get(&ServerKey { protocol: packet.protocol, address }) else {
        return Treatment::Nothing;
    };
    let reals = server.reals.iter().filter(|(_, real)| real.weight > 0);
    match reals.map(|(address, _)| *address).collect::<std::collections::BTreeSet<_>>() {
        none if none.is_empty() => Treatment::Rejected,
        some => Treatment::Sent(some),
    }
}

/// Whether a load balancer's source ranges leave the sender out.
fn is_shut_out(is: &Content, packet: &Packet) -> bool {
    let (ip, protocol, port) = (packet.destination, packet.protocol, packet.port);
    let entries = |set: SetId| is.sets.get(&set).into_iter().flatten();
    let is_its_range = |entry: &Entry| match entry {
        Entry::IpPortNet(its_ip, its_protocol, its_port, range) => {
            (*its_ip, *its_protocol, *its_port) == (ip, protocol, port) && range.contains(packet.source)
        }
        _ => false,
    };
    let itself = Entry::IpPortIp(ip, protocol, port, packet.source);
    entries(SetId::LoadBalancerFirewall).any(|entry| *entry == Entry::IpPort(ip, protocol, port))
        && !entries(SetId::LoadBalancerSourceCidr).any(is_its_range)
        && !entries(SetId::LoadBalancerSourceIp).any(|entry| *entry == itself)
}
