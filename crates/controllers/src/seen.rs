//! What can be seen of the controllers from outside: which run, how they stand, what they have counted.

use std::sync::{Arc, OnceLock};

use crate::control_loop::ControlLoop;
use crate::metrics::Metrics;

/// The running controllers, once this process runs them: before, somebody else may hold the Lease.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<OnceLock<Vec<Arc<ControlLoop>>>>);

// === impl Seen ===

impl Seen {
    pub(crate) fn show(&self, loops: &[Arc<ControlLoop>]) {
        let _ = self.0.set(loops.to_vec());
    }

    fn loops(&self) -> &[Arc<ControlLoop>] {
        self.0.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Everything in the text format.
    #[must_use]
    pub fn metrics(&self, metrics: &Metrics) -> String {
        let unfinished = self.loops().iter().map(|one| {
            let (all, longest) = one.unfinished();
            (one.row().queue, all.as_secs_f64(), longest.as_secs_f64())
        });
        let there = self.loops().first().map(|one| one.there()).unwrap_or_default();
        metrics.render(&unfinished.collect::<Vec<_>>(), there).unwrap_or_default()
    }

    /// Err: the controllers that still wait for the first lists of what they look at. One that waits for the Lease is ready.
    pub fn are_ready(&self) -> Result<(), String> {
        let waiting: Vec<&str> =
            self.loops().iter().filter(|one| !one.is_ready()).map(|one| one.row().name).collect();
        if waiting.is_empty() {
            Ok(())
        } else {
            Err(format!("caches are not synced: {}", waiting.join(", ")))
        }
    }

    /// Err: a controller has worked on one object for longer than any request may take.
    pub fn is_moving(&self, controller: &str) -> Result<(), String> {
        let mut loops = self.loops().iter().filter(|one| one.row().name == controller);
        match loops.find(|one| one.unfinished().1 > STUCK) {
            Some(one) => Err(format!("one sync of {} does not end", one.row().queue)),
            None => Ok(()),
        }
    }
}

/// A sync is some requests, each of which ends.
const STUCK: std::time::Duration = std::time::Duration::from_secs(600);
