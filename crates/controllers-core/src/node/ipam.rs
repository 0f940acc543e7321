//! A range of Pod addresses for every Node, one of each family of `--cluster-cidr`.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use api::config::controllers::Tuning;
use base::time::Now;
use serde_json::json;

use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::object::Object;
use crate::plan::{Act, Event, PatchKind, Plan, Step};
use crate::resource::NODES;
use crate::view::View;

pub(crate) const NODE_IPAM: Row = Row {
    name: "node-ipam-controller",
    aliases: &["nodeipam"],
    identity: "node-controller",
    event_source: "cidrAllocator",
    queue: "cidrallocator_node",
    workers: |_| 30,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch::itself(NODES)],
    reads: &[],
    is_single: false,
    make: |tuning| {
        Box::new(Ipam {
            pools: if tuning.allocate_node_cidrs { Pool::all(tuning) } else { Ok(Vec::new()) },
            reserved: HashMap::new(),
        })
    },
};

#[derive(Debug)]
struct Ipam {
    /// Empty: nobody asked for ranges. An error: what was asked for makes no sense.
    pools: Result<Vec<Pool>, String>,
    /// Given to a Node that does not show it yet.
    reserved: HashMap<Key, Vec<Cidr>>,
}

/// The range of one family, and the size of a Node's part.
#[derive(Clone, Debug)]
struct Pool {
    whole: Cidr,
    mask: u32,
    /// Never given away: Services have them.
    kept: Vec<Cidr>,
    /// The number after the one last given.
    next: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cidr {
    first: u128,
    is_v6: bool,
    prefix: u32,
}

// === impl Ipam ===

impl Controller for Ipam {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(node) = view.get(NODES, "", &key.name) else {
            self.reserved.remove(key);
            return Plan::nothing();
        };
        if !ranges(&node).is_empty() {
            self.reserved.remove(key);
            return Plan::nothing();
        }
        let count = match &self.pools {
            Ok(pools) => pools.len(),
            Err(why) => return Plan::failed(why.clone()),
        };
        if count == 0 || node.is_deleting() {
            return Plan::nothing();
        }
        let given = match self.reserved.get(key) {
            Some(given) => Some(given.clone()),
            None => self.give(view),
        };
        let Some(given) = given else {
            let said = format!("Node {} status is now: CIDRNotAvailable", key.name);
            return Plan::failed("no range of Pod addresses is left").event(Event::normal(
                &node,
                "CIDRNotAvailable",
                said,
            ));
        };
        let texts: Vec<String> = given.iter().map(|cidr| cidr.text()).collect();
        self.reserved.insert(key.clone(), given);
        let patch = json!({"spec": {"podCIDR": texts[0], "podCIDRs": texts}});
        Plan::of(Step::in_turn([Act::patch(&node, PatchKind::Strategic, &patch)]))
    }
}

impl Ipam {
    /// One of each family, or none at all.
    fn give(&mut self, view: &dyn View) -> Option<Vec<Cidr>> {
        let shown = view.list(NODES, "");
        let mut taken: Vec<Cidr> = shown.iter().flat_map(|node| ranges(node)).collect();
        taken.extend(self.reserved.values().flatten());
        let pools = self.pools.as_mut().ok()?;
        let found: Option<Vec<u128>> = pools.iter().map(|pool| pool.free(&taken)).collect();
        let give = |(pool, number): (&mut Pool, u128)| {
            pool.next = number + 1;
            pool.part(number)
        };
        Some(pools.iter_mut().zip(found?).map(give).collect())
    }
}

/// What a Node has. Whatever is no range is passed over.
fn ranges(node: &Object) -> Vec<Cidr> {
    let spec = &node.value()["spec"];
    let many = spec["podCIDRs"].as_array().cloned().unwrap_or_default();
    let texts = if many.is_empty() { vec![spec["podCIDR"].clone()] } else { many };
    texts.iter().filter_map(|text| Cidr::parse(text.as_str()?)).collect()
}

// === impl Pool ===

impl Pool {
    fn all(tuning: &Tuning) -> Result<Vec<Pool>, String> {
        let whole = |text: &String| {
            Cidr::parse(text.trim())
                .ok_or_else(|| format!("--cluster-cidr: {text:?} is no range of addresses"))
        };
        let wholes: Vec<Cidr> = tuning.cluster_cidr.iter().map(whole).collect::<Result<_, _>>()?;
        if wholes.is_empty() || wholes.len() > 2 || (wholes.len() == 2 && wholes[0].is_v6 == wholes[1].is_v6)
        {
            return Err("--cluster-cidr: one range, or one of each family".to_owned());
        }
        let kept: Vec<Cidr> =
            tuning.service_cluster_ip_range.iter().filter_map(|text| Cidr::parse(text.trim())).collect();
        let is_single = wholes.len() == 1;
        wholes.into_iter().map(|whole| Pool::new(whole, &kept, is_single, tuning)).collect()
    }

    fn new(whole: Cidr, kept: &[Cidr], is_single: bool, tuning: &Tuning) -> Result<Pool, String> {
        let (own, usual) = match whole.is_v6 {
            false => (tuning.node_cidr_mask_size_ipv4, 24),
            true => (tuning.node_cidr_mask_size_ipv6, 64),
        };
        let said = own.or(tuning.node_cidr_mask_size.filter(|_| is_single)).unwrap_or(usual);
        let mask = u32::try_from(said).ok().filter(|mask| *mask >= whole.prefix && *mask <= whole.bits());
        // More parts than a cluster can have Nodes are a mistake, and upstream refuses them too.
        let mask = mask.filter(|mask| mask - whole.prefix <= if whole.is_v6 { 16 } else { 32 });
        let mask = mask.ok_or_else(|| format!("a Node's part of {} cannot be a /{said}", whole.text()))?;
        Ok(Pool { whole, mask, kept: kept.to_vec(), next: 0 })
    }

    fn part(&self, number: u128) -> Cidr {
        let size = self.whole.bits() - self.mask;
        let offset = number.checked_shl(size).unwrap_or(0);
        Cidr { first: self.whole.first + offset, prefix: self.mask, ..self.whole }
    }

    /// The next number that nobody has, counted from the one last given, round once.
    fn free(&self, taken: &[Cidr]) -> Option<u128> {
        let count = 1u128 << (self.mask - self.whole.prefix);
        let mut used: Vec<(u128, u128)> =
            taken.iter().chain(&self.kept).filter_map(|cidr| self.numbers(*cidr)).collect();
        used.sort_unstable();
        let after = |start: u128| {
            used.iter()
                .fold(start, |at, (first, last)| if (*first..=*last).contains(&at) { last + 1 } else { at })
        };
        let start = if self.next >= count { 0 } else { self.next };
        Some(after(start)).filter(|number| *number < count).or_else(|| Some(after(0)).filter(|n| *n < start))
    }

    /// The first and last number that a range touches here.
    fn numbers(&self, cidr: Cidr) -> Option<(u128, u128)> {
        let (first, last) = (cidr.first.max(self.whole.first), cidr.last().min(self.whole.last()));
        let size = self.whole.bits() - self.mask;
        let number = |address: u128| (address - self.whole.first).checked_shr(size).unwrap_or(0);
        (cidr.is_v6 == self.whole.is_v6 && first <= last).then(|| (number(first), number(last)))
    }
}

// === impl Cidr ===

impl Cidr {
    fn parse(text: &str) -> Option<Cidr> {
        let (address, prefix) = text.split_once('/')?;
        let prefix: u32 = prefix.parse().ok()?;
        let (first, is_v6) = match address.parse().ok()? {
            IpAddr::V4(address) => (u128::from(u32::from(address)), false),
            IpAddr::V6(address) => (u128::from(address), true),
        };
        let cidr = Cidr { first, is_v6, prefix };
        (prefix <= cidr.bits()).then(|| Cidr { first: first & !cidr.span(), ..cidr })
    }

    fn bits(self) -> u32 {
        if self.is_v6 { 128 } else { 32 }
    }

    fn span(self) -> u128 {
        1u128.checked_shl(self.bits() - self.prefix).map_or(u128::MAX, |count| count - 1)
    }

    fn last(self) -> u128 {
        self.first | self.span()
    }

    fn text(self) -> String {
        let v4 = || Ipv4Addr::from(u32::try_from(self.first).unwrap_or_default()).to_string();
        let address = if self.is_v6 { Ipv6Addr::from(self.first).to_string() } else { v4() };
        format!("{address}/{}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft, said};

    fn ipam(cidrs: &[&str], mask: Option<i32>) -> Ipam {
        let tuning = Tuning {
            allocate_node_cidrs: true,
            cluster_cidr: cidrs.iter().map(|text| (*text).to_owned()).collect(),
            service_cluster_ip_range: vec!["10.1.2.0/24".to_owned()],
            node_cidr_mask_size_ipv4: mask,
            ..Tuning::default()
        };
        Ipam { pools: Pool::all(&tuning), reserved: HashMap::new() }
    }

    fn given(ipam: &mut Ipam, world: &World, node: &str) -> serde_json::Value {
        let plan = ipam.reconcile(&world.cache, &Key::new("", node), at(1));
        plan.acts().next().map(|act| act.body()["spec"]["podCIDRs"].clone()).unwrap_or_default()
    }

    fn has(name: &str, cidrs: &[&str]) -> Draft {
        draft(NODES, name).set("/spec/podCIDRs", json!(cidrs))
    }

    #[test]
    fn each_node_gets_the_next_range_that_nobody_has() {
        let mut world = World::new([draft(NODES, "a"), draft(NODES, "b"), has("old", &["10.1.1.0/24"])]);
        let mut ipam = ipam(&["10.1.0.0/22"], None);
        assert_eq!(given(&mut ipam, &world, "old"), json!(null));
        assert_eq!(given(&mut ipam, &world, "a"), json!(["10.1.0.0/24"]));
        assert_eq!(given(&mut ipam, &world, "b"), json!(["10.1.3.0/24"]), "1 is taken, 2 is the Services'");
        assert_eq!(given(&mut ipam, &world, "a"), json!(["10.1.0.0/24"]), "tried again: the same");
        world.put(has("a", &["10.1.0.0/24"]));
        world.put(has("b", &["10.1.3.0/24"]));
        world.put(draft(NODES, "c"));
        let full = ipam.reconcile(&world.cache, &Key::new("", "c"), at(1));
        assert_eq!(said(&full), ["Normal CIDRNotAvailable: Node c status is now: CIDRNotAvailable"]);
        assert!(full.failure.is_some());
        world.put(has("old", &["10.9.9.0/24"]));
        assert_eq!(given(&mut ipam, &world, "c"), json!(["10.1.1.0/24"]), "round to what was given back");
    }

    #[test]
    fn two_families_come_in_the_order_of_the_flag() {
        let world = World::new([draft(NODES, "a"), has("b", &["10.1.0.0/26", "fd00::/64"])]);
        let mut ipam = ipam(&["fd00::/56", "10.1.0.0/16"], Some(26));
        assert_eq!(given(&mut ipam, &world, "a"), json!(["fd00:0:0:1::/64", "10.1.0.64/26"]));
    }

    #[test]
    fn a_range_that_makes_no_sense_is_said_and_none_is_given() {
        for (cidrs, mask) in [
            (vec!["10.0.0.0/16"], Some(8)),
            (vec!["10.0.0.0/16"], Some(33)),
            (vec!["10.0.0.0/16", "10.1.0.0/16"], None),
            (vec!["nonsense"], None),
            (vec!["fd00::/32"], None),
            (vec![], None),
        ] {
            let world = World::new([draft(NODES, "a")]);
            let plan = ipam(&cidrs, mask).reconcile(&world.cache, &Key::new("", "a"), at(1));
            assert!(plan.failure.is_some() && !plan.has_acts(), "{cidrs:?} {mask:?}");
        }
    }

    #[test]
    fn nobody_gets_any_unless_asked_for() {
        let world = World::new([draft(NODES, "a")]);
        let plan = (NODE_IPAM.make)(&Tuning::default()).reconcile(&world.cache, &Key::new("", "a"), at(1));
        assert_eq!(plan, Plan::nothing());
    }
}
