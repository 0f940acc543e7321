//! The read-only server: what anybody on the machine may know.
//!
//! As upstream's, it has no exec, logs or configuration: those paths say that they are off.
//! [`debug_router`] has what a caller with a right to it may see besides.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use api::json::ToJson;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base::metrics::CONTENT_TYPE;
use bytes::Bytes;
use futures_util::stream;
use http::{Method, StatusCode, header};
use hyper::body::{Frame, SizeHint};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::Checks;
use super::healthz;
use super::running::running_pods;
use super::stats;
use crate::metrics::{Metrics, ProbeMetrics};
use crate::pods::status_board::StatusBoard;
use crate::ports::Runtime;
use streaming::Kept;

const JSON: &str = "application/json";

/// What the servers show.
#[derive(Clone)]
pub struct Views {
    pub checks: Checks,
    pub pods: Arc<StatusBoard>,
    pub metrics: Arc<Metrics>,
    pub probe_metrics: Arc<ProbeMetrics>,
    /// Who is connected to the ports.
    pub connections: Arc<serve::Metrics>,
    pub runtime: Arc<dyn Runtime>,
    /// The effective KubeletConfiguration.
    pub config: Arc<serde_json::Value>,
    pub stats: stats::Sources,
}

/// What 10255 serves.
pub fn readonly_router(views: Views) -> Router {
    let off = ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug/pprof"];
    let router = disabled(open_router(views.clone()), &off, "Debug endpoints are disabled.\n");
    metered(router, views, "readonly")
}

/// Says that there is something, but not here.
pub(super) fn disabled<S>(mut router: Router<S>, paths: &[&str], text: &'static str) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    for path in paths {
        let off = async move || (StatusCode::METHOD_NOT_ALLOWED, text);
        router = router
            .route(&format!("/{path}"), any(off))
            .route(&format!("/{path}/"), any(off))
            .route(&format!("/{path}/{{*rest}}"), any(off));
    }
    router
}

/// What every server shows.
pub(super) fn open_router(views: Views) -> Router {
    Router::new()
        .route("/pods", get(pods))
        .route("/pods/", get(pods))
        .route("/metrics", get(metrics))
        .route("/metrics/probes", get(probe_metrics))
        .with_state(views.clone())
        .merge(healthz::indicators_router(views.checks.clone()))
        .merge(healthz::router(views.checks))
        .merge(stats::router(views.stats))
}

/// Adds what all servers have in common: an answer to whatever else is asked, and the counting.
pub(super) fn metered(router: Router, views: Views, server: &'static str) -> Router {
    let meter = Meter { metrics: views.metrics, server };
    router.fallback(not_found).layer(from_fn_with_state(meter, count))
}

/// What only a privileged caller is shown: the configuration, and what really runs.
pub fn debug_router(views: Views) -> Router {
    Router::new()
        .route("/configz", get(configz))
        .route("/runningpods", get(running))
        .route("/runningpods/", get(running))
        .with_state(views)
}

/// Pods are written one by one: the whole list may be large, and its reader slow.
async fn pods(State(views): State<Views>) -> Response {
    let head = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#.as_slice();
    let mut first = true;
    let items = views.pods.all().into_iter().map(move |entry| {
        let comma = if std::mem::take(&mut first) { "" } else { "," };
        let mut text = comma.as_bytes().to_vec();
        text.extend(entry.to_pod().to_json());
        Bytes::from(text)
    });
    let parts = std::iter::once(Bytes::from_static(head)).chain(items).chain([Bytes::from_static(b"]}\n")]);
    let body = Body::from_stream(stream::iter(parts.map(Ok::<_, Infallible>)));
    ([(header::CONTENT_TYPE, JSON)], body).into_response()
}

async fn metrics(State(views): State<Views>) -> Response {
    text(|out| views.metrics.write(out).and_then(|()| views.connections.write(out)))
}

async fn probe_metrics(State(views): State<Views>) -> Response {
    text(|out| views.probe_metrics.write(out))
}

async fn configz(State(views): State<Views>) -> Response {
    axum::Json(serde_json::json!({ "kubeletconfig": *views.config })).into_response()
}

async fn running(State(views): State<Views>) -> Response {
    match running_pods(&*views.runtime).await {
        Ok(pods) => axum::Json(list(&pods)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn list(items: &[Pod]) -> serde_json::Value {
    serde_json::json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items })
}

fn text(write: impl FnOnce(&mut String) -> std::fmt::Result) -> Response {
    let mut out = String::with_capacity(32 * 1024);
    match write(&mut out) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], out).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn not_found() -> Response {
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

/// Counts the requests of one server.
#[derive(Clone)]
struct Meter {
    metrics: Arc<Metrics>,
    server: &'static str,
}

/// A request is under way until its answer was sent, its stream has ended, or the client has gone away.
async fn count(State(meter): State<Meter>, mut request: Request, next: Next) -> Response {
    let (method, path) = (method_label(request.method()), path_label(request.uri().path()));
    let long = if LONG.contains(&path) { "true" } else { "false" };
    let labels = [method, path, meter.server, long];
    meter.metrics.http_requests_total.inc(labels);
    meter.metrics.http_inflight_requests.add(labels, 1.0);
    let served = Arc::new(Served { metrics: meter.metrics, labels, begun: Instant::now() });
    request.extensions_mut().insert(Kept::new(served.clone()));
    let answer = next.run(request).await.map(|body| Body::new(Counted { body, _served: served }));
    if answer.status() != StatusCode::METHOD_NOT_ALLOWED
        || answer.headers().contains_key(header::CONTENT_TYPE)
    {
        return answer;
    }
    let (mut head, _) = answer.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    (head, "405: Method Not Allowed").into_response()
}

/// A request that counts as long as anybody has this.
struct Served {
    metrics: Arc<Metrics>,
    labels: [&'static str; 4],
    begun: Instant,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.metrics.http_inflight_requests.add(self.labels, -1.0);
        self.metrics.http_requests_duration_seconds.observe_duration(self.labels, self.begun.elapsed());
    }
}

/// An answer whose request is under way until all of it was sent.
struct Counted {
    body: Body,
    _served: Arc<Served>,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Paths whose requests may go on for as long as the client likes, as upstream labels them: its table has portForward in
/// lower case, and so never finds it.
const LONG: [&str; 3] = ["exec", "attach", "debug"];

/// Label values come from a fixed list: a client must not be able to invent series.
fn path_label(path: &str) -> &'static str {
    let known = [
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
        "metrics",
        "healthz",
        "pods",
        "stats",
        "run",
        "exec",
        "attach",
        "portForward",
        "containerLogs",
        "runningpods",
        "logs",
        "configz",
        "checkpoint",
        "flagz",
        "statusz",
        "debug",
    ];
    let path = path.strip_prefix('/').unwrap_or(path);
    let is = |k: &&str| path.strip_prefix(*k).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    known.into_iter().find(is).unwrap_or("other")
}

fn method_label(method: &Method) -> &'static str {
    let known = ["OPTIONS", "GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT"];
    known.into_iter().find(|k| *k == method.as_str()).unwrap_or("other")
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Views")
    }
}
