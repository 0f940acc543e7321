//! The node's side of the Container Storage Interface, version 1, and the registration of plugins.
//!
//! [`v1`] and [`registration`] are generated from `proto/`. [`Driver`] speaks to a driver's node service and
//! [`Plugin`] to a registration socket. Every call makes its own connection, as upstream's do: a driver that was
//! replaced behind its socket is found by the next call.

mod client;
mod error;
mod redact;

pub use client::{Capabilities, Driver, Plugin};
pub use error::{Error, Result};
pub use generated::{registration, v1};
pub use tonic::Code;

#[allow(
    clippy::all,
    clippy::unwrap_used,
    clippy::large_futures,
    missing_debug_implementations,
    unreachable_pub,
    deprecated
)]
mod generated {
    /// Messages, clients and servers of package `csi.v1`.
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }

    /// Messages, clients and servers of package `pluginregistration`.
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }
}
