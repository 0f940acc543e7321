//! The node in a browser: what it and its Pods use, what Pods wait for, what happened lately (docs/decisions/030.md).
//!
//! The page asks every two seconds, for as long as somebody looks at it, and nothing is measured for it otherwise. However many
//! look, the node is measured once a second at most: they share the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base::time::Mono;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use kubelet_core::node::conditions::Pressures;
use tokio::sync::{Mutex, watch};

use super::readonly::metered;
use super::{Views, stats};
use crate::events::Recorder;

mod look;

/// An answer serves everybody who asks within this time.
const SHARED: Duration = Duration::from_secs(1);
/// Nothing but what this server has itself runs, shows or is asked for on the page, and no other site may show or read it.
const RULES: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What the page shows.
#[derive(Clone)]
pub struct Page {
    pub views: Views,
    pub recorder: Recorder,
    pub pressures: watch::Receiver<Pressures>,
    pub version: Arc<str>,
    last: Arc<Mutex<Option<(Mono, Bytes)>>>,
}

/// What the page is made of: type and text.
struct Part(&'static str, &'static str);

const HTML: Part = Part("text/html; charset=utf-8", include_str!("assets/page.html"));
const STYLE: Part = Part("text/css; charset=utf-8", include_str!("assets/page.css"));
const SCRIPT: Part = Part("text/javascript; charset=utf-8", include_str!("assets/page.js"));
const WORDS: Part = Part("text/javascript; charset=utf-8", include_str!("assets/words.js"));
const ICON: Part = Part("image/svg+xml", include_str!("assets/icon.svg"));

/// The page. With `local` it is for this machine alone, and nobody is asked who he is: then only a browser that was told to
/// come to this machine is answered, not one that another site's name has led here.
pub fn router(page: Page, local: bool) -> Router {
    let views = page.views.clone();
    let mut router = Router::new()
        .route("/", get(async || HTML))
        .route("/page.css", get(async || STYLE))
        .route("/page.js", get(async || SCRIPT))
        .route("/words.js", get(async || WORDS))
        .route("/icon.svg", get(async || ICON))
        .route("/look", get(look))
        .with_state(page);
    router = metered(router, views, "node-page").layer(from_fn(guard));
    if local { router.layer(from_fn(stay_here)) } else { router }
}

async fn look(State(page): State<Page>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], page.look().await).into_response()
}

/// What browsers are told about every answer; and nobody changes anything here.
async fn guard(request: Request, next: Next) -> Response {
    let from_elsewhere =
        |h: &HeaderMap| h.get("sec-fetch-site").is_some_and(|v| v == "cross-site" || v == "same-site");
    // A link from elsewhere leads to the page; what is behind it is for the page alone.
    let is_link = request.uri().path() == "/" || request.uri().path() == "/icon.svg";
    let mut answer = match *request.method() {
        Method::GET | Method::HEAD if is_link || !from_elsewhere(request.headers()) => {
            next.run(request).await
        }
        Method::GET | Method::HEAD => refuse(StatusCode::FORBIDDEN, "another site may not read this\n"),
        _ => refuse(StatusCode::METHOD_NOT_ALLOWED, "this page is only looked at\n"),
    };
    let rules: [(HeaderName, &'static str); 7] = [
        (header::CONTENT_SECURITY_POLICY, RULES),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    let headers = answer.headers_mut();
    for (name, value) in rules {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A name that somebody made to point at this machine is not this machine's: its owner's scripts would read the page.
async fn stay_here(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    match is_here(host) {
        true => next.run(request).await,
        false => {
            refuse(StatusCode::MISDIRECTED_REQUEST, "ask by an address of this machine, or as localhost\n")
        }
    }
}

fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let local = name.parse::<std::net::IpAddr>().map(|ip| ip.is_loopback());
    local.unwrap_or_else(|_| name.eq_ignore_ascii_case("localhost"))
}

fn refuse(status: StatusCode, text: &'static str) -> Response {
    (status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

// === impl Page ===

impl Page {
    #[must_use]
    pub fn new(
        views: Views,
        recorder: Recorder,
        pressures: watch::Receiver<Pressures>,
        version: &str,
    ) -> Page {
        Page { views, recorder, pressures, version: version.into(), last: Arc::default() }
    }

    fn sources(&self) -> &stats::Sources {
        &self.views.stats
    }

    /// Who comes while the node is measured waits for that answer.
    async fn look(&self) -> Bytes {
        let mut last = self.last.lock().await;
        let now = self.sources().sampler.now().mono;
        if let Some((at, answer)) = &*last
            && now.since(*at) < SHARED
        {
            return answer.clone();
        }
        let answer = Bytes::from(look::Shown::of(self).await.to_json());
        *last = Some((self.sources().sampler.now().mono, answer.clone()));
        answer
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Page")
    }
}

// === impl Part ===

impl IntoResponse for Part {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, self.0)], Body::from(self.1)).into_response()
    }
}

#[cfg(test)]
mod tests;
