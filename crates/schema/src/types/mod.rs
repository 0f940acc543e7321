//! The types of objects: which fields there are, what stands in them, and how lists and maps are owned and merged.
//!
//! Built-in types are loaded once from what the build wrote; a custom kind makes its own `Types` at run time.

mod load;

pub(crate) use load::{descriptions, source_digest};

use std::sync::OnceLock;

use serde_json::Value;

/// A set of types that refer to each other.
#[derive(Debug, Default)]
pub struct Types {
    pub(crate) types: Vec<Type>,
    /// Sorted.
    kinds: Vec<NamedKind>,
}

/// Group, version, kind, and the type they name.
type NamedKind = (Box<str>, Box<str>, Box<str>, TypeId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TypeId(pub(crate) u32);

/// An object with known fields.
#[derive(Debug)]
pub struct Type {
    /// `io.k8s.api.core.v1.Pod`; empty for a nested object of a custom kind.
    pub name: Box<str>,
    /// Sorted by name.
    pub fields: Vec<Field>,
    /// Owned and replaced as one.
    pub atomic: bool,
    /// Fields beside the known ones are kept.
    pub open: bool,
    /// The shape of a place where this type stands.
    shape: Shape,
}

#[derive(Debug)]
pub struct Field {
    pub name: Box<str>,
    pub shape: Shape,
    pub required: bool,
    pub presence: Presence,
    pub merge: Merge,
    /// What an absent field means where it is part of a list's key.
    pub default: Option<Value>,
}

/// What stands in a place.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    String,
    /// Base64.
    Bytes,
    Int32,
    Int64,
    Number,
    Boolean,
    Quantity,
    Time,
    MicroTime,
    IntOrString,
    /// A whole object, or another document, taken as it is.
    Raw,
    /// Field ownership: keys that look like fields but are not.
    FieldSet,
    /// Any JSON value.
    Any,
    /// An object of this type, or something simpler in its place.
    Either(TypeId),
    Object(TypeId),
    Map {
        value: Box<Shape>,
        atomic: bool,
    },
    List {
        item: Box<Shape>,
        kind: ListKind,
    },
}

/// How the items of a list are told apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListKind {
    /// Not at all: the list is owned and replaced as one.
    Atomic,
    /// By value.
    Set,
    /// By the values of these fields.
    Keyed(Box<[Box<str>]>),
}

/// What becomes of a field that is absent or zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Zero is dropped.
    #[default]
    Omitted,
    /// Zero and absent differ; nothing is dropped or added.
    Pointer,
    /// There even when empty.
    Always,
}

/// What a strategic merge patch does to a field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merge {
    /// Lists only: merged by this key; an empty key merges by value; None replaces.
    pub key: Option<Box<str>>,
    /// A merged item keeps only the keys that `$retainKeys` names.
    pub retain: bool,
}

/// A place in a type: the cursor every walk over an object carries along.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub types: &'a Types,
    pub shape: &'a Shape,
}

/// The types of the built-in kinds.
#[must_use]
pub fn builtin() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(load::builtin)
}

// === impl Types ===

impl Types {
    #[must_use]
    pub fn get(&self, id: TypeId) -> &Type {
        &self.types[id.0 as usize]
    }

    /// The type of that name: `io.k8s.api.core.v1.Pod`.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<TypeId> {
        let found = self.types.binary_search_by(|t| (*t.name).cmp(name)).ok()?;
        u32::try_from(found).ok().map(TypeId)
    }

    /// The type of a kind.
    #[must_use]
    pub fn id_of_kind(&self, group: &str, version: &str, kind: &str) -> Option<TypeId> {
        let wanted = (group, version, kind);
        let found = self.kinds.binary_search_by(|(g, v, k, _)| (&**g, &**v, &**k).cmp(&wanted)).ok()?;
        Some(self.kinds[found].3)
    }

    /// Group, version and kind of a type; several where groups share it.
    pub fn kinds_of(&self, id: TypeId) -> impl Iterator<Item = (&str, &str, &str)> {
        self.kinds.iter().filter(move |k| k.3 == id).map(|(g, v, k, _)| (&**g, &**v, &**k))
    }

    /// The place where an object of this type stands.
    #[must_use]
    pub fn at(&self, id: TypeId) -> At<'_> {
        At { types: self, shape: &self.get(id).shape }
    }

    /// Adds a type of a custom kind.
    pub(crate) fn add(&mut self, name: &str, fields: Vec<Field>, atomic: bool, open: bool) -> TypeId {
        let id = TypeId(u32::try_from(self.types.len()).unwrap_or(u32::MAX));
        self.types.push(Type { name: name.into(), fields, atomic, open, shape: Shape::Object(id) });
        id
    }

    pub(crate) fn set_fields(&mut self, id: TypeId, fields: Vec<Field>) {
        self.types[id.0 as usize].fields = fields;
    }

    pub fn ids(&self) -> impl Iterator<Item = TypeId> + use<> {
        (0..u32::try_from(self.types.len()).unwrap_or(0)).map(TypeId)
    }
}

impl Type {
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        let found = self.fields.binary_search_by(|f| (*f.name).cmp(name)).ok()?;
        Some(&self.fields[found])
    }

    /// `Pod`: what messages call it.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

impl Field {
    /// What an absent field means as part of a list's key: its default, or zero where it is always there.
    #[must_use]
    pub fn key_default(&self) -> Option<Value> {
        self.default.clone().or_else(|| match (&self.shape, self.presence) {
            (Shape::String, Presence::Always) => Some("".into()),
            (Shape::Int32 | Shape::Int64, Presence::Always) => Some(0.into()),
            _ => None,
        })
    }
}

// === impl At ===

impl<'a> At<'a> {
    /// Knows nothing of what stands below it.
    pub const UNKNOWN: At<'static> = At { types: &NO_TYPES, shape: &Shape::Any };

    /// The built-in type of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<At<'static>> {
        let types = builtin();
        Some(types.at(types.id(name)?))
    }

    /// The built-in kind.
    #[must_use]
    pub fn kind(group: &str, version: &str, kind: &str) -> Option<At<'static>> {
        let types = builtin();
        Some(types.at(types.id_of_kind(group, version, kind)?))
    }

    #[must_use]
    pub fn with(self, shape: &'a Shape) -> At<'a> {
        At { types: self.types, shape }
    }

    /// The type, where an object with known fields stands.
    #[must_use]
    pub fn object(self) -> Option<&'a Type> {
        match self.shape {
            Shape::Object(id) | Shape::Either(id) => Some(self.types.get(*id)),
            _ => None,
        }
    }

    /// The place below `name`: a field, a map's value, or an unknown place.
    #[must_use]
    pub fn child(self, name: &str) -> At<'a> {
        match self.shape {
            Shape::Object(id) => match self.types.get(*id).field(name) {
                Some(field) => self.with(&field.shape),
                None => At::UNKNOWN,
            },
            Shape::Map { value, .. } => self.with(value),
            _ => At::UNKNOWN,
        }
    }

    /// The place of a list's item.
    #[must_use]
    pub fn item(self) -> At<'a> {
        match self.shape {
            Shape::List { item, .. } => self.with(item),
            _ => At::UNKNOWN,
        }
    }
}

static NO_TYPES: Types = Types { types: Vec::new(), kinds: Vec::new() };
