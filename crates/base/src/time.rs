//! Two clocks, never confused: `Mono` decides, `Wall` is only shown to people.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Monotonic time since an arbitrary origin. Deadlines, back-offs and periods use this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub Duration);

/// Wall-clock time in nanoseconds since the Unix epoch. It may jump; nothing may depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    pub mono: Mono,
    pub wall: Wall,
}

/// The injected clock.
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Now;
}

// === impl Mono ===

impl Mono {
    #[must_use]
    pub fn since(self, earlier: Mono) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Mono {
    type Output = Mono;
    fn add(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(d))
    }
}

impl Sub<Duration> for Mono {
    type Output = Mono;
    fn sub(self, d: Duration) -> Mono {
        Mono(self.0.saturating_sub(d))
    }
}

// === impl Wall ===

impl Wall {
    #[must_use]
    pub const fn from_secs(secs: i64) -> Wall {
        Wall(secs.saturating_mul(1_000_000_000))
    }

    #[must_use]
    pub fn secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// How long ago `earlier` was; zero when the clock was set back.
    #[must_use]
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
