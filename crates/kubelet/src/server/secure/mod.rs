//! Port 10250: HTTPS, and nobody is answered who is not known and allowed.
//!
//! [`secure_serving::open`] takes the address and reads certificates; [`serve`] answers with what [`router`] knows.

use std::time::Duration;

use axum::Router;
use serve::Connections;
use tokio_util::sync::CancellationToken;

use streaming::Streams;

mod container_logs;
mod guard;
mod handlers;
mod journal;
mod listener;
mod log_files;
mod pages;
mod percent;
mod query;
mod run;
mod state;
mod stream;
mod system_logs;

pub use handlers::router;
pub use secure_serving::{
    AccessRules, ApiReviews, CertSource, ClientCa, GuardRules, Issued, Open, OpenError, Reviews, Rules,
    TlsRules, User, certified_key, open,
};
pub use state::{About, Mirrors, ServerState, Switches};

pub(crate) use query::Query;

/// What the port is, in errors.
pub(crate) const WHAT: &str = "the kubelet API";
/// How long streams may go on when the agent stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Serves until cancelled. Then requests get a moment to finish, and `streams` too.
pub async fn serve(
    open: Open,
    router: Router,
    streams: Streams,
    connections: Connections,
    token: CancellationToken,
) {
    let handler = listener::Guarded { router, guard: open.guard.clone() };
    open.serve(handler, connections, token).await;
    streams.drain(DRAIN).await;
}

#[cfg(test)]
mod tests;
