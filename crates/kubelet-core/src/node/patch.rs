//! The difference between two Nodes: whether there is one, and how the API server wants it.

use std::collections::BTreeMap;

use api::json::ToJson;
use base::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource;
use serde_json::{Map, Value, json};

/// Whether anything is different that a reader would care about; a later heartbeat alone is not.
#[must_use]
pub fn has_changed(old: &Node, new: &Node) -> bool {
    let (old_status, new_status) = (old.status.clone(), new.status.clone());
    let (mut a, mut b) = (old_status.unwrap_or_default(), new_status.unwrap_or_default());
    conditions_differ(&mut a, &mut b)
        || amounts_differ(a.capacity.take(), b.capacity.take())
        || amounts_differ(a.allocatable.take(), b.allocatable.take())
        || normal(a) != normal(b)
        || labels_and_annotations(old) != labels_and_annotations(new)
}

/// A strategic merge patch of the `status` subresource that makes `new` of `old`. The spec is never in it: a
/// kubelet may not change its own taints.
#[must_use]
pub fn status_patch(old: &Node, new: &Node) -> Value {
    let (old_doc, new_doc) = (old.to_value(), new.to_value());
    let mut patch = Map::new();
    let mut metadata = Map::new();
    for part in ["labels", "annotations"] {
        let changes = merge(&old_doc["metadata"][part], &new_doc["metadata"][part]);
        if let Some(changes) = changes {
            metadata.insert(part.to_owned(), changes);
        }
    }
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), Value::Object(metadata));
    }
    let (old_status, new_status) = (&old_doc["status"], &new_doc["status"]);
    let mut status = match merge(&without_lists(old_status), &without_lists(new_status)) {
        Some(Value::Object(changes)) => changes,
        _ => Map::new(),
    };
    // The schema says that addresses merge by type, of which a dual-stack node has two alike: replace them whole.
    if old_status["addresses"] != new_status["addresses"] {
        let mut all = list(&new_status["addresses"]).to_vec();
        all.push(json!({"$patch": "replace"}));
        status.insert("addresses".to_owned(), Value::Array(all));
    }
    patch_conditions(&mut status, list(&old_status["conditions"]), list(&new_status["conditions"]));
    if !status.is_empty() {
        patch.insert("status".to_owned(), Value::Object(status));
    }
    Value::Object(patch)
}

/// Conditions merge by type; only changed ones are sent, and only their changed fields.
fn patch_conditions(status: &mut Map<String, Value>, old: &[Value], new: &[Value]) {
    let mut changed = Vec::new();
    for condition in new {
        let before = old.iter().find(|c| c["type"] == condition["type"]).unwrap_or(&Value::Null);
        if let Some(Value::Object(mut changes)) = merge(before, condition) {
            changes.insert("type".to_owned(), condition["type"].clone());
            changed.push(Value::Object(changes));
        }
    }
    let gone = old.iter().filter(|c| !new.iter().any(|n| n["type"] == c["type"]));
    changed.extend(gone.map(|c| json!({"$patch": "delete", "type": c["type"]})));
    if !changed.is_empty() {
        let order: Vec<Value> = new.iter().map(|c| json!({"type": c["type"]})).collect();
        status.insert("$setElementOrder/conditions".to_owned(), Value::Array(order));
        status.insert("conditions".to_owned(), Value::Array(changed));
    }
}

/// What makes `new` of `old`: maps merge, everything else is replaced, null removes. None if they are equal.
fn merge(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else { return Some(new.clone()) };
    let mut changes: Map<String, Value> = after
        .iter()
        .filter_map(|(key, value)| {
            let change = match before.get(key) {
                Some(old) => merge(old, value)?,
                None => value.clone(),
            };
            Some((key.clone(), change))
        })
        .collect();
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    changes.extend(removed.map(|key| (key.clone(), Value::Null)));
    (!changes.is_empty()).then_some(Value::Object(changes))
}

fn without_lists(status: &Value) -> Value {
    let mut status = status.clone();
    if let Value::Object(fields) = &mut status {
        fields.remove("addresses");
        fields.remove("conditions");
        status
    } else {
        json!({})
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn conditions_differ(a: &mut NodeStatus, b: &mut NodeStatus) -> bool {
    let sorted = |status: &mut NodeStatus| {
        let mut all: Vec<NodeCondition> = status.conditions.take().unwrap_or_default();
        all.iter_mut().for_each(|c| c.last_heartbeat_time = None);
        all.sort_by(|x, y| x.type_.cmp(&y.type_));
        all
    };
    sorted(a) != sorted(b)
}

/// `1Gi` and `1024Mi` are the same.
fn amounts_differ(
    a: Option<BTreeMap<String, resource::Quantity>>,
    b: Option<BTreeMap<String, resource::Quantity>>,
) -> bool {
    let parsed = |map: Option<BTreeMap<String, resource::Quantity>>| -> Vec<(String, Option<Quantity>)> {
        map.into_iter().flatten().map(|(k, q)| (k, q.0.parse().ok())).collect()
    };
    parsed(a) != parsed(b)
}

/// An empty list and none are the same.
fn normal(mut status: NodeStatus) -> NodeStatus {
    fn tidy<T>(list: &mut Option<Vec<T>>) {
        if list.as_ref().is_some_and(Vec::is_empty) {
            *list = None;
        }
    }
    tidy(&mut status.addresses);
    tidy(&mut status.images);
    tidy(&mut status.declared_features);
    tidy(&mut status.runtime_handlers);
    tidy(&mut status.volumes_attached);
    tidy(&mut status.volumes_in_use);
    for image in status.images.iter_mut().flatten() {
        tidy(&mut image.names);
    }
    for handler in status.runtime_handlers.iter_mut().flatten() {
        // The default handler's empty name is left out on the wire.
        handler.name = handler.name.take().filter(|name| !name.is_empty());
    }
    status
}

fn labels_and_annotations(node: &Node) -> [BTreeMap<&str, &str>; 2] {
    fn plain(map: &Option<BTreeMap<String, String>>) -> BTreeMap<&str, &str> {
        map.iter().flatten().map(|(k, v)| (k.as_str(), v.as_str())).collect()
    }
    [plain(&node.metadata.labels), plain(&node.metadata.annotations)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::node::status::describe;
    use crate::node::testing::{fixed, moment};
    use base::time::Wall;
    use proptest::prelude::*;

    fn at(second: i64) -> Node {
        let mut node = describe(&Node::default(), &fixed(), &moment(), Wall::from_secs(0)).node;
        node = describe(&node, &fixed(), &moment(), Wall::from_secs(second)).node;
        node
    }

    #[test]
    fn a_heartbeat_alone_is_no_change_but_can_be_sent() {
        let (old, new) = (at(0), at(60));
        assert!(!has_changed(&old, &new));
        let patch = status_patch(&old, &new);
        assert_eq!(patch["status"]["conditions"].as_array().unwrap().len(), 4);
        let ready = &patch["status"]["conditions"][3];
        assert_eq!(*ready, json!({"type": "Ready", "lastHeartbeatTime": "1970-01-01T00:01:00Z"}));
        assert_eq!(patch.as_object().unwrap().len(), 1, "{patch}");
        assert_eq!(patch["status"].as_object().unwrap().len(), 2, "{patch}");
    }

    #[test]
    fn equal_nodes_need_no_patch() {
        assert_eq!(status_patch(&at(0), &at(0)), json!({}));
    }

    #[test]
    fn every_kind_of_change_is_noticed() {
        type Edit = fn(&mut Node);
        let edits: &[(&str, Edit)] = &[
            ("label", |n| {
                n.metadata.labels.as_mut().unwrap().insert("a".into(), "b".into());
            }),
            ("condition", |n| {
                n.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = "True".into()
            }),
            ("capacity", |n| {
                n.status.as_mut().unwrap().capacity.as_mut().unwrap().remove("memory");
            }),
            ("image", |n| n.status.as_mut().unwrap().images = None),
            ("address", |n| n.status.as_mut().unwrap().addresses.as_mut().unwrap().truncate(1)),
            ("version", |n| {
                n.status.as_mut().unwrap().node_info.as_mut().unwrap().kubelet_version = "v2".into();
            }),
        ];
        for (what, edit) in edits {
            let mut new = at(0);
            edit(&mut new);
            assert!(has_changed(&at(0), &new), "{what}");
            assert_ne!(status_patch(&at(0), &new), json!({}), "{what}");
        }
    }

    /// What an API server does with the patch, as far as a Node goes.
    fn apply(target: &mut Value, patch: &Value) {
        let (Value::Object(fields), Value::Object(changes)) = (&mut *target, patch) else {
            *target = patch.clone();
            return;
        };
        for (key, change) in changes {
            match (key.as_str(), change) {
                (_, Value::Null) => drop(fields.remove(key)),
                ("addresses", Value::Array(all)) => {
                    assert_eq!(all.last(), Some(&json!({"$patch": "replace"})));
                    fields.insert(key.clone(), all[..all.len() - 1].into());
                }
                ("conditions", Value::Array(all)) => apply_conditions(fields, all),
                // The order comes last, when every element is there.
                (order, _) if order.starts_with('$') => {}
                _ => apply(fields.entry(key.clone()).or_insert(json!({})), change),
            }
        }
        if let Some(Value::Array(order)) = changes.get("$setElementOrder/conditions") {
            sort_conditions(fields, order);
        }
    }

    fn apply_conditions(fields: &mut Map<String, Value>, changed: &[Value]) {
        let all = fields.entry("conditions").or_insert(json!([])).as_array_mut().unwrap();
        for change in changed {
            match all.iter_mut().find(|c| c["type"] == change["type"]) {
                _ if change["$patch"] == "delete" => all.retain(|c| c["type"] != change["type"]),
                Some(old) => apply(old, change),
                None => all.push(change.clone()),
            }
        }
    }

    fn sort_conditions(fields: &mut Map<String, Value>, order: &[Value]) {
        if let Some(Value::Array(all)) = fields.get_mut("conditions") {
            all.sort_by_key(|c| order.iter().position(|o| o["type"] == c["type"]));
        }
    }

    proptest! {
        /// Whatever differs between two lives of a node, the patch makes the one of the other.
        #[test]
        fn a_patched_node_is_the_new_node(
            label in proptest::option::of("[a-z]{1,3}"), swap: bool, cpus in 1i64..4, broken: bool, foreign: bool,
            v6: bool, pages in 0i64..3, images in 0usize..3, second in 0i64..100,
        ) {
            let old = at(0);
            let (mut fixed, mut moment) = (fixed(), moment());
            fixed.identity.swap = i64::from(swap) * 1024;
            moment.machine.cpus = cpus;
            moment.machine.huge_pages = BTreeMap::from([(1 << 30, pages)]);
            moment.images.resize(images, moment.images[0].clone());
            moment.health.storage_error = broken.then(|| "not yet".to_owned());
            if v6 {
                moment.addresses.local.insert("fd00::1".parse().unwrap());
                moment.addresses.given = vec!["10.0.0.9".parse().unwrap(), "fd00::1".parse().unwrap()];
            }
            let mut new = describe(&old, &fixed, &moment, Wall::from_secs(second)).node;
            new.metadata.labels.as_mut().unwrap().extend(label.map(|l| (l, "v".to_owned())));
            if foreign {
                let other = NodeCondition { type_: "A".into(), status: "True".into(), ..Default::default() };
                new.status.as_mut().unwrap().conditions.as_mut().unwrap().insert(1, other);
            }
            let mut patched = old.to_value();
            apply(&mut patched, &status_patch(&old, &new));
            prop_assert_eq!(patched, new.to_value());
        }
    }

    #[test]
    fn amounts_are_compared_by_value() {
        let (old, mut new) = (at(0), at(0));
        let memory = resource::Quantity("16384Mi".into());
        new.status.as_mut().unwrap().capacity.as_mut().unwrap().insert("memory".into(), memory);
        assert!(!has_changed(&old, &new));
    }

    #[test]
    fn addresses_are_replaced_and_removals_are_null() {
        let old = at(0);
        let mut new = at(0);
        let status = new.status.as_mut().unwrap();
        status.addresses.as_mut().unwrap().remove(0);
        status.capacity.as_mut().unwrap().remove("hugepages-2Mi");
        status.images = None;
        let patch = status_patch(&old, &new);
        let status = &patch["status"];
        assert_eq!(
            status["addresses"],
            json!([{"type": "Hostname", "address": "n1"}, {"$patch": "replace"}])
        );
        assert_eq!(status["capacity"], json!({"hugepages-2Mi": null}));
        assert_eq!(status["images"], Value::Null);
        assert!(status.as_object().unwrap().contains_key("images"));
        assert!(!status.as_object().unwrap().contains_key("conditions"));
    }
}
