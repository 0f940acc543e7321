//! `/healthz`: is the agent itself well?

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base::metrics::CONTENT_TYPE;
use http::{StatusCode, header};
use secure_serving::{Check, Checks};

use crate::pods::beat::Beat;

/// The loop counts as stuck when it has not turned for this long, or for two of its periods.
const STUCK: Duration = Duration::from_secs(5 * 60);

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
    let (status, text) = checks.all("healthz", &query.unwrap_or_default());
    answer(status, text)
}

async fn one(State(checks): State<Checks>, Path(name): Path<String>) -> Response {
    let (status, text) = checks.one(&name);
    answer(status, text)
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

/// Fails when the loop has not turned for five minutes, or two sync periods if that is longer.
#[must_use]
pub fn sync_loop(beat: Beat, sync_frequency: Duration) -> Check {
    let limit = STUCK.max(2 * sync_frequency);
    Check::new("syncloop", move || match beat.age() {
        age if age > limit => Err(format!("sync loop took longer than expected: {}s", age.as_secs())),
        _ => Ok(()),
    })
}
