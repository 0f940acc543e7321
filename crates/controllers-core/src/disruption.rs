//! What is said on a Pod that somebody is about to take away.

use base::time::Now;
use serde_json::{Value, json};

use crate::object::Object;
use crate::plan::{Act, PatchKind};
use crate::terms::timestamp;

/// The condition that says who takes a Pod away, and why.
#[must_use]
pub fn condition(reason: &str, message: &str, now: Now) -> Value {
    json!({"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": timestamp(now.wall)})
}

/// Writes it on the Pod.
#[must_use]
pub fn announce(pod: &Object, reason: &str, message: &str, now: Now) -> Act {
    let conditions = json!([condition(reason, message, now)]);
    let patch = json!({"metadata": {"uid": pod.meta.uid}, "status": {"conditions": conditions}});
    Act::patch_status(pod, PatchKind::Strategic, &patch)
}
