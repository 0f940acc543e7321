//! The Container Runtime Interface, version 1: messages, client and server scaffolding.
//!
//! [`v1`] is generated from `proto/`. [`Client`] speaks to a runtime over its unix socket, keeps the
//! deadlines of each call and comes back by itself when the runtime restarts. [`log`] is the format of the logs that a
//! runtime writes.

mod archives;
mod client;
mod closing;
mod endpoint;
mod error;
pub mod log;
mod redact;

pub use archives::{Archives, Export};
pub use client::{Client, Events, MAX_MESSAGE, REQUEST_TIMEOUT};
pub use closing::Closing;
pub use endpoint::{BadEndpoint, Endpoint};
pub use error::{Error, Result};
pub use tonic::Code;

/// Messages, clients and servers of package `runtime.v1`.
#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::large_futures,
    missing_debug_implementations,
    unreachable_pub,
    deprecated
)]
pub mod v1 {
    tonic::include_proto!("runtime.v1");
}

/// Images from archives, which the CRI does not know: package `longshore.archives.v1`.
#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::large_futures,
    missing_debug_implementations,
    unreachable_pub
)]
pub mod archives_v1 {
    tonic::include_proto!("longshore.archives.v1");
}
