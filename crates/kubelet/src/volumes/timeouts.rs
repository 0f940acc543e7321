//! How long volumes may take: before somebody hears of it, and before force is used.

use std::time::Duration;

/// For a node by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// How long a Pod that is to start waits before it says what for. Whoever is late goes on.
    pub set_up: Duration,
    /// How long a Pod that is to go waits before it names its blocker.
    pub unmount: Duration,
    /// How long the program that mounts a share may run. It gives up by itself after two minutes; one that has not by
    /// then is not going to.
    pub program: Duration,
    /// How long a share is unmounted as one does.
    pub gently: Duration,
    /// How long each of the other ways is tried.
    pub by_force: Duration,
    /// Between two attempts at a share that is in use.
    pub pause: Duration,
}

// === impl Timeouts ===

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            set_up: Duration::from_secs(120),
            unmount: Duration::from_secs(30),
            program: Duration::from_secs(150),
            gently: Duration::from_secs(60),
            by_force: Duration::from_secs(10),
            pause: Duration::from_secs(1),
        }
    }
}
