//! Which place each endpoint of a list has.
//!
//! An endpoint is drawn by its place. Were that its place among all addresses, the lowest of many endpoints could not go
//! without all others moving up. So who is there stays where it is, and who goes is followed by the last, or by who comes.
//! All addresses of a Service port have one order in common. It outlives our own restarts: the kernel has it.

use std::collections::BTreeMap;

use crate::objects::PortKey;
use crate::rules::{Endpoint, List, PortRules, RuleSet, VipKey, Way};

use super::content::Content;
use super::frontend::{Frontend, node_port_key, socket_address, vip_key};
use super::pick::{MOST_ENDPOINTS, Pick};
use super::ways::{ways_of_node_port, ways_of_vip};

type Bytes = Box<[u8]>;

/// By place, who has it: its place among the addresses. Empty if these are the same.
type Order = Box<[u16]>;

#[derive(Clone, Debug, Default)]
pub(super) struct EndpointSlots {
    /// Only of ports with a list whose order is not that of the addresses.
    ports: BTreeMap<PortKey, [Order; 2]>,
    /// What an earlier life of ours left in the kernel, by the address that leads to it and whether it is for those who come
    /// from outside: the endpoints by their places. Only where these are not in the order of the addresses.
    found: BTreeMap<(Bytes, bool), Vec<Bytes>>,
}

// === impl EndpointSlots ===

impl EndpointSlots {
    /// Takes over what is in the kernel.
    pub(super) fn adopt(&mut self, is: &Content) {
        self.found.clear();
        for set in Frontend::BOTH.map(Frontend::endpoints) {
            let Some((set, elements)) = is.set(set.name()) else { continue };
            let frontend = nft::Field::len_of(&set.key).saturating_sub(4);
            for all in elements.chunk_by(|one, other| one.key.get(..frontend) == other.key.get(..frontend)) {
                let Some(key) = all.first().and_then(|first| first.key.get(..frontend)) else { continue };
                for is_local in [false, true] {
                    let order = by_place(all, frontend, is_local);
                    if !order.is_sorted() {
                        self.found.insert((key.into(), is_local), order);
                    }
                }
            }
        }
    }

    /// Brings everything up to date with the rules and what was taken over.
    pub(super) fn renew(&mut self, rules: &RuleSet) {
        self.ports.clear();
        let found = std::mem::take(&mut self.found);
        if found.is_empty() {
            return;
        }
        for port in rules.ports.values() {
            let mut orders: [Option<Order>; 2] = [None, None];
            for (key, is_local, list) in frontends(rules, port) {
                if let (Some(had), None) = (found.get(&(key, is_local)), &orders[list as usize]) {
                    let members = members(port, list);
                    let places: BTreeMap<Bytes, usize> =
                        members.iter().map(|m| socket_address(m.address).into()).zip(0..).collect();
                    let had = had.iter().map(|address| places.get(address).copied());
                    orders[list as usize] = Some(assign(had, members.len()));
                }
            }
            self.set(&port.key, orders.map(Option::unwrap_or_default));
        }
    }

    /// Gives those who come the places of those who go.
    pub(super) fn change(&mut self, key: &PortKey, old: Option<&PortRules>, new: Option<&PortRules>) {
        let Some(new) = new else {
            self.ports.remove(key);
            return;
        };
        let orders = [List::Cluster, List::Local].map(|list| {
            let members = members(new, list);
            let place = |one: &Endpoint| members.binary_search_by_key(&one.address, |m| m.address).ok();
            let had = old.into_iter().flat_map(|old| self.order(old, list));
            assign(had.map(place), members.len())
        });
        self.set(key, orders);
    }

    /// The endpoints of a list by their places.
    pub(super) fn order<'a>(
        &'a self,
        port: &'a PortRules,
        list: List,
    ) -> impl Iterator<Item = &'a Endpoint> + Clone {
        let members = members(port, list);
        let order: &[u16] = self.ports.get(&port.key).map_or(&[], |orders| &orders[list as usize]);
        (0..members.len()).filter_map(move |place| {
            members.get(order.get(place).map_or(place, |member| usize::from(*member)))
        })
    }

    fn set(&mut self, key: &PortKey, orders: [Order; 2]) {
        match orders.iter().all(|order| order.is_empty()) {
            true => drop(self.ports.remove(key)),
            false => drop(self.ports.insert(key.clone(), orders)),
        }
    }
}

/// Of too many endpoints the last get no traffic.
fn members(port: &PortRules, list: List) -> &[Endpoint] {
    let all = port.list(list);
    &all[..all.len().min(MOST_ENDPOINTS)]
}

/// Who had each place keeps it, as long as there is one; all others take what is left, in their order.
fn assign(had: impl Iterator<Item = Option<usize>>, count: usize) -> Order {
    let (mut places, mut is_assigned) = (vec![None; count], vec![false; count]);
    for (place, member) in places.iter_mut().zip(had) {
        *place = member.filter(|member| is_assigned.get(*member) == Some(&false));
        if let Some(member) = *place {
            is_assigned[member] = true;
        }
    }
    let mut others = (0..count).filter(|member| !is_assigned[*member]);
    let assigned = places.into_iter().filter_map(|place| place.or_else(|| others.next()));
    let order: Vec<u16> = assigned.filter_map(|member| u16::try_from(member).ok()).collect();
    if order.is_sorted() { Order::default() } else { order.into() }
}

/// The endpoints behind one frontend by their places, as far as there is no gap.
fn by_place(elements: &[nft::Element], frontend: usize, is_local: bool) -> Vec<Bytes> {
    let mut found: BTreeMap<u32, &Bytes> = BTreeMap::new();
    for element in elements {
        let slot = element.key.get(frontend..).and_then(|rest| rest.first_chunk());
        if let (Some(slot), Some(nft::Value::Data(address))) = (slot, &element.value) {
            found.extend(Pick::place(u32::from_ne_bytes(*slot), is_local).map(|place| (place, address)));
        }
    }
    let in_row = found.into_iter().zip(0..).take_while(|((place, _), row)| place == row);
    in_row.map(|((_, address), _)| address.clone()).collect()
}

/// The frontends that are this port's own, each with whom it is for and the list it leads to.
fn frontends(rules: &RuleSet, port: &PortRules) -> Vec<(Bytes, bool, List)> {
    let owned = |key: &VipKey| rules.vips.get(key).filter(|vip| vip.owner == port.key);
    let vips = port.vip_keys().filter_map(|key| Some((vip_key(&key), ways_of_vip(owned(&key)?, port))));
    let node_port = port.node_port_claim().filter(|key| rules.node_ports.get(key) == Some(&port.key));
    let node_port = node_port.and_then(|key| Some((node_port_key(&key), ways_of_node_port(port)?)));
    let mut frontends = Vec::new();
    for (key, (all, local)) in vips.chain(node_port) {
        for (way, is_local) in [(Some(all), false), (local, true)] {
            if let Some(Way::To(list, _)) = way {
                frontends.push((key.clone().into(), is_local, list));
            }
        }
    }
    frontends
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn whole(order: &Order, count: usize) -> Vec<usize> {
        match order.is_empty() {
            true => (0..count).collect(),
            false => order.iter().map(|member| usize::from(*member)).collect(),
        }
    }

    proptest! {
        #[test]
        fn everybody_has_one_place_and_keeps_it(
            had in prop::collection::vec(prop::option::of(0..40usize), 0..50),
            count in 0..40usize,
        ) {
            let order = whole(&assign(had.iter().copied(), count), count);
            let mut members = order.clone();
            members.sort_unstable();
            prop_assert_eq!(members, (0..count).collect::<Vec<_>>());
            for (place, member) in had.iter().take(count).enumerate() {
                let is_first = had[..place].iter().all(|before| before != member);
                if let Some(member) = member.filter(|member| *member < count && is_first) {
                    prop_assert_eq!(order[place], member);
                }
            }
            let again = assign(order.iter().copied().map(Some), count);
            prop_assert_eq!(whole(&again, count), order);
        }

        #[test]
        fn who_goes_moves_one_and_who_comes_moves_nobody(
            had in Just((0..30usize).collect::<Vec<_>>()).prop_shuffle(),
            gone in 0..30usize,
        ) {
            let left = had.iter().map(|member| match member.cmp(&gone) {
                std::cmp::Ordering::Less => Some(*member),
                std::cmp::Ordering::Equal => None,
                std::cmp::Ordering::Greater => Some(member - 1),
            });
            let after = whole(&assign(left.clone(), 29), 29);
            let moved = left.take(29).zip(&after).filter(|(before, after)| *before != Some(**after)).count();
            prop_assert!(moved <= 1, "{:?}", after);
            let come = had.iter().map(|member| Some(if *member < gone { *member } else { member + 1 }));
            let after = whole(&assign(come.clone(), 31), 31);
            prop_assert!(come.eq(after[..30].iter().copied().map(Some)));
            prop_assert_eq!(after[30], gone);
        }
    }
}
