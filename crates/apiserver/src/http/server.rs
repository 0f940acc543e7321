//! The listener: TLS, HTTP/1.1 and HTTP/2, with a time limit for every step. Who makes way when it is full, `serve` decides.

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
use super::asking::Peer;
use super::handler;
use super::heads::Strict;
use super::in_process::{self, InProcess, Pipe};
use super::limits::{CONNECTIONS, ClientTimeouts};
use super::wire::{self, Sending};
use crate::auth::authn;

/// Bytes of a request's head.
const HEAD_LIMIT: usize = 256 * 1024;
const HEADERS: usize = 200;
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// Bytes that arrive before anybody reads them, of one request and of all on a connection of HTTP/2.
const STREAM_WINDOW: u32 = 128 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// An HTTP/2 peer that answers no ping for this long is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// `global_queue_interval` of the loops the server runs on: what the store's threads woke is looked at before every other
/// task. The answers of one commit are then all written before the connections they go out on are polled, and leave
/// together. Nobody starves: a request that waits for the store was read by a task of the loop itself.
pub const ANSWERS_FIRST: u32 = 1;

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
        let ClientTimeouts { first, idle, .. } = app.timeouts;
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

/// Serves clients inside the process until cancelled, where there are any.
pub(crate) async fn serve_in_process(app: Arc<App>, within: Option<&InProcess>, token: CancellationToken) {
    let Some(listener) = within.and_then(InProcess::listener) else { return };
    let ClientTimeouts { first, idle, .. } = app.timeouts;
    let times = Times { first, idle, busy: None };
    let metrics = app.metrics.connections.clone();
    let connections =
        Connections::new("in-process", in_process::CONNECTIONS, Proof::Identity, times, metrics);
    let plan = Plan { farewell: FAREWELL, loops: Vec::new() };
    let converse = move |stream, connection| converse_in_process(app.clone(), stream, connection);
    serve::run(listener, connections, plan, token, converse).await;
}

async fn converse(app: Arc<App>, acceptor: TlsAcceptor, stream: Stream<TcpStream>, connection: Connection) {
    let Some(address) = connection.address() else { return };
    let _ = stream.get_ref().set_nodelay(true);
    let timeouts = app.timeouts;
    let stall = u32::try_from(timeouts.stall.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream.get_ref(), stall);
    let stream = match shake_hands(&acceptor, stream).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, %address, "TLS handshake failed"),
    };
    let shown = Arc::new(authn::Peer::new(stream.get_ref().1.peer_certificates()));
    let peer = Peer { address, shown, may_pause: Arc::default(), connection };
    speak(app, peer, stream, bear_with).await;
}

/// The same over a pipe inside the process.
async fn converse_in_process(app: Arc<App>, stream: Stream<Pipe>, connection: Connection) {
    let Some(address) = connection.address() else { return };
    let shown = Arc::new(authn::Peer::of_this_process(stream.get_ref().user.clone()));
    let peer = Peer { address, shown, may_pause: Arc::default(), connection };
    // Who does not read a pipe holds up himself.
    speak(app, peer, stream, |_| ()).await;
}

/// Serves HTTP until one end has enough. From when a client may stop reading for as long as it likes, the stream is to `bear` it.
async fn speak<S>(app: Arc<App>, peer: Peer, stream: S, bear: impl Fn(&S))
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (timeouts, address) = (app.timeouts, peer.address);
    let (connection, may_pause) = (peer.connection.clone(), peer.may_pause.clone());
    let service = service_fn(move |request| {
        let (app, peer) = (app.clone(), peer.clone());
        let asking = peer.connection.ask();
        async move { Ok::<_, Infallible>(asking.answer(handler::answer(app, peer, request).await)) }
    });
    let builder = builder(timeouts);
    let (wire, sending) = wire::gather(stream);
    let served = builder.serve_connection_with_upgrades(TokioIo::new(Strict::new(wire)), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = sending.drive(served.as_mut()) => ended,
        () = bear_from(&sending, &may_pause, bear) => return,
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

/// From when it is told, has the stream bear with a reader that takes nothing. Never ends.
async fn bear_from<S>(sending: &Sending<S>, may_pause: &Notify, bear: impl Fn(&S)) {
    may_pause.notified().await;
    sending.look(bear);
    std::future::pending().await
}

/// A log or a shell may be held by a person who reads nothing for a while. One that is gone is found by asking.
fn bear_with(stream: &TlsStream<Stream<TcpStream>>) {
    let stream = stream.get_ref().0.get_ref();
    let _ = sockopt::set_tcp_user_timeout(stream, 0);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, PING_EVERY);
    let _ = sockopt::set_tcp_keepintvl(stream, PING_TIMEOUT);
}

fn builder(timeouts: ClientTimeouts) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.idle)
        .max_buf_size(HEAD_LIMIT)
        .max_headers(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(HEAD_LIMIT as u32)
        .max_send_buf_size(64 * 1024)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}
