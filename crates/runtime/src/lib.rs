//! A container runtime: Pods and containers made by a small program beside each Pod, the keeper.
//!
//! The daemon decides, keeps the books and never forks; it opens what a container needs and sends it to the Pod's keeper as
//! descriptors, with a recipe of what to do with them (`runtime_core::recipe`). [`keeper`] is that conversation; [`open`] is where a
//! plan's descriptors come from, [`network`] what attaches a Pod to its network.
//!
//! [`run`] serves the CRI: the verbs are in `sandboxes`, `containers` and `exec`, what there is in `books`, what outlives the
//! daemon in `records`, and `reconcile` brings both together with the machine after a start.

mod agent;
mod attempts;
mod books;
mod cdi;
mod cgroups;
mod containers;
mod daemon;
mod devices;
mod events;
mod exec;
mod exits;
mod host_devices;
mod ids;
mod image_service;
mod jobs;
pub mod keeper;
mod keepers;
mod launch;
mod metrics;
pub mod network;
pub mod open;
mod pages;
mod pod_files;
mod pressure;
mod reconcile;
mod records;
mod rootfs;
mod samples;
mod sandboxes;
mod service;
mod signals;
mod stats;
mod status;
mod streams;
mod trial;
mod userns;

pub use agent::{Agent, RunError, Settings, run};
