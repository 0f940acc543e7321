//! This machine as a Node of a cluster: what its object says, when that is worth saying, and who it is.
//!
//! * [`capacity`]: what the machine has, and what of it Pods may use.
//! * [`addresses`]: where the node is reached.
//! * [`conditions`]: Ready and the pressures, with the moments they changed.
//! * [`status`]: all of it together, on top of the object the API server has.
//! * [`register`]: the first object, and what is put right in one that is there already.
//! * [`patch`]: the difference between two objects, as the API server wants it.
//! * [`report`]: whether the difference is worth a request.
//! * [`lease`]: the heartbeat.
//! * [`csi_node`]: the node's entry among those that can mount.
//! * [`certificate`]: which names a certificate must carry, and when it is time for the next one.

pub mod addresses;
pub mod capacity;
pub mod certificate;
pub mod conditions;
pub mod csi_node;
pub mod lease;
pub mod patch;
pub mod register;
pub mod report;
pub mod status;
#[cfg(test)]
mod testing;

use base::time::Wall;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use k8s_openapi::jiff::Timestamp;

/// Something worth telling about the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    pub warning: bool,
    pub reason: String,
    pub message: String,
}

// === impl NodeEvent ===

impl NodeEvent {
    /// `Node n1 status is now: NodeReady`, the words upstream uses for every change of a condition.
    #[must_use]
    pub fn status(node: &str, reason: &str) -> NodeEvent {
        let message = format!("Node {node} status is now: {reason}");
        NodeEvent { warning: false, reason: reason.to_owned(), message }
    }
}

/// The node as the owner of what goes when it goes.
#[must_use]
pub fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..Default::default()
    }
}

/// API times carry whole seconds; finer ones would differ from what comes back.
pub(crate) fn time(at: Wall) -> Option<Time> {
    Timestamp::from_second(at.secs()).ok().map(Time)
}
