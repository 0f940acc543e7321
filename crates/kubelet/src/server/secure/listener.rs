//! The listener: TLS, HTTP/1.1, patient only with those who may pause.

use std::convert::Infallible;
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
use serve::{Connection, Connections, IdleTimeoutStream, Limit, Plan, Stream, Within};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::authn::{Peer, User};
use super::guard::Guard;
use super::query::Query;
use super::tls::Identity;
use crate::server::ports::IDLE;

/// Bytes of a request's head: a command may be long.
const HEAD_LIMIT: usize = 1 << 20;
const HEADERS: usize = 200;
/// A silent peer is asked whether it lives this often, and given up when it does not answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(15);
const PINGS: u32 = 3;
/// For the body of a request to arrive.
const BODY_TIME: Duration = Duration::from_secs(60);
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// How long a client is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// For a kept-alive connection to ask again.
    pub(super) idle: Duration,
    /// For a reader to take more of its answer.
    pub(super) stall: Duration,
    /// The same for one who follows a log: it may be read by a person.
    pub(super) pause: Duration,
}

/// What a connection is served with.
#[derive(Clone)]
pub(super) struct Server {
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
        Self { idle: IDLE, stall: seconds(90), pause: Duration::from_hours(4) }
    }
}

/// Serves until cancelled; requests under way then get a moment to finish.
pub(super) async fn serve(
    listener: TcpListener,
    server: Server,
    connections: Connections,
    token: CancellationToken,
) {
    let plan = Plan { farewell: FAREWELL, ..Plan::default() };
    let converse = move |stream, connection| converse(server.clone(), stream, connection);
    serve::run(listener, connections, plan, token, converse).await;
}

async fn converse(server: Server, stream: Stream<TcpStream>, connection: Connection) {
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
    let (router, guard) = (server.router, server.guard);
    let asked = connection.clone();
    let service = service_fn(move |request| {
        let (router, guard, peer, write_limit) =
            (router.clone(), guard.clone(), peer.clone(), write_limit.clone());
        let (asking, asked) = (asked.ask(), asked.clone());
        async move {
            let follows = follows(request.uri());
            let answer = answer(router, &guard, &peer, &asked, request).await;
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

async fn answer(
    router: Router,
    guard: &Guard,
    peer: &Peer,
    connection: &Connection,
    request: Request<Incoming>,
) -> Response {
    let (mut head, body) = request.into_parts();
    match guard.admit(peer, &head).await {
        Ok(user) => {
            if *user != User::anonymous() {
                connection.know();
            }
            // What proved who asks goes no further.
            api::bearer::strip(&mut head.headers);
            head.extensions.insert(user);
            let request = Request::from_parts(head, Body::new(Within::new(body, BODY_TIME)));
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
    let _ = sockopt::set_tcp_keepintvl(stream, PING_TIMEOUT);
    let _ = sockopt::set_tcp_keepcnt(stream, PINGS);
}
