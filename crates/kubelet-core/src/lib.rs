//! The kubelet's decisions, as pure functions.
//!
//! Nothing here awaits, opens a file, reads a clock or draws a random number: inputs come in as
//! values, decisions go out as data, and the agents in the `kubelet` crate carry them out.
//!
//! * [`observed`]: what the runtime was last seen doing.
//! * [`admission`]: whether a Pod may run here at all.
//! * [`devices`]: what plugins bring to the node, and who has it.
//! * [`dispatch`]: which Pods have a task, and what is wanted of each.
//! * [`downward`]: a Pod's fields and resources as text.
//! * [`eviction`]: when the node takes Pods off itself, and which; [`stats`]: the figures for that and for people.
//! * [`gc`]: what is left over and goes.
//! * [`handover`]: static Pods that another kubelet began.
//! * [`node`]: this machine as a Node of a cluster.
//! * [`pod`]: the next step of a Pod ([`pod::plan`]), how it ends ([`pod::terminate`]) and what it
//!   says about itself ([`pod::status`]).
//! * [`probe`]: when a container is probed and what the answers mean.
//! * [`cri_config`]: everything a sandbox and a container receive.
//! * [`resize`]: other resources for containers that run on.
//! * [`references`]: objects of the API server that a Pod refers to; [`services`]: those it may find.
//! * [`topology`]: which CPUs a container runs on, and where its memory comes from.
//! * [`volumes`]: what the volumes of a Pod mean on this node.

pub mod access;
pub mod admission;
pub mod cgroup;
pub mod claims;
pub mod container_spec;
pub mod cri_config;
pub mod devices;
pub mod dispatch;
pub mod downward;
pub mod eviction;
pub mod gc;
pub mod go_dump;
pub mod handover;
pub mod hash;
pub mod images;
pub mod log_choice;
pub mod log_rotation;
pub mod node;
pub mod observed;
pub mod oom;
pub mod pod;
pub mod pod_resources;
pub mod probe;
pub mod references;
pub mod resize;
pub mod services;
pub mod shutdown;
pub mod stats;
pub mod sysctl;
#[cfg(test)]
mod testing;
pub mod text;
pub mod topology;
pub mod userns;
pub mod volumes;

pub use api::events;
