//! `/healthz` and `/livez` on 10256.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use base::metrics::Counter;
use http::{StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::not_found;
use crate::metrics::Metrics;
use crate::report::{FamilyReport, Report};
use crate::watch::Seen;

/// How it goes, from what the loop reports and the Node says.
#[derive(Clone, Debug)]
pub struct Health {
    report: watch::Receiver<Report>,
    node: Seen,
    /// News that waits longer than this is a loop that does not work.
    timeout: Duration,
    metrics: Arc<Metrics>,
}

/// The body of an answer, its keys in upstream's order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    last_updated: Timestamp,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyTold>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyTold {
    last_updated: Timestamp,
    healthy: bool,
}

pub fn router(health: Health) -> Router {
    Router::new()
        .route("/healthz", any(healthz))
        .route("/livez", any(livez))
        .fallback(not_found)
        .with_state(health)
}

// === impl Health ===

impl Health {
    pub fn new(
        report: watch::Receiver<Report>,
        node: Seen,
        sync_period: Duration,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { report, node, timeout: 2 * sync_period, metrics }
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
        pending_since.is_some_and(|since| since.elapsed() > self.timeout)
    }

    /// What is told. `is_eligible` if it is about the Node, too.
    fn describe(&self, now: Timestamp, is_eligible: Option<bool>) -> Told {
        let report = self.report.borrow();
        let wall = |at: Option<Instant>| match at.and_then(|at| SignedDuration::try_from(at.elapsed()).ok()) {
            Some(ago) => now - ago,
            None => Timestamp::UNIX_EPOCH,
        };
        let family = |family: &FamilyReport| {
            let healthy = !self.is_late(family.pending_since);
            (family.family.name(), FamilyTold { last_updated: wall(family.synced_at), healthy })
        };
        let healthy = self.is_healthy();
        // A healthy proxy with nothing to do is up to date; this is what the field means to those who read it.
        let last_updated = match healthy && is_eligible != Some(false) {
            true => now,
            false => report.families.iter().map(|f| wall(f.synced_at)).max().unwrap_or(now),
        };
        let status = report.families.iter().map(family).collect();
        Told { last_updated, current_time: now, node_eligible: is_eligible, healthy, status }
    }
}

async fn healthz(State(health): State<Health>) -> Response {
    let told = health.describe(Timestamp::now(), Some(health.is_eligible()));
    told.answer(&health.metrics.healthz)
}

/// Not about the Node: one that is on its way out still needs a working proxy until then.
async fn livez(State(health): State<Health>) -> Response {
    health.describe(Timestamp::now(), None).answer(&health.metrics.livez)
}

// === impl Told ===

impl Told {
    fn answer(&self, count: &Counter<1>) -> Response {
        let code = match self.healthy && self.node_eligible != Some(false) {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        count.inc([code.as_str()]);
        let headers =
            [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
        // Times, words and truths can always be written.
        (code, headers, serde_json::to_string(self).unwrap_or_default()).into_response()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proxy_core::objects::{Family, NodeView};

    fn health(pending_since: Option<Instant>, node: Option<NodeView>) -> Health {
        let family = FamilyReport {
            family: Family::V4,
            pending_since,
            synced_at: Some(Instant::now()),
            syncs: 1,
            failures: 0,
            repairs: 0,
            contested_by: None,
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
        }
        let young = health(Some(Instant::now()), Some(eligible));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(livez(State(young)).await.status().as_u16(), 200);
    }

    /// Programs that read only the beginning of it find there what they found upstream.
    #[tokio::test(start_paused = true)]
    async fn the_keys_have_upstreams_order() {
        let now = Timestamp::from_second(60).unwrap();
        let good = r#"{"lastUpdated":"1970-01-01T00:01:00Z","currentTime":"1970-01-01T00:01:00Z","#;
        let status = r#""status":{"IPv4":{"lastUpdated":"1970-01-01T00:00:50Z","healthy":true}}}"#;
        let old = good.replacen("01:00", "00:50", 1);
        let health = health(None, None);
        tokio::time::advance(Duration::from_secs(10)).await;
        let rows = [
            (None, format!(r#"{good}"healthy":true,{status}"#)),
            (Some(true), format!(r#"{good}"nodeEligible":true,"healthy":true,{status}"#)),
            (Some(false), format!(r#"{old}"nodeEligible":false,"healthy":true,{status}"#)),
        ];
        for (is_eligible, wanted) in rows {
            let told = serde_json::to_string(&health.describe(now, is_eligible)).unwrap();
            assert_eq!(told, wanted);
        }
    }
}
