//! What is counted of streams.

use std::fmt;

use base::metrics::{Counter, Family, Gauge};

#[derive(Debug)]
pub(crate) struct Metrics {
    total: Counter<1>,
    open: Gauge<1>,
}

/// While it lives, a stream is open.
#[derive(Debug)]
pub(super) struct Open<'a> {
    metrics: &'a Metrics,
    kind: &'static str,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            total: Counter::new(
                "longshore_runtime_streams_total",
                "Streams of exec, attach and portforward that clients came for.",
                ["kind"],
            ),
            open: Gauge::new(
                "longshore_runtime_streams_open",
                "Streams of exec, attach and portforward that are open.",
                ["kind"],
            ),
        }
    }
}

impl Metrics {
    pub(super) fn opened(&self, kind: &'static str) -> Open<'_> {
        self.total.inc([kind]);
        self.open.add([kind], 1.0);
        Open { metrics: self, kind }
    }

    /// For whoever shows the metrics of the daemon.
    pub(crate) fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.total.write(out)?;
        self.open.write(out)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.metrics.open.add([self.kind], -1.0);
    }
}
