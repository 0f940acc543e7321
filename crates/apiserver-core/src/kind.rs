//! What the generic machinery asks of a kind. A built-in kind is one file in `kinds/` and one line in its table;
//! a CustomResourceDefinition makes the same thing at run time.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use api::field::FieldErrors;
use base::time::Wall;
use schema::types::At;
use serde_json::Value;

/// One resource the server serves.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Empty for the core group.
    pub group: Cow<'static, str>,
    pub version: Cow<'static, str>,
    /// `Pod`
    pub kind: Cow<'static, str>,
    /// `PodList`
    pub list_kind: Cow<'static, str>,
    /// `pods`
    pub plural: Cow<'static, str>,
    /// `pod`
    pub singular: Cow<'static, str>,
    pub short_names: Vec<Cow<'static, str>>,
    pub categories: Vec<Cow<'static, str>>,
    pub scope: Scope,
    pub verbs: &'static [Verb],
    pub subresources: Vec<Subresource>,
    /// Where the objects live in the store. Two kinds with the same place show the same objects
    /// (Event of the core group and of events.k8s.io); empty for a kind that is answered and never kept.
    pub storage: Cow<'static, str>,
    /// The type in the schema: `io.k8s.api.core.v1.Pod`; None for a custom kind, whose strategy has its own schema.
    pub type_name: Option<Cow<'static, str>>,
    pub strategy: Arc<dyn Strategy>,
}

/// Whose a kind is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    Server,
    /// The CustomResourceDefinition of this name.
    Definition(String),
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
#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: &'static str,
    /// What discovery says of it: kind, and group and version where they differ from the parent's.
    pub kind: Cow<'static, str>,
    pub group_version: Option<(&'static str, &'static str)>,
    pub verbs: &'static [Verb],
}

/// A column of `kubectl get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    pub name: Cow<'static, str>,
    /// `string`, `integer`, `boolean`, `date`.
    pub kind: Cow<'static, str>,
    /// `name` for the column that holds the object's name.
    pub format: Cow<'static, str>,
    /// 0 is always shown; above it only with `-o wide`.
    pub priority: i32,
    pub description: Cow<'static, str>,
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
    /// An address in its canonical form (IPAddress).
    IpAddress,
}

/// Where `/scale` finds its numbers, as dotted paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub replicas: Cow<'static, str>,
    pub status_replicas: Cow<'static, str>,
    /// A label selector, a map of labels or the text of a selector.
    pub selector: Option<Cow<'static, str>>,
}

/// The behaviour of a kind: what is filled in, what is refused, what is shown. Pure.
///
/// Objects are JSON documents that already decoded strictly by the kind's type. The machinery itself sees to metadata
/// (name, uid, creationTimestamp, generation, resourceVersion, managedFields; `kinds::meta` validates it), to `status`
/// being written only through its subresource, and to optimistic concurrency; a strategy says only what is particular
/// to the kind. No method may panic, whatever the document looks like.
pub trait Strategy: Send + Sync + fmt::Debug {
    /// The kind's own schema, for those without a built-in type: what its lists and maps are.
    fn at(&self) -> At<'_> {
        At::UNKNOWN
    }

    /// The `openAPIV3Schema` of a kind without a built-in type.
    fn openapi(&self) -> &Value {
        &Value::Null
    }

    /// Brings a document into the form of the kind's own schema; returns complaints about what it does not know.
    /// Only asked of a kind without a built-in type.
    fn conform(&self, _object: &mut Value) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    /// What of the server is missing to serve this kind: there are no objects of it, and none can be made.
    fn unserved(&self) -> Option<Cow<'static, str>> {
        None
    }

    /// Fills what the user left out, as upstream's defaulting does. Idempotent.
    fn set_defaults(&self, _object: &mut Value) {}

    /// Last changes before the first write. `status` is already gone, unless `keeps_status`.
    fn prepare_create(&self, _object: &mut Value) {}

    /// Last changes before a later write through the main resource: fields that keep their old value.
    /// `status` is already the old one.
    fn prepare_update(&self, _new: &mut Value, _old: &Value) {}

    /// Last changes before a write through `/status`. Everything but `metadata` and `status` is already the old one.
    fn prepare_status(&self, _new: &mut Value, _old: &Value) {}

    /// What may not be created.
    fn validate(&self, _object: &Value, _errors: &mut FieldErrors) {}

    /// What a later write may not make of it: all of `validate` where nothing else is said, and the immutable fields.
    fn validate_update(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
    }

    fn validate_status(&self, _new: &Value, _old: &Value, _errors: &mut FieldErrors) {}

    /// Sentences for `Warning` headers.
    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Whether the document in the store differs from the one of this kind: `write_as_stored` and `show_as_here` do something.
    fn converts(&self) -> bool {
        false
    }

    /// The version objects are stored in, where it is not the kind's own and clients can ask for it.
    fn storage_version(&self) -> Option<&str> {
        None
    }

    /// From the document of this kind to the one in the store, where two kinds show the same objects.
    fn write_as_stored(&self, _object: &mut Value) {}

    /// From the document in the store to the one of this kind, apiVersion and kind included.
    fn show_as_here(&self, _object: &mut Value) {}

    fn name_rule(&self) -> NameRule {
        NameRule::DnsSubdomain
    }

    /// Whether `metadata.generation` is kept at all.
    fn counts_generation(&self) -> bool {
        false
    }

    /// Whether a write counts as a new generation: anything but metadata and status differs.
    fn is_new_generation(&self, new: &Value, old: &Value) -> bool {
        differs_in_substance(new, old)
    }

    /// Whether the first write may bring a status along (Node).
    fn keeps_status(&self) -> bool {
        false
    }

    /// Whether a PUT of an object that is not there creates it.
    fn creates_on_update(&self) -> bool {
        false
    }

    /// Whether a PUT without resourceVersion overwrites whatever is there.
    fn updates_unconditionally(&self) -> bool {
        true
    }

    /// The value of a field that selectors may name besides metadata.name and metadata.namespace; None where they may
    /// not. Whether a field may be named does not depend on the object.
    fn field<'a>(&self, _name: &str, _object: &'a Value) -> Option<Cow<'a, str>> {
        None
    }

    /// Seconds this object is given to end before it is removed; None removes it at once.
    fn grace(&self, _object: &Value, _asked: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether something besides metadata.finalizers keeps a deleted object (a Namespace that is not empty yet).
    fn is_held(&self, _object: &Value) -> bool {
        false
    }

    /// What changes, besides metadata, when an object begins to wait for its end.
    fn begin_deletion(&self, _object: &mut Value) {}

    /// Whether dependents are left alone when nobody says what shall become of them (ReplicationController, Job).
    fn orphans_by_default(&self) -> bool {
        false
    }

    /// Whether a deletion answers with the object rather than with a Status (Pod).
    fn returns_deleted(&self) -> bool {
        false
    }

    fn scale(&self) -> Option<ScalePaths> {
        None
    }

    /// The columns of a Table, all of them.
    fn columns(&self) -> &[Column] {
        const NAME_AND_TIME: &[Column] = &[Column::NAME, Column::CREATED_AT];
        NAME_AND_TIME
    }

    /// One cell per column.
    fn cells(&self, object: &Value, _now: Wall) -> Vec<Value> {
        vec![crate::table::name(object), crate::table::created_at(object)]
    }
}

/// Where objects of the server's own kinds lie in the store.
const OWN: &str = "/registry/";
/// Where objects of custom kinds lie.
const CUSTOM: &str = "/custom/";

const READ_WRITE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];

// === impl Kind ===

impl Kind {
    /// What all keys begin with: those of the server's own kinds, and those of custom ones.
    pub const ROOTS: [&'static str; 2] = [OWN, CUSTOM];

    /// A namespaced kind with all verbs and no subresource; the methods below say what is different.
    #[must_use]
    pub fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        strategy: impl Strategy + 'static,
    ) -> Kind {
        let storage = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        Kind {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            list_kind: format!("{kind}List").into(),
            plural: plural.into(),
            singular: kind.to_lowercase().into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            scope: Scope::Namespaced,
            verbs: Verb::ALL,
            subresources: Vec::new(),
            storage: storage.into(),
            type_name: Some(type_name(group, version, kind).into()),
            strategy: Arc::new(strategy),
        }
    }

    /// A kind of the core group.
    #[must_use]
    pub fn core(kind: &'static str, plural: &'static str, strategy: impl Strategy + 'static) -> Kind {
        Kind::new("", "v1", kind, plural, strategy)
    }

    #[must_use]
    pub fn cluster_scoped(mut self) -> Kind {
        self.scope = Scope::Cluster;
        self
    }

    #[must_use]
    pub fn short(mut self, names: &[&'static str]) -> Kind {
        self.short_names = names.iter().map(|n| Cow::Borrowed(*n)).collect();
        self
    }

    #[must_use]
    pub fn category(mut self, name: &'static str) -> Kind {
        self.categories.push(name.into());
        self
    }

    #[must_use]
    pub fn verbs(mut self, verbs: &'static [Verb]) -> Kind {
        self.verbs = verbs;
        self
    }

    /// Its objects are those of another kind, or (empty) of none.
    #[must_use]
    pub fn stored_as(mut self, storage: &'static str) -> Kind {
        self.storage = storage.into();
        self
    }

    #[must_use]
    pub fn with_status(self) -> Kind {
        let kind = self.kind.clone();
        self.with(Subresource { name: "status", kind, group_version: None, verbs: READ_WRITE })
    }

    #[must_use]
    pub fn with_scale(self) -> Kind {
        self.with(Subresource {
            name: "scale",
            kind: "Scale".into(),
            group_version: Some(("autoscaling", "v1")),
            verbs: READ_WRITE,
        })
    }

    #[must_use]
    pub fn with(mut self, subresource: Subresource) -> Kind {
        self.subresources.push(subresource);
        self
    }

    /// The type of its objects.
    #[must_use]
    pub fn at(&self) -> At<'_> {
        self.type_name.as_deref().and_then(At::named).unwrap_or_else(|| self.strategy.at())
    }

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

    /// Whether a definition brought it, rather than the server itself.
    #[must_use]
    pub fn is_custom(&self) -> bool {
        self.type_name.is_none()
    }

    #[must_use]
    pub fn owner(&self) -> Owner {
        if self.is_custom() { Owner::Definition(self.storage.to_string()) } else { Owner::Server }
    }

    /// What the keys of all its objects begin with. Objects of the server's own kinds and of custom ones never lie in
    /// one place, whatever the kinds are called.
    #[must_use]
    pub fn place(&self) -> String {
        let root = if self.is_custom() { CUSTOM } else { OWN };
        format!("{root}{}/", self.storage)
    }

    /// The parts of a key: whether a custom kind's object lies there, the kind's storage, and the rest.
    #[must_use]
    pub fn split_place(key: &str) -> Option<(bool, &str, &str)> {
        let (is_custom, rest) = match key.strip_prefix(CUSTOM) {
            Some(rest) => (true, rest),
            None => (false, key.strip_prefix(OWN)?),
        };
        let (storage, rest) = rest.split_once('/')?;
        Some((is_custom, storage, rest))
    }

    #[must_use]
    pub fn is_stored(&self) -> bool {
        !self.storage.is_empty()
    }

    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}

/// Upstream's OpenAPI name: the group's first label stands for it.
fn type_name(group: &str, version: &str, kind: &str) -> String {
    match group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        "apiextensions.k8s.io" => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        "apiregistration.k8s.io" => {
            format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}.{kind}")
        }
        _ => format!("io.k8s.api.{}.{version}.{kind}", group.split('.').next().unwrap_or_default()),
    }
}

/// Whether two versions of an object differ in anything but metadata and status.
fn differs_in_substance(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
    let counts = |key: &str| !matches!(key, "apiVersion" | "kind" | "metadata" | "status");
    let one_way = |a: &serde_json::Map<String, Value>, b: &serde_json::Map<String, Value>| {
        a.iter()
            .any(|(key, value)| counts(key) && !crate::doc::same(value, b.get(key).unwrap_or(&Value::Null)))
    };
    one_way(new, old) || one_way(old, new)
}

// === impl Subresource ===

impl Subresource {
    #[must_use]
    pub const fn new(name: &'static str, kind: &'static str, verbs: &'static [Verb]) -> Subresource {
        Subresource { name, kind: Cow::Borrowed(kind), group_version: None, verbs }
    }

    /// What it takes and gives belongs to another group.
    #[must_use]
    pub const fn of_group(mut self, group: &'static str, version: &'static str) -> Subresource {
        self.group_version = Some((group, version));
        self
    }
}

// === impl Column ===

impl Column {
    pub const NAME: Column = Column::new("Name", "string", "name", 0, "The name, unique within a namespace");
    pub const AGE: Column = Column::text("Age", "How long ago the object was created");
    pub const CREATED_AT: Column = Column::new("Created At", "date", "", 0, "When the object was created");

    #[must_use]
    pub const fn text(name: &'static str, description: &'static str) -> Column {
        Column::new(name, "string", "", 0, description)
    }

    #[must_use]
    pub const fn number(name: &'static str, description: &'static str) -> Column {
        Column::new(name, "integer", "", 0, description)
    }

    #[must_use]
    pub const fn boolean(name: &'static str, description: &'static str) -> Column {
        Column::new(name, "boolean", "", 0, description)
    }

    /// Only with `-o wide`.
    #[must_use]
    pub const fn wide(name: &'static str, description: &'static str) -> Column {
        Column::new(name, "string", "", 1, description)
    }

    #[must_use]
    pub const fn new(
        name: &'static str,
        kind: &'static str,
        format: &'static str,
        priority: i32,
        description: &'static str,
    ) -> Column {
        Column {
            name: Cow::Borrowed(name),
            kind: Cow::Borrowed(kind),
            format: Cow::Borrowed(format),
            priority,
            description: Cow::Borrowed(description),
        }
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

    pub const ALL_BUT_CREATE: &'static [Verb] = Verb::ALL.split_at(1).1;

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
