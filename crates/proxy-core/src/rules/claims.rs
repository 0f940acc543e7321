//! Keys that several owners may claim, and keys that are counted.

use std::collections::{BTreeMap, BTreeSet};

use super::delta::Change;

/// Who lost a key to a lesser claimant. Empty in a sane cluster.
#[derive(Clone, Debug)]
pub(super) struct Losers<K, V>(BTreeMap<K, BTreeSet<V>>);

/// How often a key of a set is meant beyond the first time, which the set itself remembers.
#[derive(Clone, Debug)]
pub(super) struct Counts<K>(BTreeMap<K, u32>);

/// What the touched keys of a map held before.
#[derive(Debug)]
pub(super) struct Journal<K, V>(BTreeMap<K, Option<V>>);

// === impl Losers ===

impl<K: Ord + Clone, V: Ord + Clone> Losers<K, V> {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn claim(&mut self, winners: &mut BTreeMap<K, V>, key: K, value: V) {
        let loser = match winners.get(&key) {
            Some(winner) if *winner < value => Some(value),
            _ => winners.insert(key.clone(), value),
        };
        if let Some(loser) = loser {
            self.0.entry(key).or_default().insert(loser);
        }
    }

    pub(super) fn release(&mut self, winners: &mut BTreeMap<K, V>, key: &K, value: &V) {
        let next = match self.0.get_mut(key) {
            Some(losers) if winners.get(key) == Some(value) => losers.pop_first(),
            Some(losers) => {
                losers.remove(value);
                winners.get(key).cloned()
            }
            None => None,
        };
        if self.0.get(key).is_some_and(BTreeSet::is_empty) {
            self.0.remove(key);
        }
        match next {
            Some(next) => winners.insert(key.clone(), next),
            None => winners.remove(key),
        };
    }
}

// === impl Counts ===

impl<K: Ord + Clone> Counts<K> {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(super) fn add(&mut self, set: &mut BTreeMap<K, ()>, key: K) {
        if set.insert(key.clone(), ()).is_some() {
            *self.0.entry(key).or_default() += 1;
        }
    }

    pub(super) fn drop(&mut self, set: &mut BTreeMap<K, ()>, key: &K) {
        match self.0.get_mut(key) {
            Some(more) if *more > 1 => *more -= 1,
            Some(_) => {
                self.0.remove(key);
            }
            None => {
                set.remove(key);
            }
        }
    }
}

// === impl Journal ===

impl<K: Ord + Clone, V: PartialEq + Clone> Journal<K, V> {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Call before each change of a key.
    pub(super) fn note(&mut self, map: &BTreeMap<K, V>, key: &K) {
        if !self.0.contains_key(key) {
            self.0.insert(key.clone(), map.get(key).cloned());
        }
    }

    pub(super) fn close(self, map: &BTreeMap<K, V>) -> Vec<Change<K, V>> {
        let changes = self.0.into_iter().filter_map(|(key, old)| {
            let new = map.get(&key);
            (old.as_ref() != new).then(|| Change { new: new.cloned(), key, old })
        });
        changes.collect()
    }
}
