//! Exponential back-off per key, with upstream's rules: the first failure waits `initial`, each
//! further one doubles up to `max`, and a key untouched for `2 * max` is forgotten.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::time::Mono;

/// Back-off state of many keys. Bounded by `forget_idle`, which its owner calls now and then.
#[derive(Clone, Debug)]
pub struct Backoff<K> {
    initial: Duration,
    max: Duration,
    entries: HashMap<K, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    delay: Duration,
    updated: Mono,
}

impl<K: Hash + Eq> Backoff<K> {
    #[must_use]
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self { initial: initial.min(max), max, entries: HashMap::new() }
    }

    /// Records one more failure at `now` and returns the delay it earned.
    pub fn fail(&mut self, key: K, now: Mono) -> Duration {
        let (initial, max) = (self.initial, self.max);
        let entry = self
            .entries
            .entry(key)
            .and_modify(|e| {
                let expired = now.since(e.updated) > max * 2;
                e.delay = if expired { initial } else { (e.delay * 2).min(max) };
                e.updated = now;
            })
            .or_insert(Entry { delay: initial, updated: now });
        entry.delay
    }

    /// The moment the key may be tried again, if that is still ahead of `now` counting from `since`.
    #[must_use]
    pub fn blocked_until(&self, key: &K, since: Mono, now: Mono) -> Option<Mono> {
        let e = self.entries.get(key)?;
        if now.since(e.updated) > self.max * 2 {
            return None;
        }
        let until = since + e.delay;
        (until > now).then_some(until)
    }

    /// The same, counted from its last failure.
    #[must_use]
    pub fn blocked_since_failure(&self, key: &K, now: Mono) -> Option<Mono> {
        self.blocked_until(key, self.entries.get(key)?.updated, now)
    }

    /// The current delay of a key, zero if it never failed.
    #[must_use]
    pub fn delay(&self, key: &K) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |e| e.delay)
    }

    pub fn reset(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Drops keys that have been quiet for twice the maximum delay.
    pub fn forget_idle(&mut self, now: Mono) {
        let max = self.max;
        self.entries.retain(|_, e| now.since(e.updated) <= max * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn doubles_to_the_cap_and_forgets() {
        let mut b = Backoff::new(S(10), S(300));
        let delays: Vec<u64> = (0..7).map(|i| b.fail("k", Mono(S(i))).as_secs()).collect();
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(b.fail("k", Mono(S(6 + 601))), S(10));
        b.forget_idle(Mono(S(5000)));
        assert_eq!(b.delay(&"k"), Duration::ZERO);
    }

    #[test]
    fn blocks_from_the_given_moment() {
        let mut b = Backoff::new(S(10), S(300));
        b.fail("k", Mono(S(100)));
        assert_eq!(b.blocked_until(&"k", Mono(S(100)), Mono(S(105))), Some(Mono(S(110))));
        assert_eq!(b.blocked_until(&"k", Mono(S(90)), Mono(S(105))), None);
        assert_eq!(b.blocked_since_failure(&"k", Mono(S(105))), Some(Mono(S(110))));
        assert_eq!(b.blocked_since_failure(&"never", Mono(S(105))), None);
    }
}
