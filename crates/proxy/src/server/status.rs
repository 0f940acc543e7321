//! `/metrics`, `/metrics/slis`, `/proxyMode`, `/configz`, `/healthz`, `/flagz`, `/statusz` and, if asked for, `/debug` on
//! 10249.

use std::fmt;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use base::metrics::{Family, MetricType, Text};
use http::header;
use serde_json::json;

use super::pages::{flagz, statusz};
use super::state::Status;
use super::{not_found, profiles};

pub fn router(status: Status) -> Router {
    let router = Router::new()
        .route("/healthz", get(healthz))
        .route("/proxyMode", get(mode))
        .route("/configz", get(configz))
        .route("/metrics", get(metrics))
        .route("/metrics/slis", any(slis))
        .route("/flagz", get(flagz))
        .route("/statusz", get(statusz));
    let router = if status.is_profiled { profiles::add_to(router) } else { router };
    router.fallback(not_found).with_state(status)
}

async fn healthz(State(status): State<Status>) -> Response {
    status.checks.last.set(["ping", "healthz"], 1.0);
    status.checks.total.inc(["ping", "healthz", "success"]);
    plain("ok".into())
}

async fn mode(State(status): State<Status>) -> Response {
    plain(status.mode.into())
}

async fn configz(State(status): State<Status>) -> Response {
    let body = json!({"kubeproxy.config.k8s.io": *status.config});
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(status): State<Status>) -> Response {
    status.measured(status.metrics.render())
}

/// Whoever measures from a certain moment on may set the counts back.
async fn slis(State(status): State<Status>, method: http::Method) -> Response {
    let checks = &status.checks;
    if method == http::Method::DELETE {
        checks.last.retain(|_| false);
        checks.total.retain(|_| false);
        return plain("metrics reset\n".into());
    }
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = checks.last.write(&mut out).and_then(|()| checks.total.write(&mut out));
    let _ = write_start(&mut out);
    status.measured(out)
}

fn write_start(out: &mut String) -> fmt::Result {
    const NAME: &str = "process_start_time_seconds";
    let Some(started) = sys::process::started() else { return Ok(()) };
    let mut text = Text::new(out);
    text.header(NAME, MetricType::Gauge, "Unix time of the start of this process.")?;
    text.sample(NAME, &[], started, None)
}

pub(super) fn plain(text: String) -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use base::verbosity::Verbosity;
    use hyper::service::Service;
    use hyper_util::service::TowerToHyperService;

    use super::super::state::About;
    use super::*;

    async fn ask(is_profiled: bool, method: &str, path: &str) -> u16 {
        tell(is_profiled, method, path, "", &Verbosity::default()).await
    }

    async fn tell(is_profiled: bool, method: &str, path: &str, body: &'static str, dial: &Verbosity) -> u16 {
        let about = About {
            version: "v1.36.4".into(),
            started: jiff::Timestamp::UNIX_EPOCH,
            flags: std::collections::BTreeMap::new(),
        };
        let status = Status {
            mode: "nftables",
            is_profiled,
            verbosity: dial.clone(),
            config: Arc::default(),
            metrics: Arc::default(),
            about: Arc::new(about),
            checks: Arc::default(),
        };
        let request =
            http::Request::builder().method(method).uri(path).body(axum::body::Body::from(body)).unwrap();
        TowerToHyperService::new(router(status)).call(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn profiles_are_there_only_if_asked_for() {
        let rows = [
            ("GET", "/debug/pprof", 200),
            ("GET", "/debug/pprof/", 200),
            ("GET", "/debug/pprof/cmdline", 200),
            ("GET", "/debug/pprof/heap", 501),
            ("POST", "/debug/pprof/symbol", 501),
            ("GET", "/debug/pprof/nothing", 404),
            ("GET", "/debug/flags", 200),
            ("GET", "/debug/flags/", 200),
            ("GET", "/debug/flags/other", 200),
            ("GET", "/debug/flags/v", 406),
            ("PUT", "/debug/flags/v", 400),
        ];
        for (method, path, code) in rows {
            assert_eq!(ask(true, method, path).await, code, "{path}");
            assert_eq!(ask(false, method, path).await, 404, "{path}");
        }
        assert_eq!(ask(false, "GET", "/proxyMode").await, 200);
    }

    #[tokio::test]
    async fn the_verbosity_is_set_while_it_runs() {
        let dial = Verbosity::new(2);
        assert_eq!(tell(true, "PUT", "/debug/flags/v", "4", &dial).await, 200);
        assert_eq!(dial.get(), 4);
        assert_eq!(tell(true, "PUT", "/debug/flags/v", "loud", &dial).await, 400);
        assert_eq!(tell(false, "PUT", "/debug/flags/v", "9", &dial).await, 404);
        assert_eq!(dial.get(), 4);
    }
}
