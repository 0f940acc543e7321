//! The rules as nf_tables objects: a table `kube-proxy` in each family.
//!
//! A packet to a Service is looked up by address, protocol and port in `all-service-ips`, or, on an address of the
//! node, by protocol and port in `all-service-nodeports`. The number found there says how many endpoints there are;
//! `service-picks` leads from it to the chain that draws one of so many from `service-endpoints`. Chains and
//! sets do not grow with the number of Services: a change of a Service is a change of a few elements, whatever
//! the size of the cluster.
//!
//! * [`Renderer`]: a rule set as a whole [`Content`], or what a [`Delta`] changes in it.
//! * [`Digest`]: whether there is anything to compare.
//! * [`compare`]: what brings a table to its content, whatever it holds.
//! * [`walk`]: the fate of a packet under such a table.

mod affinity_ids;
mod compare;
mod content;
mod digest;
mod elements;
mod endpoint_slots;
mod frontend;
mod pick;
mod render;
mod sets;
mod skeleton;
pub mod walk;
mod ways;

pub use compare::{Findings, compare, replace};
pub use content::Content;
pub use digest::Digest;
pub use render::Renderer;

use crate::objects::Family;

#[allow(unused_imports)] // For the documentation above.
use crate::rules::Delta;

/// As upstream calls it, so that people find it, and so that each takes over what the other left (decision 016).
pub fn table(family: Family) -> nft::TableId {
    nft::TableId { family: frontend::Matches(family).family(), name: "kube-proxy".into() }
}
