//! Answers that stay good for a while.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base::time::Mono;

/// More answers than this are not kept: who asks may be anybody.
const MOST: usize = 4096;

#[derive(Debug)]
pub(crate) struct Remembered<K, V>(Mutex<HashMap<K, (V, Mono)>>);

// === impl Remembered ===

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    pub(crate) fn get(&self, key: &K, now: Mono) -> Option<V> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(_, until)| now < *until).map(|(value, _)| value.clone())
    }

    pub(crate) fn put(&self, key: K, value: V, now: Mono, good_for: Duration) {
        if good_for.is_zero() {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST {
            known.retain(|_, (_, until)| now < *until);
        }
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(key, (value, now + good_for));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_forgotten_in_time_and_never_pile_up() {
        let (remembered, at) = (Remembered::default(), |s| Mono(Duration::from_secs(s)));
        remembered.put(0, "a", at(0), Duration::from_secs(10));
        remembered.put(1, "b", at(0), Duration::ZERO);
        assert_eq!((remembered.get(&0, at(9)), remembered.get(&0, at(10))), (Some("a"), None));
        assert_eq!(remembered.get(&1, at(0)), None);
        for key in 0..10_000 {
            remembered.put(key, "c", at(0), Duration::from_secs(10));
        }
        assert!(remembered.0.lock().is_ok_and(|m| m.len() <= MOST));
    }
}
