//! A work queue as client-go has it: a key stands in it once, is worked on by one worker at a time, and waits longer after
//! every failure.
//!
//! It is plain data: whoever owns it says what time it is. So a controller under a paused clock is tested without waiting.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Pauses after failures: `first`, then twice as long each time, up to `last`.
#[derive(Clone, Copy, Debug)]
pub struct RetryPauses {
    pub first: Duration,
    pub last: Duration,
}

/// Holds no more keys than its owner knows objects.
#[derive(Debug)]
pub struct WorkQueue<K> {
    pauses: RetryPauses,
    ready: VecDeque<K>,
    /// Keys in `ready`, and keys that were added while somebody worked on them.
    dirty: HashSet<K>,
    processing: HashSet<K>,
    failures: HashMap<K, u32>,
    /// Keys that wait for their time, soonest first, and when that is.
    waiting: BTreeSet<(Instant, K)>,
    due_at: HashMap<K, Instant>,
}

// === impl RetryPauses ===

impl RetryPauses {
    /// What upstream's controllers use.
    pub const CONTROLLER: RetryPauses =
        RetryPauses { first: Duration::from_millis(5), last: Duration::from_secs(1000) };

    fn after(self, failures: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(failures)).min(self.last)
    }
}

// === impl WorkQueue ===

impl<K: Clone + Eq + Hash + Ord> WorkQueue<K> {
    #[must_use]
    pub fn new(pauses: RetryPauses) -> WorkQueue<K> {
        WorkQueue {
            pauses,
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            failures: HashMap::new(),
            waiting: BTreeSet::new(),
            due_at: HashMap::new(),
        }
    }

    /// There is news about it. While somebody works on it, it is queued again when he is done.
    pub fn add(&mut self, key: K) {
        self.forget_time(&key);
        if self.dirty.insert(key.clone()) && !self.processing.contains(&key) {
            self.ready.push_back(key);
        }
    }

    /// Adds it at `at`, or earlier if it was to be added earlier.
    pub fn add_at(&mut self, key: K, at: Instant) {
        if self.due_at.get(&key).is_some_and(|known| *known <= at) {
            return;
        }
        self.forget_time(&key);
        self.due_at.insert(key.clone(), at);
        self.waiting.insert((at, key));
    }

    /// The next key, which is now worked on until [`WorkQueue::done`].
    pub fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.dirty.remove(&key);
        self.processing.insert(key.clone());
        Some(key)
    }

    /// The work on it has ended, well or badly.
    pub fn done(&mut self, key: &K) {
        if self.processing.remove(key) && self.dirty.contains(key) {
            self.ready.push_back(key.clone());
        }
    }

    /// It failed: tries again after a pause that grows. Says how often it has failed by now.
    pub fn retry(&mut self, key: K, now: Instant) -> u32 {
        self.retry_after(key, now, Duration::ZERO)
    }

    /// The same, and not sooner than after `least`.
    pub fn retry_after(&mut self, key: K, now: Instant, least: Duration) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        let pause = self.pauses.after(*failures).max(least);
        *failures = failures.saturating_add(1);
        let times = *failures;
        if !self.dirty.contains(&key) {
            self.add_at(key, now + pause);
        }
        times
    }

    /// It succeeded: its failures count no more.
    pub fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// It does not wait for its time any more; what was added stays.
    pub fn cancel(&mut self, key: &K) {
        self.forget_time(key);
    }

    /// When the next key that waits for its time is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.waiting.first().map(|(at, _)| *at)
    }

    /// Queues what is due.
    pub fn wake(&mut self, now: Instant) {
        while let Some((at, _)) = self.waiting.first()
            && *at <= now
            && let Some((_, key)) = self.waiting.pop_first()
        {
            self.due_at.remove(&key);
            self.add(key);
        }
    }

    /// How many are ready to be taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    fn forget_time(&mut self, key: &K) {
        if let Some(at) = self.due_at.remove(key) {
            self.waiting.remove(&(at, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: RetryPauses =
        RetryPauses { first: Duration::from_millis(200), last: Duration::from_secs(60) };

    fn taken(queue: &mut WorkQueue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.take()).collect()
    }

    #[test]
    fn a_key_stands_in_the_queue_once() {
        let mut queue = WorkQueue::new(PAUSES);
        ["a", "b", "a"].into_iter().for_each(|key| queue.add(key));
        assert_eq!((queue.len(), taken(&mut queue)), (2, vec!["a", "b"]));
    }

    #[test]
    fn news_about_a_key_that_is_worked_on_waits_until_that_is_done() {
        let mut queue = WorkQueue::new(PAUSES);
        queue.add("a");
        assert_eq!(queue.take(), Some("a"));
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.take(), None, "nobody else may work on it");
        queue.done(&"a");
        assert_eq!(taken(&mut queue), ["a"]);
        queue.done(&"a");
        assert!(queue.is_empty(), "it was told of twice and is worked on once more");
    }

    #[test]
    fn what_fails_waits_longer_each_time_until_it_succeeds() {
        let (mut queue, start) = (WorkQueue::new(PAUSES), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            queue.retry("a", start);
            pauses.extend(queue.due().map(|at| at - start));
            queue.wake(start + PAUSES.last);
            assert_eq!((queue.take(), queue.due()), (Some("a"), None));
            queue.done(&"a");
        }
        assert_eq!(pauses[..3], [PAUSES.first, PAUSES.first * 2, PAUSES.first * 4]);
        assert_eq!(pauses[11], PAUSES.last);
        queue.forget(&"a");
        assert_eq!(queue.retry("a", start), 1);
        queue.wake(start);
        assert_eq!(queue.take(), None, "not due yet");
        queue.add("a");
        assert_eq!((queue.take(), queue.due()), (Some("a"), None), "news about it makes it due");
    }

    #[test]
    fn of_two_times_the_earlier_counts() {
        let (mut queue, start) = (WorkQueue::new(PAUSES), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        queue.add_at("a", at(10));
        queue.add_at("a", at(20));
        assert_eq!(queue.due(), Some(at(10)));
        queue.add_at("a", at(5));
        assert_eq!(queue.due(), Some(at(5)));
        queue.wake(at(30));
        assert_eq!((taken(&mut queue), queue.due()), (vec!["a"], None));
    }

    #[test]
    fn a_failure_while_there_is_news_waits_for_nothing() {
        let (mut queue, start) = (WorkQueue::new(PAUSES), Instant::now());
        queue.add("a");
        queue.take();
        queue.add("a");
        queue.retry("a", start);
        queue.done(&"a");
        assert_eq!((taken(&mut queue), queue.due()), (vec!["a"], None));
    }
}
