//! `/healthz` and `/livez` on 10256.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::{StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::sync::Report;
use crate::watch::Seen;

/// How it goes, from what the loop reports and the Node says.
#[derive(Clone, Debug)]
pub struct Health {
    report: watch::Receiver<Report>,
    node: Seen,
    /// News that waits longer than this is a loop that does not work.
    patience: Duration,
    metrics: Arc<Metrics>,
}

pub fn router(health: Health) -> Router {
    Router::new().route("/healthz", any(healthz)).route("/livez", any(livez)).with_state(health)
}

// === impl Health ===

impl Health {
    pub fn new(
        report: watch::Receiver<Report>,
        node: Seen,
        sync_period: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { report, node, patience: 2 * sync_period, metrics }
    }

    /// Whether no family has news that the kernel should know by now. Idle is healthy.
    pub fn is_healthy(&self) -> bool {
        self.report.borrow().families.iter().all(|family| !self.is_late(family.pending_since))
    }

    /// Whether load balancers should send new traffic here. A Node never seen is not eligible.
    fn is_eligible(&self) -> bool {
        self.node.borrow().as_ref().is_some_and(|node| node.is_eligible)
    }

    fn is_late(&self, pending_since: Option<Instant>) -> bool {
        pending_since.is_some_and(|since| since.elapsed() > self.patience)
    }

    fn describe(&self, now: Timestamp) -> Map<String, Value> {
        let report = self.report.borrow();
        let wall = |at: Option<Instant>| match at.and_then(|at| SignedDuration::try_from(at.elapsed()).ok()) {
            Some(ago) => now - ago,
            None => Timestamp::UNIX_EPOCH,
        };
        let mut families = Map::new();
        for family in &report.families {
            let state = json!({
                "lastUpdated": wall(family.synced_at).to_string(),
                "healthy": !self.is_late(family.pending_since),
            });
            families.insert(family.family.name().to_owned(), state);
        }
        let is_healthy = self.is_healthy();
        // A healthy proxy with nothing to do is up to date; this is what the field means to those who read it.
        let last = match is_healthy {
            true => now,
            false => report.families.iter().map(|f| wall(f.synced_at)).max().unwrap_or(now),
        };
        let mut body = Map::new();
        body.insert("lastUpdated".into(), last.to_string().into());
        body.insert("currentTime".into(), now.to_string().into());
        body.insert("healthy".into(), is_healthy.into());
        if !families.is_empty() {
            body.insert("status".into(), Value::Object(families));
        }
        body
    }
}

async fn healthz(State(health): State<Health>) -> Response {
    let is_eligible = health.is_eligible();
    let mut body = health.describe(Timestamp::now());
    body.insert("nodeEligible".into(), is_eligible.into());
    let code = code(health.is_healthy() && is_eligible);
    health.metrics.healthz.inc([code.as_str()]);
    answer(code, body)
}

/// Not about the Node: one that is on its way out still needs a working proxy until then.
async fn livez(State(health): State<Health>) -> Response {
    let body = health.describe(Timestamp::now());
    let code = code(health.is_healthy());
    health.metrics.livez.inc([code.as_str()]);
    answer(code, body)
}

fn code(is_good: bool) -> StatusCode {
    if is_good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

fn answer(code: StatusCode, body: Map<String, Value>) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (code, headers, Value::Object(body).to_string()).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sync::FamilyReport;
    use proxy_core::objects::{Family, NodeView};

    fn health(pending_since: Option<Instant>, node: Option<NodeView>) -> Health {
        let family = FamilyReport {
            family: Family::V4,
            pending_since,
            synced_at: Some(Instant::now()),
            syncs: 1,
            failures: 0,
            repairs: 0,
        };
        let (_, report) = watch::channel(Report { families: vec![family], ..Report::default() });
        let (_, node) = watch::channel(node);
        Health::new(report, node, Duration::from_secs(30), Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn the_node_concerns_healthz_alone() {
        let mut eligible = NodeView::default();
        eligible.is_eligible = true;
        let rows = [
            (health(None, Some(eligible.clone())), 200, 200),
            (health(None, Some(NodeView::default())), 503, 200),
            (health(None, None), 503, 200),
            (health(Some(Instant::now()), Some(eligible.clone())), 503, 503),
        ];
        tokio::time::advance(Duration::from_secs(61)).await;
        for (i, (health, healthz_code, livez_code)) in rows.into_iter().enumerate() {
            assert_eq!(healthz(State(health.clone())).await.status().as_u16(), healthz_code, "{i}");
            assert_eq!(livez(State(health.clone())).await.status().as_u16(), livez_code, "{i}");
            let body = health.describe(Timestamp::now());
            assert!(body["status"]["IPv4"]["lastUpdated"].is_string() && body.get("nodeEligible").is_none());
        }
        let young = health(Some(Instant::now()), Some(eligible));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(livez(State(young)).await.status().as_u16(), 200);
    }
}
