//! What can be seen of the scheduler from outside: how it stands, what it has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::metrics::Metrics;

/// Shared with whoever serves the pages.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    metrics: Arc<Metrics>,
    /// It holds the Lease, or needs none.
    has_begun: AtomicBool,
    has_synced: AtomicBool,
}

// === impl Seen ===

impl Seen {
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        self.0.metrics.clone()
    }

    pub(crate) fn begin(&self) {
        self.0.has_begun.store(true, Ordering::Release);
    }

    pub(crate) fn set_synced(&self) {
        self.0.has_synced.store(true, Ordering::Release);
    }

    /// Everything in the text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.metrics.render()
    }

    /// Err: it still waits for the first lists. One that waits for the Lease is ready.
    pub fn is_ready(&self) -> Result<(), String> {
        let has_begun = self.0.has_begun.load(Ordering::Acquire);
        match has_begun && !self.0.has_synced.load(Ordering::Acquire) {
            true => Err("waiting for handlers to sync".to_owned()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_ready_between_its_begin_and_the_first_lists() {
        let seen = Seen::default();
        assert!(seen.is_ready().is_ok(), "another holds the Lease");
        seen.begin();
        assert!(seen.is_ready().is_err());
        seen.clone().set_synced();
        assert!(seen.is_ready().is_ok());
        seen.metrics().attempts.add(["default-scheduler", "scheduled"], 1.0);
        assert!(seen.render().contains("scheduler_schedule_attempts_total"));
    }
}
