//! What a table holds, or should hold.

use nft::{Chain, Element, Message, Name, Notice, Rule, Set, What};

/// Chains with their rules and sets with their elements, sorted by name and key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub chains: Vec<(Chain, Vec<Rule>)>,
    pub sets: Vec<(Set, Vec<Element>)>,
    /// Names of chains that the kernel calls in a way in which we never let it.
    pub foreign_chains: Vec<Name>,
    /// Names of sets that we would never make.
    pub foreign_sets: Vec<Name>,
    /// Whether the table exists at all.
    pub is_there: bool,
    /// Whether it has what cannot be told here and must not be there: flags, or elements of ours that we would never write.
    pub is_spoiled: bool,
}

// === impl Content ===

impl Content {
    /// Whether the kernel calls any of the chains.
    pub fn is_hooked(&self) -> bool {
        !self.foreign_chains.is_empty() || self.chains.iter().any(|(chain, _)| chain.hook.is_some())
    }

    pub fn chain(&self, name: &str) -> Option<&(Chain, Vec<Rule>)> {
        self.chains.iter().find(|(chain, _)| *chain.name == *name)
    }

    pub fn set(&self, name: &str) -> Option<&(Set, Vec<Element>)> {
        self.sets.iter().find(|(set, _)| *set.name == *name)
    }

    /// The sets whose elements only we write.
    pub fn own_sets(&self) -> Vec<Name> {
        let own = self.sets.iter().filter(|(set, _)| !set.is_dynamic);
        own.map(|(set, _)| set.name.clone()).collect()
    }

    /// Puts what the kernel told in its own order into ours.
    #[must_use]
    pub fn sorted(mut self) -> Self {
        self.sets.iter_mut().for_each(|(_, elements)| elements.sort_unstable());
        self
    }

    pub fn count_elements(&self) -> usize {
        self.sets.iter().map(|(_, elements)| elements.len()).sum()
    }

    /// Takes in what the kernel tells of the table. Chains are told before their rules, sets before elements.
    pub fn hear(&mut self, notice: Notice) {
        self.is_there = true;
        match notice.what {
            What::Chain(_, Some(chain)) => self.chains.push((chain, Vec::new())),
            What::Chain(name, None) => self.foreign_chains.push(name),
            What::Rule(chain, rule) => {
                if let Some((_, rules)) = self.chains.iter_mut().find(|(known, _)| known.name == chain) {
                    rules.push(rule);
                }
            }
            What::Set(_, Some(set)) => self.sets.push((set, Vec::new())),
            What::Set(name, None) => self.foreign_sets.push(name),
            What::Elements(name, Some(elements)) => {
                if let Some((_, known)) = self.sets.iter_mut().find(|(set, _)| set.name == name) {
                    known.extend(elements);
                }
            }
            What::Elements(name, None) => {
                self.is_spoiled |= self.set(&name).is_some_and(|(set, _)| !set.is_dynamic);
            }
            What::Table(flags) => self.is_spoiled |= flags != 0,
            What::Other => {}
        }
    }

    /// Makes it as if the messages had happened.
    pub fn apply(&mut self, messages: &[Message]) {
        for message in messages {
            self.apply_one(message);
        }
    }

    fn apply_one(&mut self, message: &Message) {
        match message {
            Message::AddTable | Message::AddTableFor(_) => self.is_there = true,
            Message::DeleteTable => *self = Content::default(),
            Message::AddChain(chain) => self.chains.push((chain.clone(), Vec::new())),
            Message::DeleteChain(name) => {
                self.chains.retain(|(chain, _)| chain.name != *name);
                self.foreign_chains.retain(|chain| chain != name);
            }
            Message::FlushChain(name) => {
                self.rules_of(name, Vec::clear);
            }
            Message::AddRule(name, rule) => self.rules_of(name, |rules| rules.push(rule.clone())),
            Message::AddSet(set) => self.sets.push((set.clone(), Vec::new())),
            Message::DeleteSet(name) => {
                self.sets.retain(|(set, _)| set.name != *name);
                self.foreign_sets.retain(|set| set != name);
            }
            Message::AddElements(name, new) | Message::AddNewElements(name, new) => {
                self.elements_of(name, |all| all.extend(new.iter().cloned()))
            }
            Message::DeleteElements(name, old) => self.elements_of(name, |all| {
                all.retain(|element| !old.iter().any(|old| old.key == element.key && old.end == element.end));
            }),
        }
    }

    fn rules_of(&mut self, name: &Name, act: impl FnOnce(&mut Vec<Rule>)) {
        if let Some((_, rules)) = self.chains.iter_mut().find(|(chain, _)| chain.name == *name) {
            act(rules);
        }
    }

    fn elements_of(&mut self, name: &Name, act: impl FnOnce(&mut Vec<Element>)) {
        if let Some((_, elements)) = self.sets.iter_mut().find(|(set, _)| set.name == *name) {
            act(elements);
            elements.sort_unstable();
        }
    }
}
