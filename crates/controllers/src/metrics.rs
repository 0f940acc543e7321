//! What is counted, under upstream's names.

use std::fmt;
use std::sync::Arc;

use base::metrics::{Counter, Family, Gauge, Histogram, MetricType, Text, exponential_buckets};
use controllers_core::measure::Measure;

use crate::families::Families;

/// Shared by everybody who counts.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
pub struct Inner {
    pub(crate) adds: Counter<1>,
    pub(crate) depth: Gauge<1>,
    pub(crate) waited: Histogram<1>,
    pub(crate) worked: Histogram<1>,
    pub(crate) retries: Counter<1>,
    pub(crate) running: Gauge<2>,
    pub(crate) leader: Gauge<1>,
    pub(crate) requests: Counter<3>,
    pub(crate) durations: Histogram<2>,
    pub(crate) families: Families,
}

// === impl Metrics ===

impl std::ops::Deref for Metrics {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Metrics {
    /// A request of a client was answered, or not.
    pub fn asked(&self, asked: &client::Asked<'_>) {
        let code = asked.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.inc([&code, asked.host, asked.method]);
        self.durations.observe_duration([asked.host, asked.method], asked.took);
    }

    /// Everything in the text format, with how long work has been going on by queue, and what there is at this moment.
    pub fn render(&self, unfinished: &[(&str, f64, f64)], there: Vec<Measure>) -> Result<String, fmt::Error> {
        let mut out = String::new();
        let counted: [&dyn Family; 9] = [
            &self.adds,
            &self.depth,
            &self.waited,
            &self.worked,
            &self.retries,
            &self.running,
            &self.leader,
            &self.requests,
            &self.durations,
        ];
        counted.iter().try_for_each(|family| family.write(&mut out))?;
        let mut text = Text::new(&mut out);
        let name = "workqueue_unfinished_work_seconds";
        text.header(name, MetricType::Gauge, "How many seconds of work has been done that is in progress.")?;
        for (queue, all, _) in unfinished {
            text.sample(name, &[("name", queue)], *all, None)?;
        }
        let name = "workqueue_longest_running_processor_seconds";
        text.header(
            name,
            MetricType::Gauge,
            "How many seconds the longest running processor has been running.",
        )?;
        for (queue, _, longest) in unfinished {
            text.sample(name, &[("name", queue)], *longest, None)?;
        }
        self.families.write(&mut out)?;
        // What is gone since the last look is not shown any more.
        let now = Families::default();
        now.take(there);
        now.write(&mut out)?;
        supervise::write_metrics(&mut out)?;
        Ok(out)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let times = exponential_buckets(1e-8, 10.0, 10);
        let latencies = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
        Metrics(Arc::new(Inner {
            adds: Counter::new("workqueue_adds_total", "Total number of adds handled by workqueue", ["name"]),
            depth: Gauge::new("workqueue_depth", "Current depth of workqueue", ["name"]),
            waited: Histogram::new(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
                ["name"],
                &times,
            ),
            worked: Histogram::new(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
                ["name"],
                &times,
            ),
            retries: Counter::new(
                "workqueue_retries_total",
                "Total number of retries handled by workqueue",
                ["name"],
            ),
            running: Gauge::new(
                "running_managed_controllers",
                "Indicates where instances of a controller are currently running",
                ["manager", "name"],
            ),
            leader: Gauge::new(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master.",
                ["name"],
            ),
            requests: Counter::new(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                ["code", "host", "method"],
            ),
            durations: Histogram::new(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                ["host", "verb"],
                &latencies,
            ),
            families: Families::default(),
        }))
    }
}
