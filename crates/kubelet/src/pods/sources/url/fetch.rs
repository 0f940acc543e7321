//! One verified GET with a bounded body.

use std::path::Path;
use std::sync::Arc;

use base::class::{Class, Classify};
use bytes::Bytes;
use http::header::{HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::pods::sources::MANIFEST_MAX;

const REDIRECTS: usize = 10;
const AGENT: HeaderValue = HeaderValue::from_static("longshore-kubelet");
/// Where distributions keep the certificates the machine trusts.
const ROOT_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("get {url}: not an http or https URL")]
    BadUrl { url: String },
    #[error("header {name:?} cannot be sent")]
    BadHeader { name: String },
    #[error("connect to {host}: {error}")]
    Connect { host: String, error: std::io::Error },
    #[error("TLS with {host}: {error}")]
    Tls { host: String, error: std::io::Error },
    #[error("no root certificates found to verify {host}")]
    NoRoots { host: String },
    #[error("get {url}: {error}")]
    Exchange { url: String, error: hyper::Error },
    #[error("{url}: {status}")]
    Status { url: String, status: StatusCode },
    #[error("{url}: the answer is larger than {MANIFEST_MAX} bytes or broke off: {error}")]
    Body { url: String, error: String },
    #[error("{url}: more than {REDIRECTS} redirects")]
    Redirects { url: String },
    #[error("no answer within 10 seconds")]
    TimedOut,
}

impl Classify for FetchError {
    fn class(&self) -> Class {
        Class::Retry
    }
}

/// Fetches with fixed headers. The machine's root certificates are read at the first HTTPS request.
#[derive(Debug)]
pub struct Fetcher {
    headers: Vec<(String, String)>,
    tls: tokio::sync::OnceCell<Option<Arc<rustls::ClientConfig>>>,
}

impl Fetcher {
    #[must_use]
    pub fn new(headers: Vec<(String, String)>) -> Self {
        Self { headers, tls: tokio::sync::OnceCell::new() }
    }

    /// Trusts these certificates only.
    #[must_use]
    pub fn with_roots(headers: Vec<(String, String)>, roots: Vec<CertificateDer<'static>>) -> Self {
        Self { headers, tls: tokio::sync::OnceCell::new_with(Some(client_config(roots))) }
    }

    /// The body of a 200 answer. The caller bounds the time.
    pub async fn get(&self, url: &str) -> Result<Vec<u8>, FetchError> {
        let bad = |url: &str| FetchError::BadUrl { url: url.to_owned() };
        let mut uri: Uri = url.parse().map_err(|_| bad(url))?;
        let mut headers = self.header_map()?;
        for _ in 0..=REDIRECTS {
            let answer = self.exchange(&uri, &headers).await?;
            let next = match answer {
                Answer::Body(body) => return Ok(body),
                Answer::Redirect(to) => resolve(&uri, &to).ok_or_else(|| bad(&to))?,
            };
            // Headers may carry credentials, which are for the configured host only.
            if next.host() != uri.host() {
                headers.clear();
            }
            uri = next;
        }
        Err(FetchError::Redirects { url: url.to_owned() })
    }

    async fn exchange(&self, uri: &Uri, headers: &HeaderMap) -> Result<Answer, FetchError> {
        let bad = || FetchError::BadUrl { url: uri.to_string() };
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let stream = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(|error| FetchError::Connect { host: format!("{host}:{port}"), error })?;
        if !secure {
            return send(stream, uri, headers).await;
        }
        let config = self.tls.get_or_init(system_roots).await.clone();
        let config = config.ok_or_else(|| FetchError::NoRoots { host: host.clone() })?;
        let name = ServerName::try_from(host.clone()).map_err(|_| bad())?;
        let stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|error| FetchError::Tls { host, error })?;
        send(stream, uri, headers).await
    }

    fn header_map(&self) -> Result<HeaderMap, FetchError> {
        let mut map = HeaderMap::new();
        for (name, value) in &self.headers {
            let bad = || FetchError::BadHeader { name: name.clone() };
            let key = HeaderName::try_from(name.as_str()).map_err(|_| bad())?;
            let mut value = HeaderValue::try_from(value.as_str()).map_err(|_| bad())?;
            value.set_sensitive(true);
            map.append(key, value);
        }
        Ok(map)
    }
}

enum Answer {
    Body(Vec<u8>),
    Redirect(String),
}

async fn send<S>(stream: S, uri: &Uri, headers: &HeaderMap) -> Result<Answer, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let url = uri.to_string();
    let broken = |error| FetchError::Exchange { url: url.clone(), error };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Dropped with this future, and the connection with it.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = path.parse().map_err(|_| FetchError::BadUrl { url: url.clone() })?;
    let authority = uri.authority().map_or("", |a| a.as_str().rsplit('@').next().unwrap_or_default());
    if let Ok(host) = HeaderValue::try_from(authority) {
        request.headers_mut().insert(HOST, host);
    }
    request.headers_mut().insert(USER_AGENT, AGENT);
    // The user's headers win, HOST among them.
    for key in headers.keys() {
        request.headers_mut().remove(key);
    }
    for (key, value) in headers {
        request.headers_mut().append(key, value.clone());
    }
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    if status.is_redirection()
        && let Some(to) = response.headers().get(LOCATION).and_then(|l| l.to_str().ok())
    {
        return Ok(Answer::Redirect(to.to_owned()));
    }
    if status != StatusCode::OK {
        return Err(FetchError::Status { url, status });
    }
    match Limited::new(response.into_body(), MANIFEST_MAX).collect().await {
        Ok(body) => Ok(Answer::Body(body.to_bytes().to_vec())),
        Err(e) => Err(FetchError::Body { url, error: e.to_string() }),
    }
}

/// Where a redirect leads: an absolute URL, or a path on the same host.
fn resolve(from: &Uri, to: &str) -> Option<Uri> {
    if to.starts_with("http://") || to.starts_with("https://") {
        return to.parse().ok();
    }
    let path = if to.starts_with('/') {
        to.to_owned()
    } else {
        let base = from.path().rsplit_once('/').map_or("", |(base, _)| base);
        format!("{base}/{to}")
    };
    Uri::builder()
        .scheme(from.scheme()?.clone())
        .authority(from.authority()?.clone())
        .path_and_query(path)
        .build()
        .ok()
}

async fn system_roots() -> Option<Arc<rustls::ClientConfig>> {
    let read = || ROOT_FILES.iter().find_map(|file| read_roots(Path::new(file)));
    client_config(tokio::task::spawn_blocking(read).await.ok()??)
}

fn read_roots(file: &Path) -> Option<Vec<CertificateDer<'static>>> {
    let roots: Vec<_> = CertificateDer::pem_file_iter(file).ok()?.filter_map(Result::ok).collect();
    (!roots.is_empty()).then_some(roots)
}

fn client_config(roots: Vec<CertificateDer<'static>>) -> Option<Arc<rustls::ClientConfig>> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    if store.is_empty() {
        return None;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .with_root_certificates(store)
        .with_no_client_auth();
    Some(Arc::new(config))
}
