//! Places for questions that wait for upstreams.
//!
//! Each holds a descriptor for some seconds, and whoever asks for names whose servers never answer could take all of them. So nobody
//! has more places than are left for others: one alone gets half of them, a second one half of the rest.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serve::{Budget, network};

/// All places, where there are descriptors enough.
const MOST: usize = 2000;

#[derive(Debug)]
pub(crate) struct Waiting {
    all: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    together: usize,
    by_source: HashMap<IpAddr, usize>,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    waiting: Arc<Waiting>,
    source: IpAddr,
}

// === impl Waiting ===

impl Waiting {
    /// As many as the limit of open files allows.
    pub(crate) fn now() -> Arc<Waiting> {
        Waiting::of(MOST.min(Budget::now().share(40)))
    }

    fn of(all: usize) -> Arc<Waiting> {
        Arc::new(Waiting { all, held: Mutex::default() })
    }

    /// None where this one has to come again.
    pub(crate) fn take(self: &Arc<Self>, ip: IpAddr) -> Option<Place> {
        let source = network(ip);
        let mut held = self.lock();
        let own = held.by_source.get(&source).copied().unwrap_or(0);
        if own >= self.all.saturating_sub(held.together) {
            return None;
        }
        held.together += 1;
        held.by_source.insert(source, own + 1);
        Some(Place { waiting: self.clone(), source })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut held = self.waiting.lock();
        held.together -= 1;
        if let Entry::Occupied(mut own) = held.by_source.entry(self.source) {
            *own.get_mut() -= 1;
            if *own.get() == 0 {
                own.remove();
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn fill(waiting: &Arc<Waiting>, ip: &str) -> Vec<Place> {
        std::iter::from_fn(|| waiting.take(ip.parse().unwrap())).collect()
    }

    #[test]
    fn whoever_asks_most_leaves_places_for_others() {
        let waiting = Waiting::of(64);
        let loud = fill(&waiting, "10.0.0.1");
        let second = fill(&waiting, "10.0.0.2");
        let third = fill(&waiting, "10.0.0.3");
        assert_eq!([loud.len(), second.len(), third.len()], [32, 16, 8]);
        // Who has none yet gets one as long as there is one.
        assert!(waiting.take("10.0.0.4".parse().unwrap()).is_some());
        drop(loud);
        assert_eq!(fill(&waiting, "10.0.0.1").len(), 20);
        drop((second, third));
        assert!(waiting.lock().by_source.is_empty() && waiting.lock().together == 0);
    }

    #[test]
    fn a_network_of_many_addresses_is_one_source() {
        let waiting = Waiting::of(8);
        let held: Vec<_> =
            (0..100).filter_map(|n| waiting.take(format!("fd00::{n}").parse().unwrap())).collect();
        assert_eq!(held.len(), 4);
    }
}
