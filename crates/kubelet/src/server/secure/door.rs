//! The listener: TLS, HTTP/1.1 and HTTP/2, bounded in connections, patient with nobody.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::authn::Peer;
use super::guard::Guard;
use super::tls::Identity;

/// Connections at once; more wait in the kernel's queue. A stream keeps its own.
const CONNECTIONS: usize = 2048;
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// For the head of a request to arrive, and for a kept-alive connection to ask again.
const HEAD_TIME: Duration = Duration::from_secs(90);
/// For a reader to take what was sent.
const STALL_TIME: Duration = Duration::from_secs(90);
/// Bytes of a request's head: a command may be long.
const HEAD_LIMIT: usize = 1 << 20;
const HEADERS: usize = 200;
/// Requests at once on one HTTP/2 connection.
const REQUESTS: u32 = 250;
/// A silent peer is asked whether it lives this often, and given up when it does not answer.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_PATIENCE: Duration = Duration::from_secs(15);
const PINGS: u32 = 3;
/// Between two attempts when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For requests under way to finish when the server stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// What a connection is served with.
#[derive(Clone)]
pub(super) struct House {
    pub(super) router: Router,
    pub(super) guard: Arc<Guard>,
    pub(super) identity: Arc<Identity>,
    pub(super) acceptor: TlsAcceptor,
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
    let stream = match tokio::time::timeout(HANDSHAKE_TIME, house.acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, %address, "TLS handshake failed"),
        Err(_) => return tracing::debug!(%address, "TLS handshake timed out"),
    };
    let peer = Arc::new(Peer::new(stream.get_ref().1.peer_certificates()));
    let (router, guard) = (house.router, house.guard);
    let service = service_fn(move |request| {
        let (router, guard, peer) = (router.clone(), guard.clone(), peer.clone());
        async move { Ok::<_, Infallible>(answer(router, &guard, &peer, request).await) }
    });
    let builder = builder();
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
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
            head.headers.remove(http::header::AUTHORIZATION);
            head.extensions.insert(user);
            let request = Request::from_parts(head, Body::new(body));
            router.oneshot(request).await.unwrap_or_else(|never| match never {})
        }
        Err(refusal) => refusal,
    }
}

/// A peer that is gone without a word is noticed by the kernel: quickly when there is something to send, and when
/// there is not, by asking.
fn watch_over(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let stall = u32::try_from(STALL_TIME.as_millis()).unwrap_or(u32::MAX);
    let _ = sockopt::set_tcp_user_timeout(stream, stall);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, PING_EVERY);
    let _ = sockopt::set_tcp_keepintvl(stream, PING_PATIENCE);
    let _ = sockopt::set_tcp_keepcnt(stream, PINGS);
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_LIMIT)
        .max_headers(HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS)
        .max_header_list_size(HEAD_LIMIT as u32)
        .max_send_buf_size(64 * 1024)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_PATIENCE);
    builder
}
