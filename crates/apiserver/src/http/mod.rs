//! The HTTP side: connections, requests, answers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::auth::authn::Authenticator;
use crate::auth::pki::Pki;
use crate::auth::service_account::Lifetimes;
use crate::auth::tokens::Tokens;
use crate::objects::Objects;
use crate::registry::Registry;
use apiserver_core::auth::authz::Authorizer;

mod accept;
mod answer;
mod asking;
pub mod audit;
mod body;
mod connect;
mod discovery;
mod handler;
mod heads;
mod health;
mod html;
mod in_process;
mod indent;
mod large;
pub mod limits;
mod list_body;
pub mod metrics;
mod node_metrics;
mod openapi;
mod outgoing;
mod pages;
mod room;
mod server;
mod shape;
mod stream;
mod streams;
mod subresources;
mod verbs;
mod websocket;
mod wire;

pub use connect::Connector;
pub use in_process::InProcess;
pub use large::Large;
pub use node_metrics::NodeMetrics;
pub(crate) use server::serve_in_process;
pub use server::{ANSWERS_FIRST, Bound, bind};

/// What every request may need. One for the whole server.
#[derive(Debug)]
pub struct App {
    pub registry: Registry,
    pub pki: Arc<Pki>,
    pub authenticator: Authenticator,
    pub authorizer: Arc<Authorizer>,
    pub tokens: Arc<Tokens>,
    pub token_lifetimes: Lifetimes,
    /// `--service-account-jwks-uri`
    pub jwks_uri: Option<String>,
    pub objects: Objects,
    pub connector: Connector,
    pub in_flight: limits::InFlight,
    pub large: large::Large,
    pub node_metrics: NodeMetrics,
    pub timeouts: limits::ClientTimeouts,
    pub metrics: metrics::Metrics,
    pub audit: Option<audit::Audit>,
    /// `host:port`, as discovery tells it.
    pub address: String,
    /// `v1.36.4`: the release whose API this is.
    pub version: String,
    /// Ends watches when the server stops.
    pub stopping: CancellationToken,
    /// What runs beside the requests.
    pub tasks: supervise::Supervisor,
}
