//! An object as the server sent it, with a small header: what a controller needs to find it and to tell whose it is. The rest
//! is decoded when somebody works on it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::value::RawValue;

use super::store::{Identity, Index, Key};
use crate::read::Read;

/// An object as the server sent it, without its managedFields.
#[derive(Debug)]
pub struct RawObject {
    pub key: Key,
    pub uid: String,
    /// As a number; zero where it is none.
    pub revision: u64,
    pub labels: BTreeMap<String, String>,
    pub owners: Vec<OwnerReference>,
    /// It has a deletionTimestamp.
    pub is_deleted: bool,
    pub json: Box<RawValue>,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    name: String,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, Option<String>>>,
    owner_references: Option<Vec<OwnerReference>>,
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeName {
    spec: NodeNameSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeNameSpec {
    node_name: Option<String>,
}

// === impl RawObject ===

impl RawObject {
    pub(super) fn read(json: Box<RawValue>) -> Read<RawObject> {
        let head = serde_json::from_str::<Head<'_>>(json.get());
        let Ok(Head { metadata: meta }) = head else { return part(json) };
        let stripped =
            meta.managed_fields.and_then(|fields| without(json.get(), "managedFields", fields.get()));
        let labels = meta.labels.into_iter().flatten();
        let mut object = RawObject {
            key: Key { namespace: meta.namespace.unwrap_or_default(), name: meta.name },
            uid: meta.uid.unwrap_or_default(),
            revision: meta.resource_version.and_then(|text| text.parse().ok()).unwrap_or_default(),
            labels: labels.map(|(name, value)| (name, value.unwrap_or_default())).collect(),
            owners: meta.owner_references.unwrap_or_default(),
            is_deleted: meta.deletion_timestamp.is_some(),
            json,
        };
        if let Some(stripped) = stripped.and_then(|text| RawValue::from_string(text).ok()) {
            object.json = stripped;
        }
        if object.key.name.is_empty() { Read::Nothing } else { Read::Whole(object) }
    }

    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity { key: self.key.clone(), uid: self.uid.clone(), revision: self.revision }
    }

    /// The owner that controls it.
    #[must_use]
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owners.iter().find(|owner| owner.controller == Some(true))
    }

    /// What matters of it to the caller. [`crate::Client::read`] reads Kubernetes types from `json`.
    pub fn decode<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(self.json.get())
    }
}

// === impl Index ===

impl Index<std::sync::Arc<RawObject>> {
    /// By the UID of each owner.
    pub const OWNER: Self =
        Index { name: "owner", of: |object| object.owners.iter().map(|owner| owner.uid.clone()).collect() };

    /// By the UID of the owner that controls it.
    pub const CONTROLLER: Self = Index {
        name: "controller",
        of: |object| object.controller().map(|owner| owner.uid.clone()).into_iter().collect(),
    };

    /// Pods by the node they are bound to.
    pub const NODE: Self = Index {
        name: "node",
        of: |object| {
            let node = object.decode::<NodeName>().unwrap_or_default().spec.node_name;
            node.filter(|node| !node.is_empty()).into_iter().collect()
        },
    };
}

/// Of an odd object what can be read.
fn part(json: Box<RawValue>) -> Read<RawObject> {
    let Ok(value) = serde_json::from_str::<Value>(json.get()) else { return Read::Nothing };
    let meta = &value["metadata"];
    let text = |name: &str| meta[name].as_str().unwrap_or_default().to_owned();
    let label = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    let owner = |owner: &Value| OwnerReference::deserialize(owner).ok();
    let key = Key { namespace: text("namespace"), name: text("name") };
    if key.name.is_empty() {
        return Read::Nothing;
    }
    Read::Part(RawObject {
        key,
        uid: text("uid"),
        revision: text("resourceVersion").parse().unwrap_or_default(),
        labels: meta["labels"].as_object().into_iter().flatten().filter_map(label).collect(),
        owners: meta["ownerReferences"].as_array().into_iter().flatten().filter_map(owner).collect(),
        is_deleted: !meta["deletionTimestamp"].is_null(),
        json,
    })
}

/// The text without the member `name` whose value is `value`, a part of it. None where its name is not found before it.
fn without(text: &str, name: &str, value: &str) -> Option<String> {
    let from = value.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let (before, after) = (text.get(..from)?, text.get(from + value.len()..)?);
    let before = before.trim_end().strip_suffix(':')?.trim_end().strip_suffix('"')?;
    let before = before.strip_suffix(name)?.strip_suffix('"')?.trim_end();
    // Its comma goes with it: the one before, or the one after the first member.
    let (before, after) = match before.strip_suffix(',') {
        Some(before) => (before, after),
        None => (before, after.trim_start().strip_prefix(',').unwrap_or(after)),
    };
    Some([before, after].concat())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Read<RawObject> {
        RawObject::read(RawValue::from_string(text.to_owned()).unwrap())
    }

    #[test]
    fn managed_fields_go_wherever_they_stand() {
        for (text, want) in [
            (r#"{"metadata":{"name":"a","managedFields":[{"x":"}"}]}}"#, r#"{"metadata":{"name":"a"}}"#),
            (r#"{"metadata":{"managedFields":[],"name":"a"},"b":1}"#, r#"{"metadata":{"name":"a"},"b":1}"#),
            (
                r#"{"metadata":{"name":"a" , "managedFields" : {} , "uid":"u"}}"#,
                r#"{"metadata":{"name":"a"  , "uid":"u"}}"#,
            ),
            // Not metadata's, so it stays.
            (
                r#"{"metadata":{"name":"a"},"managedFields":[1]}"#,
                r#"{"metadata":{"name":"a"},"managedFields":[1]}"#,
            ),
            // Spelled in a way that is not found: it stays, and the object is as good.
            (
                r#"{"metadata":{"name":"a","managed\u0046ields":[1]}}"#,
                r#"{"metadata":{"name":"a","managed\u0046ields":[1]}}"#,
            ),
        ] {
            let Read::Whole(object) = read(text) else { panic!("{text}") };
            assert_eq!(object.json.get(), want, "{text}");
        }
    }

    #[test]
    fn the_header_is_what_a_controller_looks_for() {
        let text = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"k":"v","z":null},
            "deletionTimestamp":"2026-01-01T00:00:00Z","ownerReferences":[
            {"apiVersion":"v1","kind":"X","name":"x","uid":"ox"},
            {"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"or","controller":true}]},
            "spec":{"nodeName":"here"}}"#;
        let Read::Whole(object) = read(text) else { panic!("{text}") };
        let object = std::sync::Arc::new(object);
        assert_eq!((object.key.to_string().as_str(), object.uid.as_str(), object.revision), ("n/a", "u", 7));
        assert!(object.is_deleted);
        assert_eq!(object.labels["k"], "v");
        assert_eq!(object.controller().unwrap().name, "r");
        assert_eq!((Index::OWNER.of)(&object), ["ox", "or"]);
        assert_eq!((Index::CONTROLLER.of)(&object), ["or"]);
        assert_eq!((Index::NODE.of)(&object), ["here"]);
    }

    #[test]
    fn an_odd_object_is_known_by_what_can_be_read() {
        let odd = r#"{"metadata":{"name":"a","uid":"u","labels":{"k":1,"l":"v"},"ownerReferences":[{"uid":7},
            {"apiVersion":"v1","kind":"X","name":"x","uid":"ox"}]}}"#;
        let Read::Part(object) = read(odd) else { panic!("{odd}") };
        assert_eq!((object.labels.len(), object.owners.len(), object.is_deleted), (1, 1, false));
        for nameless in [r#"{"metadata":{"name":""}}"#, r#"{"metadata":{"name":7}}"#, r#"{}"#, "7"] {
            assert!(matches!(read(nameless), Read::Nothing), "{nameless}");
        }
    }
}
