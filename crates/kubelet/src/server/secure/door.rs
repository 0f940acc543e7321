//! The listener: TLS, HTTP/1.1, bounded in connections, patient only with those who may pause.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::{Request, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::authn::Peer;
use super::guard::Guard;
use super::query::Query;
use super::tls::Identity;
use crate::server::patience::{Limit, Patience};

/// Connections at once; more wait in the kernel's queue. A stream keeps its own.
const CONNECTIONS: usize = 2048;
/// Bytes of a request's head: a command may be long.
const HEAD_LIMIT: usize = 1 << 20;
const HEADERS: usize = 200;
/// A silent peer is asked whether it lives this often, and given up when it does not answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
const PINGS: u32 = 3;
/// Between two attempts when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long a client is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) handshake: Duration,
    /// For the head of a request to arrive, and for a kept-alive connection to ask again.
    pub(super) head: Duration,
    /// For a reader to take more of its answer.
    pub(super) stall: Duration,
    /// The same for one who follows a log: it may be read by a person.
    pub(super) pause: Duration,
}

/// What a connection is served with.
#[derive(Clone)]
pub(super) struct House {
    pub(super) router: Router,
    pub(super) guard: Arc<Guard>,
    pub(super) identity: Arc<Identity>,
    pub(super) acceptor: TlsAcceptor,
    pub(super) times: Times,
}

// === impl Times ===

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        // Upstream's figure for a pause.
        Self { handshake: seconds(10), head: seconds(90), stall: seconds(90), pause: Duration::from_hours(4) }
    }
}

/// Serves until cancelled; requests under way then get a moment to finish.
pub(super) async fn serve(listener: TcpListener, house: House, token: CancellationToken) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let conversations = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = token.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, address, place)) => {
                let (house, token) = (house.clone(), token.clone());
                conversations.spawn(async move {
                    converse(house, stream, address, token).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    conversations.close();
    let _ = tokio::time::timeout(FAREWELL, conversations.wait()).await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, address) = listener.accept().await?;
    Ok((stream, address, place))
}

async fn converse(house: House, stream: TcpStream, address: SocketAddr, token: CancellationToken) {
    watch_over(&stream);
    house.identity.refresh().await;
    let times = house.times;
    let patience = Limit::new(times.stall);
    // Below the encryption, where every byte that is taken counts. Reading is watched by whoever reads a head.
    let stream = Patience::with(stream, Limit::new(Limit::NEVER), patience.clone());
    let stream = match tokio::time::timeout(times.handshake, house.acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, %address, "TLS handshake failed"),
        Err(_) => return tracing::debug!(%address, "TLS handshake timed out"),
    };
    let peer = Arc::new(Peer::new(stream.get_ref().1.peer_certificates()));
    let (router, guard) = (house.router, house.guard);
    let service = service_fn(move |request| {
        let (router, guard, peer, patience) = (router.clone(), guard.clone(), peer.clone(), patience.clone());
        async move {
            let follows = follows(request.uri());
            let answer = answer(router, &guard, &peer, request).await;
            patience.set(match answer.status() {
                // Streams have an idea of their own of how long nothing may move.
                StatusCode::SWITCHING_PROTOCOLS => Limit::NEVER,
                StatusCode::OK if follows => times.pause,
                _ => times.stall,
            });
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head)
        .max_buf_size(HEAD_LIMIT)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = token.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, %address, "connection ended");
    }
}

async fn answer(router: Router, guard: &Guard, peer: &Peer, request: Request<Incoming>) -> Response {
    let (mut head, body) = request.into_parts();
    match guard.admit(peer, &head).await {
        Ok(user) => {
            // What proved who asks goes no further.
            api::bearer::strip(&mut head.headers);
            head.extensions.insert(user);
            let request = Request::from_parts(head, Body::new(body));
            router.oneshot(request).await.unwrap_or_else(|never| match never {})
        }
        Err(refusal) => refusal,
    }
}

/// Whether the answer goes on for as long as something is written, so that its reader may pause.
fn follows(uri: &Uri) -> bool {
    uri.path().starts_with("/containerLogs/") && Query::parse(uri.query()).flag("follow")
}

/// A peer that is gone without a word is noticed by the kernel: by asking when there is nothing to send, and when there
/// is, because nothing of it is acknowledged. A reader that has paused does acknowledge: it is ours to judge.
fn watch_over(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, PING_EVERY);
    let _ = sockopt::set_tcp_keepintvl(stream, PING_PATIENCE);
    let _ = sockopt::set_tcp_keepcnt(stream, PINGS);
}
