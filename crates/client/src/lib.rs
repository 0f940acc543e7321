//! A hand that speaks to a Kubernetes API server: kubeconfig, credentials, requests, list and watch, and
//! reflectors on top of it.
//!
//! It obeys: what to ask and what to make of the answer is the caller's. Objects pass through as raw JSON, so that each
//! caller decodes only what it uses and caches only what it needs (docs/decisions/007.md).

mod connect;
mod connection_pool;
mod credentials;
mod error;
mod exec;
pub mod kubeconfig;
pub mod leader_election;
mod limit;
mod list;
mod proxies;
mod proxy;
mod read;
pub mod reflector;
mod request;
mod tls;
mod unreadable;
pub mod watch;
pub mod workqueue;

pub use connect::{Dial, Wire, Within};
pub use connection_pool::Content;
pub use error::{ApiError, ClientError};
pub use kubeconfig::{Config, ConfigError, Identity, Source};
pub use proxies::Proxies;
pub use proxy::Proxy;
pub use read::Read;
pub use request::{Asked, Client, Meter, Options, Request};
pub use unreadable::{Unreadable, UnreadableHandler};
pub use watch::{Event, Piece, Resource, Watcher};
