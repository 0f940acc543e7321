//! The kubelet's HTTP servers: health on 10248, the read-only one on 10255.
//!
//! Both are plain HTTP/1.1. A client that sends its request slowly, or does not take its answer, is cut
//! off; when there are too many, the idle make way.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use base::class::{Class, Classify};
use hyper_util::service::TowerToHyperService;
use serve::{Connections, Http1, Plan, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

mod healthz;
pub mod local_api;
pub mod node_page;
pub mod pod_resources;
mod ports;
mod readonly;
mod running;
pub mod secure;
pub mod stats;

pub use healthz::{router as healthz_router, sync_loop};
pub use ports::Ports;
pub use readonly::{Views, debug_router, readonly_router};
pub use running::running_pods;
pub use secure_serving::{Check, Checks};

/// What is borne of a client of a plain port.
const HOW: Http1 = Http1 {
    head: 64 * 1024,
    idle: ports::IDLE,
    body: Duration::from_secs(60),
    stall: Duration::from_secs(90),
};

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
}

/// Takes the address, so that a conflict is known before anything else starts.
pub async fn bind(what: &'static str, address: SocketAddr) -> Result<Bound, BindError> {
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Bound { listener }),
        Err(error) => Err(BindError { what, address, error }),
    }
}

// === impl Bound ===

impl Bound {
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled. Connections still open then are dropped.
    pub async fn serve(self, router: Router, connections: Connections, token: CancellationToken) {
        let converse = move |stream: Stream<TcpStream>, connection| {
            serve::converse(HOW, stream, connection, TowerToHyperService::new(router.clone()))
        };
        serve::run(self.listener, connections, Plan::default(), token, converse).await;
    }
}

#[cfg(test)]
mod tests;
