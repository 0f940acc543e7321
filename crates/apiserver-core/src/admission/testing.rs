//! A request on a resource, for the plugins' tests.

use std::sync::Arc;

use base::time::Wall;
use serde_json::Value;

use super::{Operation, Review};
use crate::kind::{Kind, Scope};
use crate::kinds;
use crate::request::{Attributes, Resource, User};

pub(super) struct Ask {
    kind: Kind,
    attributes: Attributes,
    operation: Operation,
    old: Option<Value>,
}

impl Ask {
    pub(super) fn create(group: &str, path: &str, namespace: &str) -> Ask {
        let (plural, subresource) = path.split_once('/').unwrap_or((path, ""));
        let mut kind = kinds::all().remove(0);
        kind.group = group.to_owned().into();
        kind.plural = plural.to_owned().into();
        kind.scope = if namespace.is_empty() { Scope::Cluster } else { Scope::Namespaced };
        let resource = Resource {
            group: group.into(),
            plural: plural.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            ..Resource::default()
        };
        let user = Arc::new(User::new("jane", &["dev"]));
        let attributes =
            Attributes { user, verb: "create".into(), resource: Some(resource), ..Attributes::default() };
        Ask { kind, attributes, operation: Operation::Create, old: None }
    }

    pub(super) fn update(mut self, old: Value) -> Ask {
        self.operation = Operation::Update;
        if let Some(resource) = &mut self.attributes.resource {
            crate::doc::text(&old, "metadata.name").clone_into(&mut resource.name);
        }
        self.old = Some(old);
        self
    }

    pub(super) fn review(&self) -> Review<'_> {
        Review {
            kind: &self.kind,
            attributes: &self.attributes,
            operation: self.operation,
            old: self.old.as_ref(),
            dry_run: false,
            now: Wall(1_800_000_000_000_000_000),
        }
    }
}
