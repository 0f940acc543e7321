//! The listener: TLS, HTTP/1.1 and HTTP/2, patient with nobody. Who makes way when it is full, `serve` decides.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::net::sockopt;
use serve::{Connection, Connections, Plan, Proof, Stream, Times};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::App;
use super::handler;
use super::heads::Strict;
use super::limits::{CONNECTIONS, Patience};
use super::wire::{self, Sending};
use crate::auth::authn;
use crate::run::ANSWERS_FIRST;

/// Bytes of a request's head.
const HEAD_LIMIT: usize = 256 * 1024;
const HEADERS: usize = 200;
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// An HTTP/2 peer that answers no ping for this long is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) shown: Arc<authn::Peer>,
    /// Told when the client may stop reading for as long as it likes.
    pub(crate) may_pause: Arc<Notify>,
    /// Told who it is.
    pub(crate) connection: Connection,
}

/// A server whose address is taken and which nobody is served by yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
}

/// Takes the address, so that a conflict is known before anything else starts.
pub async fn bind(address: SocketAddr) -> io::Result<Bound> {
    TcpListener::bind(address).await.map(|listener| Bound { listener })
}

/// An event loop on a thread of its own, for every other connection, where there is a second processor.
struct SecondLoop {
    handle: Handle,
    over: CancellationToken,
}

// === impl SecondLoop ===

impl SecondLoop {
    /// None where it would not help, or cannot be: then one loop serves all.
    fn start() -> Option<SecondLoop> {
        if thread::available_parallelism().map_or(1, NonZero::get) < 2 {
            return None;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .global_queue_interval(ANSWERS_FIRST)
            .max_blocking_threads(4)
            .thread_keep_alive(Duration::from_secs(2))
            .build();
        let runtime = runtime.inspect_err(|error| tracing::warn!(%error, "no second event loop")).ok()?;
        let second = SecondLoop { handle: runtime.handle().clone(), over: CancellationToken::new() };
        let over = second.over.clone();
        let thread = thread::Builder::new().name("connections".to_owned());
        let spawned = thread.spawn(move || runtime.block_on(over.cancelled()));
        spawned.inspect_err(|error| tracing::warn!(%error, "no second event loop")).ok()?;
        Some(second)
    }
}

impl Drop for SecondLoop {
    fn drop(&mut self) {
        self.over.cancel();
    }
}

// === impl Bound ===

impl Bound {
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled; requests under way then get a moment to finish.
    pub async fn serve(self, app: Arc<App>, tls: Arc<rustls::ServerConfig>, token: CancellationToken) {
        let Patience { first, idle, .. } = app.patience;
        serve::raise_open_files();
        let connections = Connections::new(
            "apiserver",
            CONNECTIONS.within(serve::Budget::now().share(100)),
            Proof::Identity,
            Times { first, idle, busy: None },
            app.metrics.connections.clone(),
        );
        let acceptor = TlsAcceptor::from(tls);
        let second = SecondLoop::start();
        let loops = second.iter().map(|second| second.handle.clone()).collect();
        let plan = Plan { farewell: FAREWELL, loops };
        let converse = move |stream, connection| converse(app.clone(), acceptor.clone(), stream, connection);
        serve::run(self.listener, connections, plan, token, converse).await;
    }
}

async fn converse(app: Arc<App>, acceptor: TlsAcceptor, stream: Stream<TcpStream>, connection: Connection) {
    let Some(address) = connection.address() else { return };
    let _ = stream.get_ref().set_nodelay(true);
    let patience = app.patience;
    let stall = u32::try_from(patience.stall.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream.get_ref(), stall);
    let stream = match shake_hands(&acceptor, stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, %address, "TLS handshake failed"),
    };
    let shown = Arc::new(authn::Peer::new(stream.get_ref().1.peer_certificates()));
    let may_pause = Arc::new(Notify::new());
    let peer = Peer { address, shown, may_pause: may_pause.clone(), connection: connection.clone() };
    let service = service_fn(move |request| {
        let (app, peer) = (app.clone(), peer.clone());
        let asking = peer.connection.ask();
        async move { Ok::<_, Infallible>(asking.answer(handler::answer(app, peer, request).await)) }
    });
    let builder = builder(patience);
    let (wire, sending) = wire::gather(stream);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(Strict::new(wire)), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = sending.drive(served.as_mut()) => ended,
        () = bear_with(&sending, &may_pause) => return,
        () = connection.finish() => {
            served.as_mut().graceful_shutdown();
            sending.drive(served).await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, %address, "connection ended");
    }
}

/// A session that keeps no more than a record for a client that does not read.
pub(super) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    acceptor: &TlsAcceptor,
    stream: S,
) -> io::Result<TlsStream<S>> {
    acceptor.accept_with(stream, |session| session.set_buffer_limit(Some(wire::ROOM))).await
}

/// From when it is told, bears with a reader that takes nothing: a log or a shell may be held by a person. Never ends.
async fn bear_with(sending: &Sending<TlsStream<Stream<TcpStream>>>, may_pause: &Notify) {
    may_pause.notified().await;
    sending.look(|stream| {
        let stream = stream.get_ref().0.get_ref();
        let _ = sockopt::set_tcp_user_timeout(stream, 0);
        // One that is gone is found by asking.
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, PING_EVERY);
        let _ = sockopt::set_tcp_keepintvl(stream, PING_PATIENCE);
    });
    std::future::pending().await
}

fn builder(patience: Patience) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.idle)
        .max_buf_size(HEAD_LIMIT)
        .max_headers(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD_LIMIT as u32)
        .max_send_buf_size(64 * 1024)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE);
    builder
}
