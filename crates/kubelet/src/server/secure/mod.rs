//! Port 10250: HTTPS, and nobody is answered who is not known and allowed.
//!
//! [`open`] takes the address and reads certificates; [`Open::serve`] answers with what [`router`] knows.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use base::class::{Class, Classify};
use base::time::Clock;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use serve::Connections;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::BindError;
use streaming::Streams;

mod authn;
mod container_logs;
mod files;
mod guard;
mod handlers;
mod journal;
mod listener;
mod log_files;
mod pages;
mod percent;
mod query;
mod remember;
mod reviews;
mod run;
mod state;
mod stream;
mod system_logs;
mod tls;

pub use authn::User;
pub use guard::{AccessRules, GuardRules, ReviewError, Reviews};
pub use handlers::router;
pub use reviews::ApiReviews;
pub use state::{About, Mirrors, ServerState, Switches};
pub use tls::{CertSource, Issued, TlsError, TlsRules, certified_key};

pub(crate) use query::Query;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long streams may go on when the agent stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Everything that is decided before the first request.
#[derive(Clone, Debug)]
pub struct Rules {
    pub address: SocketAddr,
    pub certificate: CertSource,
    pub tls: TlsRules,
    pub guard: GuardRules,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl Classify for OpenError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// The port is taken, the certificates are read, nobody is served yet.
#[derive(Debug)]
pub struct Open {
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
    identity: Arc<tls::Identity>,
    guard: Arc<guard::Guard>,
    times: listener::Times,
}

/// Takes the address, so that a conflict or a bad certificate is known before anything else starts. Without `reviews`
/// tokens are nobody's and access that must be reviewed is denied.
pub async fn open(
    rules: Rules,
    reviews: Option<Arc<dyn Reviews>>,
    clock: Arc<dyn Clock>,
) -> Result<Open, OpenError> {
    let Rules { address, certificate, tls: tls_rules, guard: guard_rules } = rules;
    let listener = listen(address).await;
    let listener = listener.map_err(|error| BindError { what: "the kubelet API", address, error })?;
    let read = tokio::task::spawn_blocking(move || {
        let identity = Arc::new(tls::Identity::open(certificate)?);
        let config = tls::server_config(identity.clone(), &tls_rules)?;
        let guard = guard::Guard::new(guard_rules, reviews, clock)?;
        Ok::<_, TlsError>((identity, config, guard))
    });
    let read = read.await.unwrap_or_else(|e| Err(TlsError::Rules(e.to_string())));
    let (identity, config, guard) = read?;
    let times = listener::Times::default();
    Ok(Open { listener, config: Arc::new(config), identity, guard: Arc::new(guard), times })
}

/// `0.0.0.0` means every address of both families, as Go's servers take it, whatever the kernel's own habit is.
async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let both = (address.ip() == IpAddr::from([0, 0, 0, 0])).then(|| listen_on_both(address.port()));
    match both {
        Some(Ok(listener)) => Ok(listener),
        Some(Err(error)) if error.kind() == io::ErrorKind::AddrInUse => Err(error),
        // Without IPv6 there is only one family.
        _ => TcpListener::bind(address).await,
    }
}

fn listen_on_both(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET6, SocketType::STREAM, flags, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, &SocketAddr::new(IpAddr::from([0u16; 8]), port))?;
    net::listen(&socket, BACKLOG)?;
    TcpListener::from_std(socket.into())
}

// === impl Open ===

impl Open {
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled. Then requests get a moment to finish, and `streams` too.
    pub async fn serve(
        self,
        router: Router,
        streams: Streams,
        connections: Connections,
        token: CancellationToken,
    ) {
        let Self { listener, config, identity, guard, times } = self;
        let server = listener::Server { router, guard, identity, acceptor: TlsAcceptor::from(config), times };
        listener::serve(listener, server, connections, token).await;
        streams.drain(DRAIN).await;
    }
}

#[cfg(test)]
mod tests;
