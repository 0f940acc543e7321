//! What the generic machinery asks of a kind. A built-in kind is one file in `kinds/` and one line in its table;
//! a CustomResourceDefinition makes the same thing at run time.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

/// One resource the server serves.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    pub version: Cow<'static, str>,
    /// `Pod`
    pub kind: Cow<'static, str>,
    /// `pods`
    pub plural: Cow<'static, str>,
    /// `pod`
    pub singular: Cow<'static, str>,
    pub short_names: Cow<'static, [Cow<'static, str>]>,
    pub categories: Cow<'static, [Cow<'static, str>]>,
    pub scope: Scope,
    pub verbs: &'static [Verb],
    pub subresources: &'static [Subresource],
    /// Where the objects live in the store. Two kinds with the same place show the same objects
    /// (Event of the core group and of events.k8s.io).
    pub storage: Cow<'static, str>,
    /// The type in the schema: `io.k8s.api.core.v1.Pod`; None for a custom kind, whose strategy has its own schema.
    pub type_name: Option<&'static str>,
    pub strategy: Arc<dyn Strategy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Namespaced,
    Cluster,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

/// A path below an object: `pods/status`.
#[derive(Clone, Copy, Debug)]
pub struct Subresource {
    pub name: &'static str,
    /// What discovery says of it: kind, and group and version where they differ from the parent's.
    pub kind: &'static str,
    pub group_version: Option<(&'static str, &'static str)>,
    pub verbs: &'static [&'static str],
}

/// A column of `kubectl get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: &'static str,
    /// `string`, `integer`, `boolean`, `date`.
    pub kind: &'static str,
    pub format: &'static str,
    /// 0 is always shown; above it only with `-o wide`.
    pub priority: i32,
    pub description: &'static str,
}

/// How a name of this kind is spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    DnsSubdomain,
    DnsLabel,
    /// RFC 1035: starts with a letter (Services).
    Dns1035Label,
    /// Anything that can stand in a path (RBAC).
    PathSegment,
}

/// The behaviour of a kind: what is filled in, what is refused, what is shown. Pure.
///
/// Objects are JSON documents that already decoded strictly by the kind's type. The machinery itself sees to metadata
/// (name, uid, creationTimestamp, generation, resourceVersion, managedFields), to `status` being written only through
/// its subresource, and to optimistic concurrency; a strategy says only what is particular to the kind.
pub trait Strategy: Send + Sync + fmt::Debug {
    /// Fills what the user left out, as upstream's defaulting does.
    fn set_defaults(&self, _object: &mut Value) {}

    /// Last changes before the first write.
    fn prepare_create(&self, _object: &mut Value) {}

    /// Last changes before a later write through the main resource: fields that keep their old value.
    fn prepare_update(&self, _new: &mut Value, _old: &Value) {}

    /// Last changes before a write through `/status`.
    fn prepare_status(&self, _new: &mut Value, _old: &Value) {}

    fn validate(&self, _object: &Value, _errors: &mut FieldErrors) {}

    /// What a later write may not do, on top of `validate`: immutable fields.
    fn validate_update(&self, _new: &Value, _old: &Value, _errors: &mut FieldErrors) {}

    fn validate_status(&self, _new: &Value, _old: &Value, _errors: &mut FieldErrors) {}

    /// Sentences for `Warning` headers.
    fn warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsSubdomain
    }

    /// Whether `metadata.generation` counts changes of everything but metadata and status.
    fn counts_generation(&self) -> bool {
        true
    }

    /// Field selectors besides metadata.name and metadata.namespace.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }

    fn field(&self, _name: &str, _object: &Value) -> String {
        String::new()
    }

    /// Seconds this object is given to end before it is removed; None removes it at once.
    fn grace(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// The columns of a Table; the machinery prepends Name and appends nothing.
    fn columns(&self) -> &'static [Column] {
        const AGE: &[Column] = &[Column {
            name: "Age",
            kind: "string",
            format: "",
            priority: 0,
            description: "Time since the object was created",
        }];
        AGE
    }

    /// One cell per column.
    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![crate::table::age(object, now).into()]
    }
}

// === impl Kind ===

impl Kind {
    /// `v1`, `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_string()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `pods`, `deployments.apps`: how messages name the resource.
    #[must_use]
    pub fn resource_name(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_string()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    #[must_use]
    pub fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresources.iter().any(|s| s.name == "status")
    }
}

// === impl Verb ===

impl Verb {
    pub const ALL: &'static [Verb] = &[
        Verb::Create,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Get,
        Verb::List,
        Verb::Patch,
        Verb::Update,
        Verb::Watch,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Patch => "patch",
            Verb::Update => "update",
            Verb::Watch => "watch",
        }
    }
}
