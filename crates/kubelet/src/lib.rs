//! The kubelet's loops: sources -> dispatcher -> one task per Pod -> status, with the observer
//! feeding back what the runtime really does. Decisions are made in `kubelet-core`; effects go
//! through the traits of [`ports`].

pub mod agent;
pub mod cluster;
pub mod devices;
pub mod events;
pub mod eviction;
pub mod host;
pub mod images;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod placement;
pub mod plugin_watcher;
pub mod pods;
pub mod ports;
pub mod runtime;
pub mod server;
mod start_error;
pub mod stats;
pub mod volumes;

#[cfg(test)]
mod testing;
