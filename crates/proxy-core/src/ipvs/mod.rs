//! The rules as IPVS has them: virtual servers, with real ones behind them; a device that makes their addresses the
//! node's own; ipsets and a fixed script of iptables rules for what IPVS itself cannot do: masquerading, firewalls, and
//! refusing what nobody serves.
//!
//! Names and meanings are upstream's, so that `ipvsadm -Ln` and `ipset list KUBE-CLUSTER-IP` show what people know. What
//! differs: rules do not come and go with what is in the sets, so that a change of Services never touches iptables; and
//! the node's own packets to a load balancer with source ranges are stopped in `mangle`, before IPVS takes them.
//!
//! * [`render`]: the [`Content`] of a rule set.
//! * [`compare`]: the [`Step`]s from one content to another.
//! * [`script`]: the iptables rules.
//! * [`look`]: what becomes of a packet where this is the content.
//! * [`walk`]: the fate of a packet there.

mod compare;
mod content;
mod look;
mod script;
mod sets;
pub mod walk;

pub use compare::{Retirement, Step, compare, retirement};
pub use content::{Content, Real, Server, ServerKey, render};
pub use look::look;
pub use script::{Options, script};
pub use sets::{SetId, SetKind};

pub use crate::iptables::Entry;
pub use crate::iptables::ipvs_chains::JUMPS;

/// Has the addresses of all Services, and is never up.
pub const DEVICE: &str = "kube-ipvs0";

/// What upstream uses when nobody says which.
pub const DEFAULT_SCHEDULER: &str = "rr";
