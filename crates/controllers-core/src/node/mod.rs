//! The life of a Node: who is silent is said to be so, and is kept free of new Pods; who stays silent loses those it has.
//!
//! Upstream's node-lifecycle-controller is two rows here. `taints` keeps in step with what a Node says of itself, Node by Node, and
//! remembers nothing that matters. `health` listens for heartbeats and looks at all Nodes at once, because what is done to one depends
//! on how the others are.

mod health;
mod ipam;
mod taints;
mod ttl;

pub(crate) use health::NODE_HEALTH;
pub(crate) use ipam::NODE_IPAM;
pub(crate) use taints::NODE_TAINTS;
pub(crate) use ttl::NODE_TTL;

use base::time::Wall;
use serde_json::{Value, json};

use crate::object::Object;
use crate::plan::{Act, PatchKind};
use crate::terms::timestamp;

const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// `True`, `False` or `Unknown`; empty if the Node says nothing of it.
fn status_of<'a>(node: &'a Value, condition: &str) -> &'a str {
    crate::conditions::find(&node["status"], condition).and_then(|c| c["status"].as_str()).unwrap_or_default()
}

/// Makes the taints with one effect and these keys what they should be, and leaves all others alone. None: they are.
fn set_taints(node: &Object, effect: &str, managed: &[&str], wanted: &[&str], now: Wall) -> Option<Act> {
    let value = node.value();
    let taints = value["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let key = |taint: &Value| taint["key"].as_str().unwrap_or_default().to_owned();
    let is_managed = |taint: &Value| taint["effect"] == effect && managed.contains(&&*key(taint));
    let mut after: Vec<Value> =
        taints.iter().filter(|taint| !is_managed(taint) || wanted.contains(&&*key(taint))).cloned().collect();
    for want in wanted {
        if !after.iter().any(|taint| taint["effect"] == effect && taint["key"] == *want) {
            after.push(json!({"key": want, "effect": effect, "timeAdded": timestamp(now)}));
        }
    }
    // The list is replaced as a whole: only the one that was read may be.
    let patch = json!({"metadata": {"resourceVersion": node.meta.resource_version.to_string()}, "spec": {"taints": after}});
    (after != taints).then(|| Act::patch(node, PatchKind::Merge, &patch))
}

#[cfg(test)]
mod tests;
