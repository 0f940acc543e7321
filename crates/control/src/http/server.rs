//! The listener: TLS, HTTP/1.1 and HTTP/2, bounded in connections, patient with nobody.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::App;
use super::handler;
use super::heads::Strict;
use super::limits::Patience;
use super::wire::{self, Sending};
use crate::auth::authn;
use crate::run::ANSWERS_FIRST;

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 4096;
/// Bytes of a request's head.
const HEAD_LIMIT: usize = 256 * 1024;
const HEADERS: usize = 200;
/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 250;
/// An HTTP/2 peer that answers no ping for this long is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
/// Between two attempts when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) shown: Arc<authn::Peer>,
    /// Told when the client may stop reading for as long as it likes.
    pub(crate) may_pause: Arc<Notify>,
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
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let acceptor = TlsAcceptor::from(tls);
        let conversations = TaskTracker::new();
        let second = SecondLoop::start();
        let mut takes_turn = false;
        loop {
            let accepted = tokio::select! {
                () = token.cancelled() => break,
                accepted = accept(&self.listener, &places) => accepted,
            };
            let (stream, address, place) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (app, acceptor, token) = (app.clone(), acceptor.clone(), token.clone());
            // A stream belongs to the loop it is made on, so it is made anew there.
            let Ok(stream) = stream.into_std() else { continue };
            let conversation = async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => converse(app, acceptor, stream, address, token).await,
                    Err(error) => tracing::debug!(%error, "connection not served"),
                }
                drop(place);
            };
            takes_turn = !takes_turn;
            match second.as_ref().filter(|_| takes_turn) {
                Some(second) => conversations.spawn_on(conversation, &second.handle),
                None => conversations.spawn(conversation),
            };
        }
        conversations.close();
        let _ = tokio::time::timeout(FAREWELL, conversations.wait()).await;
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, place))
}

async fn converse(
    app: Arc<App>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    token: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let patience = app.patience;
    let stall = u32::try_from(patience.stall.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(&stream, stall);
    let stream = match tokio::time::timeout(patience.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, %address, "TLS handshake failed"),
        Err(_) => return tracing::debug!(%address, "TLS handshake timed out"),
    };
    let shown = Arc::new(authn::Peer::new(stream.get_ref().1.peer_certificates()));
    let may_pause = Arc::new(Notify::new());
    let peer = Peer { address, shown, may_pause: may_pause.clone() };
    let asked = Arc::new(AtomicBool::new(false));
    let has_asked = asked.clone();
    let service = service_fn(move |request| {
        has_asked.store(true, Ordering::Relaxed);
        let (app, peer) = (app.clone(), peer.clone());
        async move { Ok::<_, Infallible>(handler::answer(app, peer, request).await) }
    });
    let builder = builder(patience);
    let (wire, sending) = wire::gather(stream);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(Strict::new(wire)), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = sending.drive(connection.as_mut()) => ended,
        () = bear_with(&sending, &may_pause) => return,
        () = never_asks(&asked, patience.head) => {
            return tracing::debug!(%address, "nothing was asked");
        }
        () = token.cancelled() => {
            connection.as_mut().graceful_shutdown();
            sending.drive(connection).await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, %address, "connection ended");
    }
}

/// From when it is told, bears with a reader that takes nothing: a log or a shell may be held by a person. Never ends.
async fn bear_with(sending: &Sending<TlsStream<TcpStream>>, may_pause: &Notify) {
    may_pause.notified().await;
    sending.look(|stream| {
        let stream = stream.get_ref().0;
        let _ = sockopt::set_tcp_user_timeout(stream, 0);
        // One that is gone is found by asking.
        let _ = sockopt::set_socket_keepalive(stream, true);
        let _ = sockopt::set_tcp_keepidle(stream, PING_EVERY);
        let _ = sockopt::set_tcp_keepintvl(stream, PING_PATIENCE);
    });
    std::future::pending().await
}

/// Ends when no request has come in time. Until the protocol is known nobody else looks at the clock, and in HTTP/2 a
/// client that answers pings could stay for ever without having said who it is.
async fn never_asks(asked: &AtomicBool, patience: Duration) {
    tokio::time::sleep(patience).await;
    if asked.load(Ordering::Relaxed) {
        std::future::pending().await
    }
}

fn builder(patience: Patience) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(patience.head)
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
