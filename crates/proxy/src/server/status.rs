//! `/metrics`, `/proxyMode`, `/configz` and `/healthz` on 10249.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base::metrics::CONTENT_TYPE;
use http::header;
use serde_json::{Value, json};

use crate::metrics::Metrics;

#[derive(Clone, Debug)]
pub struct Status {
    pub mode: &'static str,
    /// The effective configuration, as upstream writes it.
    pub config: Arc<Value>,
    pub metrics: Arc<Metrics>,
}

pub fn router(status: Status) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/proxyMode", get(|State(status): State<Status>| async move { status.mode }))
        .route("/configz", get(configz))
        .route("/metrics", get(metrics))
        .with_state(status)
}

async fn configz(State(status): State<Status>) -> Response {
    let body = json!({"kubeproxy.config.k8s.io": *status.config});
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(status): State<Status>) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], status.metrics.render()).into_response()
}
