//! The elements that stand for one address, one node port, and the rest of a rule set.

use std::net::IpAddr;

use nft::{Element, Name};

use crate::objects::Cidr;
use crate::rules::{Hairpin, NodePortKey, PortRules, Scope, Vip, VipKey, Way};

use super::affinity_ids::AffinityIds;
use super::endpoint_slots::EndpointSlots;
use super::frontend::{
    Frontend, address, hairpin_key, last_address, node_port_key, number, socket_address, vip_key,
};
use super::pick::Pick;
use super::sets::{Elements, SetId};
use super::ways::{ways_of_node_port, ways_of_vip};

/// What endpoints are known by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks<'a> {
    pub(super) affinity_ids: &'a AffinityIds,
    pub(super) endpoint_slots: &'a EndpointSlots,
}

/// What happens behind a frontend, for one Service port.
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
    Route { port, marks, all, local }.put(out, Frontend::Vip, &bytes);
    if is_external && local.is_none() {
        out.put(SetId::ExternalIps, Element::new(bytes.clone()));
    }
    if let Some(allowed) = &vip.firewall {
        put_firewall(out, &bytes, allowed);
    }
}

pub(super) fn put_node_port(out: &mut Elements, key: &NodePortKey, port: &PortRules, marks: Marks<'_>) {
    if let Some((all, local)) = ways_of_node_port(port) {
        Route { port, marks, all, local }.put(out, Frontend::NodePort, &node_port_key(key));
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

impl Route<'_> {
    fn put(&self, out: &mut Elements, frontend: Frontend, key: &[u8]) {
        let comment: Name = self.port.key.to_string().into();
        let named = |mut element: Element| {
            element.comment = Some(comment.clone());
            element
        };
        let all = self.put_list(out, frontend, key, self.all, false);
        out.put(frontend.all(), named(Element::with(key, number(all.number()))));
        if let Some(way) = self.local {
            let local = self.put_list(out, frontend, key, way, true);
            out.put(frontend.local(), named(Element::with(key, number(local.number()))));
        }
        match self.local.unwrap_or(self.all) {
            Way::To(..) => {}
            Way::Reject => out.put(frontend.rejected(), named(Element::new(key))),
            Way::Drop => out.put(frontend.dropped(), named(Element::new(key))),
        }
    }

    fn put_list(&self, out: &mut Elements, frontend: Frontend, key: &[u8], way: Way, is_local: bool) -> Pick {
        let Way::To(list, _) = way else { return Pick::new(0, self.port.affinity, is_local) };
        let mut count = 0;
        for (place, endpoint) in self.marks.endpoint_slots.order(self.port, list).enumerate() {
            let slot = [key, &number(Pick::slot(is_local, place))].concat();
            let address = socket_address(endpoint.address);
            if self.port.affinity.is_some() {
                self.put_member(out, frontend, key, slot.clone(), address.clone(), is_local);
            }
            out.put(frontend.endpoints(), Element::with(slot, address));
            count += 1;
        }
        Pick::new(count, self.port.affinity, is_local)
    }

    fn put_member(
        &self,
        out: &mut Elements,
        frontend: Frontend,
        key: &[u8],
        slot: Vec<u8>,
        address: Vec<u8>,
        is_local: bool,
    ) {
        let Some(affinity_id) = self.marks.affinity_ids.affinity_id(&self.port.key, &address) else { return };
        out.put(frontend.affinity_slots(), Element::with(slot, number(affinity_id)));
        let held = [key, &number(affinity_id), &number(u32::from(is_local))].concat();
        out.put(frontend.affinity_endpoints(), Element::with(held, address));
    }
}
