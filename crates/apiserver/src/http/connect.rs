//! Requests that go on to somewhere else: a kubelet, a Pod, a Service's endpoint.
//!
//! Bodies are passed on as they come. An upgraded connection (SPDY, WebSocket) is two streams of bytes to us: what the
//! two ends agree on is theirs. Whom we call as whom stands in `outgoing`.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::client::{ResolvesClientCert, WantsClientCert};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::answer::{Answer, Broken};
use super::outgoing::{self, Callee, Credential, Onward};
use super::pages::Pages;
use crate::auth::pki::PkiError;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::request::NODE_PREFIX;

/// For a connection to the other end to stand.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// An upgraded connection on which nothing is said for this long is ended: the kubelet's own limit for streams.
const IDLE_TIME: Duration = Duration::from_hours(4);
/// A silent connection is asked after this long, then this often, and is dead after so many questions without an answer.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 4);

/// Where a request goes on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) callee: Callee,
    /// Whose kubelet it is to be, if any.
    pub(crate) node: String,
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path and query.
    pub(crate) path: String,
    /// The path of ours that leads to its root.
    pub(crate) entrance: String,
}

/// How we meet kubelets and other servers.
#[derive(Clone)]
pub struct Connector {
    /// For those who may see who we are.
    kubelet: TlsConnector,
    /// For everybody else.
    nobody: TlsConnector,
}

// === impl Target ===

impl Target {
    fn authority(&self) -> String {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

// === impl Connector ===

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// Shows `identity` to kubelets. They are believed when they show a certificate of `authorities`; without any,
    /// whoever answers is believed, as upstream does without --kubelet-certificate-authority. Everybody else is shown
    /// nothing, and believed.
    pub fn new(
        identity: Arc<dyn ResolvesClientCert>,
        authorities: Option<&str>,
    ) -> Result<Connector, PkiError> {
        let kubelet = believing(authorities)?.with_client_cert_resolver(identity);
        let nobody = believing(None)?.with_no_client_auth();
        Ok(Connector { kubelet: Arc::new(kubelet).into(), nobody: Arc::new(nobody).into() })
    }

    /// Passes the request on and the answer back.
    pub(crate) async fn pass_on(
        &self,
        target: &Target,
        mut head: http::request::Parts,
        client: IpAddr,
        body: Incoming,
    ) -> Result<Answer, ApiStatus> {
        let unreachable = |e: io::Error| {
            ApiStatus::new(503, "ServiceUnavailable", format!("dial tcp {}: {e}", target.authority()))
        };
        let upgrading = outgoing::upgrade(&head.headers).is_some();
        let waiting = head.extensions.remove::<hyper::upgrade::OnUpgrade>();
        let stream = tokio::time::timeout(CONNECT_TIME, self.open(target)).await;
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(unreachable)?;
        let failed =
            |e: hyper::Error| ApiStatus::new(502, "BadGateway", format!("error dialing backend: {e}"));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        supervise::spawn("kubelet_connection", async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::trace!(%error, "a connection we opened ended");
            }
        });
        let called = client_host(&head);
        let request = request(target, &head, called.as_ref(), client, body)?;
        let mut answer = sender.send_request(request).await.map_err(failed)?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(waiting) = waiting.filter(|_| upgrading) else {
                return Err(ApiStatus::new(502, "BadGateway", "the backend changed the protocol unasked"));
            };
            let node = hyper::upgrade::on(&mut answer);
            supervise::spawn("upgraded_stream", join(waiting, node));
            return Ok(answer.map(|body| body.map_err(|e| Broken(e.to_string())).boxed_unsync()));
        }
        outgoing::clean_answer(answer.headers_mut(), target.callee);
        let answer = answer.map(|body| body.map_err(|e| Broken(e.to_string())).boxed_unsync());
        if !target.callee.manner().pages {
            return Ok(answer);
        }
        let hosts = [Some(target.authority()), called.and_then(|h| h.to_str().ok().map(str::to_owned))];
        Ok(Pages::new(&target.entrance, hosts).lead_back(&head.method, answer))
    }

    /// Asks a kubelet for one page, as ourselves. No more than `most` bytes of it.
    pub(crate) async fn fetch(&self, target: &Target, most: usize) -> Result<Bytes, ApiStatus> {
        let unreachable = |e: String| {
            ApiStatus::new(503, "ServiceUnavailable", format!("dial tcp {}: {e}", target.authority()))
        };
        let stream = self.open(target).await.map_err(|e| unreachable(e.to_string()))?;
        let opened = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = opened.map_err(|e| unreachable(e.to_string()))?;
        supervise::spawn("kubelet_connection", async move {
            if let Err(error) = connection.await {
                tracing::trace!(%error, "a connection we opened ended");
            }
        });
        let request = Request::get(&target.path).header(header::HOST, target.authority());
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|_| ApiStatus::bad_request("the path cannot be asked for"))?;
        let answer = sender.send_request(request).await.map_err(|e| unreachable(e.to_string()))?;
        if answer.status() != StatusCode::OK {
            return Err(unreachable(format!("{} answers {}", target.path, answer.status())));
        }
        let body = Limited::new(answer.into_body(), most).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|e| unreachable(e.to_string()))
    }

    async fn open(&self, target: &Target) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        if !target.tls {
            return Ok(Box::new(stream));
        }
        let connector = match target.callee.manner().credential {
            Credential::KubeletClient => &self.kubelet,
            Credential::Nothing => &self.nobody,
        };
        let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
        let stream = connector.connect(name, stream).await?;
        if target.callee.manner().credential == Credential::KubeletClient {
            check_node(stream.get_ref().1.peer_certificates().unwrap_or_default(), &target.node)?;
        }
        Ok(Box::new(stream))
    }
}

/// A Node says itself where its kubelet is, and could name another one's: whoever may reach the one would reach the other. A
/// kubelet whose certificate names its Node is asked for that one alone.
fn check_node(shown: &[CertificateDer<'_>], node: &str) -> io::Result<()> {
    let leaf = shown.first().and_then(|leaf| X509Certificate::from_der(leaf).ok());
    let names = leaf.iter().flat_map(|(_, leaf)| leaf.subject().iter_common_name());
    let mut nodes = names.filter_map(|name| name.as_str().ok()?.strip_prefix(NODE_PREFIX));
    match nodes.find(|named| *named != node) {
        Some(other) => Err(io::Error::other(format!("the kubelet there is that of node {other:?}"))),
        None => Ok(()),
    }
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}
impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

/// A client that believes certificates of these authorities; of anybody where there are none.
fn believing(
    authorities: Option<&str>,
) -> Result<rustls::ConfigBuilder<ClientConfig, WantsClientCert>, PkiError> {
    let bad = |what: &'static str| PkiError::Crypto(what);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|_| bad("choosing TLS versions"))?;
    let Some(text) = authorities else {
        return Ok(builder.dangerous().with_custom_certificate_verifier(tls::AnyPeer::new(provider)));
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let certificate = certificate.map_err(|_| bad("reading --kubelet-certificate-authority"))?;
        roots.add(certificate).map_err(|_| bad("believing --kubelet-certificate-authority"))?;
    }
    Ok(builder.with_root_certificates(roots))
}

fn request(
    target: &Target,
    head: &http::request::Parts,
    called: Option<&HeaderValue>,
    client: IpAddr,
    body: Incoming,
) -> Result<Request<Incoming>, ApiStatus> {
    let (authority, path) = (target.authority(), target.path.split('?').next().unwrap_or_default());
    let seen_as = format!("{}{path}", target.entrance);
    let onward = Onward {
        callee: target.callee,
        authority: &authority,
        client_host: called,
        client,
        seen_as: &seen_as,
    };
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() =
        target.path.parse::<Uri>().map_err(|_| ApiStatus::bad_request("the path cannot be passed on"))?;
    *request.headers_mut() = outgoing::request_headers(&head.headers, &onward);
    Ok(request)
}

/// The name the client called us by, wherever its version of HTTP says it.
fn client_host(head: &http::request::Parts) -> Option<HeaderValue> {
    let said = head.headers.get(header::HOST).cloned();
    said.or_else(|| head.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok()))
}

/// Joins two upgraded connections until both ends are done.
async fn join(client: hyper::upgrade::OnUpgrade, node: hyper::upgrade::OnUpgrade) {
    let (client, node) = match tokio::join!(client, node) {
        (Ok(client), Ok(node)) => (client, node),
        (Err(error), _) | (_, Err(error)) => return tracing::debug!(%error, "an upgrade came to nothing"),
    };
    if let Err(error) = relay(TokioIo::new(client), TokioIo::new(node), IDLE_TIME).await {
        tracing::trace!(%error, "a joined connection ended");
    }
}

/// Carries bytes both ways until both ends are done, or neither has said anything for `idle`.
async fn relay<A, B>(client: A, node: B, idle: Duration) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let last = Arc::new(Mutex::new(Instant::now()));
    let mut client = Heard { inner: client, last: last.clone() };
    let mut node = Heard { inner: node, last: last.clone() };
    let silence = async {
        loop {
            let until = *last.lock().unwrap_or_else(PoisonError::into_inner) + idle;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    };
    tokio::select! {
        done = tokio::io::copy_bidirectional(&mut client, &mut node) => done.map(drop),
        () = silence => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A stream that notes when it last said something.
struct Heard<S> {
    inner: S,
    last: Arc<Mutex<Instant>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if outcome.is_ready() {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// A peer that is gone without a word is found out by the kernel.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let (after, every, times) = KEEPALIVE;
    sockopt::set_tcp_keepidle(stream, after)?;
    sockopt::set_tcp_keepintvl(stream, every)?;
    sockopt::set_tcp_keepcnt(stream, times)?;
    // The same for bytes that nobody acknowledges.
    let dead = after + every * times;
    sockopt::set_tcp_user_timeout(stream, u32::try_from(dead.as_millis()).unwrap_or(u32::MAX))?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustls::pki_types::PrivateKeyDer;

    use super::*;
    use crate::auth::pki::Pair;
    use apiserver_core::request::User;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn pair(name: &str) -> Pair {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        Pair { certificate: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    /// A server that shows its own certificate, asks for one, takes any, and tells how many it was shown.
    async fn asks_who_we_are(own: Pair) -> (u16, tokio::sync::mpsc::Receiver<usize>) {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(tls::AnyPeer::new(provider))
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap(),
            )
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, told) = tokio::sync::mpsc::channel(16);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let shown = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
                tell.send(shown).await.unwrap();
                let _ = stream.shutdown().await;
            }
        });
        (port, told)
    }

    fn connector() -> Connector {
        let own = pair(User::KUBELET_CLIENT);
        let shown = rustls::sign::CertifiedKey::from_der(
            vec![CertificateDer::from_pem_slice(own.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap(),
            &rustls::crypto::aws_lc_rs::default_provider(),
        );
        let identity = Arc::new(rustls::sign::SingleCertAndKey::from(shown.unwrap()));
        Connector::new(identity, None).unwrap()
    }

    fn target(callee: Callee, node: &str, port: u16) -> Target {
        let (host, path) = ("127.0.0.1".to_owned(), "/".to_owned());
        Target { callee, node: node.to_owned(), tls: true, host, port, path, entrance: String::new() }
    }

    #[tokio::test]
    async fn a_kubelet_is_asked_for_its_own_node_alone() {
        let now = base::time::Wall::from_secs(1_800_000_000);
        let (ca, key) = (tls::Ca::create("ca", now).unwrap(), tls::Key::generate().unwrap());
        let leaf = x509::Leaf {
            subject: x509::Subject::new("system:node:real", &["system:nodes"]),
            public_key: key.public_key(),
            names: x509::AlternativeNames { ips: vec![[127, 0, 0, 1].into()], ..Default::default() },
            usages: vec![x509::Usage::ServerAuth],
            not_before: now,
            not_after: now,
        };
        let certificate = x509::pem::encode("CERTIFICATE", &ca.issue(&leaf).unwrap());
        let (named, _told) = asks_who_we_are(Pair { certificate, key: key.to_pem() }).await;
        // One that signed its certificate itself is whoever its Node says it is; there is no telling.
        let (nameless, _told) = asks_who_we_are(pair("127.0.0.1")).await;
        let connector = connector();
        for (callee, node, port, is_fine) in [
            (Callee::Kubelet, "real", named, true),
            (Callee::Kubelet, "liar", named, false),
            (Callee::KubeletProxy, "real", named, true),
            (Callee::KubeletProxy, "rea", named, false),
            (Callee::Kubelet, "liar", nameless, true),
            // Whoever else listens there is shown nothing, and asked as nobody.
            (Callee::NodePort, "liar", named, true),
        ] {
            let opened = connector.open(&target(callee, node, port)).await.map(drop);
            let want = "the kubelet there is that of node \"real\"";
            assert_eq!(opened.is_ok(), is_fine, "{callee:?} {node}");
            assert!(opened.err().is_none_or(|e| e.to_string() == want));
        }
    }

    #[tokio::test]
    async fn only_kubelets_see_who_we_are() {
        let connector = connector();
        let (port, mut told) = asks_who_we_are(pair("127.0.0.1")).await;
        for callee in Callee::ALL {
            connector.open(&target(callee, "n", port)).await.unwrap();
            let is_kubelet = matches!(callee, Callee::Kubelet | Callee::KubeletProxy);
            assert_eq!(told.recv().await, Some(usize::from(is_kubelet)), "{callee:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_on_which_nothing_is_said_ends_and_one_that_speaks_goes_on() {
        let (client, mut person) = tokio::io::duplex(64);
        let (node, mut kubelet) = tokio::io::duplex(64);
        let joined = tokio::spawn(relay(client, node, Duration::from_secs(60)));
        let begun = Instant::now();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(50)).await;
            kubelet.write_all(b"x").await.unwrap();
            assert_eq!(person.read_u8().await.unwrap(), b'x');
        }
        let ended = joined.await.unwrap().unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed(), Duration::from_secs(560));
    }

    #[tokio::test]
    async fn connections_to_kubelets_are_kept_alive_and_watched_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        keep_alive(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let (after, every, times) = KEEPALIVE;
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), after);
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), (after + every * times).as_millis() as u32);
    }
}
