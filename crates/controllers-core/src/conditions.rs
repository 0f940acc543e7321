//! Conditions in a status. They are edited as JSON, so that those of others stay as they are.

use base::time::Wall;
use serde_json::{Value, json};

use crate::terms::timestamp;

/// A condition to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition<'a> {
    pub kind: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
}

/// The condition of this type.
#[must_use]
pub fn find<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

/// Takes a condition away.
pub fn remove(status: &mut Value, kind: &str) {
    let Some(list) = status.get_mut("conditions").and_then(Value::as_array_mut) else { return };
    list.retain(|condition| condition["type"] != kind);
    if list.is_empty()
        && let Some(status) = status.as_object_mut()
    {
        status.remove("conditions");
    }
}

/// Sets a condition as ReplicaSets and Deployments do: the same status and reason leave it untouched, message and times too; a
/// new one goes to the end of the list.
pub fn set(status: &mut Value, condition: &Condition<'_>, now: Wall) {
    let known = find(status, condition.kind);
    if known.is_some_and(|c| c["status"] == condition.status && c["reason"] == condition.reason) {
        return;
    }
    put(status, condition, now, false);
}

/// The same with `lastUpdateTime`, as a Deployment has it: the last transition stays while the status stays.
pub fn set_updated(status: &mut Value, condition: &Condition<'_>, now: Wall) {
    let known = find(status, condition.kind);
    if known.is_some_and(|c| c["status"] == condition.status && c["reason"] == condition.reason) {
        return;
    }
    put(status, condition, now, true);
}

/// Writes it anew whatever was there.
pub fn put(status: &mut Value, condition: &Condition<'_>, now: Wall, has_update_time: bool) {
    let Condition { kind, status: value, reason, message } = condition;
    let kept = find(status, kind).filter(|known| has_update_time && known["status"] == *value);
    let since = kept.map(|known| known["lastTransitionTime"].clone()).filter(|time| !time.is_null());
    let mut new = json!({"type": kind, "status": value, "reason": reason, "message": message,
        "lastTransitionTime": since.unwrap_or_else(|| timestamp(now).into())});
    // An empty text is not written, and would not come back.
    if let Some(new) = new.as_object_mut() {
        new.retain(|_, text| *text != "");
    }
    if has_update_time {
        new["lastUpdateTime"] = timestamp(now).into();
    }
    if !status.is_object() {
        *status = json!({});
    }
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    if let Some(list) = status["conditions"].as_array_mut() {
        list.retain(|known| known["type"] != *kind);
        list.push(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_set_once_and_others_stay() {
        let mut status = json!({"conditions": [{"type": "Mine", "status": "True"}]});
        let failure =
            |message| Condition { kind: "ReplicaFailure", status: "True", reason: "FailedCreate", message };
        set(&mut status, &failure("first"), Wall::from_secs(60));
        set(&mut status, &failure("second"), Wall::from_secs(120));
        let known = find(&status, "ReplicaFailure").cloned().unwrap_or_default();
        assert_eq!(
            (&known["message"], &known["lastTransitionTime"]),
            (&json!("first"), &json!("1970-01-01T00:01:00Z"))
        );
        assert!(find(&status, "Mine").is_some());
        remove(&mut status, "ReplicaFailure");
        remove(&mut status, "Mine");
        assert_eq!(status, json!({}));
    }
}
