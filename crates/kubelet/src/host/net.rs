//! Network probes and hooks on real sockets.
//!
//! The error texts end up in events that people and scripts read, so they keep the shapes which
//! upstream's HTTP and gRPC clients print.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::ports::{GrpcHealth, HttpAnswer, HttpGet, Net, NetError};

mod grpc;
mod http;

/// What HTTPS clients say when the other side speaks plain HTTP; a lifecycle hook then tries HTTP.
pub const PLAIN_HTTP_ANSWER: &str = "server gave HTTP response to HTTPS client";

/// The real network. Every call opens its own connection and closes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SocketNet;

#[async_trait]
impl Net for SocketNet {
    async fn http_get(&self, request: HttpGet) -> Result<HttpAnswer, NetError> {
        http::get(request).await
    }

    async fn tcp_connect(&self, host: &str, port: u16, limit: Duration) -> Result<(), NetError> {
        match timeout(limit, dial(host, port)).await {
            Ok(connected) => connected.map(drop),
            Err(_) => Err(NetError(format!("dial tcp {}: i/o timeout", join_host_port(host, port)))),
        }
    }

    async fn grpc_health(
        &self,
        host: &str,
        port: u16,
        service: &str,
        limit: Duration,
    ) -> Result<GrpcHealth, NetError> {
        grpc::health(host, port, service, limit).await
    }
}

/// `host:port`, with brackets around an IPv6 address.
#[must_use]
pub fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

// SO_LINGER stays off: with it close() may block for the linger time, and it would block the one
// thread that everything runs on.
async fn dial(host: &str, port: u16) -> Result<TcpStream, NetError> {
    let address = join_host_port(host, port);
    TcpStream::connect((host, port)).await.map_err(|e| match e.raw_os_error() {
        Some(_) => NetError(format!("dial tcp {address}: connect: {}", describe(&e))),
        None => NetError(format!("dial tcp: lookup {host}: {e}")),
    })
}

/// The kernel's words for an error, without Rust's `(os error N)`.
fn describe(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    words.to_lowercase()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn tcp_connects_or_says_why_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        SocketNet.tcp_connect("127.0.0.1", port, Duration::from_secs(5)).await.unwrap();
        drop(listener);
        let error = SocketNet.tcp_connect("127.0.0.1", port, Duration::from_secs(5)).await.unwrap_err();
        assert_eq!(error.0, format!("dial tcp 127.0.0.1:{port}: connect: connection refused"));
    }

    #[test]
    fn ipv6_hosts_are_bracketed() {
        assert_eq!(join_host_port("::1", 80), "[::1]:80");
        assert_eq!(join_host_port("10.0.0.1", 80), "10.0.0.1:80");
    }
}
