//! A hand that speaks to a Kubernetes API server: kubeconfig, credentials, requests, list and watch.
//!
//! It obeys: what to ask and what to make of the answer is the caller's. Objects pass through as raw JSON, so that each
//! caller decodes only what it uses and caches only what it needs (docs/decisions/007.md).

mod connect;
mod credentials;
mod error;
mod exec;
pub mod kubeconfig;
mod lanes;
mod limit;
mod list;
mod proxies;
mod proxy;
mod read;
mod request;
mod tls;
pub mod watch;
pub mod workqueue;

pub use connect::{Dial, Wire};
pub use error::{ApiError, ClientError};
pub use kubeconfig::{Config, ConfigError};
pub use lanes::Content;
pub use proxies::Proxies;
pub use proxy::Proxy;
pub use read::{Alarm, Read, Unreadable};
pub use request::{Asked, Client, Meter, Options, Request};
pub use watch::{Event, Piece, Resource, Watcher};
