//! `/debug/pprof` and `/debug/flags`, where profiling is asked for.

use api::debugging;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, put};

use super::state::Status;

pub(super) fn add_to(router: Router<Status>) -> Router<Status> {
    router
        .route("/debug/pprof", get(index))
        .route("/debug/pprof/", get(index))
        .route("/debug/pprof/{name}", get(profile).post(profile))
        .route("/debug/flags", any(settings))
        .route("/debug/flags/", any(settings))
        .route("/debug/flags/{*name}", any(settings))
        .route("/debug/flags/v", put(verbosity).fallback(only_set))
}

async fn index() -> Response {
    debugging::profiles().into_response()
}

async fn profile(Path(name): Path<String>) -> Response {
    debugging::profile(&name, sys::process::command_line).into_response()
}

async fn verbosity(State(status): State<Status>, body: Bytes) -> Response {
    let (level, answer) = debugging::set_verbosity(&status.verbosity, &body);
    if let Some(level) = level {
        tracing::callsite::rebuild_interest_cache();
        tracing::info!(level, "the verbosity of the log was set");
    }
    answer.into_response()
}

async fn only_set() -> Response {
    debugging::only_set().into_response()
}

async fn settings() -> Response {
    debugging::settings().into_response()
}
