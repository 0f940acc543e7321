//! What people look at when they wonder about the kubelet itself: `/flagz`, `/statusz`, `/debug`.

use api::zpages::Component;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use base::verbosity::Verbosity;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;

use super::inside::{Inside, Refusal};

/// The paths `/statusz` names, as upstream's does; those of Pods and containers are not among them.
const KUBELET: Component =
    Component { name: "kubelet", paths: &["/configz", "/debug", "/flagz", "/healthz", "/metrics"] };

pub(super) async fn flagz(State(inside): State<Inside>, headers: HeaderMap) -> Response {
    KUBELET.flagz(&headers, &inside.about.flags).into_response()
}

pub(super) async fn statusz(State(inside): State<Inside>, headers: HeaderMap) -> Response {
    let about = &inside.about;
    let at = |seconds| Timestamp::from_second(seconds).unwrap_or_default();
    let (started, now) = (at(about.started), at(inside.clock.now().wall.secs()));
    KUBELET.statusz(&headers, &about.version, started, now).into_response()
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

/// The verbosity can be set, not asked for.
pub(super) async fn verbosity_is_put() -> Refusal {
    Refusal(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".to_owned())
}

fn plain(text: String) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text).into_response()
}
