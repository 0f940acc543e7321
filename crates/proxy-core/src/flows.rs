//! Which tracked connections have to be forgotten.
//!
//! The kernel translates a flow as it did its first packet. TCP finds out that the endpoint is gone; UDP and
//! SCTP clients that never pause would be sent to nowhere for ever.

use std::net::{IpAddr, SocketAddr};

use crate::objects::Protocol;
use crate::rules::{Host, NodePortKey, PortRules, RuleSet, VipKey};

/// One entry of the connection tracking table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub protocol: Protocol,
    /// Where the client sent it.
    pub destination: IpAddr,
    pub port: u16,
    /// Where the answers come from: the endpoint, if the flow was translated.
    pub answers_from: SocketAddr,
}

/// Whether the flow is ours and leads to an endpoint that no longer serves. An endpoint that is not ready any
/// more but still serves keeps its flows, and one that only changed its port does not. A flow to a Service
/// that has no endpoint left is stale as well, translated or not: it would never notice the next one.
pub fn is_stale(rules: &RuleSet, host: &Host, flow: &Flow) -> bool {
    if flow.protocol == Protocol::Tcp {
        return false;
    }
    let key = VipKey { ip: flow.destination, protocol: flow.protocol, port: flow.port };
    let owner = match rules.vips.get(&key) {
        Some(vip) => Some(&vip.owner),
        None => owner_of_node_port(rules, host, flow),
    };
    owner.and_then(|owner| rules.ports.get(owner)).is_some_and(|port| !is_served(port, flow))
}

/// By its port alone, as the node's addresses may have changed since. A flow that goes straight to an
/// endpoint of that very port has not come through us; but one that goes to the node itself began before our rules did,
/// and would never notice them.
fn owner_of_node_port<'a>(
    rules: &'a RuleSet,
    host: &Host,
    flow: &Flow,
) -> Option<&'a crate::objects::PortKey> {
    let is_translated = flow.answers_from != SocketAddr::new(flow.destination, flow.port);
    let is_to_us = || rules.node.node_port_addresses.contains(host, flow.destination);
    let key = NodePortKey { protocol: flow.protocol, port: flow.port };
    rules.node_ports.get(&key).filter(|_| is_translated || is_to_us())
}

fn is_served(port: &PortRules, flow: &Flow) -> bool {
    port.serving.binary_search(&flow.answers_from).is_ok()
}
