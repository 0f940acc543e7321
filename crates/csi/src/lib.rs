//! The node's side of the Container Storage Interface, version 1.
//!
//! [`v1`] is generated from `proto/`. [`Driver`] speaks to a driver's node service. How a driver registers is in `plugins`.

mod client;
mod redact;

pub use client::{Capabilities, Driver};
pub use generated::v1;
pub use plugins::{Code, Error, Result};

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
}
