//! Pages for people who debug: which flags are in force, what runs here and since when.

use api::zpages::Component;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use jiff::Timestamp;

use super::state::Status;

const KUBE_PROXY: Component =
    Component { name: "kube-proxy", paths: &["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode"] };

pub(super) async fn flagz(State(status): State<Status>, headers: HeaderMap) -> Response {
    KUBE_PROXY.flagz(&headers, &status.about.flags).into_response()
}

pub(super) async fn statusz(State(status): State<Status>, headers: HeaderMap) -> Response {
    let about = &status.about;
    KUBE_PROXY.statusz(&headers, &about.version, about.started, Timestamp::now()).into_response()
}
