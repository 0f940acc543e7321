//! `/debug/pprof` and `/debug/flags/v`, where profiling is asked for. There is no Go in here, and so nothing that
//! `go tool pprof` could read; what can be told is told.

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use http::StatusCode;

use super::status::{Status, plain};

const GO_PROFILES: [&str; 9] =
    ["allocs", "block", "goroutine", "heap", "mutex", "profile", "symbol", "threadcreate", "trace"];

pub(super) fn add_to(router: Router<Status>) -> Router<Status> {
    router
        .route("/debug/pprof", get(index))
        .route("/debug/pprof/", get(index))
        .route("/debug/pprof/{name}", get(profile).post(profile))
        .route("/debug/flags/v", put(verbosity))
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

/// The level at which the log is written is chosen when kube-proxy starts.
async fn verbosity() -> Response {
    let text = "the verbosity cannot be changed while kube-proxy runs; start it with another --v\n";
    (StatusCode::NOT_IMPLEMENTED, plain(text.to_owned())).into_response()
}
