//! What the listeners of a port share: who is connected, and how one is told to go.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::time::Mono;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::places::{Id, Limits, Places, Pool, Proof, Source, Times, Verdict, Why};

/// Connections that were told to go and are not closed yet; with more of them nobody is let in.
const LEAVING: usize = 64;
/// How long is waited for them: they close when their task has its turn.
const LEAVING_TIME: Duration = Duration::from_millis(100);
/// Between two lines in the log.
const LOG_PERIOD: Duration = Duration::from_secs(10);

/// The connections of a port, or of several that share their places. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Connections(Arc<Inner>);

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    pub source: Source,
    pub address: Option<SocketAddr>,
}

#[derive(Debug)]
struct Inner {
    name: &'static str,
    began: Instant,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Somebody who was told to go is gone.
    left: Notify,
}

#[derive(Debug)]
struct State {
    places: Places,
    exits: HashMap<Id, Arc<Exit>>,
    /// Told to go, and not closed yet.
    leaving: usize,
    unlogged: Unlogged,
}

/// How one connection is told to go.
#[derive(Debug, Default)]
pub(crate) struct Exit {
    pub(crate) evicted: CancellationToken,
    /// It is no longer HTTP: nobody but its stream can tell it to go.
    pub(crate) streams: AtomicBool,
}

/// What was not said in the log yet.
#[derive(Debug, Default)]
struct Unlogged {
    said: Option<Mono>,
    evicted: u64,
    refused: u64,
}

// === impl Connections ===

impl Connections {
    /// `name` is the listener's in metrics and in the log.
    #[must_use]
    pub fn new(
        name: &'static str,
        limits: Limits,
        proof: Proof,
        times: Times,
        metrics: Arc<Metrics>,
    ) -> Connections {
        let places = Places::new(limits, proof, times);
        let state = State { places, exits: HashMap::new(), leaving: 0, unlogged: Unlogged::default() };
        let (began, state, left) = (Instant::now(), Mutex::new(state), Notify::new());
        Connections(Arc::new(Inner { name, began, metrics, state, left }))
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    #[must_use]
    pub fn count(&self, pool: Pool) -> usize {
        self.state().places.count(pool)
    }

    /// A place for a newcomer; none if everybody is at work.
    pub(crate) fn enter(&self, peer: &Peer) -> Option<(Id, Arc<Exit>)> {
        let (now, name, metrics) = (self.now(), self.0.name, &self.0.metrics);
        metrics.accepted.inc([name]);
        let mut state = self.state();
        let entered = match state.places.enter(peer.source, now) {
            Ok(entered) => entered,
            Err(refused) => {
                metrics.refused.inc([name, refused.0.as_str()]);
                state.unlogged.refused += 1;
                state.log(name, peer.address, now);
                return None;
            }
        };
        let exit = Arc::new(Exit::default());
        state.exits.insert(entered.id, exit.clone());
        metrics.open.add([name, entered.pool.as_str()], 1.0);
        if let Some((id, why)) = entered.gone {
            self.evict(&mut state, id, why, entered.pool);
            state.log(name, peer.address, now);
        }
        drop(state);
        Some((entered.id, exit))
    }

    /// The process has no descriptor left: somebody who is not at work goes.
    pub(crate) fn relieve(&self) {
        let now = self.now();
        let mut state = self.state();
        if let Some((id, pool)) = state.places.relieve(now) {
            self.evict(&mut state, id, Why::Descriptors, pool);
        }
        state.log(self.0.name, None, now);
    }

    /// Waits until those who were told to go are closed: what they hold counts until then.
    pub(crate) async fn settle(&self) {
        let deadline = Instant::now() + LEAVING_TIME;
        loop {
            let left = self.0.left.notified();
            if self.state().leaving < LEAVING {
                return;
            }
            if tokio::time::timeout_at(deadline, left).await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn ask(&self, id: Id) {
        let now = self.now();
        self.state().places.ask(id, now);
    }

    pub(crate) fn end(&self, id: Id, is_answered: bool) {
        let now = self.now();
        self.state().places.end(id, is_answered, now);
    }

    pub(crate) fn stream(&self, id: Id) {
        let mut state = self.state();
        state.places.stream(id);
        if let Some(exit) = state.exits.get(&id) {
            exit.streams.store(true, Ordering::Relaxed);
        }
    }

    pub(crate) fn know(&self, id: Id) {
        let now = self.now();
        let mut state = self.state();
        let Some(before) = state.places.pool(id) else { return };
        let (moved, gone) = state.places.know(id, now);
        if moved {
            self.0.metrics.open.add([self.0.name, before.as_str()], -1.0);
            self.0.metrics.open.add([self.0.name, Pool::Known.as_str()], 1.0);
        }
        if let Some((id, why)) = gone {
            self.evict(&mut state, id, why, Pool::Known);
            state.log(self.0.name, None, now);
        }
    }

    /// Its stream is closed.
    pub(crate) fn leave(&self, id: Id) {
        let mut state = self.state();
        match state.places.leave(id) {
            Some(pool) => {
                state.exits.remove(&id);
                self.0.metrics.open.add([self.0.name, pool.as_str()], -1.0);
            }
            None => {
                state.leaving = state.leaving.saturating_sub(1);
                self.0.left.notify_waiters();
            }
        }
    }

    pub(crate) fn verdict(&self, id: Id) -> Verdict {
        let now = self.now();
        self.state().places.verdict(id, now)
    }

    /// The clock ended a connection.
    pub(crate) fn expired(&self, why: Why) {
        self.0.metrics.evicted.inc([self.0.name, why.as_str()]);
    }

    pub(crate) fn panicked(&self) {
        self.0.metrics.panicked.inc([self.0.name]);
    }

    pub(crate) fn not_accepted(&self) {
        self.0.metrics.not_accepted.inc([self.0.name]);
    }

    pub(crate) fn at(&self, time: Mono) -> Instant {
        self.0.began + time.0
    }

    /// Tells one who lost its place already.
    fn evict(&self, state: &mut State, id: Id, why: Why, pool: Pool) {
        self.0.metrics.evicted.inc([self.0.name, why.as_str()]);
        self.0.metrics.open.add([self.0.name, pool.as_str()], -1.0);
        state.unlogged.evicted += 1;
        if let Some(exit) = state.exits.remove(&id) {
            state.leaving += 1;
            exit.evicted.cancel();
        }
    }

    fn now(&self) -> Mono {
        Mono(self.0.began.elapsed())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    /// One line for all that happened since the last.
    fn log(&mut self, listener: &str, newest: Option<SocketAddr>, now: Mono) {
        let unlogged = &mut self.unlogged;
        if unlogged.said.is_some_and(|said| now.since(said) < LOG_PERIOD) {
            return;
        }
        let Unlogged { evicted, refused, .. } = *unlogged;
        let newest = newest.map(|address| address.ip());
        let count = |pool| self.places.count(pool);
        let (remote, local, known) = (count(Pool::Remote), count(Pool::Local), count(Pool::Known));
        tracing::warn!(
            listener,
            evicted,
            refused,
            remote,
            local,
            known,
            ?newest,
            "no room for connections: others had to make way"
        );
        self.unlogged = Unlogged { said: Some(now), ..Unlogged::default() };
    }
}
