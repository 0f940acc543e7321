//! How the API server is told of a Pod's status: the smallest patch that leaves what others wrote alone.

use api::json::ToJson;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use serde_json::{Map, Value, json};

use super::news::{BY_KUBELET, OWN_CONDITIONS};

/// What the API server last said of a Pod.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    pub uid: &'a str,
    pub status: &'a PodStatus,
    /// deletionTimestamp is set.
    pub is_deleting: bool,
    /// It only mirrors a static Pod.
    pub is_mirror: bool,
}

/// What to tell the API server next.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// It knows.
    Nothing,
    /// A strategic merge patch of the status.
    Patch(Value),
    /// Nothing of the Pod is left here: the object may go.
    Delete,
}

/// Decides it. `finished`: its containers are dead, its volumes and its cgroup are gone.
///
/// The object goes only after its last status was told: whoever waits for an exit code must be able to read it.
#[must_use]
pub fn report(known: &Reported<'_>, status: &PodStatus, finished: bool) -> Report {
    match patch(known, status) {
        Some(patch) => Report::Patch(patch),
        None if known.is_deleting && finished && !known.is_mirror && is_terminal(known.status) => {
            Report::Delete
        }
        None => Report::Nothing,
    }
}

/// The patch that makes the API server's status say what ours says; none if it does.
fn patch(known: &Reported<'_>, status: &PodStatus) -> Option<Value> {
    let mut wanted = status.clone();
    wanted.conditions = Some(merged_conditions(known.status, status));
    // Set by the scheduler and by controllers, not by us.
    wanted.nominated_node_name.clone_from(&known.status.nominated_node_name);
    wanted.resource_claim_statuses.clone_from(&known.status.resource_claim_statuses);
    wanted.extended_resource_claim_status.clone_from(&known.status.extended_resource_claim_status);
    wanted
        .node_allocatable_resource_claim_statuses
        .clone_from(&known.status.node_allocatable_resource_claim_statuses);
    let (old, new) = (object(known.status), object(&wanted));
    let change = difference(&old, &new);
    (!change.is_empty()).then(|| json!({"metadata": {"uid": known.uid}, "status": change}))
}

/// Ours as we see them, those of others as the API server has them. One that both may write is ours only while we tell
/// that the Pod has ended by our hand: what another says before or after is his.
fn merged_conditions(known: &PodStatus, status: &PodStatus) -> Vec<PodCondition> {
    let ends_now = !is_terminal(known) && is_terminal(status);
    let is_ours = |c: &PodCondition| {
        OWN_CONDITIONS.contains(&c.type_.as_str())
            || (c.type_ == SHARED && ends_now && c.reason.as_deref() == Some(BY_KUBELET))
    };
    let ours: Vec<&PodCondition> = status.conditions.iter().flatten().filter(|c| is_ours(c)).collect();
    let theirs =
        known.conditions.iter().flatten().filter(|c| {
            !OWN_CONDITIONS.contains(&c.type_.as_str()) && !ours.iter().any(|o| o.type_ == c.type_)
        });
    theirs.chain(ours.iter().copied()).cloned().collect()
}

const SHARED: &str = "DisruptionTarget";

/// Lists the API server merges by a key; it replaces all others whole.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    }
}

fn difference(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    for (field, wanted) in new {
        match (old.get(field), wanted, merge_key(field)) {
            (Some(known), wanted, _) if known == wanted => {}
            (known, Value::Array(items), Some(key)) => {
                let known = known.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
                merge_list(&mut out, field, key, known, items);
            }
            (Some(Value::Object(known)), Value::Object(wanted), _) => {
                out.insert(field.clone(), Value::Object(difference(known, wanted)));
            }
            _ => _ = out.insert(field.clone(), wanted.clone()),
        }
    }
    for field in old.keys().filter(|f| !new.contains_key(*f)) {
        out.insert(field.clone(), Value::Null);
    }
    out
}

/// The items that differ, orders to delete those that are gone, and the order of all when it matters.
fn merge_list(out: &mut Map<String, Value>, field: &str, key: &str, known: &[Value], wanted: &[Value]) {
    let same = |a: &&Value, b: &Value| a[key] == b[key];
    let mut items: Vec<Value> = Vec::new();
    for item in wanted {
        match known.iter().find(|k| same(k, item)) {
            Some(k) if k == item => {}
            // A field that went away has to be named: the rest of the item is merged, not replaced.
            Some(Value::Object(k)) => {
                let mut change = difference(k, item.as_object().unwrap_or(&Map::new()));
                change.insert(key.to_owned(), item[key].clone());
                items.push(Value::Object(change));
            }
            _ => items.push(item.clone()),
        }
    }
    for gone in known.iter().filter(|k| !wanted.iter().any(|w| same(k, w))) {
        items.push(json!({"$patch": "delete", key: gone[key]}));
    }
    let order = |list: &[Value]| list.iter().map(|i| i[key].clone()).collect::<Vec<_>>();
    if items.is_empty() && order(known) == order(wanted) {
        return;
    }
    if key != "type" || !items.is_empty() {
        let order: Vec<Value> = wanted.iter().map(|i| json!({key: i[key]})).collect();
        out.insert(format!("$setElementOrder/{field}"), Value::Array(order));
    }
    if !items.is_empty() {
        out.insert(field.to_owned(), Value::Array(items));
    }
}

fn object(status: &PodStatus) -> Map<String, Value> {
    match status.to_value() {
        Value::Object(mut map) => {
            prune(&mut map);
            map
        }
        _ => Map::new(),
    }
}

/// Takes out what says nothing: servers write `lastState: {}` where others write no field at all. `resources: {}` says
/// that there are none.
fn prune(map: &mut Map<String, Value>) {
    map.retain(|name, value| {
        match value {
            Value::Object(inner) => prune(inner),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_object_mut).for_each(prune),
            _ => {}
        }
        let is_empty = value.is_null()
            || name != "resources" && value.as_object().is_some_and(Map::is_empty)
            || value.as_array().is_some_and(Vec::is_empty);
        !is_empty
    });
}

fn is_terminal(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
