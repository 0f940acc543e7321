//! What is counted of images.

use std::fmt;
use std::time::Duration;

use base::metrics::{Counter, Family, Gauge, Histogram};
use tonic::Code;

/// From a layer that is there to gigabytes over a slow line, in seconds.
const TIMES: &[f64] = &[0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];

#[derive(Debug)]
pub(crate) struct Metrics {
    pulls: Counter<1>,
    under_way: Gauge<0>,
    took: Histogram<0>,
}

/// While it lives, an image is being pulled.
#[derive(Debug)]
pub(super) struct Pulling<'a>(&'a Metrics);

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            pulls: Counter::new(
                "longshore_runtime_image_pulls_total",
                "Images that were asked for, by how that ended.",
                ["code"],
            ),
            under_way: Gauge::new(
                "longshore_runtime_image_pulls_under_way",
                "Images that are being pulled.",
                [],
            ),
            took: Histogram::new(
                "longshore_runtime_image_pull_duration_seconds",
                "How long pulling an image took, where it ended well.",
                [],
                TIMES,
            ),
        }
    }
}

impl Metrics {
    pub(super) fn pulling(&self) -> Pulling<'_> {
        self.under_way.add([], 1.0);
        Pulling(self)
    }

    pub(super) fn pulled(&self, code: Code, took: Duration) {
        self.pulls.inc([&format!("{code:?}")]);
        if code == Code::Ok {
            self.took.observe_duration([], took);
        }
    }

    /// For whoever shows the metrics of the daemon.
    pub(crate) fn write(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.pulls.write(out)?;
        self.under_way.write(out)?;
        self.took.write(out)
    }
}

impl Drop for Pulling<'_> {
    fn drop(&mut self) {
        self.0.under_way.add([], -1.0);
    }
}
