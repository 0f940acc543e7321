//! Reaching the runtime's streaming server.

use std::io;
use std::time::Duration;

use base::class::{Class, Classify};
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tls::unverified;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// For the connection and for the answer to the upgrade.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a refusal's text.
const ERROR_MAX: usize = 64 << 10;

/// What came of the request.
#[derive(Debug)]
pub enum Opened {
    Upgraded {
        stream: TokioIo<Upgraded>,
        headers: HeaderMap,
    },
    /// The server's own words.
    Refused {
        status: StatusCode,
        text: Bytes,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("the runtime's streaming address {0:?} is not understood")]
    Address(String),
    #[error("error dialing backend: dial tcp {address}: {error}")]
    Connect { address: String, error: io::Error },
    #[error("error dialing backend: {address}: {why}")]
    Upgrade { address: String, why: String },
}

impl Classify for DialError {
    fn class(&self) -> Class {
        Class::Retry
    }
}

/// Connects and asks for an upgrade.
pub async fn open(url: &str, method: Method, headers: HeaderMap) -> Result<Opened, DialError> {
    let unclear = || DialError::Address(url.to_owned());
    let uri: Uri = url.parse().map_err(|_| unclear())?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(unclear()),
    };
    let host = uri.host().map(|h| h.trim_matches(['[', ']']).to_owned()).ok_or_else(unclear)?;
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let address = uri.authority().map(ToString::to_string).unwrap_or_default();
    let work = async {
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream = stream.map_err(|error| DialError::Connect { address: address.clone(), error })?;
        // Keystrokes do not wait for company.
        let _ = stream.set_nodelay(true);
        if !secure {
            return ask(stream, &uri, &address, method, headers).await;
        }
        // The certificate is the runtime's own; the address it gave us over its socket is the proof.
        let stream = unverified::connect(&host, stream).await;
        let stream = stream.map_err(|error| DialError::Connect { address: address.clone(), error })?;
        ask(stream, &uri, &address, method, headers).await
    };
    match tokio::time::timeout(TIMEOUT, work).await {
        Ok(opened) => opened,
        Err(_) => Err(DialError::Connect { address: address.clone(), error: io::ErrorKind::TimedOut.into() }),
    }
}

async fn ask<S>(
    stream: S,
    uri: &Uri,
    address: &str,
    method: Method,
    headers: HeaderMap,
) -> Result<Opened, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let why =
        |e: &dyn std::fmt::Display| DialError::Upgrade { address: address.to_owned(), why: e.to_string() };
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| why(&e))?;
    supervise::spawn("stream to the runtime", async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::trace!(%error, "a connection to the runtime's streaming server ended");
        }
    });
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.method_mut() = method;
    *request.uri_mut() = uri.path_and_query().map_or("/", |p| p.as_str()).parse().map_err(|e| why(&e))?;
    *request.headers_mut() = headers;
    request.headers_mut().insert(HOST, HeaderValue::try_from(address).map_err(|e| why(&e))?);
    let mut answer = sender.send_request(request).await.map_err(|e| why(&e))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        let stream = hyper::upgrade::on(&mut answer).await.map_err(|e| why(&e))?;
        return Ok(Opened::Upgraded { stream: TokioIo::new(stream), headers: answer.headers().clone() });
    }
    let status = answer.status();
    let text = Limited::new(answer.into_body(), ERROR_MAX).collect().await;
    // An answer that is not the upgrade and not an error either is still no success for our client.
    let status = if status.is_success() { StatusCode::INTERNAL_SERVER_ERROR } else { status };
    Ok(Opened::Refused { status, text: text.map(|t| t.to_bytes()).unwrap_or_default() })
}
