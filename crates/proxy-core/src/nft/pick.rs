//! How one endpoint of many is picked, as a number in a map and as a chain.
//!
//! A number of endpoints, and how long a client keeps its endpoint: Services that agree in these share a chain.
//! So there are as many chains as there are different numbers of endpoints, and a change of a Service touches
//! elements of maps only, which the kernel does not have to check for loops. Where all of them end is the same few
//! chains, see [`ends`].

use nft::{Chain, Dynset, Expr, Meta, Name, Reg, Rule, Verdict};

use super::frontend::{Frontend, Matches};
use super::sets::SetId;

/// The least significant bits are the number of endpoints, the next ones seconds of affinity; the topmost says
/// that the endpoints are those of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pick(u32);

const COUNT_BITS: u32 = 14;
const AFFINITY_BITS: u32 = 17;
const LOCAL: u32 = 1 << 31;

/// Where the endpoints of this node begin among the endpoints of an address.
const LOCAL_SLOTS: u32 = 1 << 16;

/// Of more endpoints than this, the others get no traffic.
pub(super) const MOST_ENDPOINTS: usize = (1 << COUNT_BITS) - 1;

// === impl Pick ===

impl Pick {
    /// A count of zero says that the address is known, and that the packet's fate is decided elsewhere.
    pub(super) fn new(count: usize, affinity: Option<u32>, is_local: bool) -> Self {
        let count = u32::try_from(count.min(MOST_ENDPOINTS)).unwrap_or(0);
        // The API allows a day, which fits.
        let seconds = if count == 0 { 0 } else { affinity.unwrap_or(0).min((1 << AFFINITY_BITS) - 1) };
        Pick(count | seconds << COUNT_BITS | if is_local { LOCAL } else { 0 })
    }

    pub(super) fn number(self) -> u32 {
        self.0
    }

    pub(super) fn from_number(number: u32) -> Self {
        Pick(number)
    }

    pub(super) fn count(self) -> u32 {
        self.0 & ((1 << COUNT_BITS) - 1)
    }

    fn affinity(self) -> Option<u32> {
        let seconds = (self.0 & !LOCAL) >> COUNT_BITS;
        (seconds > 0).then_some(seconds)
    }

    pub(super) fn is_local(self) -> bool {
        self.0 & LOCAL != 0
    }

    /// The number by which the endpoint at a place in its list is known.
    pub(super) fn slot(is_local: bool, place: usize) -> u32 {
        u32::try_from(place).unwrap_or(u32::MAX) + if is_local { LOCAL_SLOTS } else { 0 }
    }

    /// The place in its list of the endpoint that is known by a number, if it is in that list.
    pub(super) fn place(slot: u32, is_local: bool) -> Option<u32> {
        let place = slot.checked_sub(if is_local { LOCAL_SLOTS } else { 0 })?;
        (place < LOCAL_SLOTS).then_some(place)
    }

    pub(super) fn chain_name(self, frontend: Frontend) -> Name {
        let frontend = frontend.list_name(self.is_local());
        match self.affinity() {
            None => format!("{frontend}-{}", self.count()).into(),
            Some(seconds) => format!("{frontend}-{}-affinity-{seconds}s", self.count()).into(),
        }
    }

    /// Which chain this is the name of.
    pub(super) fn of_chain(name: &str) -> Option<(Frontend, Self)> {
        let read = |frontend: Frontend, is_local: bool| {
            let rest = name.strip_prefix(frontend.list_name(is_local))?.strip_prefix('-')?;
            let (count, seconds) = match rest.split_once("-affinity-") {
                Some((count, seconds)) => (count, Some(seconds.strip_suffix('s')?.parse().ok()?)),
                None => (rest, None),
            };
            let pick = Pick::new(count.parse().ok()?, seconds, is_local);
            (*pick.chain_name(frontend) == *name).then_some((frontend, pick))
        };
        Frontend::BOTH.into_iter().find_map(|frontend| read(frontend, false).or_else(|| read(frontend, true)))
    }

    /// The chain that every Service port with this pick is sent to. It does no more than draw: for the first rule of a
    /// chain that asks a map, the kernel looks at every element of the map.
    pub(super) fn chain(self, frontend: Frontend, words: Matches) -> (Chain, Vec<Rule>) {
        let (list, mut rules) = (frontend.list_name(self.is_local()), Vec::new());
        if let Some(seconds) = self.affinity() {
            let known = rule(vec![jump(&format!("{list}-known"))]);
            let try_one = [self.draw_affinity_id(frontend, words), remember(words, seconds), known];
            rules.extend(try_one.clone());
            // The endpoint is gone, or none that this traffic may use: another one is drawn.
            rules.push(rule(vec![jump("forget-client")]));
            rules.extend(try_one);
        }
        rules.push(rule(vec![self.draw(0), note(), go(&format!("{list}-drawn"))]));
        (Chain { name: self.chain_name(frontend), hook: None }, rules)
    }

    /// Draws the number of an endpoint.
    fn draw(self, after: usize) -> Expr {
        let (offset, into) = (Pick::slot(self.is_local(), 0), Reg(0).after(after));
        Expr::Random { modulus: self.count(), offset, into }
    }

    /// Draws an affinity id.
    fn draw_affinity_id(self, frontend: Frontend, words: Matches) -> Rule {
        let mut exprs = words.key(frontend, Reg(0));
        exprs.push(self.draw(words.key_len(frontend)));
        exprs.push(map(frontend.affinity_slots(), Reg(0), Reg(0)));
        exprs.push(note());
        rule(exprs)
    }
}

/// What all picks of a frontend lead to.
pub(super) fn ends(frontend: Frontend, words: Matches) -> Vec<(Chain, Vec<Rule>)> {
    let chain = |name: &str, rules| (Chain { name: name.into(), hook: None }, rules);
    let mut chains = Vec::new();
    for is_local in [false, true] {
        let list = frontend.list_name(is_local);
        let known = vec![recall(words), send_to_holder(frontend, words, is_local)];
        chains.push(chain(&format!("{list}-known"), known));
        // A packet in flight while the list gets shorter may have drawn a number that is no more.
        let drawn = vec![send_to_drawn(frontend, words), send_to_first(frontend, words, is_local)];
        chains.push(chain(&format!("{list}-drawn"), drawn));
    }
    chains
}

fn send_to_drawn(frontend: Frontend, words: Matches) -> Rule {
    let mut exprs = words.key(frontend, Reg(0));
    exprs.push(Expr::Meta { key: Meta::Priority, into: Reg(0).after(words.key_len(frontend)) });
    exprs.push(map(frontend.endpoints(), Reg(0), Reg(0)));
    exprs.extend(forget(Reg(0).after(words.address_len() + 4)));
    exprs.push(words.dnat(Reg(0)));
    rule(exprs)
}

fn send_to_first(frontend: Frontend, words: Matches, is_local: bool) -> Rule {
    let mut exprs = forget(Reg(0));
    exprs.extend(words.key(frontend, Reg(0)));
    exprs.push(constant(Pick::slot(is_local, 0), Reg(0).after(words.key_len(frontend))));
    exprs.push(map(frontend.endpoints(), Reg(0), Reg(0)));
    exprs.push(words.dnat(Reg(0)));
    rule(exprs)
}

/// To the endpoint of the affinity id, if it is one that this traffic may use.
fn send_to_holder(frontend: Frontend, words: Matches, is_local: bool) -> Rule {
    let mut exprs = words.key(frontend, Reg(0));
    let affinity_id = Reg(0).after(words.key_len(frontend));
    exprs.push(Expr::Meta { key: Meta::Priority, into: affinity_id });
    exprs.push(constant(u32::from(is_local), affinity_id.after(4)));
    exprs.push(map(frontend.affinity_endpoints(), Reg(0), Reg(0)));
    exprs.extend(forget(Reg(0).after(words.address_len() + 4)));
    exprs.push(words.dnat(Reg(0)));
    rule(exprs)
}

/// Begins the client's time anew with the affinity id it has; if it has none, with the one that was drawn. What is there
/// already, an update leaves as it is.
fn remember(words: Matches, seconds: u32) -> Rule {
    memory(words, Dynset::Update, Some(u64::from(seconds) * 1000))
}

/// Finds the affinity id that the client has.
fn recall(words: Matches) -> Rule {
    let mut exprs = words.client(Reg(0));
    exprs.push(map(SetId::Affinities, Reg(0), Reg(0)));
    exprs.push(note());
    rule(exprs)
}

/// The chain after which the client has no affinity id.
pub(super) fn forget_client(words: Matches) -> Rule {
    memory(words, Dynset::Delete, None)
}

/// What is noted, for the client.
fn memory(words: Matches, op: Dynset, timeout: Option<u64>) -> Rule {
    let (affinity_id, key) = (Reg(0), Reg(0).after(4));
    let mut exprs = vec![Expr::Meta { key: Meta::Priority, into: affinity_id }];
    exprs.extend(words.client(key));
    let set = SetId::Affinities.name().into();
    exprs.push(Expr::Dynset { op, set, key, data: Some(affinity_id), timeout });
    rule(exprs)
}

/// Keeps what was found for the rules to come. A register lasts as long as its rule, and a map cannot be asked
/// for a key that another map holds without `nft` giving up on the table; but a packet has a priority, which
/// nothing has looked at yet, and only the first packet of a connection comes here.
pub(super) fn note() -> Expr {
    Expr::SetMeta { key: Meta::Priority, from: Reg(0) }
}

/// The packet goes on without a trace of it.
fn forget(register: Reg) -> Vec<Expr> {
    let none = Expr::Load { data: [0; 4].into(), into: register };
    vec![none, Expr::SetMeta { key: Meta::Priority, from: register }]
}

pub(super) fn rule(exprs: Vec<Expr>) -> Rule {
    Rule { exprs, comment: None }
}

pub(super) fn map(map: SetId, key: Reg, into: Reg) -> Expr {
    Expr::Map { map: map.name().into(), key, into }
}

/// One of one: `nft` has no way to print a number as part of a key.
fn constant(number: u32, into: Reg) -> Expr {
    Expr::Random { modulus: 1, offset: number, into }
}

pub(super) fn go(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Goto(chain.into()))
}

pub(super) fn jump(chain: &str) -> Expr {
    Expr::Verdict(Verdict::Jump(chain.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pick_is_read_from_its_number() {
        let rows = [
            (2, None, false, "service-2", 2),
            (2, Some(10_800), false, "service-2-affinity-10800s", 0x0a8c_0002),
            (3, Some(1), true, "local-service-3-affinity-1s", 0x8000_4003),
            (0, Some(10), true, "local-service-0", 0x8000_0000),
            (1 << 20, None, false, "service-16383", 0x3fff),
        ];
        for (count, affinity, is_local, name, number) in rows {
            let pick = Pick::new(count, affinity, is_local);
            assert_eq!(&*pick.chain_name(Frontend::Vip), name);
            assert_eq!(pick.number(), number, "{name}");
            assert_eq!(Pick::from_number(number), pick);
        }
    }

    /// Which registers an expression fills, by number; lengths as the sets and words define them.
    fn filled(expr: &Expr, words: Matches) -> std::ops::Range<usize> {
        let (into, len) = match expr {
            Expr::Network { len, into, .. } | Expr::Transport { len, into, .. } => (into, *len as usize),
            Expr::Meta { into, .. }
            | Expr::Random { into, .. }
            | Expr::Load { into, .. }
            | Expr::Bitwise { into, .. } => (into, 4),
            Expr::Map { map, into, .. } if map.ends_with("endpoints") => (into, words.address_len() + 4),
            Expr::Map { into, .. } => (into, 4),
            _ => return 0..0,
        };
        usize::from(into.0)..usize::from(into.0) + len.div_ceil(4)
    }

    #[test]
    fn rules_stay_within_the_registers_and_leave_the_endpoint_alone() {
        for words in crate::objects::Family::BOTH.map(Matches) {
            for frontend in Frontend::BOTH {
                let mut chains = ends(frontend, words);
                chains.push(Pick::new(5, Some(7), true).chain(frontend, words));
                for exprs in chains.iter().flat_map(|(_, rules)| rules).map(|rule| &rule.exprs) {
                    assert!(exprs.iter().all(|expr| filled(expr, words).end <= 16), "{exprs:?}");
                    let Some(Expr::Dnat { .. }) = exprs.last() else { continue };
                    let is_endpoint =
                        |e: &Expr| matches!(e, Expr::Map { map, .. } if map.ends_with("endpoints"));
                    let drawn = exprs.iter().rposition(is_endpoint).unwrap();
                    let kept = filled(&exprs[drawn], words).end;
                    let is_kept = |e: &Expr| filled(e, words).is_empty() || filled(e, words).start >= kept;
                    assert!(exprs[drawn + 1..].iter().all(is_kept), "{exprs:?}");
                }
            }
        }
    }
}
