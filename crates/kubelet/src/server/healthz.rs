//! `/healthz`: is the agent itself well?

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base::metrics::{CONTENT_TYPE, MetricType, Text};
use http::{StatusCode, header};

use crate::pods::beat::Beat;

/// The loop counts as stuck when it has not turned for this long, or for two of its periods.
const STUCK: Duration = Duration::from_secs(5 * 60);

/// One thing that must be so. The text says what is wrong.
#[derive(Clone)]
pub struct Check {
    name: &'static str,
    run: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    asked: Arc<Asked>,
}

/// How often a check was asked for with all others, by how it went.
#[derive(Default)]
struct Asked {
    passed: AtomicU64,
    failed: AtomicU64,
}

/// Checks, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Checks(Arc<Vec<Check>>);

/// Serves `/healthz` and `/healthz/<check>`.
pub fn router(checks: Checks) -> Router {
    Router::new()
        .route("/healthz", any(all))
        .route("/healthz/", any(all))
        .route("/healthz/{check}", any(one))
        .with_state(checks)
}

/// Serves `/metrics/slis`.
pub(super) fn indicators_router(checks: Checks) -> Router {
    Router::new().route("/metrics/slis", get(indicators)).with_state(checks)
}

async fn all(State(checks): State<Checks>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let excluded: Vec<&str> = pairs(&query).filter(|(k, _)| *k == "exclude").map(|(_, v)| v).collect();
    let (mut text, mut failed) = (String::new(), false);
    for check in checks.0.iter() {
        let name = check.name;
        let line = if excluded.contains(&name) {
            format!("[+]{name} excluded: ok\n")
        } else if let Err(error) = check.ask() {
            failed = true;
            tracing::info!(check = name, error, "health check failed");
            // Why is for the log: anybody may ask here.
            format!("[-]{name} failed: reason withheld\n")
        } else {
            format!("[+]{name} ok\n")
        };
        text.push_str(&line);
    }
    let unknown: Vec<String> = excluded
        .iter()
        .filter(|name| !checks.0.iter().any(|c| c.name == **name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        let names = unknown.join(",");
        let _ = writeln!(text, "warn: some health checks cannot be excluded: no matches for {names}");
    }
    if failed {
        text.push_str("healthz check failed\n");
        return answer(StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    if pairs(&query).any(|(k, _)| k == "verbose") {
        text.push_str("healthz check passed\n");
        return answer(StatusCode::OK, text);
    }
    answer(StatusCode::OK, "ok".to_owned())
}

async fn one(State(checks): State<Checks>, Path(name): Path<String>) -> Response {
    match checks.0.iter().find(|c| c.name == name).map(|c| (c.run)()) {
        Some(Ok(())) => answer(StatusCode::OK, "ok".to_owned()),
        Some(Err(error)) => {
            answer(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {error}\n"))
        }
        None => answer(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    }
}

async fn indicators(State(checks): State<Checks>) -> Response {
    let mut out = String::new();
    match checks.write(&mut out) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], out).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn answer(status: StatusCode, text: String) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, text).into_response()
}

/// The query's parameters. Check names need no unescaping.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

// === impl Check ===

impl Check {
    pub fn new(name: &'static str, run: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self { name, run: Arc::new(run), asked: Arc::default() }
    }

    fn ask(&self) -> Result<(), String> {
        let result = (self.run)();
        let count = if result.is_ok() { &self.asked.passed } else { &self.asked.failed };
        count.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Passes as long as there is somebody to answer.
    #[must_use]
    pub fn ping() -> Self {
        Self::new("ping", || Ok(()))
    }

    /// Log lines are written as they come; there is no flushing that could be stuck.
    #[must_use]
    pub fn log() -> Self {
        Self::new("log", || Ok(()))
    }

    /// Fails when the loop has not turned for five minutes, or two sync periods if that is longer.
    #[must_use]
    pub fn sync_loop(beat: Beat, sync_frequency: Duration) -> Self {
        let limit = STUCK.max(2 * sync_frequency);
        Self::new("syncloop", move || match beat.age() {
            age if age > limit => Err(format!("sync loop took longer than expected: {}s", age.as_secs())),
            _ => Ok(()),
        })
    }
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

// === impl Checks ===

impl Checks {
    #[must_use]
    pub fn new(checks: Vec<Check>) -> Self {
        Self(Arc::new(checks))
    }

    /// How every check stands, and how often it was asked for, as metrics.
    fn write(&self, out: &mut dyn Write) -> std::fmt::Result {
        const STANDS: &str = "kubernetes_healthcheck";
        const ASKED: &str = "kubernetes_healthchecks_total";
        let mut text = Text::new(out);
        text.header(STANDS, MetricType::Gauge, "1 while the health check passes, 0 while it fails.")?;
        for check in self.0.iter() {
            let passes = f64::from(u8::from((check.run)().is_ok()));
            text.sample(STANDS, &[("name", check.name), ("type", "healthz")], passes, None)?;
        }
        text.header(ASKED, MetricType::Counter, "How often the health check was asked for, by how it went.")?;
        for check in self.0.iter() {
            for (status, count) in [("error", &check.asked.failed), ("success", &check.asked.passed)] {
                let labels = [("name", check.name), ("status", status), ("type", "healthz")];
                match count.load(Ordering::Relaxed) {
                    0 => {}
                    n => text.sample(ASKED, &labels, n as f64, None)?,
                }
            }
        }
        Ok(())
    }

    /// The first thing that is wrong.
    pub fn verdict(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|c| (c.run)().map_err(|e| format!("checker {} failed: {e}", c.name)))
    }
}
