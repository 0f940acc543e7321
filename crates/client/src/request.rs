//! Requests to the API server.

use std::sync::Arc;
use std::time::Duration;

use api::json::{FromJson, Reading};
use arc_swap::ArcSwapOption;
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Body;
use hyper_util::client::legacy;
use schema::lenient;
use tokio::time::Instant;

use crate::connect::{Connector, Dial};
use crate::connection_pool::{ConnectionPool, Content};
use crate::credentials::Credentials;
use crate::error::{ApiError, ClientError};
use crate::kubeconfig::{Config, Identity};
use crate::limit::Limiter;
use crate::tls::{self, KeyPair};
use crate::unreadable::{UnreadableHandler, UnreadableLog};

/// A refusal's body.
const ERROR_MAX: usize = 64 << 10;

/// A client of one API server. Cheap to clone; all clones share connections and the rate.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

#[derive(Clone, Debug)]
pub struct Options {
    pub user_agent: String,
    /// Requests a second; zero or less is no limit.
    pub qps: f64,
    pub burst: u32,
    /// How long one request may take, watches apart.
    pub timeout: Duration,
    /// The largest answer read into memory.
    pub answer_max: usize,
    /// Requests at a time on one connection; more have another. Servers and what is before them allow 100 and more.
    pub per_connection: usize,
    /// How often a request is repeated that the server wants to have later.
    pub repeats: u32,
    /// Who counts the requests.
    pub meter: Option<Meter>,
    /// Who hears of objects that cannot be read.
    pub on_unreadable: Option<UnreadableHandler>,
}

/// Is told of every request once its answer begins, or it has failed.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn(&Asked<'_>) + Send + Sync>);

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub method: &'a str,
    /// Name and port of the server.
    pub host: &'a str,
    /// None: there was no answer.
    pub code: Option<u16>,
    pub took: Duration,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: Method,
    /// Path and query, beginning with a slash.
    pub path: String,
    /// Content type and body.
    pub body: Option<(&'static str, Bytes)>,
    /// Who asks has an idea of his own of when to ask again.
    once: bool,
    /// The forms of the answer that are understood.
    accept: &'static str,
}

struct Inner {
    config: Config,
    options: Options,
    credentials: Credentials,
    limiter: Option<Limiter>,
    session: ArcSwapOption<Session>,
    unreadable: UnreadableLog,
    /// None: TCP to the server the configuration names.
    dial: Option<Dial>,
}

/// Connections made with one set of certificates.
struct Session {
    pool: ConnectionPool,
    key_pair: Option<KeyPair>,
}

// === impl Client ===

impl Client {
    /// Checks what can be checked without the server: certificates parse, files are there.
    pub async fn new(config: Config, options: Options) -> Result<Client, ClientError> {
        let client = Client::later(config, options);
        client.session().await?;
        Ok(client)
    }

    /// The same without looking: certificates that are not there yet may come later. Until then every request fails.
    #[must_use]
    pub fn later(config: Config, options: Options) -> Client {
        let credentials = Credentials::new(config.clone());
        Client::made(config, credentials, options, None)
    }

    /// A client without credentials whose connections are the caller's, to a server of his own.
    #[must_use]
    pub fn over(dial: Dial, options: Options) -> Client {
        let config = Config::plain("http://localhost");
        let credentials = Credentials::new(config.clone());
        Client::made(config, credentials, options, Some(dial))
    }

    /// Another client for the same server and with the same credentials: connections and rate are its own.
    #[must_use]
    pub fn again(&self, options: Options) -> Client {
        let Inner { config, credentials, dial, .. } = &*self.0;
        Client::made(config.clone(), credentials.again(), options, dial.clone())
    }

    /// Another client for the same server that acts as this user, whom the server must let this one impersonate.
    #[must_use]
    pub fn acting_as(&self, user: &str, options: Options) -> Client {
        let Inner { config, credentials, dial, .. } = &*self.0;
        let mut config = config.clone();
        config.identity.impersonation = vec![("Impersonate-User".to_owned(), user.to_owned())];
        Client::made(config, credentials.again(), options, dial.clone())
    }

    /// Another client for the same server that shows this token, and nothing else of this one's identity.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Client {
        let Inner { config, options, dial, .. } = &*self.0;
        let identity = Identity { token: Some(token.to_owned()), ..Identity::default() };
        let config = Config { identity, ..config.clone() };
        Client::made(config.clone(), Credentials::new(config), options.clone(), dial.clone())
    }

    fn made(config: Config, credentials: Credentials, options: Options, dial: Option<Dial>) -> Client {
        let inner = Inner {
            credentials,
            limiter: Limiter::new(options.qps, options.burst),
            session: ArcSwapOption::empty(),
            unreadable: UnreadableLog::new(options.on_unreadable.clone()),
            config,
            options,
            dial,
        };
        Client(Arc::new(inner))
    }

    #[must_use]
    pub fn server(&self) -> &str {
        &self.0.config.server
    }

    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Sends a request and decodes the answer.
    pub async fn ask<T: FromJson>(&self, request: Request) -> Result<T, ClientError> {
        let act = request.act();
        let bytes = self.ask_bytes(request).await?;
        let decode = |why| ClientError::Decode { act, why };
        match lenient::read::<T>(&bytes) {
            Ok(Reading { object, lost }) if lost.is_empty() => Ok(object),
            Ok(Reading { lost, .. }) => Err(decode(format!("nobody can read {}", lost.join(", ")))),
            Err(error) => Err(decode(error.to_string())),
        }
    }

    /// Sends a request and reads the answer whole. A server that is busy and says when to come again is asked again
    /// then, if there is time.
    pub async fn ask_bytes(&self, request: Request) -> Result<Bytes, ClientError> {
        let (act, after) = (request.act(), self.request_timeout());
        let deadline = Instant::now() + after;
        let mut left = if request.once { 0 } else { self.0.options.repeats };
        loop {
            let answer = tokio::time::timeout_at(deadline, self.ask_now(request.clone())).await;
            let answer = answer.unwrap_or_else(|_| Err(ClientError::Timeout { act: act.clone(), after }));
            match answer.as_ref().err().and_then(ClientError::again_after) {
                Some(pause) if left > 0 && Instant::now() + pause < deadline => {
                    tracing::debug!(act, ?pause, "the API server wants to be asked later");
                    tokio::time::sleep(pause).await;
                    left -= 1;
                }
                _ => return answer,
            }
        }
    }

    async fn ask_now(&self, request: Request) -> Result<Bytes, ClientError> {
        let act = request.act();
        let response = self.stream(request).await?;
        read_body(response.into_body(), self.0.options.answer_max, &act).await
    }

    pub(crate) fn unreadable(&self) -> &UnreadableLog {
        &self.0.unreadable
    }

    /// How long one request may take, watches apart.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.0.options.timeout
    }

    /// As [`Client::stream`], for an answer that has to begin soon.
    pub(crate) async fn open(&self, request: Request) -> Result<Response<Content>, ClientError> {
        let (act, after) = (request.act(), self.request_timeout());
        match tokio::time::timeout(after, self.stream(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::Timeout { act, after }),
        }
    }

    /// Sends a request and hands the body over as it comes; a refusal is read and becomes the error.
    pub async fn stream(&self, request: Request) -> Result<Response<Content>, ClientError> {
        if let Some(limiter) = &self.0.limiter {
            limiter.wait().await;
        }
        let act = request.act();
        let session = self.session().await?;
        let built = self.build(request).await?;
        let (method, begun) = (built.method().clone(), Instant::now());
        let place = session.pool.place();
        let response = place.request(built).await;
        if let Some(Meter(count)) = &self.0.options.meter {
            let server = self.0.config.server.as_str();
            let host = server.split_once("://").map_or(server, |(_, rest)| rest);
            let host = host.split('/').next().unwrap_or(host);
            let code = response.as_ref().ok().map(|r| r.status().as_u16());
            count(&Asked { method: method.as_str(), host, code, took: begun.elapsed() });
        }
        let response = place.keep(response.map_err(|e| self.failure(&act, &e))?);
        let status = response.status();
        if status.is_success() || status == http::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        if status == http::StatusCode::UNAUTHORIZED {
            self.0.credentials.refused();
        }
        let retry_after = response.headers().get(RETRY_AFTER).and_then(seconds);
        let body = read_body(response.into_body(), ERROR_MAX, &act).await.unwrap_or_default();
        let answer = ApiError::read(status.as_u16(), retry_after, &body);
        Err(ClientError::Api { act, answer })
    }

    async fn build(&self, request: Request) -> Result<http::Request<Full<Bytes>>, ClientError> {
        let transport = |why: String| ClientError::Transport { act: request.act(), why };
        let uri: Uri = format!("{}{}", self.0.config.server, request.path)
            .parse()
            .map_err(|e| transport(format!("{e}")))?;
        let mut builder = http::Request::builder()
            .method(request.method.clone())
            .uri(uri)
            .header(ACCEPT, request.accept)
            .header(USER_AGENT, &self.0.options.user_agent);
        if let Some(value) = self.0.credentials.header().await.map_err(ClientError::Credentials)? {
            builder = builder.header(AUTHORIZATION, value);
        }
        for (name, value) in &self.0.config.identity.impersonation {
            builder = builder.header(name, value);
        }
        let body = match &request.body {
            Some((kind, bytes)) => {
                builder = builder.header(CONTENT_TYPE, *kind);
                Full::new(bytes.clone())
            }
            None => Full::default(),
        };
        builder.body(body).map_err(|e| transport(e.to_string()))
    }

    /// The connections to use now: new ones once a certificate changed. Requests under way end on the old ones.
    async fn session(&self) -> Result<Arc<Session>, ClientError> {
        let inner = &self.0;
        let changed = inner.credentials.have_files_changed();
        let current = inner.session.load_full();
        let plugin = inner.config.identity.exec.is_some();
        if let Some(session) = &current
            && !changed
            && !plugin
        {
            return Ok(session.clone());
        }
        match self.renew(current.as_deref()).await {
            Ok(Some(fresh)) => {
                let fresh = Arc::new(fresh);
                inner.session.store(Some(fresh.clone()));
                Ok(fresh)
            }
            Ok(None) => current.ok_or_else(|| ClientError::Credentials("no session".to_owned())),
            // A half-written certificate must not cut a client off that has a working one.
            Err(why) => match current {
                Some(session) => {
                    tracing::warn!(%why, "New client credentials cannot be used, keeping the old ones");
                    Ok(session)
                }
                None => Err(ClientError::Credentials(why)),
            },
        }
    }

    /// None: nothing changed.
    async fn renew(&self, current: Option<&Session>) -> Result<Option<Session>, String> {
        let config = &self.0.config;
        let key_pair = self.0.credentials.key_pair().await?;
        if current.is_some_and(|c| c.key_pair == key_pair) && config.identity.exec.is_some() {
            return Ok(None);
        }
        let tls = if config.server.starts_with("https:") {
            Some(Arc::new(tls::client_config(config.ca.as_ref(), config.insecure, key_pair.as_ref())?))
        } else {
            None
        };
        let connector = Connector {
            tls,
            server_name: config.tls_server_name.clone(),
            proxy: config.proxy.clone(),
            dial: self.0.dial.clone(),
        };
        let pool = ConnectionPool::new(connector, self.0.options.per_connection);
        Ok(Some(Session { pool, key_pair }))
    }

    fn failure(&self, act: &str, error: &legacy::Error) -> ClientError {
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            why = inner.to_string();
            cause = inner.source();
        }
        if error.is_connect() {
            ClientError::Connect { server: self.0.config.server.clone(), why }
        } else {
            ClientError::Transport { act: act.to_owned(), why }
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("config", &self.0.config).finish_non_exhaustive()
    }
}

const JSON: &str = "application/json";

// === impl Request ===

impl Request {
    #[must_use]
    pub fn get(path: impl Into<String>) -> Request {
        Request { method: Method::GET, path: path.into(), body: None, once: false, accept: JSON }
    }

    #[must_use]
    pub fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        Request::with(Method::POST, path, JSON, body)
    }

    #[must_use]
    pub fn put(path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        Request::with(Method::PUT, path, JSON, body)
    }

    #[must_use]
    pub fn delete(path: impl Into<String>, options: impl Into<Bytes>) -> Request {
        Request::with(Method::DELETE, path, JSON, options)
    }

    /// A strategic merge patch, which is how a kubelet writes status.
    #[must_use]
    pub fn strategic_patch(path: impl Into<String>, body: impl Into<Bytes>) -> Request {
        Request::with(Method::PATCH, path, "application/strategic-merge-patch+json", body)
    }

    /// A patch of another kind, by its media type.
    #[must_use]
    pub fn patch(path: impl Into<String>, kind: &'static str, body: impl Into<Bytes>) -> Request {
        Request::with(Method::PATCH, path, kind, body)
    }

    fn with(method: Method, path: impl Into<String>, kind: &'static str, body: impl Into<Bytes>) -> Request {
        Request { body: Some((kind, body.into())), method, ..Request::get(path) }
    }

    /// In another form than plain JSON, or in several, the best one first.
    #[must_use]
    pub fn accepting(self, accept: &'static str) -> Request {
        Request { accept, ..self }
    }

    /// Not to be repeated by itself when the server says when to come back.
    #[must_use]
    pub fn once(self) -> Request {
        Request { once: true, ..self }
    }

    /// How messages name it; the query is left out, the path is enough to know the object.
    fn act(&self) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        format!("{} {path}", self.method)
    }
}

// === impl Meter ===

impl Meter {
    pub fn new(count: impl Fn(&Asked<'_>) + Send + Sync + 'static) -> Meter {
        Meter(Arc::new(count))
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Options {
            user_agent: concat!("longshore/", env!("CARGO_PKG_VERSION")).to_owned(),
            qps: 0.0,
            burst: 0,
            timeout: Duration::from_secs(30),
            answer_max: 64 << 20,
            per_connection: 64,
            repeats: 10,
            meter: None,
            on_unreadable: None,
        }
    }
}

async fn read_body(mut body: Content, limit: usize, act: &str) -> Result<Bytes, ClientError> {
    let hint = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut out = BytesMut::with_capacity(hint.min(1 << 20));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ClientError::Transport { act: act.to_owned(), why: e.to_string() })?;
        if let Ok(data) = frame.into_data() {
            if out.len() + data.len() > limit {
                return Err(ClientError::TooLarge { act: act.to_owned(), limit });
            }
            out.extend_from_slice(&data);
        }
    }
    Ok(out.freeze())
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
