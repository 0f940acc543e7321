//! Cluster DNS: CoreDNS's part of a cluster, without a Pod.
//!
//! [`Agent::bind`] takes the addresses, [`Agent::run`] follows the API and answers. What is answered is decided by `dns-core`;
//! here are sockets, clocks, upstreams and files.

mod agent;
mod forward;
mod informers;
mod live;
mod metrics;
mod pages;
mod publish;
mod reload;
mod resolver;
mod settings;
mod tcp;
mod udp;
mod waiting;

pub use agent::Agent;
pub use publish::Published;
pub use settings::{Error, Settings, Source};
