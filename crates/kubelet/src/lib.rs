//! The kubelet's loops: sources -> dispatcher -> one task per Pod -> status, with the observer
//! feeding back what the runtime really does. Decisions are made in `kubelet-core`; effects go
//! through the traits of [`ports`].

pub mod agent;
pub mod bus;
pub mod cgroups;
pub mod clock;
pub mod cluster;
pub mod dispatcher;
pub mod drivers;
pub mod events;
pub mod facts;
pub mod from_cri;
pub mod gc;
pub mod health;
mod hearing;
pub mod hooks;
pub mod host_ips;
pub mod images;
mod iptables;
pub mod local_api;
mod lock_file;
pub mod log_reader;
pub mod logs;
pub mod metrics;
pub mod net;
pub mod node;
pub mod observer;
pub mod orphan;
pub mod plugins;
pub mod pod_files;
mod pod_task;
pub mod ports;
pub mod prober;
pub mod process;
pub mod rest;
pub mod runtime;
pub mod server;
pub mod shutdown;
pub mod sources;
pub mod status_board;
pub mod streaming;
pub mod systemd;
pub mod to_cri;
mod units;
pub mod userns;
pub mod volumes;

#[cfg(test)]
mod testing;
