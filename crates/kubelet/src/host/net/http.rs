//! One GET: no keep-alive, no compression, a bounded body, redirects only within the same host.

use std::error::Error as _;

use ::http::header::{ACCEPT, HOST, LOCATION, USER_AGENT};
use ::http::uri::Scheme;
use ::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tls::unverified;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{PLAIN_HTTP_ANSWER, dial, join_host_port};
use crate::ports::{HttpAnswer, HttpGet, NetError};

/// Bytes of a body that are read; the rest is left.
const BODY_LIMIT: usize = 10 * 1024;
const REDIRECT_LIMIT: usize = 10;
const DEFAULT_AGENT: HeaderValue = HeaderValue::from_static("kube-probe/1.36");

pub(super) async fn get(request: HttpGet) -> Result<HttpAnswer, NetError> {
    let target = Target::of(&request);
    let url = target.url();
    let limit = request.timeout;
    let exchange = follow(target, request);
    let answer = if limit.is_zero() {
        exchange.await
    } else {
        let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
        timeout(limit, exchange).await.unwrap_or_else(|_| Err(NetError(late.to_owned())))
    };
    answer.map_err(|e| NetError(format!("Get {url:?}: {}", e.0)))
}

/// Where one request goes.
#[derive(Clone, Debug, PartialEq)]
struct Target {
    tls: bool,
    host: String,
    port: u16,
    /// Path and query, ready for the request line.
    path: String,
}

async fn follow(mut target: Target, request: HttpGet) -> Result<HttpAnswer, NetError> {
    let mut headers = headers(&request.headers)?;
    for _ in 0..=REDIRECT_LIMIT {
        let (parts, body, _connection) = exchange(&target, &headers).await?;
        let status = parts.status.as_u16();
        if request.follow_redirects
            && let Some(location) = redirect(&parts)
        {
            let relative = location.starts_with('/') && !location.starts_with("//");
            let next = target.join(location)?;
            if next.host != target.host {
                return Ok(HttpAnswer { status, body: read(body).await?, foreign_redirect: true });
            }
            if !relative {
                headers.remove(HOST);
            }
            target = next;
            continue;
        }
        return Ok(HttpAnswer { status, body: read(body).await?, foreign_redirect: false });
    }
    Err(NetError(format!("stopped after {REDIRECT_LIMIT} redirects")))
}

/// The answer's head and body. The connection lives in the JoinSet and dies with it.
async fn exchange(
    target: &Target,
    headers: &HeaderMap,
) -> Result<(::http::response::Parts, Incoming, JoinSet<()>), NetError> {
    let stream = dial(&target.host, target.port).await?;
    if !target.tls {
        return send(target, headers, stream).await;
    }
    let stream = unverified::connect(&target.host, stream).await.map_err(|e| {
        if unverified::is_plain_answer(&e) {
            NetError(format!("http: {PLAIN_HTTP_ANSWER}"))
        } else {
            NetError(e.to_string())
        }
    })?;
    send(target, headers, stream).await
}

async fn send<S>(
    target: &Target,
    headers: &HeaderMap,
    stream: S,
) -> Result<(::http::response::Parts, Incoming, JoinSet<()>), NetError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = hyper::client::conn::http1::Builder::new();
    builder.title_case_headers(true).max_buf_size(64 * 1024);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(describe)?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        // An error here also reaches whoever waits for the answer.
        let _ = connection.await;
    });
    let mut request = Request::builder()
        .method(Method::GET)
        .version(Version::HTTP_11)
        .uri(target.path.as_str())
        .body(Empty::<Bytes>::new())
        .map_err(|e| NetError(e.to_string()))?;
    let own = request.headers_mut();
    if !headers.contains_key(HOST) {
        let host = HeaderValue::try_from(join_host_port(&target.host, target.port));
        own.insert(HOST, host.map_err(|e| NetError(e.to_string()))?);
    }
    own.extend(headers.clone());
    own.insert(::http::header::CONNECTION, HeaderValue::from_static("close"));
    let (parts, body) = sender.send_request(request).await.map_err(describe)?.into_parts();
    Ok((parts, body, tasks))
}

/// At most [`BODY_LIMIT`] bytes of the body, as text.
async fn read(mut body: Incoming) -> Result<String, NetError> {
    let mut bytes = Vec::new();
    while bytes.len() < BODY_LIMIT {
        let Some(frame) = body.frame().await else { break };
        if let Ok(data) = frame.map_err(describe)?.into_data() {
            let room = BODY_LIMIT - bytes.len();
            bytes.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn redirect(parts: &::http::response::Parts) -> Option<&str> {
    let moved = matches!(parts.status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = parts.headers.get(LOCATION).filter(|_| moved)?;
    location.to_str().ok().filter(|l| !l.is_empty())
}

/// The user's headers, repeated ones kept, plus the defaults. An empty Accept or User-Agent means
/// that none is sent.
fn headers(pairs: &[(String, String)]) -> Result<HeaderMap, NetError> {
    let mut map = HeaderMap::new();
    for (name, value) in pairs {
        let parsed = (HeaderName::try_from(name.as_str()), HeaderValue::try_from(value.as_str()));
        let (Ok(parsed_name), Ok(parsed_value)) = parsed else {
            // The value may be a secret: only the name is shown.
            return Err(NetError(format!("net/http: invalid header field {name:?}")));
        };
        if parsed_name != HOST || !parsed_value.is_empty() {
            map.append(parsed_name, parsed_value);
        }
    }
    for (name, default) in [(USER_AGENT, DEFAULT_AGENT), (ACCEPT, HeaderValue::from_static("*/*"))] {
        match map.get(&name) {
            None => {
                map.insert(name, default);
            }
            Some(value) if value.is_empty() => {
                map.remove(name);
            }
            Some(_) => {}
        }
    }
    Ok(map)
}

fn describe(error: hyper::Error) -> NetError {
    if error.is_incomplete_message() {
        return NetError("EOF".to_owned());
    }
    let source = error.source().map(ToString::to_string);
    NetError(source.unwrap_or_else(|| error.to_string()))
}

// === impl Target ===

impl Target {
    fn of(request: &HttpGet) -> Self {
        let path = encode_path(&request.path);
        Self { tls: request.tls, host: request.host.clone(), port: request.port, path }
    }

    fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", join_host_port(&self.host, self.port), self.path)
    }

    /// Resolves a Location header against this target.
    fn join(&self, location: &str) -> Result<Self, NetError> {
        let bad = || NetError(format!("failed to parse Location header {location:?}"));
        let scheme = if self.tls { "https:" } else { "http:" };
        let absolute = if location.starts_with("//") {
            format!("{scheme}{location}")
        } else if location.contains("://") {
            location.to_owned()
        } else {
            let path = if location.starts_with('/') { location.to_owned() } else { self.sibling(location) };
            return Ok(Self { path: encode_path(&path), ..self.clone() });
        };
        let uri: Uri = absolute.split('#').next().unwrap_or_default().parse().map_err(|_| bad())?;
        let tls = match uri.scheme() {
            Some(s) if *s == Scheme::HTTPS => true,
            Some(s) if *s == Scheme::HTTP => false,
            _ => return Err(bad()),
        };
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |p| p.as_str());
        Ok(Self { tls, host, port, path: encode_path(path) })
    }

    /// `name` in the directory of the current path.
    fn sibling(&self, name: &str) -> String {
        let path = self.path.split('?').next().unwrap_or_default();
        if name.starts_with('?') {
            return format!("{path}{name}");
        }
        let directory = path.rsplit_once('/').map_or("", |(d, _)| d);
        format!("{directory}/{name}")
    }
}

/// A path as the user wrote it, made fit for a request line: absolute, no fragment, and everything
/// escaped that a request line cannot hold.
fn encode_path(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut out = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        out.push('/');
    }
    for byte in path.bytes() {
        match byte {
            b'!' | b'$'..=b';' | b'=' | b'?'..=b'[' | b']' | b'_' | b'a'..=b'z' | b'~' => {
                out.push(char::from(byte))
            }
            _ => {
                out.push('%');
                for digit in [byte >> 4, byte & 15] {
                    out.push(char::from(b"0123456789ABCDEF"[usize::from(digit)]));
                }
            }
        }
    }
    out
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
