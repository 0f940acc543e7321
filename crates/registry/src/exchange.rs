//! Requests to one host: redirects, logins, and bodies that may not stall.

use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use client::Proxies;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, RANGE, USER_AGENT, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::challenge::{self, Challenge};
use crate::connect::{Trust, connect};
use crate::error::Error;
use crate::hosts::Host;
use crate::login::Login;

const REDIRECTS: usize = 10;
/// Of a token server's answer, and of what a registry says is wrong.
const ANSWER_MAX: usize = 1 << 20;
const AGENT: HeaderValue = HeaderValue::from_static("longshore");

/// One host, for one pull.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) host: Host,
    trust: Trust,
    proxies: Proxies,
    stall: Duration,
    login: Option<Login>,
    /// What asks for this image.
    scope: String,
    /// The value of `Authorization` that was last taken.
    authorization: Mutex<Option<String>>,
}

/// An answer whose body is still on its way.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) url: String,
    pub(crate) response: Response<Incoming>,
    stall: Duration,
    /// Ends with the answer.
    _connection: JoinSet<()>,
}

#[derive(Deserialize)]
struct Token {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

#[derive(Deserialize)]
struct Complaints {
    errors: Vec<Complaint>,
}

#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// What is asked for.
pub(crate) struct Wanted<'a> {
    pub(crate) url: &'a str,
    pub(crate) accept: &'a [&'a str],
    /// Begin here.
    pub(crate) offset: u64,
}

// === impl Session ===

impl Session {
    pub(crate) fn new(
        host: Host,
        trust: Trust,
        proxies: Proxies,
        stall: Duration,
        login: Option<Login>,
        repository: &str,
    ) -> Session {
        // A login is for the registry that it names, not for who mirrors it.
        let login = login.filter(|_| !host.is_mirror);
        let token = login.as_ref().filter(|login| !login.registry_token.is_empty());
        let authorization = Mutex::new(token.map(|login| format!("Bearer {}", login.registry_token)));
        let scope = format!("repository:{repository}:pull");
        Session { host, trust, proxies, stall, login, scope, authorization }
    }

    /// A successful answer; a login is brought where one is wanted.
    pub(crate) async fn get(&self, wanted: &Wanted<'_>) -> Result<Answer, Error> {
        let answer = self.try_get(wanted).await?;
        if answer.response.status() != StatusCode::UNAUTHORIZED {
            return answer.good().await;
        }
        let headers = answer.response.headers().get_all(WWW_AUTHENTICATE).iter();
        let offers: Vec<&str> = headers.filter_map(|value| value.to_str().ok()).collect();
        let Some(challenge) = challenge::parse(&offers.join(", ")) else { return answer.good().await };
        let authorization = self.authorize(&challenge).await?;
        self.remember(authorization);
        self.try_get(wanted).await?.good().await
    }

    async fn try_get(&self, wanted: &Wanted<'_>) -> Result<Answer, Error> {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.host.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), secret(value)) {
                headers.append(name, value);
            }
        }
        if let Some(value) = self.authorization().and_then(|value| secret(&value).ok()) {
            headers.insert(AUTHORIZATION, value);
        }
        let mut common = HeaderMap::new();
        if let Ok(accept) = HeaderValue::try_from(wanted.accept.join(", ")) {
            common.insert(ACCEPT, accept);
        }
        if wanted.offset > 0
            && let Ok(range) = HeaderValue::try_from(format!("bytes={}-", wanted.offset))
        {
            common.insert(RANGE, range);
        }
        self.follow(wanted.url, &headers, &common).await
    }

    /// Goes where it is sent; what is for the host alone stays behind when it is sent elsewhere.
    async fn follow(&self, url: &str, own: &HeaderMap, common: &HeaderMap) -> Result<Answer, Error> {
        let mut uri = parsed(url)?;
        let mut is_own = true;
        for _ in 0..=REDIRECTS {
            let mut headers = common.clone();
            if is_own {
                headers.extend(own.clone());
            }
            let answer = self.send(Method::GET, &uri, headers, Bytes::new(), is_own).await?;
            let to = answer.response.headers().get(LOCATION).and_then(|l| l.to_str().ok());
            let Some(to) = to.filter(|_| answer.response.status().is_redirection()) else {
                return Ok(answer);
            };
            let refused = |why: &str| Error::Refused { url: uri.to_string(), why: why.to_owned() };
            let next = resolve(&uri, to).ok_or_else(|| refused("leads to what is no URL"))?;
            if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(refused("leads from https to http"));
            }
            is_own = is_own && next.authority() == uri.authority();
            uri = next;
        }
        Err(Error::Refused { url: url.to_owned(), why: format!("more than {REDIRECTS} redirects") })
    }

    async fn send(
        &self,
        method: Method,
        uri: &Uri,
        headers: HeaderMap,
        body: Bytes,
        is_own: bool,
    ) -> Result<Answer, Error> {
        let host = uri.authority().map_or("", |a| a.as_str());
        let unavailable = |why: String| Error::Unavailable { host: host.to_owned(), why };
        let stream =
            connect(uri, &self.proxies, &self.trust, is_own).await.map_err(|e| unavailable(e.to_string()))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| unavailable(chain(&e)))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // Who reads the answer learns of it.
            let _ = connection.await;
        });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = parsed(path)?;
        *request.headers_mut() = headers;
        if let Ok(host) = HeaderValue::try_from(host) {
            request.headers_mut().insert(HOST, host);
        }
        request.headers_mut().insert(USER_AGENT, AGENT);
        let url = without_query(uri);
        match tokio::time::timeout(self.stall, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(Answer { url, response, stall: self.stall, _connection: tasks }),
            Ok(Err(error)) => Err(unavailable(chain(&error))),
            Err(_) => Err(Error::Stalled { url, seconds: self.stall.as_secs() }),
        }
    }

    async fn authorize(&self, challenge: &Challenge) -> Result<String, Error> {
        let basic = self.login.as_ref().and_then(Login::basic);
        match challenge {
            Challenge::Basic => {
                basic.ok_or_else(|| self.no_login("it takes a name and a password, and there are none"))
            }
            Challenge::Bearer { realm, service, scope } => self.token(realm, service, scope, basic).await,
        }
    }

    async fn token(
        &self,
        realm: &str,
        service: &str,
        scope: &str,
        basic: Option<String>,
    ) -> Result<String, Error> {
        let server = parsed(realm)?;
        let is_secure = server.scheme_str() == Some("https");
        // A password may not travel more openly than the image.
        if !is_secure && (self.host.base.scheme_str() == Some("https") && !self.trust.may_be_plain) {
            return Err(self.no_login("its tokens are to be had over http only"));
        }
        let scope = if scope.is_empty() { &self.scope } else { scope };
        let fields = [("service", service), ("scope", scope)];
        let is_own = server.authority() == self.host.base.authority();
        let refresh =
            self.login.as_ref().map(|login| login.identity_token.as_str()).filter(|t| !t.is_empty());
        let answer = match refresh {
            Some(refresh) => {
                let more =
                    [("grant_type", "refresh_token"), ("client_id", "longshore"), ("refresh_token", refresh)];
                let body = form(fields.into_iter().chain(more));
                let mut headers = HeaderMap::new();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
                self.send(Method::POST, &server, headers, body.into(), is_own).await?
            }
            None => {
                let mark = if realm.contains('?') { '&' } else { '?' };
                let uri = parsed(&format!("{realm}{mark}{}", form(fields.into_iter())))?;
                let mut headers = HeaderMap::new();
                if let Some(value) = basic.and_then(|basic| secret(&basic).ok()) {
                    headers.insert(AUTHORIZATION, value);
                }
                self.send(Method::GET, &uri, headers, Bytes::new(), is_own).await?
            }
        };
        let status = answer.response.status();
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST) {
            return Err(self.no_login("the login is refused"));
        }
        let bytes = answer.good().await?.bytes(ANSWER_MAX).await?;
        // What came is not told: it may be a token.
        let token: Token =
            serde_json::from_slice(&bytes).map_err(|_| self.no_login("its token server sends no token"))?;
        let token = if token.token.is_empty() { token.access_token } else { token.token };
        if token.is_empty() {
            Err(self.no_login("its token server sends no token"))
        } else {
            Ok(format!("Bearer {token}"))
        }
    }

    fn no_login(&self, why: &str) -> Error {
        Error::Login { host: self.host.name().to_owned(), why: why.to_owned() }
    }

    fn authorization(&self) -> Option<String> {
        self.authorization.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    fn remember(&self, value: String) {
        *self.authorization.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(value);
    }
}

// === impl Answer ===

impl Answer {
    /// An answer that is none becomes an error, in the registry's own words where it has any.
    async fn good(self) -> Result<Answer, Error> {
        let status = self.response.status();
        if status.is_success() {
            return Ok(self);
        }
        let url = self.url.clone();
        let said = self.bytes(ANSWER_MAX).await.ok();
        let complaints = said.and_then(|bytes| serde_json::from_slice::<Complaints>(&bytes).ok());
        let first = complaints.and_then(|all| all.errors.into_iter().next());
        let why = first
            .map(|first| format!("{} {}", first.code, first.message).chars().take(300).collect::<String>());
        Err(Error::Answer {
            url,
            status,
            why: why.map(|why| why.trim().to_owned()).filter(|why| !why.is_empty()),
        })
    }

    /// The next piece of the body; none at its end.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let frame = tokio::time::timeout(self.stall, self.response.body_mut().frame()).await;
            let stalled = || Error::Stalled { url: self.url.clone(), seconds: self.stall.as_secs() };
            match frame.map_err(|_| stalled())? {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    return Err(Error::Unavailable { host: self.url.clone(), why: chain(&error) });
                }
            }
        }
    }

    /// The whole body, if it has at most `most` bytes.
    pub(crate) async fn bytes(mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            if all.len() + piece.len() > most {
                return Err(Error::Refused {
                    url: self.url,
                    why: format!("the answer has more than {most} bytes"),
                });
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

fn parsed(url: &str) -> Result<Uri, Error> {
    url.parse().map_err(|_| Error::Refused { url: url.chars().take(200).collect(), why: "is no URL".into() })
}

fn secret(value: &str) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut value = HeaderValue::try_from(value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// A signed URL is a secret.
fn without_query(uri: &Uri) -> String {
    let (scheme, authority) =
        (uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |a| a.as_str()));
    format!("{scheme}://{authority}{}", uri.path())
}

fn resolve(from: &Uri, to: &str) -> Option<Uri> {
    if to.starts_with("http://") || to.starts_with("https://") {
        return to.parse().ok();
    }
    let path = match to.strip_prefix('/') {
        Some(_) => to.to_owned(),
        None => format!("{}/{to}", from.path().rsplit_once('/').map_or("", |(base, _)| base)),
    };
    let with = Uri::builder().scheme(from.scheme()?.clone()).authority(from.authority()?.clone());
    with.path_and_query(path).build().ok()
}

/// Fields of a form or a query.
fn form<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (name, value) in fields.filter(|(_, value)| !value.is_empty()) {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    text.push(char::from(byte))
                }
                other => text.push_str(&format!("%{other:02X}")),
            }
        }
    }
    text
}

/// An error of hyper says little without what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
