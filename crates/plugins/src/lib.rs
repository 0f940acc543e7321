//! Plugins of the kubelet: programs that it reaches over a socket below its root, and that register with it.
//!
//! [`registration`] is generated from `proto/`. [`Plugin`] speaks to a registration socket, and [`Handlers`] is the table that
//! says who takes plugins of which type: a new type is one [`Handler`] and one line in the table. [`device`] speaks to device
//! plugins. [`call`] is how any service behind a socket is reached. Which sockets there are, the kubelet finds out.

pub mod call;
pub mod device;
mod error;
mod handlers;
mod plugin;

pub use error::{Error, Result};
pub use generated::{pod_resources, registration};
pub use handlers::{Handler, Handlers, Known, PluginType};
pub use plugin::Plugin;
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
    /// Messages, clients and servers of package `pluginregistration`.
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }
    /// Messages, clients and servers of the pod-resources API.
    pub mod pod_resources {
        tonic::include_proto!("v1");
    }
    /// Messages, clients and servers of device plugins.
    pub mod deviceplugin {
        tonic::include_proto!("v1beta1");
    }
}
