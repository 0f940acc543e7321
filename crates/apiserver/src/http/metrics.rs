//! What is counted, under upstream's names.

use std::sync::Arc;
use std::time::Duration;

use base::metrics::{Counter, Family, Gauge, Histogram, MetricType, Text};

use super::App;
use super::limits::Class;
use apiserver_core::request::Resource;

/// Upstream's buckets for request latency.
const LATENCY: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

/// What a request was about, as labels say it.
#[derive(Clone, Debug, Default)]
pub(crate) struct About {
    pub(crate) verb: String,
    pub(crate) dry_run: bool,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) scope: &'static str,
}

#[derive(Debug)]
pub struct Metrics {
    requests: Counter<9>,
    durations: Histogram<8>,
    open: Gauge<7>,
    rejected: Counter<1>,
    health: Gauge<2>,
    health_asked: Counter<3>,
    /// Who is connected.
    pub(crate) connections: Arc<serve::Metrics>,
    started: f64,
}

// === impl About ===

impl About {
    pub(crate) fn name(&mut self, kind: &apiserver_core::kind::Kind, resource: &Resource) {
        self.group = resource.group.clone();
        self.version = resource.version.clone();
        self.resource = resource.plural.clone();
        if kind.subresource(&resource.subresource).is_some() {
            self.subresource = resource.subresource.clone();
        }
        self.scope = match (resource.name.is_empty(), resource.namespace.is_empty()) {
            (false, _) => "resource",
            (true, false) => "namespace",
            (true, true) => "cluster",
        };
    }
}

// === impl Metrics ===

impl Metrics {
    /// `started` is the start of the process in seconds since the epoch.
    #[must_use]
    pub fn new(started: f64) -> Metrics {
        let labels = ["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
        Metrics {
            requests: Counter::new(
                "apiserver_request_total",
                "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code.",
                [
                    "verb",
                    "dry_run",
                    "group",
                    "version",
                    "resource",
                    "subresource",
                    "scope",
                    "component",
                    "code",
                ],
            ),
            durations: Histogram::new(
                "apiserver_request_duration_seconds",
                "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component.",
                labels,
                LATENCY,
            ),
            open: Gauge::new(
                "apiserver_longrunning_requests",
                "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component.",
                ["verb", "group", "version", "resource", "subresource", "scope", "component"],
            ),
            rejected: Counter::new(
                "apiserver_dropped_requests_total",
                "Number of requests dropped with 'Try again later' response",
                ["request_kind"],
            ),
            health: Gauge::new(
                "kubernetes_healthcheck",
                "This metric records the result of a single healthcheck.",
                ["name", "type"],
            ),
            health_asked: Counter::new(
                "kubernetes_healthchecks_total",
                "This metric records the results of all healthcheck.",
                ["name", "type", "status"],
            ),
            connections: Arc::default(),
            started,
        }
    }

    pub(crate) fn answered(&self, about: &About, code: u16, took: Duration) {
        let dry_run = if about.dry_run { "All" } else { "" };
        let (a, code) = (about, code.to_string());
        self.requests.inc([
            &a.verb,
            dry_run,
            &a.group,
            &a.version,
            &a.resource,
            &a.subresource,
            a.scope,
            "apiserver",
            &code,
        ]);
        // How long a watch was open says nothing about how quick we are.
        if !matches!(&*a.verb, "WATCH" | "CONNECT") {
            let labels =
                [&a.verb, dry_run, &a.group, &a.version, &a.resource, &a.subresource, a.scope, "apiserver"];
            self.durations.observe_duration(labels, took);
        }
    }

    pub(crate) fn dropped(&self, class: Class) {
        let kind = if class == Class::Write { "mutating" } else { "readOnly" };
        self.rejected.inc([kind]);
    }

    /// A check was asked for with all others of `root` (`livez`).
    pub(crate) fn checked(&self, check: &str, root: &str, passed: bool) {
        self.health.set([check, root], f64::from(u8::from(passed)));
        self.health_asked.inc([check, root, if passed { "success" } else { "error" }]);
    }

    /// The page at `/metrics/slis`.
    pub(crate) fn indicators(&self) -> String {
        let mut out = String::new();
        for family in [&self.health as &dyn Family, &self.health_asked] {
            // Writing to a String cannot fail.
            let _ = family.write(&mut out);
        }
        out
    }

    /// A long-running request began or ended.
    pub(crate) fn open(&self, about: &About, by: f64) {
        let a = about;
        self.open.add([&a.verb, &a.group, &a.version, &a.resource, &a.subresource, a.scope, "apiserver"], by);
    }

    /// The page at `/metrics`.
    pub(crate) fn page(&self, app: &App) -> String {
        let mut out = String::new();
        for family in [&self.requests as &dyn Family, &self.durations, &self.open, &self.rejected] {
            // Writing to a String cannot fail.
            let _ = family.write(&mut out);
        }
        let _ = app.node_metrics.family().write(&mut out);
        let _ = self.connections.write(&mut out);
        let mut text = Text::new(&mut out);
        let mut gauge = |name: &str, help: &str, labels: &[(&str, &str)], value: f64| {
            let _ = text.header(name, MetricType::Gauge, help);
            let _ = text.sample(name, labels, value, None);
        };
        gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            &[],
            self.started,
        );
        if let Some(bytes) = resident() {
            gauge("process_resident_memory_bytes", "Resident memory size in bytes.", &[], bytes);
        }
        let _ = text.header(
            "apiserver_current_inflight_requests",
            MetricType::Gauge,
            "Maximal number of currently used inflight request limit of this apiserver per request kind in last second.",
        );
        for (kind, class) in [("readOnly", Class::Read), ("mutating", Class::Write)] {
            let labels = [("request_kind", kind)];
            let _ = text.sample(
                "apiserver_current_inflight_requests",
                &labels,
                app.in_flight.count(class) as f64,
                None,
            );
        }
        if let Some((made, lost)) = app.audit.as_ref().map(super::audit::Audit::counts) {
            let (total, failed) = ("apiserver_audit_event_total", "apiserver_audit_error_total");
            let help = "Counter of audit events generated and sent to the audit backend.";
            let _ = text.header(total, MetricType::Counter, help);
            let _ = text.sample(total, &[], made as f64, None);
            let help = "Counter of audit events that failed to be audited properly. Plugin identifies the plugin affected by the error.";
            let _ = text.header(failed, MetricType::Counter, help);
            let _ = text.sample(failed, &[("plugin", "log")], lost as f64, None);
        }
        let _ = app.registry.store().write_metrics(&mut out);
        let _ = supervise::write_metrics(&mut out);
        out
    }
}

/// Resident memory, in bytes.
fn resident() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}
