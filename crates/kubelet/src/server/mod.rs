//! The kubelet's HTTP servers: health on 10248, the read-only one on 10255.
//!
//! Both are plain HTTP/1.1. A client that sends its request slowly, or does not take its answer, is cut
//! off; the number of connections is bounded.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use base::class::{Class, Classify};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

mod healthz;
mod patience;
mod readonly;
mod running;
pub mod secure;
pub mod stats;

pub use healthz::{Beat, Check, Checks, router as healthz_router};
pub use readonly::{Views, debug_router, readonly_router};
pub use running::running_pods;

use patience::Patience;

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// Bytes of a request's head.
const HEAD_LIMIT: usize = 64 * 1024;
/// For the head of a request to arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// For a kept-alive connection to ask again, and for a reader to take more of its answer.
const STALL_TIME: Duration = Duration::from_secs(90);
/// Between two attempts when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address could not be taken.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} for {what}: {error}")]
pub struct BindError {
    pub what: &'static str,
    pub address: SocketAddr,
    pub error: io::Error,
}

impl Classify for BindError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// A server whose address is taken and which nobody is served by yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    what: &'static str,
}

/// Takes the address, so that a conflict is known before anything else starts.
pub async fn bind(what: &'static str, address: SocketAddr) -> Result<Bound, BindError> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Bound { listener, what }),
        Err(error) => Err(BindError { what, address, error }),
    }
}

// === impl Bound ===

impl Bound {
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled. Connections still open then are dropped.
    pub async fn serve(self, router: Router, token: CancellationToken) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = token.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(server = self.what, %error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (router, token) = (router.clone(), token.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = token.cancelled() => {}
                    () = converse(Patience::new(stream, STALL_TIME), router) => {}
                }
                drop(place);
            });
        }
    }
}

async fn converse(stream: Patience<tokio::net::TcpStream>, router: Router) {
    let service = TowerToHyperService::new(router);
    let done = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = done {
        tracing::trace!(%error, "connection ended");
    }
}

#[cfg(test)]
mod tests;
