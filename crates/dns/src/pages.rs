//! `/health`, `/ready` and `/metrics`, each on a port of its own as CoreDNS has them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::service::TowerToHyperService;
use serve::{Budget, Connections, Http1, Limits, Plan, Proof, Stream, Times};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::resolver::Resolver;

const HOW: Http1 = Http1 {
    head: 64 * 1024,
    idle: Duration::from_secs(90),
    body: Duration::from_secs(60),
    stall: Duration::from_secs(90),
};
const TIMES: Times =
    Times { first: Duration::from_secs(10), idle: HOW.idle, busy: Some(Duration::from_secs(60)) };
const LIMITS: Limits = Limits { remote: 64, local: 64, known: 0, per_source: 32, known_takes: 1 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Health,
    Ready,
    Metrics,
}

// === impl Page ===

impl Page {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Page::Health => "health",
            Page::Ready => "readiness",
            Page::Metrics => "metrics",
        }
    }
}

pub(crate) fn router(page: Page, resolver: Arc<Resolver>) -> Router {
    match page {
        Page::Health => Router::new().route("/health", get(|| async { "OK" })),
        Page::Ready => Router::new().route(
            "/ready",
            get(move || async move {
                match resolver.is_ready() {
                    true => (StatusCode::OK, "OK"),
                    // CoreDNS names the plugins that are waited for.
                    false => (StatusCode::SERVICE_UNAVAILABLE, "kubernetes"),
                }
            }),
        ),
        Page::Metrics => Router::new().route(
            "/metrics",
            get(move || async move {
                let kind = [(header::CONTENT_TYPE, base::metrics::CONTENT_TYPE)];
                (kind, resolver.metrics.render()).into_response()
            }),
        ),
    }
}

pub(crate) async fn serve(page: Page, listener: TcpListener, router: Router, token: CancellationToken) {
    let limits = LIMITS.within(Budget::now().share(10));
    let connections = Connections::new(page.name(), limits, Proof::Answer, TIMES, Arc::default());
    let converse = move |stream: Stream<TcpStream>, connection| {
        serve::converse(HOW, stream, connection, TowerToHyperService::new(router.clone()))
    };
    serve::run(listener, connections, Plan::default(), token, converse).await;
}
