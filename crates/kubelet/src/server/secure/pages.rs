//! What people look at when they wonder about the kubelet itself: `/flagz`, `/statusz`, `/debug`.

use api::debugging;
use api::zpages::Component;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use jiff::Timestamp;

use super::state::ServerState;

/// The paths `/statusz` names, as upstream's does; those of Pods and containers are not among them.
const KUBELET: Component =
    Component { name: "kubelet", paths: &["/configz", "/debug", "/flagz", "/healthz", "/metrics"] };

pub(super) async fn flagz(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    KUBELET.flagz(&headers, &state.about.flags).into_response()
}

pub(super) async fn statusz(State(state): State<ServerState>, headers: HeaderMap) -> Response {
    let about = &state.about;
    let at = |seconds| Timestamp::from_second(seconds).unwrap_or_default();
    let (started, now) = (at(about.started), at(state.clock.now().wall.secs()));
    KUBELET.statusz(&headers, &about.version, started, now).into_response()
}

pub(super) async fn profiles() -> Response {
    debugging::profiles().into_response()
}

pub(super) async fn profile(Path(name): Path<String>) -> Response {
    debugging::profile(&name, sys::process::command_line).into_response()
}

pub(super) async fn verbosity(State(state): State<ServerState>, body: Bytes) -> Response {
    let (level, answer) = debugging::set_verbosity(&state.verbosity, &body);
    if let Some(level) = level {
        tracing::callsite::rebuild_interest_cache();
        tracing::info!(level, "the verbosity of the log was set");
    }
    answer.into_response()
}

pub(super) async fn verbosity_is_put() -> Response {
    debugging::only_set().into_response()
}
