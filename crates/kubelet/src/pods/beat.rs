//! The pulse of a loop, for the health check that asks whether it still turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::time::Clock;

/// The pulse of a loop: beats with every turn, and is looked at by a health check.
#[derive(Clone)]
pub struct Beat {
    clock: Arc<dyn Clock>,
    /// Milliseconds of the monotonic clock.
    last: Arc<AtomicU64>,
}

// === impl Beat ===

impl Beat {
    /// Begins as if the loop had just turned.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let beat = Self { clock, last: Arc::default() };
        beat.turn();
        beat
    }

    pub fn turn(&self) {
        self.last.store(self.now(), Ordering::Relaxed);
    }

    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().mono.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl std::fmt::Debug for Beat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Beat")
    }
}
