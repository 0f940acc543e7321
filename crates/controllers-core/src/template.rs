//! Pods from templates, and when two templates are the same.

use base::quantity::Quantity;
use serde_json::{Map, Value, json};

use crate::claim::owned_metadata;
use crate::names;
use crate::object::Object;
use crate::plan::{Act, Event, Outcome, Why};
use crate::resource::PODS;

/// The label by which a Deployment tells its ReplicaSets apart.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";

/// A Pod as a template describes it: labels, annotations, finalizers and spec, and nothing else. The caller may change it
/// before it is made. None: a template without labels makes no Pods.
#[must_use]
pub fn pod(owner: &Object, template: &Value) -> Option<Value> {
    let from = &template["metadata"];
    from["labels"].as_object().filter(|labels| !labels.is_empty())?;
    if !(template["spec"].is_object() || template["spec"].is_null()) {
        return None;
    }
    let mut metadata = json!({"generateName": names::generate_name(&owner.meta.name)});
    for key in ["labels", "annotations", "finalizers"] {
        let is_sound = if key == "finalizers" { from[key].is_array() } else { from[key].is_object() };
        if is_sound {
            metadata[key] = from[key].clone();
        }
    }
    Some(json!({"metadata": owned_metadata(owner, metadata), "spec": template["spec"]}))
}

/// What is told of Pods that were made and deleted, or not, on the object they belong to.
#[must_use]
pub fn pod_events(owner: &Object, done: &[(Act, Outcome)]) -> Vec<Event> {
    done.iter().filter_map(|(act, outcome)| pod_event(owner, act, outcome)).collect()
}

fn pod_event(owner: &Object, act: &Act, outcome: &Outcome) -> Option<Event> {
    match (act, outcome) {
        (Act::Create { resource, .. }, Outcome::Done(_)) if *resource == PODS => {
            let name = outcome.object(PODS)?.meta.name;
            Some(Event::normal(owner, "SuccessfulCreate", format!("Created pod: {name}")))
        }
        (Act::Create { resource, .. }, Outcome::Failed(refusal))
            if *resource == PODS && refusal.why != Why::NamespaceTerminating =>
        {
            Some(Event::warning(owner, "FailedCreate", format!("Error creating: {refusal}")))
        }
        (Act::Delete { target, .. }, Outcome::Done(_)) if target.resource == PODS => {
            Some(Event::normal(owner, "SuccessfulDelete", format!("Deleted pod: {}", target.name)))
        }
        (Act::Delete { target, .. }, Outcome::Failed(refusal)) if target.resource == PODS => {
            Some(Event::warning(owner, "FailedDelete", format!("Error deleting: {refusal}")))
        }
        _ => None,
    }
}

/// Whether two templates mean the same: quantities by value, nothing is as good as empty, and the hash that a Deployment
/// adds does not count.
#[must_use]
pub fn is_same(one: &Value, other: &Value) -> bool {
    plain(one) == plain(other)
}

/// A template in the one form in which equal ones are equal.
#[must_use]
pub fn plain(template: &Value) -> Value {
    let mut template = template.clone();
    if let Some(labels) = template["metadata"]["labels"].as_object_mut() {
        labels.remove(POD_TEMPLATE_HASH);
    }
    if let Some(metadata) = template["metadata"].as_object_mut() {
        metadata.remove("creationTimestamp");
    }
    prune(&template, false).unwrap_or_default()
}

/// Without what is null or empty. None: nothing is said.
fn prune(value: &Value, is_quantity: bool) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(members) => {
            let kept = members.iter().filter_map(|(key, value)| {
                let value = prune(value, is_quantity || is_amount(key))?;
                (!is_always_there(key) || value != json!({})).then(|| (key.clone(), value))
            });
            Some(Value::Object(kept.collect::<Map<String, Value>>()))
        }
        Value::Array(items) if items.is_empty() => None,
        // A place in a list counts, whatever stands there.
        Value::Array(items) => Some(Value::Array(
            items.iter().map(|item| prune(item, is_quantity).unwrap_or_default()).collect(),
        )),
        Value::String(text) if is_quantity => Some(amount(text)),
        Value::Number(number) if is_quantity => Some(amount(&number.to_string())),
        other => Some(other.clone()),
    }
}

/// Members that are there even if nobody wrote them. Others say something by being empty: `emptyDir: {}`.
fn is_always_there(key: &str) -> bool {
    matches!(
        key,
        "resources" | "metadata" | "labels" | "annotations" | "nodeSelector" | "limits" | "requests"
    )
}

/// Members that hold quantities.
fn is_amount(key: &str) -> bool {
    matches!(key, "requests" | "limits" | "overhead" | "sizeLimit" | "divisor")
}

/// One text for one value: `1Gi` and `1024Mi` alike.
fn amount(text: &str) -> Value {
    let one = Quantity::from_value(1);
    text.parse().map_or_else(|_| text.into(), |quantity| json!(one.plus(quantity).minus(one).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_compared_by_what_they_mean() {
        let base = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [
            {"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}], "volumes": [{"name": "v", "emptyDir": {}}]}});
        let edit = |path: &str, value: Value| {
            let mut edited = base.clone();
            if let Some(place) = edited.pointer_mut(path) {
                *place = value;
            }
            edited
        };
        let same = [
            edit("/metadata/labels", json!({"app": "a", POD_TEMPLATE_HASH: "x"})),
            edit(
                "/metadata",
                json!({"labels": {"app": "a"}, "annotations": null, "creationTimestamp": null}),
            ),
            edit("/spec/containers/0/resources/limits", json!({"cpu": "1000m", "memory": "1024Mi"})),
            edit(
                "/spec/containers/0",
                json!({"name": "c", "env": [], "resources": {"limits": {"cpu": 1, "memory": "1Gi"},
                "requests": {}}}),
            ),
        ];
        for (row, other) in same.iter().enumerate() {
            assert!(is_same(&base, other), "row {row}: {}", plain(other));
        }
        let other = [
            edit("/metadata/labels/app", json!("b")),
            edit("/spec/containers/0/resources/limits/cpu", json!("2")),
            edit("/spec/volumes/0", json!({"name": "v", "hostPath": {"path": "/x"}})),
            edit("/spec/volumes/0", json!({"name": "v"})),
        ];
        for (row, other) in other.iter().enumerate() {
            assert!(!is_same(&base, other), "row {row}");
        }
    }
}
