//! One request: who asks, for what, may they, and the answer.

use std::sync::Arc;
use std::time::Instant;

use api::bearer;
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Method, Request, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::json;

use super::accept::{self, Format};
use super::answer::{self, Answer};
use super::asking::{Asking, Peer, header_text};
use super::body::Body;
use super::limits::{Class, Place};
use super::metrics::About;
use super::{App, audit, discovery, health, indent, large, openapi};
use crate::auth::impersonate;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::asked::{self, Asked, Query};
use apiserver_core::request::{Attributes, User, groups};

/// For how long others may keep our keys, upstream's figure.
const KEYS_STAY: HeaderValue = HeaderValue::from_static("public, max-age=3600");

/// Methods that are counted by name.
const METHODS: &[&str] = &["get", "head", "post", "put", "patch", "delete", "options"];

/// What is known of a request while it is served: for the counters and the audit log.
#[derive(Debug, Default)]
struct Known {
    /// With the user who proved to be one, whomever he acts as.
    attributes: Attributes,
    impersonated: Option<Arc<User>>,
    about: About,
    /// Whether it is open for as long as the client likes.
    stays_open: bool,
}

/// Answers a request. A panic in it is this request's failure, and nobody else's.
pub(crate) async fn answer(app: Arc<App>, peer: Peer, request: Request<Incoming>) -> Answer {
    let (began, received) = (Instant::now(), app.registry.now());
    let audited = app.audit.is_some().then(|| {
        let agent = header_text(request.headers(), header::USER_AGENT).to_owned();
        let uri = request.uri().path_and_query().map_or("/", |p| p.as_str());
        (uri.to_owned(), agent)
    });
    let ends = ends_conversation(&request);
    let mut known = Known::default();
    let pretty = indent::is_wanted(request.uri().query().unwrap_or_default(), request.headers());
    let work = std::panic::AssertUnwindSafe(Box::pin(respond(&app, &peer, request, &mut known)));
    let answer = match work.catch_unwind().await {
        Ok(Ok(answer)) => answer,
        Ok(Err(api_status)) => answer::refuse(&api_status),
        Err(_) => {
            tracing::error!("a request panicked");
            answer::refuse(&ApiStatus::internal("the server failed to handle the request"))
        }
    };
    let answer = if pretty && known.about.verb != "WATCH" { indent::indent(answer) } else { answer };
    let mut answer = answer;
    if ends && answer.status() != http::StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let code = answer.status().as_u16();
    app.metrics.answered(&known.about, code, began.elapsed());
    if let (Some(audit), Some((uri, agent))) = (&app.audit, audited) {
        let times = (micro_time(received), micro_time(app.registry.now()));
        let from = (uri.as_str(), agent.as_str(), peer.address.ip());
        audit.record(&audit::entry(&known.attributes, known.impersonated.as_deref(), from, code, times));
    }
    answer
}

async fn respond(
    app: &Arc<App>,
    peer: &Peer,
    request: Request<Incoming>,
    known: &mut Known,
) -> Result<Answer, ApiStatus> {
    let (mut head, body) = request.into_parts();
    check_recipient(&head)?;
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let (query, unreadable) = match query {
        Ok(query) => (query, None),
        Err(api_status) => (Query::default(), Some(api_status)),
    };
    let Asked { verb, resource, listing, fault } = asked::read(&head.method, head.uri.path(), &query);
    let user = Arc::default();
    let mut attributes = Attributes { user, verb, path: head.uri.path().to_owned(), resource };
    *known = Known::new(app, &attributes, &query);
    let user = app.authenticator.authenticate(&peer.shown, &head.headers, head.uri.path()).await?;
    if !user.is_in(groups::UNAUTHENTICATED) {
        peer.connection.know();
    }
    known.attributes.user = user.clone();
    known.impersonated = impersonate::impersonate(&app.authorizer, &user, &head.headers)?.map(Arc::new);
    attributes.user = known.impersonated.clone().unwrap_or(user);
    // What proved it goes no further.
    impersonate::strip(&mut head.headers);
    bearer::strip(&mut head.headers);
    if let Some(api_status) = unreadable {
        return Err(api_status);
    }
    if !known.stays_open {
        query.check_timeout()?;
    }
    app.authorizer.check(&attributes)?;
    let class = match &*attributes.verb {
        _ if known.stays_open => Class::Open,
        "create" | "update" | "patch" | "delete" | "deletecollection" => Class::Write,
        _ => Class::Read,
    };
    let place = app.in_flight.enter(class, &attributes.user).inspect_err(|_| app.metrics.dropped(class))?;
    let is_resource = attributes.resource.is_some();
    let asking = Asking { head, query, attributes, listing, fault, peer: peer.clone() };
    let answer = if is_resource {
        large::serve(app, asking, Body::Incoming(body)).await?
    } else {
        plain(app, &asking).await?
    };
    if !known.stays_open {
        return Ok(answer);
    }
    // As long as the body is being sent, the request is under way.
    let open = Open { app: app.clone(), about: known.about.clone(), _place: place };
    app.metrics.open(&open.about, 1.0);
    Ok(answer.map(|body| {
        body.map_frame(move |frame| {
            let _ = &open;
            frame
        })
        .boxed_unsync()
    }))
}

/// A long-running request, until its body is gone.
struct Open {
    app: Arc<App>,
    about: About,
    _place: Place,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.metrics.open(&self.about, -1.0);
    }
}

// === impl Known ===

impl Known {
    fn new(app: &App, attributes: &Attributes, query: &Query) -> Known {
        let mut about = About { dry_run: query.get("dryRun").is_some(), ..About::default() };
        // Anybody could make up methods, and each would be a row for ever.
        let known = attributes.resource.is_some() || METHODS.contains(&&*attributes.verb);
        about.verb = if known { attributes.verb.to_ascii_uppercase() } else { "other".to_owned() };
        let mut stays_open = false;
        if let Some(resource) = &attributes.resource {
            let leads_on =
                matches!(&*resource.subresource, "log" | "exec" | "attach" | "portforward" | "proxy");
            stays_open = attributes.verb == "watch" || leads_on;
            match &*attributes.verb {
                _ if leads_on => about.verb = "CONNECT".to_owned(),
                "create" => about.verb = "POST".to_owned(),
                "update" => about.verb = "PUT".to_owned(),
                "" => about.verb = "other".to_owned(),
                _ => {}
            }
            // Labels are only taken from paths that exist: anybody could make up others.
            if let Ok(kind) = app.registry.kind(&resource.group, &resource.version, &resource.plural) {
                about.name(&kind, resource);
            }
        }
        Known { attributes: attributes.clone(), impersonated: None, about, stays_open }
    }
}

fn micro_time(at: base::time::Wall) -> String {
    let at = jiff::Timestamp::from_microsecond(at.0 / 1000).unwrap_or_default();
    format!("{at:.6}")
}

/// A request of HTTP/1.1 says exactly once whom it is for. Otherwise somebody before us may have read another. A success would
/// tell whoever asks for a tunnel that there is one.
fn check_recipient(head: &Parts) -> Result<(), ApiStatus> {
    if head.method == Method::CONNECT {
        return Err(ApiStatus::method_not_allowed());
    }
    let said = head.headers.get_all(header::HOST).iter().count();
    match (head.version, said) {
        (_, 1) => Ok(()),
        (http::Version::HTTP_11, 0) => Err(ApiStatus::bad_request("missing required Host header")),
        (_, 0) => Ok(()),
        _ => Err(ApiStatus::bad_request("too many Host headers")),
    }
}

/// Whether what follows on the connection is not to be taken for a request: after one whose recipient is in doubt, and
/// after one that wanted another protocol, since bytes of that may be on their way.
fn ends_conversation<B>(request: &Request<B>) -> bool {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    let is_tunnel = request.method() == Method::CONNECT;
    request.version() == http::Version::HTTP_11
        && (hosts != 1 || is_tunnel || request.headers().contains_key(header::UPGRADE))
}

/// Everything that is no resource.
async fn plain(app: &App, asking: &Asking) -> Result<Answer, ApiStatus> {
    let accept = header_text(&asking.head.headers, header::ACCEPT);
    let format = || {
        let accepted = accept::negotiate(accept, accept::OFFERED);
        Ok::<_, ApiStatus>(accepted.ok_or_else(|| ApiStatus::not_acceptable(accept::OFFERED))?.format)
    };
    let catalog = app.registry.catalog();
    let path = asking.head.uri.path().trim_end_matches('/');
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let aggregated = accept::aggregated_discovery(accept);
    let document = match (&*parts, aggregated) {
        (["api"] | ["apis"], Some(form)) => {
            let body = discovery::aggregated(&catalog, parts == ["api"], form);
            let mut answer = answer::document(200, &body, Format::Json);
            let kind = format!("application/json;g=apidiscovery.k8s.io;v={form};as=APIGroupDiscoveryList");
            if let Ok(value) = http::HeaderValue::from_str(&kind) {
                answer.headers_mut().insert(header::CONTENT_TYPE, value);
            }
            answer.headers_mut().insert(header::VARY, http::HeaderValue::from_static("Accept"));
            return Ok(answer);
        }
        (["api"], None) => discovery::api_versions(&app.address),
        (["apis"], None) => discovery::group_list(&catalog),
        (["apis", group], _) => discovery::group(&catalog, group)?,
        (["api", version], _) => discovery::resource_list(&catalog, "", version)?,
        (["apis", group, version], _) => discovery::resource_list(&catalog, group, version)?,
        (["openapi", below @ ..], _) => return openapi::serve(app, asking, below).await,
        ([".well-known", "openid-configuration"], _) => {
            let about = app.tokens.discovery(app.jwks_uri.as_deref(), &app.address);
            let mut answer = answer::document(200, &about, Format::Json);
            answer.headers_mut().insert(header::CACHE_CONTROL, KEYS_STAY);
            return Ok(answer);
        }
        (["openid", "v1", "jwks"], _) => {
            let keys = app.tokens.key_set().to_string();
            let mut answer = answer::whole(200, "application/jwk-set+json", keys.into());
            answer.headers_mut().insert(header::CACHE_CONTROL, KEYS_STAY);
            return Ok(answer);
        }
        (["version"], _) => return Ok(version(&app.version)),
        (["livez" | "readyz" | "healthz", ..], _) => {
            return health::serve(app, &parts, &asking.query).await;
        }
        (["metrics"], _) => {
            let page = app.metrics.page(app);
            return Ok(answer::whole(200, base::metrics::CONTENT_TYPE, page.into()));
        }
        (["metrics", "slis"], _) => {
            let page = app.metrics.indicators();
            return Ok(answer::whole(200, base::metrics::CONTENT_TYPE, page.into()));
        }
        ([""], _) => json!({"paths": ["/api", "/apis", "/healthz", "/livez", "/readyz", "/version"]}),
        _ if asked::verb_of(&asking.head.method).is_none() => return Err(ApiStatus::method_not_allowed()),
        _ => return Err(ApiStatus::no_resource()),
    };
    Ok(answer::document(200, &document, format()?))
}

/// `/version`, in the order people know it from.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version<'v> {
    major: &'v str,
    minor: &'v str,
    git_version: &'v str,
    git_commit: &'static str,
    git_tree_state: &'static str,
    build_date: &'static str,
    go_version: &'static str,
    compiler: &'static str,
    platform: &'static str,
}

fn version(version: &str) -> Answer {
    let mut numbers = version.trim_start_matches('v').split('.');
    let told = Version {
        major: numbers.next().unwrap_or_default(),
        minor: numbers.next().unwrap_or_default(),
        git_version: version,
        git_commit: "",
        git_tree_state: "clean",
        build_date: "1970-01-01T00:00:00Z",
        go_version: "",
        compiler: "rustc",
        platform: if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" },
    };
    let text = serde_json::to_string_pretty(&told).unwrap_or_default();
    answer::whole(200, Format::Json.content_type(), text.into())
}
