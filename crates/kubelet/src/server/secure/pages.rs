//! What people look at when they wonder about the kubelet itself: `/flagz`, `/statusz`, `/debug`.

use std::fmt::Write;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use base::verbosity::Verbosity;
use http::StatusCode;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};

use super::inside::{Inside, Refusal};

/// The paths `/statusz` names.
const PATHS: &str = "/attach /checkpoint /configz /containerLogs /debug/flags/v /debug/pprof /exec /flagz /healthz /logs \
                     /metrics /metrics/cadvisor /metrics/probes /metrics/resource /pods /portForward /run /runningpods \
                     /stats/summary";

pub(super) async fn flagz(State(inside): State<Inside>) -> Response {
    let mut text = heading("flagz");
    for (name, value) in &inside.about.flags {
        let _ = writeln!(text, "{name}={value}");
    }
    plain(text)
}

pub(super) async fn statusz(State(inside): State<Inside>) -> Response {
    let about = &inside.about;
    let started = jiff::Timestamp::from_second(about.started).unwrap_or_default();
    let up = inside.clock.now().wall.secs().saturating_sub(about.started).max(0);
    let mut text = heading("statusz");
    let _ = writeln!(text, "Started: {}", started.strftime("%a %b %e %H:%M:%S UTC %Y"));
    let _ = writeln!(text, "Up: {} hr {:02} min {:02} sec", up / 3600, up / 60 % 60, up % 60);
    let _ = writeln!(text, "Binary version: {}", about.version);
    let _ = writeln!(text, "Paths: {PATHS}");
    plain(text)
}

fn heading(page: &str) -> String {
    format!(
        "\nkubelet {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
         guarantees and is for debugging purposes only.\n\n"
    )
}

/// There is no Go in here, and so nothing that `go tool pprof` could read.
pub(super) async fn profiles() -> Response {
    plain("/debug/pprof/\n\nProfiles:\ncmdline\n\nThe other profiles are those of a Go program, which this is not.\n".to_owned())
}

pub(super) async fn profile(Path(name): Path<String>) -> Result<Response, Refusal> {
    match name.as_str() {
        // NUL between the words, as upstream shows it.
        "cmdline" => {
            let line = tokio::fs::read("/proc/self/cmdline").await;
            let line = line.map_err(|e| Refusal::failed(format!("read /proc/self/cmdline: {e}\n")))?;
            Ok(plain(String::from_utf8_lossy(&line).trim_end_matches('\0').to_owned()))
        }
        "profile" | "symbol" | "trace" | "heap" | "goroutine" | "allocs" | "block" | "mutex"
        | "threadcreate" => {
            let text = format!("the profile {name:?} is one of a Go program, which this is not\n");
            Err(Refusal(StatusCode::NOT_IMPLEMENTED, text))
        }
        _ => Err(Refusal::not_found(format!("Unknown profile {name:?}\n"))),
    }
}

/// Sets the level at which the log is written, until it is set again or the kubelet ends.
pub(super) async fn verbosity(
    State(inside): State<Inside>,
    body: axum::body::Bytes,
) -> Result<Response, Refusal> {
    let level = inside.verbosity.ask(&String::from_utf8_lossy(&body)).map_err(Refusal::bad)?;
    tracing::callsite::rebuild_interest_cache();
    tracing::info!(level, "the verbosity of the log was set");
    Ok(plain(Verbosity::answer(level)))
}

fn plain(text: String) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text).into_response()
}
