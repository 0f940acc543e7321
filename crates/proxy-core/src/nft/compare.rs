//! What a table holds, compared with what it should hold.

use std::borrow::Cow;
use std::collections::BTreeSet;

use nft::{Chain, Element, Message, Name, Rule};

use super::content::Content;
use super::render::{exchange, rewrite};

/// What was found, and what puts it right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Transactions, one after the other. Only a table that the kernel does not call yet is filled in several.
    pub steps: Vec<Vec<Message>>,
    /// What is wrong, in a few words; nothing if nothing is.
    pub faults: Vec<String>,
}

/// In a table that is not called yet, so many elements at one time: nobody waits long for the kernel's lock.
const STEP: usize = 20_000;

/// What leads from what is there to what should be. Nothing that is right is touched.
pub fn compare(is: &Content, should: Content) -> Findings {
    if !is.is_there {
        return Findings { steps: build(should), faults: vec!["the table is missing".into()] };
    }
    if let Some(fault) = misfit(is, &should) {
        return replace(is, should, fault);
    }
    let mut repair = Repair::default();
    repair.sets(is, &should);
    repair.chains(is, &should);
    repair.finish(is)
}

/// What cannot be changed in place is replaced as a whole, and at once. Nothing that others left in the table can keep the
/// kernel from that; only what packets wrote is lost.
pub fn replace(is: &Content, should: Content, fault: String) -> Findings {
    let mut messages = if is.is_there { vec![Message::DeleteTable] } else { Vec::new() };
    messages.extend(build(should).into_iter().flatten());
    Findings { steps: vec![messages], faults: vec![fault] }
}

/// A table from nothing. What the kernel calls comes last, when everything it leads to is there.
fn build(content: Content) -> Vec<Vec<Message>> {
    let (entrances, others): (Vec<_>, Vec<_>) =
        content.chains.into_iter().partition(|(chain, _)| chain.hook.is_some());
    let (picks, sets): (Vec<_>, Vec<_>) =
        content.sets.into_iter().partition(|(set, _)| set.values == Some(nft::Values::Verdict));
    let mut first = vec![Message::AddTable];
    first.extend(sets.iter().chain(&picks).map(|(set, _)| Message::AddSet(set.clone())));
    let mut steps = vec![first];
    for (set, elements) in sets {
        let mut rest = elements.into_iter();
        while rest.len() > 0 {
            // Moved, not copied: these are most of what there is.
            let some: Vec<Element> = rest.by_ref().take(STEP).collect();
            let room = steps.last().map_or(0, |step| STEP.saturating_sub(weight(step)));
            let fits = some.len() <= room;
            let message = Message::AddElements(set.name.clone(), some);
            match steps.last_mut().filter(|_| fits) {
                Some(step) => step.push(message),
                None => steps.push(vec![message]),
            }
        }
    }
    let mut last: Vec<Message> = others.iter().map(|(chain, _)| Message::AddChain(chain.clone())).collect();
    last.extend(
        picks
            .into_iter()
            .filter(|(_, elements)| !elements.is_empty())
            .map(|(set, elements)| Message::AddElements(set.name, elements)),
    );
    last.extend(others.into_iter().flat_map(fill));
    last.extend(entrances.iter().map(|(chain, _)| Message::AddChain(chain.clone())));
    last.extend(entrances.into_iter().flat_map(fill));
    match steps.last_mut().filter(|step| weight(step) < STEP) {
        Some(step) => step.extend(last),
        None => steps.push(last),
    }
    steps
}

fn fill((chain, rules): (Chain, Vec<Rule>)) -> impl Iterator<Item = Message> {
    rules.into_iter().map(move |rule| Message::AddRule(chain.name.clone(), rule))
}

fn weight(step: &[Message]) -> usize {
    let of = |message: &Message| match message {
        Message::AddElements(_, elements) | Message::DeleteElements(_, elements) => elements.len(),
        _ => 1,
    };
    step.iter().map(of).sum()
}

/// Something that is not as we would make it and cannot be changed in place.
fn misfit(is: &Content, should: &Content) -> Option<String> {
    if is.is_spoiled {
        return Some("the table has flags or elements that are not ours".into());
    }
    for (wanted, _) in &should.sets {
        if is.foreign_sets.contains(&wanted.name) {
            return Some(format!("set {} is not ours", wanted.name));
        }
        if is.set(&wanted.name).is_some_and(|(set, _)| set != wanted) {
            return Some(format!("set {} is of another type", wanted.name));
        }
    }
    let differs = |wanted: &Chain| {
        is.foreign_chains.contains(&wanted.name)
            || is.chain(&wanted.name).is_some_and(|(chain, _)| chain != wanted)
    };
    let wanted = should.chains.iter().find(|(wanted, _)| differs(wanted));
    wanted.map(|(chain, _)| format!("chain {} is called in another way", chain.name))
}

#[derive(Debug, Default)]
struct Repair {
    new_sets: Vec<Message>,
    new_chains: Vec<Message>,
    elements: Vec<Message>,
    rules: Vec<Message>,
    entrances: Vec<Message>,
    removals: Vec<Message>,
    faults: Vec<String>,
}

// === impl Repair ===

impl Repair {
    fn sets(&mut self, is: &Content, should: &Content) {
        for (set, wanted) in &should.sets {
            let found: &[Element] = match is.set(&set.name) {
                Some((_, elements)) => elements,
                None => {
                    self.faults.push(format!("set {} is missing", set.name));
                    self.new_sets.push(Message::AddSet(set.clone()));
                    &[]
                }
            };
            // Packets write these.
            if set.is_dynamic {
                continue;
            }
            let mut found = Cow::Borrowed(found);
            if !found.is_sorted() {
                found.to_mut().sort_unstable();
            }
            let changes = exchange(&set.name, &found, wanted);
            if !changes.is_empty() {
                let count: usize = changes.iter().map(|change| weight(std::slice::from_ref(change))).sum();
                self.faults.push(format!("set {} differs in {count} elements", set.name));
            }
            self.elements.extend(changes);
        }
    }

    fn chains(&mut self, is: &Content, should: &Content) {
        for (chain, rules) in &should.chains {
            let (name, found) = (&chain.name, is.chain(&chain.name));
            if found.is_none() {
                self.faults.push(format!("chain {name} is missing"));
                let place = if chain.hook.is_some() { &mut self.entrances } else { &mut self.new_chains };
                place.push(Message::AddChain(chain.clone()));
            }
            match found {
                Some((_, found)) if found == rules => {}
                Some(_) => {
                    self.faults.push(format!("chain {name} has other rules"));
                    self.rules.extend(rewrite((chain.clone(), rules.clone())));
                }
                None => {
                    let place = if chain.hook.is_some() { &mut self.entrances } else { &mut self.rules };
                    place.extend(fill((chain.clone(), rules.clone())));
                }
            }
        }
        self.strangers(is, should);
    }

    /// The table is ours: what else is in it goes. A stranger may call a stranger, so all are emptied first; and a set may
    /// lead to a chain, so sets go before chains.
    fn strangers(&mut self, is: &Content, should: &Content) {
        let known: BTreeSet<&Name> = should.chains.iter().map(|(chain, _)| &chain.name).collect();
        let chains = is.chains.iter().map(|(chain, _)| &chain.name).chain(&is.foreign_chains);
        let strange: Vec<&Name> = chains.filter(|name| !known.contains(name)).collect();
        self.faults.extend(strange.iter().map(|name| format!("chain {name} is not ours")));
        self.removals.extend(strange.iter().map(|name| Message::FlushChain((*name).clone())));
        let is_wanted = |name: &Name| should.set(name).is_some();
        let sets = is.sets.iter().map(|(set, _)| &set.name).chain(&is.foreign_sets);
        for name in sets.filter(|name| !is_wanted(name)) {
            self.faults.push(format!("set {name} is not ours"));
            self.removals.push(Message::DeleteSet(name.clone()));
        }
        self.removals.extend(strange.iter().map(|name| Message::DeleteChain((*name).clone())));
    }

    fn finish(self, is: &Content) -> Findings {
        let mut all = [self.new_sets, self.new_chains, self.elements, self.rules].concat();
        let is_live = is.is_hooked();
        if is_live {
            all.extend(self.entrances);
            all.extend(self.removals);
            let steps = if all.is_empty() { Vec::new() } else { vec![all] };
            return Findings { steps, faults: self.faults };
        }
        // Left behind half-built: nobody sees it until the entrances are there.
        let mut steps: Vec<Vec<Message>> = Vec::new();
        for message in all.into_iter().chain(self.removals) {
            match steps.last_mut().filter(|step| weight(step) < STEP) {
                Some(step) => step.push(message),
                None => steps.push(vec![message]),
            }
        }
        if !self.entrances.is_empty() {
            steps.push(self.entrances);
        }
        Findings { steps, faults: self.faults }
    }
}
