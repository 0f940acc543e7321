//! One controller at work: its queue, its workers, and what it waits for.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::config::controllers::Tuning;
use base::time::Clock;
use controllers_core::cache::{Cache, Change};
use controllers_core::controller::{Controller, Key, Row, Wakes};
use controllers_core::measure::{self, Measure, Sync};
use controllers_core::ownership::News;
use controllers_core::plan::{Act, Done, Outcome, Plan};
use controllers_core::resource::Resource;
use controllers_core::view::View;
use tokio::sync::Notify;

use crate::barrier::Barrier;
use crate::executor;
use crate::metrics::Metrics;
use crate::port::Api;
use crate::queue::Queue;
use crate::recorder::Recorder;

/// Plans that may follow one another in one sync. More would be a controller that never ends.
const ROUNDS: usize = 32;

/// What every loop of a process shares.
#[derive(Clone)]
pub struct Shared {
    pub cache: Arc<Cache>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Metrics,
    pub recorder: Recorder,
    pub tuning: Arc<Tuning>,
}

/// A row of the table, running.
pub struct ControlLoop {
    row: &'static Row,
    shared: Shared,
    api: Arc<dyn Api>,
    /// What the controller remembers. Never locked across an await.
    memory: Mutex<Box<dyn Controller>>,
    queue: Queue,
    barriers: Mutex<HashMap<Key, Barrier>>,
    progress: Notify,
    /// The first worker has said so.
    has_begun: AtomicBool,
}

/// How a sync ended.
enum Ended {
    Well,
    /// What was written for the key is not in the caches yet.
    Waiting,
    Failed(String),
}

// === impl ControlLoop ===

impl ControlLoop {
    #[must_use]
    pub fn new(row: &'static Row, shared: Shared, api: Arc<dyn Api>) -> ControlLoop {
        let memory = Mutex::new((row.make)(&shared.tuning));
        let queue = Queue::new(row.queue, row.retry, shared.metrics.clone());
        ControlLoop {
            has_begun: AtomicBool::new(false),
            row,
            shared,
            api,
            memory,
            queue,
            barriers: Mutex::default(),
            progress: Notify::new(),
        }
    }

    #[must_use]
    pub fn row(&self) -> &'static Row {
        self.row
    }

    /// Something that it looks at has changed, and the cache shows it.
    pub fn changed(&self, resource: Resource, change: &Change) {
        let mut watches = self.row.watches.iter().filter(|watch| watch.resource == resource).peekable();
        if watches.peek().is_none() {
            return;
        }
        self.memory().observe(change, self.shared.clock.now());
        let mut wakes = Wakes::default();
        watches.for_each(|watch| (watch.keys)(change, &*self.shared.cache, &mut wakes));
        for (key, after) in wakes.0 {
            self.queue.add_after(key, after);
        }
    }

    /// Whether it has to be told of all objects of all kinds.
    #[must_use]
    pub fn hears_everything(&self) -> bool {
        self.memory().graph().is_some()
    }

    /// Something was heard of all these objects.
    pub fn hear(&self, news: News) {
        let wakes = self.memory().graph().map(|graph| graph.hear(news)).unwrap_or_default();
        wakes.iter().for_each(|uid| self.queue.add(Key::new("", uid)));
        self.progress.notify_waiters();
    }

    /// A cache that it looks at has come further.
    pub fn progressed(&self) {
        let mut barriers = self.barriers();
        let mut met = Vec::new();
        barriers.retain(|key, barrier| {
            let is_met = barrier.is_awaited && barrier.is_met(&self.shared.cache);
            met.extend(is_met.then(|| key.clone()));
            !is_met
        });
        drop(barriers);
        met.into_iter().for_each(|key| self.queue.add(key));
        self.progress.notify_waiters();
    }

    /// Whether everything it looks at was listed once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.row.resources().all(|resource| self.shared.cache.is_complete(resource))
            && self.memory().graph().is_none_or(|graph| graph.is_complete())
    }

    /// What there is at this moment, counted.
    #[must_use]
    pub fn there(&self) -> Vec<Measure> {
        measure::there(&*self.shared.cache)
    }

    /// How long work has been going on: all together, and the longest.
    #[must_use]
    pub fn unfinished(&self) -> (Duration, Duration) {
        self.queue.unfinished()
    }

    /// Waits for the first lists: before them nothing is known to be absent. Then wakes who is to be woken at the start.
    pub async fn begin(&self) {
        loop {
            let progress = self.progress.notified();
            if self.is_ready() {
                break;
            }
            progress.await;
        }
        if self.has_begun.swap(true, Ordering::Relaxed) {
            return;
        }
        if self.row.is_single {
            self.queue.add(Key::all());
        }
        self.shared.metrics.running.set(["kube-controller-manager", self.row.name], 1.0);
        tracing::info!(controller = self.row.name, queue = self.row.queue, "Caches are synced");
    }

    /// One worker; never ends.
    pub async fn work(&self) {
        loop {
            self.work_once().await;
        }
    }

    /// Works on the next key.
    pub async fn work_once(&self) {
        let taken = self.queue.take().await;
        let key = taken.key.clone();
        match self.sync(&key).await {
            Ended::Well => self.queue.forget(&key),
            Ended::Waiting => {}
            Ended::Failed(why) => {
                let (failures, gives_up) = self.queue.retry(&key);
                let controller = self.row.name;
                match gives_up {
                    true => {
                        tracing::warn!(controller, %key, why, failures, "Given up until something changes")
                    }
                    false => tracing::info!(controller, %key, why, failures, "Sync failed, trying again"),
                }
            }
        }
    }

    async fn sync(&self, key: &Key) -> Ended {
        match self.pass(key).await {
            Ended::Well => {}
            other => return other,
        }
        let (now, begun) = (self.shared.clock.now(), tokio::time::Instant::now());
        let mut plan = self.memory().reconcile(&*self.shared.cache, key, now);
        let (mut done, mut after) = (Done::default(), Plan::nothing());
        let mut barrier = Barrier::new();
        for round in 0.. {
            self.shared.recorder.tell(self.row.event_source, std::mem::take(&mut plan.events));
            after = after.wake(plan.wake);
            after.again |= plan.again;
            std::mem::take(&mut plan.others).into_iter().for_each(|other| self.queue.add(other));
            after.failure = after.failure.or(plan.failure.take());
            if !plan.has_acts() {
                break;
            }
            if round == ROUNDS {
                after.failure = Some("it never comes to an end".to_owned());
                break;
            }
            let view = &*self.shared.cache;
            let foreseen: Vec<Option<Measure>> =
                plan.acts().map(|act| measure::foreseen(self.row.queue, view, act)).collect();
            executor::carry_out(&*self.api, &plan.steps, &mut done).await;
            done.last().iter().for_each(|(act, outcome)| barrier.add(act, outcome));
            self.count(foreseen, done.last());
            plan = self.memory().settle(&*self.shared.cache, key, now, &done);
        }
        self.wait_for(key, barrier, after.again);
        if let Some(wake) = after.wake {
            self.queue.add_after(key.clone(), wake);
        }
        let failure = after.failure.or_else(|| done.failure().map(ToString::to_string));
        let sync = Sync { key, done: &done, has_failed: failure.is_some(), took: begun.elapsed() };
        let measures = measure::synced(self.row.queue, &*self.shared.cache, sync);
        self.shared.metrics.families.take(measures);
        failure.map_or(Ended::Well, Ended::Failed)
    }

    /// Counts what was done, and what was foreseen of it.
    fn count(&self, foreseen: Vec<Option<Measure>>, acts: &[(Act, Outcome)]) {
        let families = &self.shared.metrics.families;
        for (foreseen, (act, outcome)) in foreseen.into_iter().zip(acts) {
            families.take(match outcome {
                Outcome::Done(_) => foreseen,
                Outcome::Failed(_) => foreseen.and_then(measure::failed),
                Outcome::Skipped => None,
            });
            families.take(measure::counted(self.row.queue, act, outcome));
        }
    }

    /// Keeps what has to be seen before the key is looked at again.
    fn wait_for(&self, key: &Key, mut barrier: Barrier, again: bool) {
        if barrier.is_empty() {
            if again {
                self.queue.add(key.clone());
            }
            return;
        }
        let until = barrier.until();
        let mut barriers = self.barriers();
        barrier.is_awaited = again;
        barriers.insert(key.clone(), barrier);
        drop(barriers);
        if again {
            // If the caches have come so far already, nobody will say so again.
            self.progressed();
            self.queue.add_after(key.clone(), until.saturating_duration_since(tokio::time::Instant::now()));
        }
    }

    /// Whether the key may be looked at. What nobody knows the revision of is asked for first.
    async fn pass(&self, key: &Key) -> Ended {
        let unknown = self.barriers().get(key).map(|barrier| barrier.unknown.clone());
        for resource in unknown.into_iter().flatten() {
            match self.api.revision(resource).await {
                Ok(revision) => {
                    if let Some(barrier) = self.barriers().get_mut(key) {
                        barrier.unknown.remove(&resource);
                        barrier.at_least(resource, revision);
                    }
                }
                Err(refusal) => return Ended::Failed(refusal.to_string()),
            }
        }
        let mut barriers = self.barriers();
        let Some(barrier) = barriers.get_mut(key) else { return Ended::Well };
        if barrier.is_met(&self.shared.cache) {
            barriers.remove(key);
            return Ended::Well;
        }
        barrier.is_awaited = true;
        let wait = barrier.until().saturating_duration_since(tokio::time::Instant::now());
        drop(barriers);
        self.queue.add_after(key.clone(), wait);
        Ended::Waiting
    }

    fn memory(&self) -> MutexGuard<'_, Box<dyn Controller>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn barriers(&self) -> MutexGuard<'_, HashMap<Key, Barrier>> {
        self.barriers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ControlLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControlLoop").field("row", &self.row).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("cache", &self.cache).finish_non_exhaustive()
    }
}
