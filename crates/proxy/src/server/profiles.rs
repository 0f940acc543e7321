//! `/debug/pprof` and `/debug/flags/v`, where profiling is asked for. There is no Go in here, and so nothing that
//! `go tool pprof` could read; what can be told is told.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, put};
use base::verbosity::Verbosity;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::status::{Status, plain};

const GO_PROFILES: [&str; 9] =
    ["allocs", "block", "goroutine", "heap", "mutex", "profile", "symbol", "threadcreate", "trace"];

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
    let rest = "The other profiles are those of a Go program, which this is not.";
    plain(format!("/debug/pprof/\n\nProfiles:\ncmdline\n\n{rest}\n"))
}

async fn profile(Path(name): Path<String>) -> Response {
    if GO_PROFILES.contains(&name.as_str()) {
        let text = format!("the profile {name:?} is one of a Go program, which this is not\n");
        return (StatusCode::NOT_IMPLEMENTED, plain(text)).into_response();
    }
    if name != "cmdline" {
        return (StatusCode::NOT_FOUND, plain(format!("Unknown profile {name:?}\n"))).into_response();
    }
    match tokio::fs::read("/proc/self/cmdline").await {
        // NUL between the words, as upstream shows it.
        Ok(line) => plain(String::from_utf8_lossy(&line).trim_end_matches('\0').to_owned()),
        Err(error) => {
            let text = format!("reading /proc/self/cmdline: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, plain(text)).into_response()
        }
    }
}

/// Sets the level at which the log is written, until it is set again or kube-proxy ends.
async fn verbosity(State(status): State<Status>, body: Bytes) -> Response {
    match status.verbosity.ask(&String::from_utf8_lossy(&body)) {
        Ok(level) => {
            tracing::callsite::rebuild_interest_cache();
            tracing::info!(level, "the verbosity of the log was set");
            plain(Verbosity::answer(level))
        }
        Err(refusal) => (StatusCode::BAD_REQUEST, plain(refusal)).into_response(),
    }
}

async fn only_set() -> Response {
    (StatusCode::NOT_ACCEPTABLE, plain("unsupported http method".to_owned())).into_response()
}

/// Which settings can be changed while we run, as upstream shows them.
async fn settings() -> Response {
    let page = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\n/debug/flags/<br>\n<br>\nflags:<br>\n\
                <table>\n<tr>v<br>\n</table>\n<br>\nfull flags configurable<br>\n</body>\n</html>\n";
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
}
