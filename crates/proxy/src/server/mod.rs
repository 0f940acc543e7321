//! kube-proxy's HTTP servers: health on 10256, metrics on 10249, and one per Service that a load balancer asks about.
//!
//! All are plain HTTP/1.1 and answer at once from what is known. A client that sends its request slowly is cut off; when
//! there are too many, the idle make way.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use hyper_util::service::TowerToHyperService;
use serve::{Connections, Http1, Plan, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

mod checks;
mod health;
mod pages;
mod ports;
mod profiles;
mod state;
mod status;

pub use checks::{Watched, serve_checks};
pub use health::{Health, router as health_router};
pub use ports::Ports;
pub use state::{About, SelfChecks, Status};
pub use status::router as status_router;

/// What is borne of a client.
const HOW: Http1 = Http1 {
    head: 64 * 1024,
    idle: ports::IDLE,
    body: Duration::from_secs(60),
    stall: Duration::from_secs(90),
};
/// Between two attempts to take an address.
const BIND_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("listening on {address} for {what}: {cause}")]
pub struct BindError {
    pub what: String,
    pub address: SocketAddr,
    pub cause: io::Error,
}

/// Takes an address. No address in particular means those of both families, as it does to a Go program, also if it is
/// spelled `0.0.0.0`; with `alone` it means those of its own, where the other family has a listener of its own.
pub fn bind(what: &str, address: SocketAddr, alone: bool) -> Result<TcpListener, BindError> {
    let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()));
    let listener = match address.ip().is_unspecified() && address.is_ipv4() && !alone {
        true => match listen(every, false) {
            // Without IPv6 there is only one.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => listen(address, alone),
            listener => listener,
        },
        false => listen(address, alone),
    };
    listener.map_err(|cause| BindError { what: what.to_owned(), address, cause })
}

fn listen(address: SocketAddr, alone: bool) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        rustix::net::sockopt::set_ipv6_v6only(&socket, alone)?;
    }
    socket.bind(address)?;
    socket.listen(128)
}

/// Serves on an address until cancelled. One that cannot be taken is tried again and again, or fails if `hard`.
pub async fn serve_on(
    what: &str,
    address: SocketAddr,
    router: Router,
    connections: Connections,
    hard: bool,
    token: CancellationToken,
) -> Result<(), BindError> {
    loop {
        match bind(what, address, false) {
            Ok(listener) => {
                tracing::info!(what, %address, "listening");
                serve(listener, router, connections, token).await;
                return Ok(());
            }
            Err(error) if hard => return Err(error),
            Err(error) => tracing::error!(%error, "trying again"),
        }
        tokio::select! {
            () = token.cancelled() => return Ok(()),
            () = tokio::time::sleep(BIND_PAUSE) => {}
        }
    }
}

/// Serves until cancelled. Connections still open then are dropped.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections: Connections,
    token: CancellationToken,
) {
    let converse = move |stream: Stream<TcpStream>, connection| {
        serve::converse(HOW, stream, connection, TowerToHyperService::new(router.clone()))
    };
    serve::run(listener, connections, Plan::default(), token, converse).await;
}

/// Go's answer to paths that nobody serves.
pub(crate) async fn not_found() -> Response {
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n").into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_address_in_particular_is_all_of_them() {
        if std::net::TcpListener::bind("[::1]:0").is_err() {
            return;
        }
        for (address, alone, answers) in [
            ("0.0.0.0:0", false, ["127.0.0.1", "::1"].as_slice()),
            ("[::]:0", false, &["127.0.0.1", "::1"]),
            ("0.0.0.0:0", true, &["127.0.0.1"]),
            ("[::]:0", true, &["::1"]),
            ("127.0.0.1:0", false, &["127.0.0.1"]),
        ] {
            let listener = bind("a test", address.parse().unwrap(), alone).unwrap();
            let port = listener.local_addr().unwrap().port();
            for ip in ["127.0.0.1", "::1"] {
                let ip: std::net::IpAddr = ip.parse().unwrap();
                let is_there = TcpStream::connect((ip, port)).await.is_ok();
                assert_eq!(is_there, answers.contains(&ip.to_string().as_str()), "{address} {alone} {ip}");
            }
        }
    }
}
