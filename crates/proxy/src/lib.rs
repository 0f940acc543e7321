//! kube-proxy: the loop that keeps the kernel's rules equal to the cluster's Services.
//!
//! Objects come in through a channel ([`Update`]), `proxy_core` says what the rules are and what changed, a
//! [`ports::Dataplane`] per address family brings it to the kernel. What the kernel holds is remembered, not
//! asked for: a change costs what it changes. It is compared with the kernel at the start, now and then, after
//! every failure, and whenever somebody else touches it.
//!
//! * [`agent`]: the process: configuration, tasks, servers.
//! * [`modes`]: which mode can be used, and what it needs.
//! * [`doctor`]: what is wrong with a Service, seen from here.
//! * [`watch`]: the informers: what is watched at the API server.
//! * [`sync`]: the loop.
//! * [`report`]: how it goes, for metrics and health.
//! * [`ports`]: what the loop needs of a backend.
//! * [`yield_flag`]: how long work makes way for a change.
//! * [`observed`]: what happens around each change: metrics, flows, health checks.
//! * [`server`]: health, metrics, and the load balancers' questions.
//! * [`backend`]: the backends, one file each.

pub mod agent;
pub mod backend;
mod cleanup;
mod config_file;
mod config_warnings;
mod dial;
pub mod doctor;
mod error;
pub mod events;
pub mod host;
pub mod metrics;
pub mod modes;
pub mod observed;
pub mod ports;
pub mod report;
pub mod server;
pub mod settings;
pub mod sync;
pub mod sysctl;
mod update;
pub mod watch;
pub mod yield_flag;

pub use update::{Listed, Update};
