//! The real clocks.

use std::time::{SystemTime, UNIX_EPOCH};

use base::time::{Clock, Mono, Now, Wall};

/// Tokio's monotonic clock and the system's wall clock.
#[derive(Debug)]
pub struct SystemClock {
    origin: tokio::time::Instant,
}

impl SystemClock {
    #[must_use]
    pub fn new() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Now {
            mono: Mono(self.origin.elapsed()),
            wall: Wall(i64::try_from(since_epoch.as_nanos()).unwrap_or(i64::MAX)),
        }
    }
}
