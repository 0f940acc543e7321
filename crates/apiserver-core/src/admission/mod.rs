//! What the admission plugins decide: what they fill in and what they refuse. One file each; the agent reads what they
//! need to know and keeps their order.

use base::time::Wall;
use serde_json::Value;

use crate::api_status::ApiStatus;
use crate::doc;
use crate::kind::Kind;
use crate::request::{Attributes, Resource, User};

pub mod certificate;
pub mod limit_range;
pub mod node_taint;
pub mod pod_security;
pub mod storage_protection;
pub mod tolerations;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
}

/// One write on its way.
#[derive(Clone, Copy, Debug)]
pub struct Review<'a> {
    pub kind: &'a Kind,
    pub attributes: &'a Attributes,
    pub operation: Operation,
    /// The object as it was, except for a create.
    pub old: Option<&'a Value>,
    pub dry_run: bool,
    pub now: Wall,
}

/// Sentences for `Warning` headers.
pub type Warnings = Vec<String>;

// === impl Review ===

impl Review<'_> {
    /// Whether the write is about this resource (and no subresource of it).
    #[must_use]
    pub fn is_on(&self, group: &str, plural: &str) -> bool {
        self.subresource().is_empty() && self.is_at(group, plural)
    }

    /// Whether the write is about this resource or anything below it.
    #[must_use]
    pub fn is_at(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural
    }

    #[must_use]
    pub fn user(&self) -> &User {
        &self.attributes.user
    }

    #[must_use]
    pub fn resource(&self) -> Option<&Resource> {
        self.attributes.resource.as_ref()
    }

    #[must_use]
    pub fn subresource(&self) -> &str {
        self.resource().map_or("", |r| r.subresource.as_str())
    }

    /// The namespace the object is in; empty for what is in none.
    #[must_use]
    pub fn namespace(&self) -> &str {
        if self.kind.is_namespaced() { self.resource().map_or("", |r| r.namespace.as_str()) } else { "" }
    }

    /// The name in the path, or in the object where the path has none yet.
    #[must_use]
    pub fn name<'o>(&'o self, object: &'o Value) -> &'o str {
        match self.resource().map(|r| r.name.as_str()) {
            Some(name) if !name.is_empty() => name,
            _ => match doc::text(object, "metadata.name") {
                "" => match doc::text(object, "metadata.generateName") {
                    "" => "Unknown",
                    base => base,
                },
                name => name,
            },
        }
    }

    #[must_use]
    pub fn forbid(&self, object: &Value, why: &str) -> ApiStatus {
        ApiStatus::forbidden(self.kind, self.name(object), why)
    }
}

/// Whether the node made the Pod itself, of a manifest on its disk.
#[must_use]
pub fn is_mirror(pod: &Value) -> bool {
    pod["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some()
}

#[cfg(test)]
mod testing;
