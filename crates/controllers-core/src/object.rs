//! An object of the API as the shared cache holds it: what everybody asks for as fields, the rest as the text it came in.

use std::sync::{Arc, OnceLock};

use api::json::{FromJson, Reading};
use api::selector::LabelSelector;
use base::rfc3339::Moment;
use base::time::Wall;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::resource::Resource;
use crate::terms::PodTerms;

/// Decoded while somebody works on it and not longer; only the few terms of a Pod that are asked for all the time stay.
#[derive(Debug)]
pub struct Object {
    pub meta: Meta,
    /// Without managedFields; items of lists do not say apiVersion and kind.
    json: Bytes,
    terms: OnceLock<Option<Box<PodTerms>>>,
}

/// What the cache and the queues look at.
#[derive(Clone, Debug)]
pub struct Meta {
    pub resource: Resource,
    /// Empty for objects of the cluster.
    pub namespace: Arc<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// Zero if it is not a number.
    pub resource_version: u64,
    pub generation: i64,
    pub created: Option<Wall>,
    pub deleted: Option<Wall>,
    /// By key.
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// The owner that is its controller.
    pub controller: Option<Owner>,
    /// The Node of a Pod; empty otherwise.
    pub node: Box<str>,
}

/// Who controls an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub api_version: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
}

/// An object that cannot be read, or not what is needed of it. Tells no content: it may be a Secret's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {name}: {why}")]
pub struct Unreadable {
    pub kind: &'static str,
    pub name: String,
    pub why: String,
}

#[derive(Deserialize)]
struct Doc<'a> {
    metadata: Value,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
}

// === impl Object ===

impl Object {
    /// Takes an object as a list or a watch has it. None: nobody can say which object this is.
    #[must_use]
    pub fn new(resource: Resource, json: &[u8]) -> Option<Object> {
        let json = api::json::without_managed_fields(json);
        let doc: Doc<'_> = serde_json::from_slice(&json).ok()?;
        let node =
            if resource.kind == "Pod" { doc.spec.and_then(node_of).unwrap_or_default() } else { "".into() };
        let meta = Meta::read(resource, &doc.metadata, node)?;
        Some(Object { meta, json: Bytes::copy_from_slice(&json), terms: OnceLock::new() })
    }

    /// Reads it as its Kubernetes type. What upstream's decoder takes is taken; an object of which something was lost is
    /// not an object to decide by.
    pub fn decode<T: FromJson>(&self) -> Result<T, Unreadable> {
        match schema::lenient::read::<T>(&self.json) {
            Ok(Reading { object, lost }) if lost.is_empty() => Ok(object),
            Ok(Reading { lost, .. }) => Err(self.unreadable(format!("cannot read {}", lost.join(", ")))),
            Err(error) => Err(self.unreadable(format!("line {} column {}", error.line(), error.column()))),
        }
    }

    /// Reads a part of it that the caller has described. One that does not decode is mended first, as everywhere.
    pub fn part<T: DeserializeOwned>(&self) -> Result<T, Unreadable> {
        let first = match serde_json::from_slice(&self.json) {
            Ok(part) => return Ok(part),
            Err(error) => error,
        };
        let mended = schema::lenient::mend(&self.meta.resource.schema_name(), &self.json);
        let read = mended.and_then(|mended| serde_json::from_slice(&mended.json).ok());
        read.ok_or_else(|| self.unreadable(format!("line {} column {}", first.line(), first.column())))
    }

    /// Reads all of it, with apiVersion and kind: the way to change a field and to keep the others, known or not.
    #[must_use]
    pub fn value(&self) -> Value {
        let mut value: Value = serde_json::from_slice(&self.json).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.insert("apiVersion".into(), self.meta.resource.api_version().into());
            object.insert("kind".into(), self.meta.resource.kind.into());
        }
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            drop_nonsense(metadata, &["labels", "annotations"]);
        }
        if let Some(object) = value.as_object_mut() {
            drop_nonsense(object, &["spec", "status"]);
        }
        value
    }

    #[must_use]
    pub fn json(&self) -> &Bytes {
        &self.json
    }

    /// What controllers ask of a Pod. None for other objects, and for a Pod whose status nobody can read.
    #[must_use]
    pub fn pod(&self) -> Option<&PodTerms> {
        let read =
            || (self.meta.resource.kind == "Pod").then(|| PodTerms::read(&self.json)).flatten().map(Box::new);
        self.terms.get_or_init(read).as_deref()
    }

    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.meta.label(key)
    }

    /// Whether its labels satisfy the selector.
    #[must_use]
    pub fn is_selected(&self, selector: &LabelSelector) -> bool {
        selector.matches(|key| self.meta.label(key))
    }

    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.meta.deleted.is_some()
    }

    #[must_use]
    pub fn is_controlled_by(&self, uid: &str) -> bool {
        self.meta.controller.as_ref().is_some_and(|owner| &*owner.uid == uid)
    }

    /// The owner reference that makes this object the controller of another.
    #[must_use]
    pub fn as_controller(&self) -> Value {
        let Meta { resource, name, uid, .. } = &self.meta;
        serde_json::json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "name": name, "uid": uid,
            "controller": true, "blockOwnerDeletion": true,
        })
    }

    #[must_use]
    pub fn unreadable(&self, why: impl Into<String>) -> Unreadable {
        let Meta { resource, namespace, name, .. } = &self.meta;
        let name = if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") };
        Unreadable { kind: resource.kind, name, why: why.into() }
    }
}

// === impl Meta ===

impl Meta {
    fn read(resource: Resource, metadata: &Value, node: Box<str>) -> Option<Meta> {
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        let time = |key: &str| metadata[key].as_str().and_then(wall);
        let mut labels: Vec<(Box<str>, Box<str>)> = metadata["labels"]
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())))
            .collect();
        labels.sort_unstable();
        let owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let controller = owners.into_iter().find(|owner| owner["controller"] == true).map(Owner::read);
        Some(Meta {
            resource,
            namespace: text("namespace").into(),
            name: metadata["name"].as_str().filter(|name| !name.is_empty())?.into(),
            uid: text("uid").into(),
            resource_version: text("resourceVersion").parse().unwrap_or(0),
            generation: metadata["generation"].as_i64().unwrap_or(0),
            created: time("creationTimestamp"),
            deleted: time("deletionTimestamp"),
            labels: labels.into(),
            controller,
            node,
        })
    }

    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(known, _)| (**known).cmp(key)).ok()?;
        Some(&self.labels[at].1)
    }
}

// === impl Owner ===

impl Owner {
    fn read(owner: &Value) -> Owner {
        let text = |key: &str| owner[key].as_str().unwrap_or_default().into();
        Owner { api_version: text("apiVersion"), kind: text("kind"), name: text("name"), uid: text("uid") }
    }

    /// Whether it is of this group and kind, in whatever version.
    #[must_use]
    pub fn is_a(&self, resource: Resource) -> bool {
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        group == resource.group && &*self.kind == resource.kind
    }
}

/// The member of this name, to be written into: an object, whatever stood there.
pub(crate) fn member<'a>(value: &'a mut Value, key: &str) -> &'a mut Value {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let member = &mut value[key];
    if !member.is_object() {
        *member = Value::Object(Map::new());
    }
    member
}

/// What has members everywhere, and here is something else, says nothing: nobody shall fall over what somebody wrote by hand.
fn drop_nonsense(object: &mut Map<String, Value>, members: &[&str]) {
    object.retain(|key, value| value.is_object() || !members.contains(&key.as_str()));
}

/// A time of the API.
#[must_use]
pub fn wall(text: &str) -> Option<Wall> {
    let Moment { secs, nanos } = Moment::parse_lenient(text)?;
    Some(Wall(Wall::from_secs(secs).0.saturating_add(i64::from(nanos))))
}

fn node_of(spec: &RawValue) -> Option<Box<str>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        node_name: Option<Box<str>>,
    }
    serde_json::from_str(spec.get()).ok().and_then(|Spec { node_name }| node_name)
}
