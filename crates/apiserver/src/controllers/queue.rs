//! A work queue: an item stands in it once, and what failed waits longer each time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(200);
const LAST: Duration = Duration::from_secs(60);

/// Holds no more than there are items: whoever names objects in it is bounded by the store.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    ready: VecDeque<T>,
    queued: HashSet<T>,
    failed: HashMap<T, Failure>,
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    times: u32,
    /// When to try again; None while it is queued or worked on.
    due: Option<Instant>,
}

// === impl WorkQueue ===

impl<T: Clone + Eq + Hash> WorkQueue<T> {
    pub(crate) fn new() -> WorkQueue<T> {
        WorkQueue { ready: VecDeque::new(), queued: HashSet::new(), failed: HashMap::new() }
    }

    pub(crate) fn add(&mut self, item: T) {
        if let Some(failure) = self.failed.get_mut(&item) {
            failure.due = None;
        }
        if self.queued.insert(item.clone()) {
            self.ready.push_back(item);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.ready.pop_front()?;
        self.queued.remove(&item);
        Some(item)
    }

    /// It succeeded: its failures are forgotten.
    pub(crate) fn done(&mut self, item: &T) {
        self.failed.remove(item);
    }

    /// It failed and is tried again later. Says how often it has failed by now.
    pub(crate) fn retry(&mut self, item: T, now: Instant) -> u32 {
        let queued = self.queued.contains(&item);
        let failure = self.failed.entry(item).or_insert(Failure { times: 0, due: None });
        let pause = FIRST.saturating_mul(1 << failure.times.min(16)).min(LAST);
        failure.times = failure.times.saturating_add(1);
        failure.due = (!queued).then(|| now + pause);
        failure.times
    }

    /// When the next failed item is due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.failed.values().filter_map(|f| f.due).min()
    }

    /// Queues what is due.
    pub(crate) fn wake(&mut self, now: Instant) {
        let due = |f: &Failure| f.due.is_some_and(|at| at <= now);
        let ready: Vec<T> =
            self.failed.iter().filter(|(_, f)| due(f)).map(|(item, _)| item.clone()).collect();
        ready.into_iter().for_each(|item| self.add(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_stands_in_the_queue_once() {
        let mut queue = WorkQueue::new();
        for item in ["a", "b", "a"] {
            queue.add(item);
        }
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some("a"), Some("b"), None));
        queue.add("a");
        assert_eq!(queue.pop(), Some("a"));
    }

    #[test]
    fn what_fails_waits_longer_each_time_until_it_succeeds() {
        let (mut queue, start) = (WorkQueue::new(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            queue.retry("a", start);
            pauses.extend(queue.due().map(|at| at - start));
            queue.wake(start + LAST);
            assert_eq!((queue.pop(), queue.due()), (Some("a"), None));
        }
        assert_eq!(pauses[..3], [FIRST, FIRST * 2, FIRST * 4]);
        assert_eq!(pauses[11], LAST);
        queue.done(&"a");
        assert_eq!(queue.retry("a", start), 1);
        queue.wake(start);
        assert_eq!(queue.pop(), None, "not due yet");
        queue.add("a");
        assert_eq!((queue.pop(), queue.due()), (Some("a"), None), "news about it makes it due");
    }
}
