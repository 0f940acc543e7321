//! A table in a nutshell: enough to tell whether two are the same, in little memory however much they hold.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use nft::{Element, Name, Notice, What};

use super::content::Content;

/// Chains, rules and sets as they are; elements only counted and summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    frame: Content,
    tallies: BTreeMap<Name, Tally>,
}

/// Elements without an order. Whoever removes one or changes it changes the sum, but for one time in 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    count: usize,
    sum: u64,
}

// === impl Digest ===

impl Digest {
    /// Of a table whose elements are still to come.
    pub fn new(mut frame: Content) -> Self {
        frame.chains.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        frame.sets.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        Self { frame, tallies: BTreeMap::new() }
    }

    /// Takes in what the kernel tells of elements.
    pub fn hear(&mut self, notice: Notice) {
        match notice.what {
            What::Elements(set, Some(elements)) => elements.iter().for_each(|e| self.add(&set, e)),
            // Something that we would not write is no element of ours.
            What::Elements(set, None) => self.tally(&set).count += 1,
            _ => {}
        }
    }

    /// As if nobody had told anything of the set.
    pub fn forget(&mut self, set: &str) {
        self.tallies.remove(set);
    }

    pub(super) fn add(&mut self, set: &str, element: &Element) {
        let mut hasher = DefaultHasher::new();
        element.hash(&mut hasher);
        let tally = self.tally(set);
        tally.count += 1;
        tally.sum = tally.sum.wrapping_add(hasher.finish());
    }

    fn tally(&mut self, set: &str) -> &mut Tally {
        self.tallies.entry(set.into()).or_default()
    }
}

impl From<Content> for Digest {
    fn from(mut content: Content) -> Self {
        let mut elements = Vec::new();
        for (set, all) in content.sets.iter_mut().filter(|(set, _)| !set.is_dynamic) {
            elements.push((set.name.clone(), std::mem::take(all)));
        }
        content.sets.iter_mut().for_each(|(_, all)| all.clear());
        let mut digest = Self::new(content);
        for (set, all) in elements {
            all.iter().for_each(|element| digest.add(&set, element));
        }
        digest
    }
}
