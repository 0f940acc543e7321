//! What is counted of connections, for every listener of a process.

use std::fmt::{self, Write};

use base::metrics::{Counter, Family, Gauge};

/// One for the whole process.
#[derive(Debug)]
pub struct Metrics {
    pub open: Gauge<2>,
    pub accepted: Counter<1>,
    pub refused: Counter<2>,
    pub evicted: Counter<2>,
    pub not_accepted: Counter<1>,
    pub panicked: Counter<1>,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            open: Gauge::new(
                "longshore_connections_open",
                "Connections, by listener and by the places they take: those of strangers from elsewhere (remote) or \
                 from this machine (local), or of those who are known.",
                ["listener", "pool"],
            ),
            accepted: Counter::new(
                "longshore_connections_accepted_total",
                "Connections that came.",
                ["listener"],
            ),
            refused: Counter::new(
                "longshore_connections_refused_total",
                "Connections that found no place, because everybody there was at work.",
                ["listener", "reason"],
            ),
            evicted: Counter::new(
                "longshore_connections_evicted_total",
                "Connections that were ended: for others, because a pool was full (full), an address had too many \
                 (source) or there was no descriptor left (descriptors); or by the clock (nothing_asked, idle, too_long).",
                ["listener", "reason"],
            ),
            not_accepted: Counter::new(
                "longshore_connections_accept_errors_total",
                "Attempts to accept a connection that failed.",
                ["listener"],
            ),
            panicked: Counter::new(
                "longshore_connections_panicked_total",
                "Connections whose handler panicked.",
                ["listener"],
            ),
        }
    }
}

impl Metrics {
    /// The Prometheus text.
    pub fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let families: [&dyn Family; 6] =
            [&self.open, &self.accepted, &self.refused, &self.evicted, &self.not_accepted, &self.panicked];
        families.iter().try_for_each(|family| family.write(out))
    }
}
