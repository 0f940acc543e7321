//! What the handlers on 10249 answer from.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use base::metrics::{CONTENT_TYPE, Counter, Gauge};
use base::verbosity::Verbosity;
use http::{HeaderName, HeaderValue, header};
use jiff::Timestamp;
use serde_json::Value;

use crate::metrics::Metrics;

#[derive(Clone, Debug)]
pub struct Status {
    pub mode: &'static str,
    /// Whether `/debug/pprof` is served.
    pub is_profiled: bool,
    /// How much is logged, which `/debug/flags/v` may change.
    pub verbosity: Verbosity,
    /// The effective configuration, as upstream writes it.
    pub config: Arc<Value>,
    pub metrics: Arc<Metrics>,
    pub about: Arc<About>,
    pub checks: Arc<SelfChecks>,
}

/// How often somebody asked this server whether it is well, and what it said.
#[derive(Debug)]
pub struct SelfChecks {
    pub(super) last: Gauge<2>,
    pub(super) total: Counter<3>,
}

/// What the pages tell.
#[derive(Clone, Debug)]
pub struct About {
    /// The Kubernetes release whose contract we follow, with its `v`.
    pub version: String,
    pub started: Timestamp,
    pub flags: BTreeMap<&'static str, String>,
}

// === impl Status ===

impl Status {
    /// Counts, with the moment they were counted from.
    pub(super) fn measured(&self, text: String) -> Response {
        let since = HeaderValue::from(self.about.started.as_second());
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE)),
            (HeaderName::from_static("process-start-time-unix"), since),
        ];
        (headers, text).into_response()
    }
}

// === impl SelfChecks ===

impl Default for SelfChecks {
    fn default() -> Self {
        Self {
            last: Gauge::new("kubernetes_healthcheck", "The last answer of a health check", ["name", "type"]),
            total: Counter::new(
                "kubernetes_healthchecks_total",
                "Answers of health checks",
                ["name", "type", "status"],
            ),
        }
    }
}
