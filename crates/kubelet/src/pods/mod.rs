//! A Pod's way through the node: from its sources to its task, and from what it does to what others are told.
//!
//! | module | upstream's word |
//! |---|---|
//! | [`sources`] | pod config |
//! | [`dispatcher`] | pod workers, pod manager |
//! | [`prober`] | prober manager |
//! | [`hooks`] | lifecycle handlers |
//! | [`status_board`], `status_writer`, `mirrors` | status manager, mirror client |
//! | [`gc`] | container garbage collection |

pub mod beat;
pub mod class_memory;
pub mod cpu_sets;
pub mod dispatcher;
pub mod gc;
pub mod hooks;
pub mod host_ips;
mod keyed_tasks;
pub(crate) mod mirrors;
pub mod node;
pub mod orphan;
pub mod pod_files;
mod pod_task;
pub mod prober;
pub mod records;
pub mod sources;
pub mod status_board;
pub(crate) mod status_writer;
