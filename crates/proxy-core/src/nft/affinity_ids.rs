//! What clients of Services with affinity are remembered by.
//!
//! An affinity id is one number that says which Service port it is for and which of its endpoints: the upper bits are the
//! same for all endpoints of a port, so that a rule that has an affinity id can find whatever the same client had before,
//! whichever address it came by. Ids outlive changes of the other endpoints, and our own restarts.

use std::collections::{BTreeMap, BTreeSet};

use crate::objects::PortKey;
use crate::rules::{PortRules, RuleSet, VipKey};

use super::content::Content;
use super::frontend::{ENDPOINT_BITS, Frontend, PORT_MASK, node_port_key, socket_address, vip_key};
use super::pick::MOST_ENDPOINTS;

type Bytes = Box<[u8]>;

#[derive(Clone, Debug, Default)]
pub(super) struct AffinityIds {
    ports: BTreeMap<PortKey, Issued>,
    /// Which ports' numbers are taken.
    numbers: BTreeSet<u32>,
    /// What an earlier life of ours left in the kernel, by the address that leads to it.
    found: BTreeMap<Bytes, Vec<(u32, Bytes)>>,
    /// The numbers of the ports there.
    reserved: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
struct Issued {
    port: u32,
    /// By address, as registers hold it.
    endpoints: BTreeMap<Bytes, u32>,
    /// Which numbers those are.
    taken: BTreeSet<u32>,
    next: u32,
}

// === impl AffinityIds ===

impl AffinityIds {
    /// Takes over what is in the kernel.
    pub(super) fn adopt(&mut self, is: &Content) {
        self.found.clear();
        for set in Frontend::BOTH.map(Frontend::affinity_endpoints) {
            let Some((set, elements)) = is.set(set.name()) else { continue };
            // A frontend, an affinity id, and whether the endpoint is one of this node's.
            let frontend = nft::Field::len_of(&set.key).saturating_sub(8);
            for element in elements {
                let affinity_id = element.key.get(frontend..).and_then(|rest| rest.first_chunk());
                if let (Some(affinity_id), Some(nft::Value::Data(address))) = (affinity_id, &element.value) {
                    let found = self.found.entry(element.key[..frontend].into()).or_default();
                    found.push((u32::from_ne_bytes(*affinity_id), address.clone()));
                }
            }
        }
        self.reserved =
            self.found.values().flatten().map(|(affinity_id, _)| affinity_id >> ENDPOINT_BITS).collect();
    }

    /// Brings everything up to date with the rules.
    pub(super) fn renew(&mut self, rules: &RuleSet) {
        let known: Vec<PortKey> = self.ports.keys().cloned().collect();
        for key in known {
            self.withdraw(&key, rules.ports.get(&key).map(|port| &**port));
        }
        rules.ports.values().for_each(|port| self.issue(rules, port));
        // Whatever is left was somebody's who is gone.
        self.found.clear();
        self.reserved.clear();
    }

    /// Sees to it that every endpoint of a port has an affinity id.
    pub(super) fn issue(&mut self, rules: &RuleSet, port: &PortRules) {
        if port.affinity.is_none() {
            return;
        }
        if !self.ports.contains_key(&port.key) {
            let issued = self.take_over(rules, port).unwrap_or_else(|| Issued::new(self.free_number()));
            self.numbers.insert(issued.port);
            self.ports.insert(port.key.clone(), issued);
        }
        if let Some(issued) = self.ports.get_mut(&port.key) {
            for endpoint in port.reachable() {
                issued.number(socket_address(endpoint.address).into());
            }
        }
    }

    /// Forgets endpoints that a port has no more, or the port if it has no affinity any more.
    pub(super) fn withdraw(&mut self, key: &PortKey, port: Option<&PortRules>) {
        match (port.filter(|port| port.affinity.is_some()), self.ports.get_mut(key)) {
            (_, None) => {}
            (Some(port), Some(issued)) => {
                let kept: BTreeSet<Bytes> =
                    port.reachable().iter().map(|e| socket_address(e.address).into()).collect();
                issued.endpoints.retain(|address, number| {
                    let stays = kept.contains(address);
                    if !stays {
                        issued.taken.remove(number);
                    }
                    stays
                });
            }
            (None, Some(issued)) => {
                self.numbers.remove(&issued.port);
                self.ports.remove(key);
            }
        }
    }

    /// Only after it was issued.
    pub(super) fn affinity_id(&self, key: &PortKey, address: &[u8]) -> Option<u32> {
        let issued = self.ports.get(key)?;
        Some(issued.port << ENDPOINT_BITS | *issued.endpoints.get(address)?)
    }

    /// From the frontends that are this port's own.
    fn take_over(&mut self, rules: &RuleSet, port: &PortRules) -> Option<Issued> {
        let is_owner = |key: &VipKey| rules.vips.get(key).is_some_and(|vip| vip.owner == port.key);
        let vips = port.vip_keys().filter(is_owner).map(|key| vip_key(&key));
        let node_port = port.node_port_claim().filter(|key| rules.node_ports.get(key) == Some(&port.key));
        let frontends = vips.chain(node_port.map(|key| node_port_key(&key)));
        let found: Vec<(u32, Bytes)> =
            frontends.filter_map(|frontend| self.found.get(&*frontend)).flatten().cloned().collect();
        let number = found.first()?.0 >> ENDPOINT_BITS;
        let is_whole = found.iter().all(|(affinity_id, _)| affinity_id >> ENDPOINT_BITS == number);
        let is_free = number != 0 && !self.numbers.contains(&number);
        (is_whole && is_free).then(|| {
            let endpoints: BTreeMap<Bytes, u32> =
                found.into_iter().map(|(affinity_id, address)| (address, affinity_id & !PORT_MASK)).collect();
            let next = endpoints.values().max().map_or(0, |last| last + 1);
            let taken = endpoints.values().copied().collect();
            Issued { port: number, endpoints, taken, next }
        })
    }

    /// Numbers begin at one. Should there ever be more ports than numbers, some share the last.
    fn free_number(&self) -> u32 {
        let last = PORT_MASK >> ENDPOINT_BITS;
        let next = self.numbers.last().max(self.reserved.last()).map_or(1, |highest| highest + 1);
        if next <= last {
            return next;
        }
        let is_free = |number: &u32| !self.numbers.contains(number) && !self.reserved.contains(number);
        (1..last).find(is_free).unwrap_or(last)
    }
}

// === impl Issued ===

impl Issued {
    fn new(port: u32) -> Self {
        Self { port, endpoints: BTreeMap::new(), taken: BTreeSet::new(), next: 0 }
    }

    /// A number that was just given back is the last to be given again: clients may still hold it.
    fn number(&mut self, address: Bytes) {
        let most = MOST_ENDPOINTS as u32 + 1;
        if self.endpoints.contains_key(&address) || self.endpoints.len() >= MOST_ENDPOINTS {
            return;
        }
        let free =
            (0..most).map(|step| (self.next + step) % most).find(|number| !self.taken.contains(number));
        let number = free.unwrap_or(0);
        self.next = (number + 1) % most;
        self.taken.insert(number);
        self.endpoints.insert(address, number);
    }
}
