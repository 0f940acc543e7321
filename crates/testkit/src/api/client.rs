//! One HTTP/2 connection to an API server, as client libraries keep it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::net::TcpStream;

use super::Outcome;

/// Room for a list of ten thousand Pods without a round trip per frame.
const WINDOW: u32 = 8 << 20;

/// How to prove who one is, and whom to believe.
#[derive(Clone, Debug)]
pub struct Credentials {
    tls: Arc<ClientConfig>,
    token: Option<String>,
}

/// Cheap to clone; clones share the connection.
#[derive(Clone, Debug)]
pub struct Client {
    address: SocketAddr,
    token: Option<String>,
    sender: SendRequest<Full<Bytes>>,
}

// === impl Credentials ===

impl Credentials {
    /// The certificate in a kubeconfig whose data are inline.
    pub fn from_kubeconfig(path: &Path) -> Outcome<Credentials> {
        let text = std::fs::read_to_string(path)?;
        let field = |name: &str| -> Outcome<Vec<u8>> {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
            let data = line.ok_or_else(|| format!("no {name} in {}", path.display()))?;
            Ok(base64::engine::general_purpose::STANDARD.decode(data.trim().trim_matches('"'))?)
        };
        let roots = field("certificate-authority-data")?;
        let chain = CertificateDer::pem_slice_iter(&field("client-certificate-data")?)
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&field("client-key-data")?)?;
        let tls = builder(&roots)?.with_client_auth_cert(chain, key)?;
        Ok(Credentials { tls: h2(tls), token: None })
    }

    /// A token, for a server whose certificate file is at hand.
    pub fn from_token(roots: &Path, token: &str) -> Outcome<Credentials> {
        let tls = builder(&std::fs::read(roots)?)?.with_no_client_auth();
        Ok(Credentials { tls: h2(tls), token: Some(token.to_owned()) })
    }
}

fn builder(roots: &[u8]) -> Outcome<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(roots).collect::<Result<Vec<_>, _>>()?);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(store))
}

fn h2(mut tls: ClientConfig) -> Arc<ClientConfig> {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(tls)
}

// === impl Client ===

impl Client {
    pub async fn connect(address: SocketAddr, credentials: &Credentials) -> Outcome<Client> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connector = tokio_rustls::TlsConnector::from(credentials.tls.clone());
        let stream = connector.connect(ServerName::from(address.ip()), stream).await?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(TokioIo::new(stream))
            .await?;
        // Its end shows in the requests that are under way.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Client { address, token: credentials.token.clone(), sender })
    }

    /// Sends a request and returns the head of the answer; the body follows.
    pub async fn send(&self, method: Method, path: &str, body: Bytes) -> Outcome<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header("accept", "application/json");
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut sender = self.sender.clone();
        sender.ready().await?;
        Ok(sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// The whole answer.
    pub async fn call(&self, method: Method, path: &str, body: Bytes) -> Outcome<(StatusCode, Bytes)> {
        let answer = self.send(method, path, body).await?;
        Ok((answer.status(), answer.into_body().collect().await?.to_bytes()))
    }

    /// Posts a body and reads the answer to its end without keeping it.
    pub async fn post(&self, path: &str, body: Bytes) -> Outcome<StatusCode> {
        let answer = self.send(Method::POST, path, body).await?;
        let (head, mut body) = answer.into_parts();
        while let Some(frame) = body.frame().await {
            frame?;
        }
        Ok(head.status)
    }

    /// A request that must succeed, or meet what an earlier one made.
    pub async fn make(&self, path: &str, object: &Value) -> Outcome<()> {
        let (status, body) = self.call(Method::POST, path, object.to_string().into()).await?;
        if status.is_success() || status == StatusCode::CONFLICT {
            return Ok(());
        }
        Err(format!("POST {path}: {status} {}", String::from_utf8_lossy(&body)).into())
    }
}
