//! The elements that stand for one address, one node port, and the rest of a rule set.

use std::net::IpAddr;

use nft::{Element, Name};

use crate::objects::Cidr;
use crate::rules::{Endpoint, External, Hairpin, List, NodePortKey, PortRules, Scope, Vip, VipKey, Way};

use super::pick::{MOST_ENDPOINTS, Pick};
use super::sets::{Elements, SetId};
use super::tickets::Tickets;
use super::words::{
    Door, address, hairpin_key, last_address, node_port_key, number, socket_address, vip_key,
};

/// What happens behind a door, for one Service port.
struct Route<'a> {
    port: &'a PortRules,
    tickets: &'a Tickets,
    /// For everybody, or for those who come from this node if there is a `local` way.
    all: Way,
    /// For those who come from outside.
    local: Option<Way>,
    is_external: bool,
}

pub(super) fn put_vip(out: &mut Elements, key: &VipKey, vip: &Vip, port: &PortRules, tickets: &Tickets) {
    let route = match (vip.scope, &port.external) {
        (Scope::External, Some(external)) => Route::external(port, external, tickets),
        _ => Route { port, tickets, all: port.internal, local: None, is_external: false },
    };
    let bytes = vip_key(key);
    route.put(out, Door::Vip, &bytes);
    if route.is_external && route.local.is_none() {
        out.put(SetId::ExternalIps, Element::new(bytes.clone()));
    }
    if let Some(allowed) = &vip.firewall {
        put_firewall(out, &bytes, allowed);
    }
}

pub(super) fn put_node_port(out: &mut Elements, key: &NodePortKey, port: &PortRules, tickets: &Tickets) {
    if let Some(external) = &port.external {
        Route::external(port, external, tickets).put(out, Door::NodePort, &node_port_key(key));
    }
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

impl<'a> Route<'a> {
    fn external(port: &'a PortRules, external: &External, tickets: &'a Tickets) -> Self {
        let from_here = external.from_node.or(external.from_pods);
        Self {
            port,
            tickets,
            all: from_here.unwrap_or(external.from_others),
            local: from_here.map(|_| external.from_others),
            is_external: true,
        }
    }

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
        let list: &[Endpoint] = match way {
            Way::To(List::Cluster, _) => &self.port.cluster,
            Way::To(List::Local, _) => &self.port.local,
            Way::Drop | Way::Reject => &[],
        };
        let list = &list[..list.len().min(MOST_ENDPOINTS)];
        for (place, endpoint) in list.iter().enumerate() {
            let key = [key, &number(Pick::slot(is_local, place))].concat();
            out.put(door.endpoints(), Element::with(key, socket_address(endpoint.address)));
        }
        if self.port.affinity.is_some() && !list.is_empty() {
            self.put_members(out, door, key, list, is_local);
        }
        Pick::new(list.len(), self.port.affinity, is_local)
    }

    fn put_members(&self, out: &mut Elements, door: Door, key: &[u8], list: &[Endpoint], is_local: bool) {
        for (place, endpoint) in list.iter().enumerate() {
            let address = socket_address(endpoint.address);
            let Some(ticket) = self.tickets.ticket(&self.port.key, &address) else { continue };
            let slot = [key, &number(Pick::slot(is_local, place))].concat();
            out.put(door.affinity_slots(), Element::with(slot, number(ticket)));
            let held = [key, &number(ticket), &number(u32::from(is_local))].concat();
            out.put(door.affinity_endpoints(), Element::with(held, address));
        }
    }
}
