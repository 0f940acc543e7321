//! The listener: TLS, HTTP/1.1, patient only with those who may pause.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base::class::{Class, Classify};
use base::time::Clock;
use http::{Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use serve::{Connection, Connections, IdleTimeoutStream, Limit, Plan, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::authn::Peer;
use crate::guard::{Guard, GuardRules, Reviews};
use crate::tls::{CertSource, Identity, TlsError, TlsRules, server_config};

/// Bytes of a request's head: a command may be long.
const HEAD_LIMIT: usize = 1 << 20;
const HEADERS: usize = 200;
/// A silent peer is asked whether it lives this often, and given up when it does not answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const PINGS: u32 = 3;
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(3);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// How long a client is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For a kept-alive connection to ask again.
    pub idle: Duration,
    /// For a reader to take more of its answer.
    pub stall: Duration,
    /// The same for one who follows: it may be read by a person.
    pub pause: Duration,
}

/// Everything that is decided before the first request.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What the port is, in errors.
    pub what: &'static str,
    pub address: SocketAddr,
    pub certificate: CertSource,
    pub tls: TlsRules,
    pub guard: GuardRules,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("listen on {address} for {what}: {error}")]
    Bind { what: &'static str, address: SocketAddr, error: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Classify for OpenError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// The port is taken, the certificates are read, nobody is served yet.
#[derive(Debug)]
pub struct Open {
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
    identity: Arc<Identity>,
    pub guard: Arc<Guard>,
    pub times: Times,
}

/// Answers requests.
pub trait Handler: Clone + Send + Sync + 'static {
    type Body: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + Unpin
        + 'static;

    fn answer(
        &self,
        peer: Arc<Peer>,
        connection: Connection,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Whether the answer goes on for as long as something is written, so that its reader may pause.
    fn follows(&self, _request: &Request<Incoming>) -> bool {
        false
    }
}

/// What a connection is served with.
#[derive(Clone)]
struct Server<H> {
    handler: H,
    identity: Arc<Identity>,
    acceptor: TlsAcceptor,
    times: Times,
}

/// Takes the address, so that a conflict or a bad certificate is known before anything else starts. Without `reviews`
/// tokens are nobody's and access that must be reviewed is denied.
pub async fn open(
    rules: Rules,
    reviews: Option<Arc<dyn Reviews>>,
    clock: Arc<dyn Clock>,
) -> Result<Open, OpenError> {
    let Rules { what, address, certificate, tls: tls_rules, guard: guard_rules } = rules;
    let listener = listen(address).await;
    let listener = listener.map_err(|error| OpenError::Bind { what, address, error })?;
    let read = tokio::task::spawn_blocking(move || {
        let identity = Arc::new(Identity::open(certificate)?);
        let config = server_config(identity.clone(), &tls_rules)?;
        let guard = Guard::new(guard_rules, reviews, clock)?;
        Ok::<_, TlsError>((identity, config, guard))
    });
    let read = read.await.unwrap_or_else(|e| Err(TlsError::Rules(e.to_string())));
    let (identity, config, guard) = read?;
    Ok(Open { listener, config: Arc::new(config), identity, guard: Arc::new(guard), times: Times::default() })
}

/// `0.0.0.0` means every address of both families, as Go's servers take it, whatever the kernel's own habit is.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let both = (address.ip() == IpAddr::from([0, 0, 0, 0])).then(|| listen_on_both(address.port()));
    match both {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(error)) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        // Without IPv6 there is only one family.
        _ => TcpListener::bind(address).await,
    }
}

fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &SocketAddr::new(IpAddr::from([0u16; 8]), port))?;
    net::listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}

// === impl Times ===

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        // Upstream's figures for a kept connection and for a pause.
        Self { idle: seconds(90), stall: seconds(90), pause: Duration::from_hours(4) }
    }
}

// === impl Open ===

impl Open {
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled; requests under way then get a moment to finish.
    pub async fn serve<H: Handler>(self, handler: H, connections: Connections, token: CancellationToken) {
        let Self { listener, config, identity, times, .. } = self;
        let server = Server { handler, identity, acceptor: TlsAcceptor::from(config), times };
        let plan = Plan { farewell: FAREWELL, ..Plan::default() };
        let converse = move |stream, connection| converse(server.clone(), stream, connection);
        serve::run(listener, connections, plan, token, converse).await;
    }
}

async fn converse<H: Handler>(server: Server<H>, stream: Stream<TcpStream>, connection: Connection) {
    watch_over(stream.get_ref());
    let address = connection.address();
    server.identity.refresh().await;
    let times = server.times;
    let write_limit = Limit::new(times.stall);
    // Below the encryption, where every byte that is taken counts. Reading is watched by whoever reads a head.
    let stream = IdleTimeoutStream::with(stream, Limit::new(Limit::NEVER), write_limit.clone());
    let stream = match server.acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, ?address, "TLS handshake failed"),
    };
    let peer = Arc::new(Peer::new(stream.get_ref().1.peer_certificates()));
    let handler = server.handler;
    let asked = connection.clone();
    let service = service_fn(move |request| {
        let (handler, peer, write_limit) = (handler.clone(), peer.clone(), write_limit.clone());
        let (asking, asked) = (asked.ask(), asked.clone());
        async move {
            let follows = handler.follows(&request);
            let answer = handler.answer(peer, asked, request).await;
            write_limit.set(match answer.status() {
                // Streams have an idea of their own of how long nothing may move.
                StatusCode::SWITCHING_PROTOCOLS => Limit::NEVER,
                StatusCode::OK if follows => times.pause,
                _ => times.stall,
            });
            Ok::<_, Infallible>(asking.answer(answer))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.idle)
        .max_buf_size(HEAD_LIMIT)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = connection.finish() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, ?address, "connection ended");
    }
}

/// A peer that is gone without a word is noticed by the kernel: by asking when there is nothing to send, and when there
/// is, because nothing of it is acknowledged. A reader that has paused does acknowledge: it is ours to judge.
fn watch_over(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, PING_EVERY);
    let _ = sockopt::set_tcp_keepintvl(stream, PING_TIMEOUT);
    let _ = sockopt::set_tcp_keepcnt(stream, PINGS);
}
