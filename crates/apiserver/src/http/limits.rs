//! How much is done at once, and for whom.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_core::api_status::ApiStatus;
use apiserver_core::request::{User, groups};

/// `--max-requests-inflight`, `--max-mutating-requests-inflight`, and how many may stay open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub reads: usize,
    pub writes: usize,
    /// Watches, logs, shells: each is cheap, and none ends by itself.
    pub open: usize,
}

/// How long a slow client is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts {
    /// From the first packet to the end of the first request's head, the TLS handshake included.
    pub first: Duration,
    /// For another request, on a connection that is kept. Answers to pings are none.
    pub idle: Duration,
    /// For all of its body to arrive.
    pub body: Duration,
    /// For a reader to take what was sent; a client that never reads its watch is cut off.
    pub stall: Duration,
}

/// Connections at once, of strangers and of those who said who they are; a watch is often one by itself.
pub(crate) const CONNECTIONS: serve::Limits =
    serve::Limits { remote: 1024, local: 512, known: 4096, per_source: 256, known_takes: 2 };

/// What a request takes part in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Read,
    Write,
    Open,
}

/// Counts what is under way. Cheap to clone.
#[derive(Clone, Debug)]
pub struct InFlight(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Limits,
    state: Mutex<HashMap<Class, Count>>,
}

#[derive(Debug, Default)]
struct Count {
    all: usize,
    by_user: HashMap<Box<str>, usize>,
}

/// A place among those under way; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    of: InFlight,
    class: Class,
    user: Box<str>,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Limits {
        Limits { reads: 400, writes: 200, open: 16_384 }
    }
}

impl Default for ClientTimeouts {
    fn default() -> ClientTimeouts {
        let seconds = Duration::from_secs;
        ClientTimeouts { first: seconds(10), idle: seconds(90), body: seconds(60), stall: seconds(90) }
    }
}

impl Limits {
    fn of(&self, class: Class) -> usize {
        match class {
            Class::Read => self.reads,
            Class::Write => self.writes,
            Class::Open => self.open,
        }
    }
}

// === impl InFlight ===

impl InFlight {
    #[must_use]
    pub fn new(limits: Limits) -> InFlight {
        InFlight(Arc::new(Inner { limits, state: Mutex::default() }))
    }

    /// Takes a place. Below half of the limit anybody may; above it nobody may hold more than an equal share, and nobody
    /// the last quarter, so that one user's flood is that user's trouble. Administrators are let in as long as there is
    /// any place.
    pub(crate) fn enter(&self, class: Class, user: &User) -> Result<Place, ApiStatus> {
        let limit = self.0.limits.of(class);
        let mut state = self.state();
        let count = state.entry(class).or_default();
        let own = count.by_user.get(&*user.name).copied().unwrap_or_default();
        let users = count.by_user.len() + usize::from(own == 0);
        let crowded = count.all * 2 >= limit && !user.is_in(groups::MASTERS);
        let share = (limit / users.max(1)).min(limit - limit / 4).max(1);
        let unfair = crowded && own >= share;
        if limit > 0 && (count.all >= limit || unfair) {
            let message = "The server has received too many requests and has asked us to try again later";
            return Err(ApiStatus::too_many_requests(message, 1));
        }
        count.all += 1;
        *count.by_user.entry(user.name.as_str().into()).or_default() += 1;
        Ok(Place { of: self.clone(), class, user: user.name.as_str().into() })
    }

    /// How many are under way.
    pub(crate) fn count(&self, class: Class) -> usize {
        self.state().get(&class).map_or(0, |count| count.all)
    }

    fn state(&self) -> MutexGuard<'_, HashMap<Class, Count>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let count = state.entry(self.class).or_default();
        count.all = count.all.saturating_sub(1);
        if let Some(own) = count.by_user.get_mut(&self.user) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                count.by_user.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_leaves_room_for_others() {
        let flight = InFlight::new(Limits { reads: 10, writes: 1, open: 1 });
        let (loud, quiet) = (User::new("loud", &[]), User::new("quiet", &[]));
        let mut held: Vec<Place> = (0..5).map(|_| flight.enter(Class::Read, &loud).unwrap()).collect();
        held.push(flight.enter(Class::Read, &quiet).unwrap());
        assert!(flight.enter(Class::Read, &loud).is_err(), "half is its share");
        held.push(flight.enter(Class::Read, &quiet).unwrap());
        held.clear();
        held.extend((0..8).map(|_| flight.enter(Class::Read, &loud).unwrap()));
        assert!(flight.enter(Class::Read, &loud).is_err(), "a lone flood leaves a quarter, rounded down");
        held.push(flight.enter(Class::Read, &quiet).unwrap());
        held.clear();
        assert!(flight.enter(Class::Read, &loud).is_ok() && flight.count(Class::Read) == 0);
        let _one = flight.enter(Class::Write, &loud).unwrap();
        assert_eq!(flight.enter(Class::Write, &quiet).map(drop).map_err(|r| r.code), Err(429));
    }
}
