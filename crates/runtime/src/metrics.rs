//! Counts and times, for `/metrics`.

use std::fmt::{self, Write};
use std::time::Duration;

use base::metrics::{Counter, Family, Gauge, Histogram, exponential_buckets};

use crate::books::Books;
use crate::records::{Phase, SandboxPhase};

#[derive(Debug)]
pub(crate) struct Metrics {
    calls: Histogram<2>,
    errors: Counter<3>,
    pub(crate) network: Histogram<1>,
    pub(crate) exits: Counter<1>,
    pub(crate) keepers_lost: Counter<0>,
    pub(crate) leftovers: Counter<1>,
    containers: Gauge<1>,
    sandboxes: Gauge<1>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let seconds = exponential_buckets(0.0005, 2.0, 18);
        Metrics {
            calls: Histogram::new(
                "longshore_runtime_cri_duration_seconds",
                "How long calls of the CRI took, by service and method.",
                ["service", "method"],
                &seconds,
            ),
            errors: Counter::new(
                "longshore_runtime_cri_errors_total",
                "Calls of the CRI that failed, by service, method and code.",
                ["service", "method", "code"],
            ),
            network: Histogram::new(
                "longshore_runtime_network_duration_seconds",
                "How long network plugins took, by verb.",
                ["verb"],
                &seconds,
            ),
            exits: Counter::new(
                "longshore_runtime_container_exits_total",
                "Containers that ended, by reason.",
                ["reason"],
            ),
            keepers_lost: Counter::new(
                "longshore_runtime_keepers_lost_total",
                "Keepers that ended before their Pod did.",
                [],
            ),
            leftovers: Counter::new(
                "longshore_runtime_leftovers_total",
                "Things without an owner that were found at a start and taken away, by kind.",
                ["kind"],
            ),
            containers: Gauge::new("longshore_runtime_containers", "Containers, by state.", ["state"]),
            sandboxes: Gauge::new("longshore_runtime_sandboxes", "Sandboxes of Pods, by state.", ["state"]),
        }
    }

    /// One call and how it went: the code where it failed.
    pub(crate) fn called(&self, service: &str, method: &str, took: Duration, code: Option<&str>) {
        self.calls.observe_duration([service, method], took);
        if let Some(code) = code {
            self.errors.inc([service, method, code]);
        }
    }

    pub(crate) fn text(&self, books: &Books) -> String {
        self.count(books);
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn count(&self, books: &Books) {
        let containers = books.containers();
        let in_state = |is: fn(&Phase) -> bool| containers.iter().filter(|c| is(&c.phase())).count() as f64;
        self.containers.set(["created"], in_state(|p| matches!(p, Phase::Created | Phase::Starting)));
        self.containers.set(["running"], in_state(|p| matches!(p, Phase::Running { .. })));
        self.containers.set(["exited"], in_state(|p| matches!(p, Phase::Exited(_))));
        let sandboxes = books.sandboxes();
        let ready = sandboxes.iter().filter(|s| s.phase() == SandboxPhase::Ready).count();
        self.sandboxes.set(["ready"], ready as f64);
        self.sandboxes.set(["notready"], (sandboxes.len() - ready) as f64);
    }

    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        let families: [&dyn Family; 8] = [
            &self.calls,
            &self.errors,
            &self.network,
            &self.exits,
            &self.keepers_lost,
            &self.leftovers,
            &self.containers,
            &self.sandboxes,
        ];
        families.iter().try_for_each(|family| family.write(out))?;
        sys::process::write_process(out)?;
        supervise::write_metrics(out)
    }
}
