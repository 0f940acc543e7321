//! The port of an agent that has only pages: `/healthz`, `/livez`, `/readyz`, `/metrics`, `/configz`, `/flagz`, `/statusz`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::zpages::Component;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::{Value, json};
use serve::{Connection, Connections, Limits, Metrics, Proof, Times};

use crate::authn::{Peer, Unauthorized, User};
use crate::guard::{Access, Guard};
use crate::health::Checks;
use crate::listener::Handler;

/// Nobody else is a member, and whoever is one has made the cluster.
const MASTERS: &str = "system:masters";

/// Makes a page each time it is asked for.
pub type Make = Arc<dyn Fn() -> String + Send + Sync>;

/// What there is to be seen.
#[derive(Clone)]
pub struct Pages {
    pub healthz: Checks,
    pub livez: Checks,
    pub readyz: Checks,
    pub metrics: Make,
    /// What else there is to be measured, by its path.
    pub more: Vec<(&'static str, Make)>,
    /// The configuration that is in force, by the name of its kind.
    pub configz: Make,
    pub about: About,
    /// Paths that anybody may see, with a `*` at the end for whatever begins so: `--authorization-always-allow-paths`.
    pub for_everybody: Arc<Vec<String>>,
    pub guard: Arc<Guard>,
}

/// What `/flagz` and `/statusz` tell.
#[derive(Clone, Debug)]
pub struct About {
    pub component: Component,
    /// Every flag, as it is in force.
    pub flags: BTreeMap<String, String>,
    pub version: String,
    pub started: Timestamp,
}

/// What upstream lets anybody see.
pub const FOR_EVERYBODY: [&str; 3] = ["/healthz", "/readyz", "/livez"];

/// The connections of such a port: few ask, and briefly.
#[must_use]
pub fn connections(name: &'static str, metrics: Arc<Metrics>) -> Connections {
    let limits = Limits { remote: 128, local: 64, known: 128, per_source: 32, known_takes: 1 };
    let times = Times {
        first: Duration::from_secs(10),
        idle: Duration::from_secs(90),
        busy: Some(Duration::from_secs(60)),
    };
    Connections::new(name, limits, Proof::Identity, times, metrics)
}

// === impl Pages ===

impl Handler for Pages {
    type Body = Full<Bytes>;

    async fn answer(
        &self,
        peer: Arc<Peer>,
        connection: Connection,
        request: Request<Incoming>,
    ) -> Response<Full<Bytes>> {
        let (head, _) = request.into_parts();
        let (answer, is_known) = self.respond(&peer, &head).await;
        if is_known {
            connection.know();
        }
        answer
    }
}

impl Pages {
    /// The answer, and whether it is known who asks.
    async fn respond(&self, peer: &Peer, head: &Parts) -> (Response<Full<Bytes>>, bool) {
        let path = head.uri.path();
        let user = match self.guard.authenticate(peer, &head.headers).await {
            Ok(user) => user,
            Err(Unauthorized) => {
                return (refusal(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"), false);
            }
        };
        let is_known = *user != User::anonymous();
        if let Err(refusal) = self.authorize(&user, &head.method, path).await {
            return (refusal, is_known);
        }
        if !matches!(head.method, Method::GET | Method::HEAD) && !self.checks(path) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned());
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return (answer, is_known);
        }
        (self.page(path, head.uri.query().unwrap_or_default(), &head.headers), is_known)
    }

    fn checks(&self, path: &str) -> bool {
        ["/healthz", "/livez", "/readyz"].iter().any(|known| path.starts_with(known))
    }

    async fn authorize(
        &self,
        user: &Arc<User>,
        method: &Method,
        path: &str,
    ) -> Result<(), Response<Full<Bytes>>> {
        let is_for_everybody = self.for_everybody.iter().any(|open| match open.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == open,
        });
        if is_for_everybody || user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let verb = method.as_str().to_lowercase();
        let name = &user.name;
        match self.guard.may(user, Access::Path { verb: verb.clone(), path: path.to_owned() }).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                let message = format!("forbidden: User {name:?} cannot {verb} path {path:?}");
                Err(refusal(StatusCode::FORBIDDEN, "Forbidden", &message))
            }
            Err(error) => {
                tracing::warn!(user = name, verb, path, %error, "authorization error");
                Err(text(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Server Error: {path:?}\n")))
            }
        }
    }

    fn page(&self, path: &str, query: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        for (word, checks) in [("healthz", &self.healthz), ("livez", &self.livez), ("readyz", &self.readyz)] {
            let Some(rest) = path.strip_prefix('/').and_then(|path| path.strip_prefix(word)) else {
                continue;
            };
            let (status, body) = match rest.strip_prefix('/') {
                None if rest.is_empty() => checks.all(word, query),
                Some("") => checks.all(word, query),
                Some(name) => checks.one(name),
                None => continue,
            };
            return text(status, body);
        }
        match path {
            "/metrics" => answer(StatusCode::OK, base::metrics::CONTENT_TYPE, (self.metrics)()),
            "/metrics/slis" => {
                let mut out = String::new();
                match self.healthz.write(&mut out) {
                    Ok(()) => answer(StatusCode::OK, base::metrics::CONTENT_TYPE, out),
                    Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, String::new()),
                }
            }
            "/configz" => answer(StatusCode::OK, "application/json", (self.configz)()),
            "/flagz" => {
                self.about.component.flagz(headers, &self.about.flags).map(|page| Full::new(page.into()))
            }
            "/statusz" => {
                let About { component, version, started, .. } = &self.about;
                component
                    .statusz(headers, version, *started, Timestamp::now())
                    .map(|page| Full::new(page.into()))
            }
            _ => match self.more.iter().find(|(known, _)| *known == path) {
                Some((_, make)) => answer(StatusCode::OK, base::metrics::CONTENT_TYPE, make()),
                None => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            },
        }
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("for_everybody", &self.for_everybody).finish_non_exhaustive()
    }
}

/// As upstream's filters word it: a Status.
fn refusal(status: StatusCode, reason: &str, message: &str) -> Response<Full<Bytes>> {
    let body: Value = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": {}, "code": status.as_u16()});
    answer(status, "application/json", body.to_string())
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", body)
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use async_trait::async_trait;
    use base::time::{Clock, Mono, Now, Wall};
    use http_body_util::BodyExt;

    use super::*;
    use crate::guard::{AccessRules, GuardRules, ReviewError, Reviews};
    use crate::health::Check;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Now {
            Now { mono: Mono::default(), wall: Wall::default() }
        }
    }

    /// Knows who says a name, and lets a monitor see metrics.
    struct Scripted;

    #[async_trait]
    impl Reviews for Scripted {
        async fn token(&self, token: &str) -> Result<Option<User>, ReviewError> {
            let groups = if token == "master" { vec![MASTERS.to_owned()] } else { Vec::new() };
            let user = User { name: token.to_owned(), groups, ..User::default() };
            Ok((token != "nobody").then_some(user))
        }

        async fn access(&self, user: &User, asked: &Access) -> Result<bool, ReviewError> {
            match user.name.as_str() {
                "broken" => Err(ReviewError { why: "no answer".to_owned(), retry: false }),
                name => {
                    let metrics = Access::Path { verb: "get".to_owned(), path: "/metrics".to_owned() };
                    Ok(name == "monitor" && *asked == metrics)
                }
            }
        }
    }

    fn pages() -> Pages {
        let ttl = Duration::from_secs(10);
        let access = Some(AccessRules { allowed_for: ttl, denied_for: ttl });
        let rules = GuardRules { anonymous: true, tokens: Some(ttl), access, ..GuardRules::default() };
        let bad = Check::new("job-controller", || Err("stuck".to_owned()));
        Pages {
            healthz: Checks::new(vec![Check::ping(), bad]),
            livez: Checks::new(vec![Check::ping()]),
            readyz: Checks::new(vec![Check::ping()]),
            metrics: Arc::new(|| "metrics".to_owned()),
            more: vec![("/metrics/resources", Arc::new(|| "resources".to_owned()))],
            configz: Arc::new(|| "{}".to_owned()),
            about: About {
                component: Component { name: "kube-x", paths: &["/metrics"] },
                flags: BTreeMap::from([("v".to_owned(), "2".to_owned())]),
                version: "v1.36.4".to_owned(),
                started: Timestamp::UNIX_EPOCH,
            },
            for_everybody: Arc::new(vec!["/healthz*".to_owned(), "/livez".to_owned()]),
            guard: Arc::new(Guard::new(rules, Some(Arc::new(Scripted)), Arc::new(Still)).unwrap()),
        }
    }

    async fn ask(method: &str, path: &str, token: &str) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let (answer, _) = pages().respond(&Peer::default(), &head).await;
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn who_may_sees_a_page_and_who_may_not_is_told_why() {
        for (method, path, token, code, body) in [
            ("GET", "/livez", "", 200, "ok"),
            ("GET", "/livez?verbose", "", 200, "[+]ping ok\nlivez check passed\n"),
            (
                "GET",
                "/healthz",
                "",
                500,
                "[+]ping ok\n[-]job-controller failed: reason withheld\nhealthz check failed\n",
            ),
            ("GET", "/healthz/ping", "", 200, "ok"),
            ("GET", "/healthz/job-controller", "", 500, "internal server error: stuck\n"),
            ("GET", "/metrics", "monitor", 200, "metrics"),
            ("GET", "/metrics", "master", 200, "metrics"),
            ("GET", "/configz", "master", 200, "{}"),
            ("GET", "/metrics/resources", "master", 200, "resources"),
            ("GET", "/elsewhere", "master", 404, "404 page not found\n"),
            ("POST", "/metrics", "master", 405, "Method Not Allowed\n"),
            ("GET", "/metrics", "broken", 500, "Internal Server Error: \"/metrics\"\n"),
        ] {
            assert_eq!(
                ask(method, path, token).await,
                (code, body.to_owned()),
                "{method} {path} as {token:?}"
            );
        }
        for (path, line) in [
            ("/flagz", "\nkube-x flagz\n"),
            ("/flagz", "\nv=2\n"),
            ("/statusz", "\nBinary version: 1.36.4\n"),
            ("/metrics/slis", "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"}"),
        ] {
            let (code, page) = ask("GET", path, "master").await;
            assert!(code == 200 && page.contains(line), "{path}: {code} {page}");
        }
        for (path, token, code, message) in [
            ("/flagz", "monitor", 403, r#"cannot get path \"/flagz\""#),
            ("/metrics", "", 403, r#"forbidden: User \"system:anonymous\" cannot get path \"/metrics\""#),
            ("/configz", "monitor", 403, r#"forbidden: User \"monitor\" cannot get path \"/configz\""#),
            ("/livez", "nobody", 401, "Unauthorized"),
            (
                "/livez/ping",
                "",
                403,
                r#"forbidden: User \"system:anonymous\" cannot get path \"/livez/ping\""#,
            ),
        ] {
            let (told, body) = ask("GET", path, token).await;
            assert!(told == code && body.contains(message), "{path} as {token:?}: {told} {body}");
        }
    }
}
