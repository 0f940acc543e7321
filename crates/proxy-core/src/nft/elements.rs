//! The elements that stand for one address, one node port, and the rest of a rule set.

use std::net::IpAddr;

use nft::{Element, Name};

use crate::objects::Cidr;
use crate::rules::{External, Hairpin, NodePortKey, PortRules, Scope, Vip, VipKey, Way};

use super::pick::Pick;
use super::seats::Seats;
use super::sets::{Elements, SetId};
use super::tickets::Tickets;
use super::words::{
    Door, address, hairpin_key, last_address, node_port_key, number, socket_address, vip_key,
};

/// What endpoints are known by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks<'a> {
    pub(super) tickets: &'a Tickets,
    pub(super) seats: &'a Seats,
}

/// What happens behind a door, for one Service port.
struct Route<'a> {
    port: &'a PortRules,
    marks: Marks<'a>,
    /// For everybody, or for those who come from this node if there is a `local` way.
    all: Way,
    /// For those who come from outside.
    local: Option<Way>,
}

pub(super) fn put_vip(out: &mut Elements, key: &VipKey, vip: &Vip, port: &PortRules, marks: Marks<'_>) {
    let (all, local) = ways_of_vip(vip, port);
    let is_external = vip.scope == Scope::External && port.external.is_some();
    let bytes = vip_key(key);
    Route { port, marks, all, local }.put(out, Door::Vip, &bytes);
    if is_external && local.is_none() {
        out.put(SetId::ExternalIps, Element::new(bytes.clone()));
    }
    if let Some(allowed) = &vip.firewall {
        put_firewall(out, &bytes, allowed);
    }
}

pub(super) fn put_node_port(out: &mut Elements, key: &NodePortKey, port: &PortRules, marks: Marks<'_>) {
    if let Some((all, local)) = ways_of_node_port(port) {
        Route { port, marks, all, local }.put(out, Door::NodePort, &node_port_key(key));
    }
}

/// For everybody, or for those who come from this node if there is a second way, for those who come from outside.
pub(super) fn ways_of_vip(vip: &Vip, port: &PortRules) -> (Way, Option<Way>) {
    match (vip.scope, &port.external) {
        (Scope::External, Some(external)) => ways_of_others(external),
        _ => (port.internal, None),
    }
}

/// The same. `None` for a port that is not for those outside.
pub(super) fn ways_of_node_port(port: &PortRules) -> Option<(Way, Option<Way>)> {
    port.external.as_ref().map(ways_of_others)
}

fn ways_of_others(external: &External) -> (Way, Option<Way>) {
    let from_here = external.from_node.or(external.from_pods);
    (from_here.unwrap_or(external.from_others), from_here.map(|_| external.from_others))
}

pub(super) fn put_cluster_ip(out: &mut Elements, ip: IpAddr) {
    out.put(SetId::ClusterIps, Element::new(address(ip)));
}

pub(super) fn put_hairpin(out: &mut Elements, hairpin: &Hairpin) {
    out.put(SetId::HairpinConnections, Element::new(hairpin_key(hairpin)));
}

fn put_firewall(out: &mut Elements, key: &[u8], allowed: &[Cidr]) {
    out.put(SetId::FirewallIps, Element::new(key));
    // Ranges may not overlap in the kernel; prefixes only ever overlap when one is in the other.
    let is_inside = |inner: &Cidr| {
        allowed.iter().any(|outer| outer.length() < inner.length() && outer.contains(inner.network()))
    };
    for range in allowed.iter().filter(|range| !is_inside(range)) {
        let first = [key, &address(range.network())].concat();
        let last = [key, &last_address(range)].concat();
        out.put(SetId::FirewallAllowed, Element { end: Some(last.into()), ..Element::new(first) });
    }
}

// === impl Route ===

impl Route<'_> {
    fn put(&self, out: &mut Elements, door: Door, key: &[u8]) {
        let comment: Name = self.port.key.to_string().into();
        let named = |mut element: Element| {
            element.comment = Some(comment.clone());
            element
        };
        let all = self.put_list(out, door, key, self.all, false);
        out.put(door.all(), named(Element::with(key, number(all.number()))));
        if let Some(way) = self.local {
            let local = self.put_list(out, door, key, way, true);
            out.put(door.local(), named(Element::with(key, number(local.number()))));
        }
        match self.local.unwrap_or(self.all) {
            Way::To(..) => {}
            Way::Reject => out.put(door.rejected(), named(Element::new(key))),
            Way::Drop => out.put(door.dropped(), named(Element::new(key))),
        }
    }

    fn put_list(&self, out: &mut Elements, door: Door, key: &[u8], way: Way, is_local: bool) -> Pick {
        let Way::To(list, _) = way else { return Pick::new(0, self.port.affinity, is_local) };
        let mut count = 0;
        for (place, endpoint) in self.marks.seats.order(self.port, list).enumerate() {
            let slot = [key, &number(Pick::slot(is_local, place))].concat();
            let address = socket_address(endpoint.address);
            if self.port.affinity.is_some() {
                self.put_member(out, door, key, slot.clone(), address.clone(), is_local);
            }
            out.put(door.endpoints(), Element::with(slot, address));
            count += 1;
        }
        Pick::new(count, self.port.affinity, is_local)
    }

    fn put_member(
        &self,
        out: &mut Elements,
        door: Door,
        key: &[u8],
        slot: Vec<u8>,
        address: Vec<u8>,
        is_local: bool,
    ) {
        let Some(ticket) = self.marks.tickets.ticket(&self.port.key, &address) else { return };
        out.put(door.affinity_slots(), Element::with(slot, number(ticket)));
        let held = [key, &number(ticket), &number(u32::from(is_local))].concat();
        out.put(door.affinity_endpoints(), Element::with(held, address));
    }
}
