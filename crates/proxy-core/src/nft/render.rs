//! From rules to objects: all of them, or those that a delta touches.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Chain, Element, Message, Rule, Value, Verdict};

use crate::objects::{Family, PortKey};
use crate::rules::{
    Change, Delta, Hairpin, NodePortAddresses, NodePortKey, NodeRules, PortRules, RuleSet, Vip, VipKey,
};

use super::affinity_ids::AffinityIds;
use super::content::Content;
use super::digest::Digest;
use super::elements::{Marks, put_cluster_ip, put_hairpin, put_node_port, put_vip};
use super::endpoint_slots::EndpointSlots;
use super::frontend::{Frontend, Matches, address};
use super::pick::Pick;
use super::sets::{Elements, SetId};
use super::skeleton;

/// Renders the rules of one family, and remembers which chains it has made for them.
#[derive(Clone, Debug)]
pub struct Renderer {
    words: Matches,
    masquerade_bit: u32,
    node: Option<NodeRules>,
    /// A chain stays for a while when nobody needs it any more: the next Service with as many endpoints will.
    picks: BTreeSet<(Frontend, Pick)>,
    /// What the last digest found in use, and what had been out of use by the one before the last sweep.
    used: BTreeSet<(Frontend, Pick)>,
    idle: BTreeSet<(Frontend, Pick)>,
    /// Chains that nothing leads to any more, and that go at the next sweep.
    retired: BTreeSet<(Frontend, Pick)>,
    affinity_ids: AffinityIds,
    endpoint_slots: EndpointSlots,
}

/// So many parts of the rules are rendered before it is asked again whether anybody wants the rest.
const STRIDE: usize = 64;

/// What stands in the table for itself.
enum Part<'a> {
    Vip((&'a VipKey, &'a Vip)),
    NodePort((&'a NodePortKey, &'a PortKey)),
    ClusterIp(&'a IpAddr),
    Hairpin(&'a Hairpin),
}

/// The state before a delta, looked up by key.
struct Before<'a> {
    rules: &'a RuleSet,
    delta: &'a Delta,
}

// === impl Renderer ===

impl Renderer {
    /// `masquerade_bit` is the number of the bit that marks packets to be masqueraded.
    pub fn new(family: Family, masquerade_bit: u8) -> Self {
        let masquerade_bit = 1 << (masquerade_bit & 31);
        Self {
            words: Matches(family),
            masquerade_bit,
            node: None,
            picks: BTreeSet::new(),
            used: BTreeSet::new(),
            idle: BTreeSet::new(),
            retired: BTreeSet::new(),
            affinity_ids: AffinityIds::default(),
            endpoint_slots: EndpointSlots::default(),
        }
    }

    /// Keeps the chains that an earlier life of ours made, used or not: a chain cannot be deleted in the same
    /// instant in which the last map that leads to it lets it go, not by every kernel.
    pub fn adopt(&mut self, is: &Content) {
        self.affinity_ids.adopt(is);
        self.endpoint_slots.adopt(is);
        for frontend in Frontend::BOTH {
            let Some((_, elements)) = is.set(frontend.picks().name()) else { continue };
            for element in elements {
                let Some(number) = element.key.first_chunk() else { continue };
                let pick = Pick::from_number(u32::from_ne_bytes(*number));
                if pick.count() > 0 && pick_element(frontend, pick) == *element {
                    self.picks.insert((frontend, pick));
                }
            }
        }
        // Those that nothing leads to any more were about to go.
        let known = is.chains.iter().filter_map(|(chain, _)| Pick::of_chain(&chain.name));
        self.retired = known.filter(|(_, pick)| pick.count() > 0).collect();
        self.retired.retain(|pick| !self.picks.contains(pick));
    }

    /// The whole table.
    pub fn whole(&mut self, rules: &RuleSet) -> Content {
        let mut elements = Elements::default();
        self.affinity_ids.renew(rules);
        self.endpoint_slots.renew(rules);
        parts(rules).for_each(|part| part.put(&mut elements, rules, self.marks()));
        self.picks.extend(picks_of(&elements));
        self.retired.retain(|pick| !self.picks.contains(pick));
        self.put_rest(&mut elements, &rules.node);
        self.node = Some(rules.node.clone());
        elements.sort();
        let mut content = self.frame(&rules.node);
        content.sets.iter_mut().zip(elements.0).for_each(|((_, all), elements)| *all = elements);
        content
    }

    /// The whole table in a nutshell, as [`Renderer::whole`] and all changes since have left it. `None` before there was any,
    /// or when nobody wants it any more.
    pub fn digest(&mut self, rules: &RuleSet, is_wanted: impl Fn() -> bool) -> Option<Digest> {
        let mut digest = Digest::new(self.frame(self.node.as_ref()?));
        let (mut elements, mut used) = (Elements::default(), BTreeSet::new());
        for (count, part) in parts(rules).enumerate() {
            if count % STRIDE == 0 && !is_wanted() {
                return None;
            }
            part.put(&mut elements, rules, self.marks());
            used.extend(picks_of(&elements));
            elements.drain(|set, element| digest.add(set.name(), &element));
        }
        self.put_rest(&mut elements, &rules.node);
        elements.drain(|set, element| digest.add(set.name(), &element));
        self.used = used;
        Some(digest)
    }

    /// Removes chains that nobody needed for long. Only after a digest that agreed with the kernel. In one sweep nothing
    /// leads to a chain any more, in a later one it goes: some kernels let go of it later than of what led to it.
    pub fn sweep(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        for (frontend, pick) in std::mem::take(&mut self.retired) {
            let name = pick.chain_name(frontend);
            messages.extend([Message::FlushChain(name.clone()), Message::DeleteChain(name)]);
        }
        let unused: BTreeSet<(Frontend, Pick)> = self.picks.difference(&self.used).copied().collect();
        for (frontend, pick) in unused.intersection(&self.idle).copied() {
            let elements = vec![pick_element(frontend, pick)];
            messages.push(Message::DeleteElements(frontend.picks().name().into(), elements));
            self.picks.remove(&(frontend, pick));
            self.retired.insert((frontend, pick));
        }
        self.idle = unused.difference(&self.retired).copied().collect();
        messages
    }

    fn marks(&self) -> Marks<'_> {
        Marks { affinity_ids: &self.affinity_ids, endpoint_slots: &self.endpoint_slots }
    }

    /// All there is but elements; the sets are in their usual order.
    fn frame(&self, node: &NodeRules) -> Content {
        let mut chains = skeleton::chains(self.words, node, self.masquerade_bit);
        let picks = self.picks.iter().chain(&self.retired);
        chains.extend(picks.map(|(frontend, pick)| pick.chain(*frontend, self.words)));
        let sets = SetId::ALL.map(|set| (set.define(self.words.0), Vec::new())).into();
        Content { chains, sets, is_there: true, ..Content::default() }
    }

    /// The elements that belong to no Service.
    fn put_rest(&self, out: &mut Elements, node: &NodeRules) {
        put_node_port_ips(out, Some(node));
        for (frontend, pick) in &self.picks {
            out.put(frontend.picks(), pick_element(*frontend, *pick));
        }
    }

    /// What `delta` changes in the table, given the rules after it. Only after [`Renderer::whole`].
    pub fn change(&mut self, rules: &RuleSet, delta: &Delta) -> Vec<Message> {
        let before = Before { rules, delta };
        for port in delta.ports.iter().filter_map(|change| change.new.as_ref()) {
            self.affinity_ids.issue(rules, port);
        }
        let (mut old, mut new) = (Elements::default(), Elements::default());
        let (vips, node_ports) = (touched_vips(delta), touched_node_ports(delta));
        for key in &vips {
            if let Some((vip, port)) = before.vip(key) {
                put_vip(&mut old, key, vip, port, self.marks());
            }
        }
        for key in &node_ports {
            if let Some(port) = before.node_port(key) {
                put_node_port(&mut old, key, port, self.marks());
            }
        }
        for change in &delta.ports {
            self.endpoint_slots.change(&change.key, change.old.as_deref(), change.new.as_deref());
        }
        for part in vips.iter().filter_map(|key| Some(Part::Vip((key, rules.vips.get(key)?)))) {
            part.put(&mut new, rules, self.marks());
        }
        for part in
            node_ports.iter().filter_map(|key| Some(Part::NodePort((key, rules.node_ports.get(key)?))))
        {
            part.put(&mut new, rules, self.marks());
        }
        for change in &delta.ports {
            self.affinity_ids.withdraw(&change.key, change.new.as_deref());
        }
        for change in &delta.cluster_ips {
            put_cluster_ip(side(change, &mut old, &mut new), change.key);
        }
        for change in &delta.hairpins {
            put_hairpin(side(change, &mut old, &mut new), &change.key);
        }
        let mut messages = Vec::new();
        if let Some(node) = &delta.node {
            messages.extend(self.rewrite_skeleton(node));
            put_node_port_ips(&mut old, self.node.as_ref());
            put_node_port_ips(&mut new, Some(node));
            self.node = Some(node.clone());
        }
        messages.extend(self.add_picks(&new));
        old.sort();
        new.sort();
        for set in SetId::ALL {
            messages.extend(exchange(set.name(), old.of(set), new.of(set)));
        }
        messages
    }

    fn rewrite_skeleton(&self, node: &NodeRules) -> Vec<Message> {
        let render = |node: &NodeRules| skeleton::chains(self.words, node, self.masquerade_bit);
        let known = self.node.as_ref().map(render).unwrap_or_default();
        let is_same = |chain: &(Chain, Vec<Rule>)| known.contains(chain);
        render(node).into_iter().filter(|chain| !is_same(chain)).flat_map(rewrite).collect()
    }

    fn add_picks(&mut self, elements: &Elements) -> Vec<Message> {
        let new: BTreeSet<_> = picks_of(elements).filter(|pick| !self.picks.contains(pick)).collect();
        let mut messages = Vec::new();
        for (frontend, pick) in &new {
            if !self.retired.remove(&(*frontend, *pick)) {
                let (chain, rules) = pick.chain(*frontend, self.words);
                let name = chain.name.clone();
                messages.push(Message::AddChain(chain));
                messages.extend(rules.into_iter().map(|rule| Message::AddRule(name.clone(), rule)));
            }
            let elements = vec![pick_element(*frontend, *pick)];
            messages.push(Message::AddElements(frontend.picks().name().into(), elements));
        }
        self.picks.extend(new);
        messages
    }
}

fn parts(rules: &RuleSet) -> impl Iterator<Item = Part<'_>> {
    let vips = rules.vips.iter().map(Part::Vip);
    let node_ports = rules.node_ports.iter().map(Part::NodePort);
    let cluster_ips = rules.cluster_ips.keys().map(Part::ClusterIp);
    let hairpins = rules.hairpins.keys().map(Part::Hairpin);
    vips.chain(node_ports).chain(cluster_ips).chain(hairpins)
}

/// Empties a chain and fills it again; nobody sees it empty, because it happens at once.
pub(super) fn rewrite((chain, rules): (Chain, Vec<Rule>)) -> Vec<Message> {
    let name = chain.name;
    let rules = rules.into_iter().map(|rule| Message::AddRule(name.clone(), rule));
    [Message::FlushChain(name.clone())].into_iter().chain(rules).collect()
}

/// Leads from one sorted list of elements to another. An element whose value changed goes and comes.
pub(super) fn exchange(set: &str, old: &[Element], new: &[Element]) -> Vec<Message> {
    let gone: Vec<Element> = old.iter().filter(|e| new.binary_search(e).is_err()).cloned().collect();
    let come: Vec<Element> = new.iter().filter(|e| old.binary_search(e).is_err()).cloned().collect();
    let delete = (!gone.is_empty()).then(|| Message::DeleteElements(set.into(), gone));
    let add = (!come.is_empty()).then(|| Message::AddElements(set.into(), come));
    delete.into_iter().chain(add).collect()
}

/// All picks that elements name. Of nobody there is nothing to pick, and no chain.
fn picks_of(elements: &Elements) -> impl Iterator<Item = (Frontend, Pick)> {
    let of = |frontend: Frontend, set: SetId| {
        elements.of(set).iter().filter_map(move |element| match &element.value {
            Some(Value::Data(data)) => {
                let pick = Pick::from_number(u32::from_ne_bytes(*data.first_chunk()?));
                (pick.count() > 0).then_some((frontend, pick))
            }
            _ => None,
        })
    };
    Frontend::BOTH
        .into_iter()
        .flat_map(move |frontend| of(frontend, frontend.all()).chain(of(frontend, frontend.local())))
}

fn pick_element(frontend: Frontend, pick: Pick) -> Element {
    let value = Some(Value::Verdict(Verdict::Goto(pick.chain_name(frontend))));
    Element { value, ..Element::new(pick.number().to_ne_bytes()) }
}

fn put_node_port_ips(out: &mut Elements, node: Option<&NodeRules>) {
    if let Some(NodePortAddresses::Only(addresses)) = node.map(|node| &node.node_port_addresses) {
        for ip in addresses {
            out.put(SetId::NodePortIps, Element::new(address(*ip)));
        }
    }
}

fn side<'a, K>(change: &Change<K, ()>, old: &'a mut Elements, new: &'a mut Elements) -> &'a mut Elements {
    if change.new.is_some() { new } else { old }
}

fn touched_vips(delta: &Delta) -> BTreeSet<VipKey> {
    let of_ports = delta.ports.iter().flat_map(|change| [&change.old, &change.new]).flatten();
    let claimed = of_ports.flat_map(|port| port.vip_keys());
    delta.vips.iter().map(|change| change.key).chain(claimed).collect()
}

fn touched_node_ports(delta: &Delta) -> BTreeSet<NodePortKey> {
    let of_ports = delta.ports.iter().flat_map(|change| [&change.old, &change.new]).flatten();
    let claimed = of_ports.filter_map(|port| port.node_port_claim());
    delta.node_ports.iter().map(|change| change.key).chain(claimed).collect()
}

// === impl Part ===

impl Part<'_> {
    fn put(self, out: &mut Elements, rules: &RuleSet, marks: Marks<'_>) {
        match self {
            Part::Vip((key, vip)) => {
                if let Some(port) = rules.ports.get(&vip.owner) {
                    put_vip(out, key, vip, port, marks);
                }
            }
            Part::NodePort((key, owner)) => {
                if let Some(port) = rules.ports.get(owner) {
                    put_node_port(out, key, port, marks);
                }
            }
            Part::ClusterIp(ip) => put_cluster_ip(out, *ip),
            Part::Hairpin(hairpin) => put_hairpin(out, hairpin),
        }
    }
}

// === impl Before ===

impl<'a> Before<'a> {
    fn port(&self, key: &PortKey) -> Option<&'a Arc<PortRules>> {
        match self.delta.ports.binary_search_by(|change| change.key.cmp(key)) {
            Ok(at) => self.delta.ports[at].old.as_ref(),
            Err(_) => self.rules.ports.get(key),
        }
    }

    fn vip(&self, key: &VipKey) -> Option<(&'a Vip, &'a PortRules)> {
        let vip = match self.delta.vips.binary_search_by(|change| change.key.cmp(key)) {
            Ok(at) => self.delta.vips[at].old.as_ref(),
            Err(_) => self.rules.vips.get(key),
        }?;
        Some((vip, self.port(&vip.owner)?))
    }

    fn node_port(&self, key: &NodePortKey) -> Option<&'a Arc<PortRules>> {
        let owner = match self.delta.node_ports.binary_search_by(|change| change.key.cmp(key)) {
            Ok(at) => self.delta.node_ports[at].old.as_ref(),
            Err(_) => self.rules.node_ports.get(key),
        }?;
        self.port(owner)
    }
}
