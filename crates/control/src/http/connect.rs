//! Requests that go on to somewhere else: a kubelet, a Pod, a Service's endpoint.
//!
//! Bodies are passed on as they come. An upgraded connection (SPDY, WebSocket) is two streams of bytes to us: what the
//! two ends agree on is theirs.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::bearer;
use http::{HeaderMap, HeaderName, Request, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::answer::{Answer, Broken};
use crate::auth::pki::{Pair, PkiError};
use crate::refusal::Refusal;

/// For a connection to the other end to stand.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Where a request goes on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) path: String,
}

/// How we meet kubelets and other servers.
#[derive(Clone)]
pub struct Connector {
    kubelet: TlsConnector,
}

// === impl Connector ===

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Shows `pair` to kubelets. They are believed when they show a certificate of `authorities`; without any, whoever
    /// answers is believed, as upstream does without --kubelet-certificate-authority.
    pub fn new(pair: &Pair, authorities: Option<&str>) -> Result<Connector, PkiError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let bad = |what: &'static str| PkiError::Crypto(what);
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|_| bad("reading the certificate for kubelets"))?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())
            .map_err(|_| bad("reading the key for kubelets"))?;
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|_| bad("choosing TLS versions"))?;
        let builder = match authorities {
            None => builder.dangerous().with_custom_certificate_verifier(tls::AnyPeer::new(provider)),
            Some(text) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
                    let certificate =
                        certificate.map_err(|_| bad("reading --kubelet-certificate-authority"))?;
                    roots.add(certificate).map_err(|_| bad("believing --kubelet-certificate-authority"))?;
                }
                builder.with_root_certificates(roots)
            }
        };
        let config =
            builder.with_client_auth_cert(chain, key).map_err(|_| bad("using the key for kubelets"))?;
        Ok(Connector { kubelet: TlsConnector::from(Arc::new(config)) })
    }

    /// Passes the request on and the answer back.
    pub(crate) async fn pass_on(
        &self,
        target: &Target,
        mut head: http::request::Parts,
        body: Incoming,
    ) -> Result<Answer, Refusal> {
        let unreachable = |e: io::Error| {
            Refusal::new(503, "ServiceUnavailable", format!("dial tcp {}:{}: {e}", target.host, target.port))
        };
        let upgrading = head.headers.contains_key(header::UPGRADE);
        let client = head.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let stream = tokio::time::timeout(CONNECT_TIME, self.open(target)).await;
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(unreachable)?;
        let failed = |e: hyper::Error| Refusal::new(502, "BadGateway", format!("error dialing backend: {e}"));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::trace!(%error, "a connection we opened ended");
            }
        });
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() =
            target.path.parse::<Uri>().map_err(|_| Refusal::bad_request("the path cannot be passed on"))?;
        *request.headers_mut() = passed_headers(&head.headers, upgrading, target);
        let mut answer = sender.send_request(request).await.map_err(failed)?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS
            && let Some(client) = client
        {
            let node = hyper::upgrade::on(&mut answer);
            tokio::spawn(join(client, node));
        } else {
            strip_connection(answer.headers_mut());
        }
        let (parts, body) = answer.into_parts();
        let body = body.map_err(|e| Broken(e.to_string())).boxed_unsync();
        Ok(Answer::from_parts(parts, body))
    }

    async fn open(&self, target: &Target) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        if !target.tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(self.kubelet.connect(name, stream).await?))
    }
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

/// Joins two upgraded connections until both ends are done.
async fn join(client: hyper::upgrade::OnUpgrade, node: hyper::upgrade::OnUpgrade) {
    let (client, node) = match tokio::join!(client, node) {
        (Ok(client), Ok(node)) => (client, node),
        (Err(error), _) | (_, Err(error)) => return tracing::debug!(%error, "an upgrade came to nothing"),
    };
    let (mut client, mut node) = (TokioIo::new(client), TokioIo::new(node));
    if let Err(error) = tokio::io::copy_bidirectional(&mut client, &mut node).await {
        tracing::trace!(%error, "a joined connection ended");
    }
}

/// The headers that are the next server's business.
fn passed_headers(sent: &HeaderMap, upgrading: bool, target: &Target) -> HeaderMap {
    const HOP: &[HeaderName] = &[
        header::CONNECTION,
        header::UPGRADE,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::PROXY_AUTHORIZATION,
        header::HOST,
        header::COOKIE,
    ];
    let mut out: HeaderMap = HeaderMap::new();
    for (name, value) in sent {
        let own = HOP.contains(name) || name.as_str().starts_with("impersonate-");
        if !own {
            out.append(name.clone(), value.clone());
        }
    }
    bearer::strip(&mut out);
    if upgrading {
        out.insert(header::CONNECTION, http::HeaderValue::from_static("Upgrade"));
        if let Some(protocol) = sent.get(header::UPGRADE) {
            out.insert(header::UPGRADE, protocol.clone());
        }
    }
    let host = match target.host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", target.port),
        _ => format!("{}:{}", target.host, target.port),
    };
    if let Ok(host) = http::HeaderValue::from_str(&host) {
        out.insert(header::HOST, host);
    }
    out
}

fn strip_connection(headers: &mut HeaderMap) {
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        headers.remove(name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_client_are_not_passed_on() {
        let target = Target { tls: true, host: "10.0.0.1".to_owned(), port: 10250, path: "/".to_owned() };
        // "secret", as a browser encodes it.
        let protocols = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let sent = [
            ("authorization", "Bearer secret"),
            ("cookie", "secret"),
            ("impersonate-user", "secret"),
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", protocols),
        ];
        let pair = |(name, value): (&'static str, &str)| {
            (HeaderName::from_static(name), http::HeaderValue::from_str(value).unwrap())
        };
        let passed = passed_headers(&sent.into_iter().map(pair).collect(), true, &target);
        let text = format!("{passed:?}");
        assert!(!text.contains("secret") && !text.contains("c2VjcmV0"), "{text}");
        assert_eq!(passed.get("sec-websocket-protocol").unwrap(), "v4.channel.k8s.io");
        assert_eq!(passed.get("upgrade").unwrap(), "websocket");
    }
}
