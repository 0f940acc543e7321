//! kube-proxy: the loop that keeps the kernel's rules equal to the cluster's Services.
//!
//! Objects come in through a channel ([`Update`]), `proxy_core` says what the rules are and what changed, a
//! [`ports::Dataplane`] per address family brings it to the kernel. What the kernel holds is remembered, not
//! asked for: a change costs what it changes. It is compared with the kernel at the start, now and then, after
//! every failure, and whenever somebody else touches it.
//!
//! * [`sync`]: the loop.
//! * [`ports`]: what the loop needs of a backend.
//! * [`backend`]: the backends, one file each.

pub mod backend;
pub mod ports;
pub mod sync;
mod update;

pub use update::Update;
