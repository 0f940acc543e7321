//! The work queue of one controller, shared by its workers.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::workqueue::{RetryPauses, WorkQueue};
use controllers_core::controller::{Key, Retry};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// Retries of all keys together: so many a second, so many at once.
const RETRIES_PER_SECOND: f64 = 10.0;
const RETRY_BURST: f64 = 100.0;

#[derive(Debug)]
pub(crate) struct Queue {
    name: &'static str,
    inner: Mutex<Inner>,
    news: Notify,
    gives_up_after: Option<u32>,
    metrics: Metrics,
}

#[derive(Debug)]
struct Inner {
    keys: WorkQueue<Key>,
    bucket: Bucket,
    /// Since when keys wait to be taken, and since when they are worked on.
    added: HashMap<Key, Instant>,
    begun: HashMap<Key, Instant>,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// A key that is being worked on, until this is dropped: also when the work panics.
#[derive(Debug)]
pub(crate) struct Taken<'q> {
    pub(crate) key: Key,
    queue: &'q Queue,
}

// === impl Queue ===

impl Queue {
    pub(crate) fn new(name: &'static str, retry: Retry, metrics: Metrics) -> Queue {
        let pauses = RetryPauses { first: retry.first, last: retry.last };
        let bucket = Bucket { left: RETRY_BURST, at: Instant::now() };
        let inner =
            Inner { keys: WorkQueue::new(pauses), bucket, added: HashMap::new(), begun: HashMap::new() };
        Queue {
            name,
            inner: Mutex::new(inner),
            news: Notify::new(),
            gives_up_after: retry.gives_up_after,
            metrics,
        }
    }

    pub(crate) fn add(&self, key: Key) {
        let mut inner = self.lock();
        inner.added.entry(key.clone()).or_insert_with(|| {
            self.metrics.adds.inc([self.name]);
            Instant::now()
        });
        inner.keys.add(key);
        self.metrics.depth.set([self.name], inner.keys.len() as f64);
        drop(inner);
        self.news.notify_one();
    }

    pub(crate) fn add_after(&self, key: Key, after: Duration) {
        if after.is_zero() {
            return self.add(key);
        }
        self.lock().keys.add_at(key, Instant::now() + after);
        self.news.notify_one();
    }

    /// The next key; waits as long as it takes.
    pub(crate) async fn take(&self) -> Taken<'_> {
        loop {
            let news = self.news.notified();
            let (key, due) = self.try_take();
            if let Some(key) = key {
                return Taken { key, queue: self };
            }
            match due {
                Some(at) => _ = tokio::time::timeout_at(at, news).await,
                None => news.await,
            }
        }
    }

    fn try_take(&self) -> (Option<Key>, Option<Instant>) {
        let (mut inner, now) = (self.lock(), Instant::now());
        inner.keys.wake(now);
        let key = inner.keys.take();
        self.metrics.depth.set([self.name], inner.keys.len() as f64);
        if let Some(key) = &key {
            let added = inner.added.remove(key).unwrap_or(now);
            self.metrics.waited.observe_duration([self.name], now - added);
            inner.begun.insert(key.clone(), now);
        }
        // The others sleep: one of them takes what is left.
        if !inner.keys.is_empty() || (key.is_some() && inner.keys.due().is_some()) {
            self.news.notify_one();
        }
        (key, inner.keys.due())
    }

    /// It failed: again after a pause, or not before something happens to it. Says how often it has failed.
    pub(crate) fn retry(&self, key: &Key) -> (u32, bool) {
        let (mut inner, now) = (self.lock(), Instant::now());
        let least = inner.bucket.reserve(now);
        let failures = inner.keys.retry_after(key.clone(), now, least);
        self.metrics.retries.inc([self.name]);
        let gives_up = self.gives_up_after.is_some_and(|most| failures > most);
        if gives_up {
            inner.keys.forget(key);
            inner.keys.cancel(key);
        }
        drop(inner);
        self.news.notify_one();
        (failures, gives_up)
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.lock().keys.forget(key);
    }

    /// How long keys have been worked on by now: all together, and the one that takes longest.
    pub(crate) fn unfinished(&self) -> (Duration, Duration) {
        let inner = self.lock();
        let times = inner.begun.values().map(Instant::elapsed);
        times.fold((Duration::ZERO, Duration::ZERO), |(sum, most), one| (sum + one, most.max(one)))
    }

    fn done(&self, key: &Key) {
        let mut inner = self.lock();
        inner.keys.done(key);
        if let Some(begun) = inner.begun.remove(key) {
            self.metrics.worked.observe_duration([self.name], begun.elapsed());
        }
        drop(inner);
        self.news.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Taken ===

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.queue.done(&self.key);
    }
}

// === impl Bucket ===

impl Bucket {
    /// How long the next retry has to wait for its turn.
    fn reserve(&mut self, now: Instant) -> Duration {
        let earned = (now - self.at).as_secs_f64() * RETRIES_PER_SECOND;
        self.left = (self.left + earned).min(RETRY_BURST) - 1.0;
        self.at = now;
        if self.left >= 0.0 {
            Duration::ZERO
        } else {
            Duration::from_secs_f64(-self.left / RETRIES_PER_SECOND)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(gives_up_after: Option<u32>) -> Queue {
        Queue::new("q", Retry { gives_up_after, ..Retry::DEFAULT }, Metrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_worked_on_by_one_and_waits_for_its_time() {
        let (queue, key) = (queue(None), Key::new("n", "a"));
        queue.add_after(key.clone(), Duration::from_secs(10));
        let before = Instant::now();
        let taken = queue.take().await;
        assert_eq!((&taken.key, before.elapsed().as_secs()), (&key, 10));
        queue.add(key.clone());
        assert!(
            tokio::time::timeout(Duration::from_secs(60), queue.take()).await.is_err(),
            "somebody works on it"
        );
        drop(taken);
        assert_eq!(queue.take().await.key, key);
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_too_often_waits_for_news() {
        let (queue, key) = (queue(Some(2)), Key::new("n", "a"));
        assert_eq!(
            [queue.retry(&key), queue.retry(&key), queue.retry(&key)],
            [(1, false), (2, false), (3, true)]
        );
        assert!(tokio::time::timeout(Duration::from_secs(3600), queue.take()).await.is_err());
        queue.add(key.clone());
        assert_eq!(queue.take().await.key, key);
        assert_eq!(queue.retry(&key), (1, false));
    }

    #[tokio::test(start_paused = true)]
    async fn all_retries_together_have_a_rate() {
        let queue = queue(None);
        for n in 0..150 {
            queue.retry(&Key::new("n", &n.to_string()));
        }
        let (begun, mut taken) = (Instant::now(), 0);
        while tokio::time::timeout(Duration::from_secs(1), queue.take()).await.is_ok() {
            taken += 1;
        }
        assert_eq!(taken, 150);
        assert_eq!(
            begun.elapsed().as_secs(),
            6,
            "fifty above the burst, ten a second, and the last second of waiting"
        );
    }
}
