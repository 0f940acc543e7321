//! Custom kinds: what a CustomResourceDefinition says of its objects, put to work.
//!
//! A structural schema is read once. It prunes what it does not know, fills defaults, validates, and becomes the same
//! `Types` that built-in kinds have, so that apply and the documents need not know the difference.

mod check;
mod format;
mod prune;
mod read;
mod shape;
mod validate;

pub use check::check_schema;

use std::collections::BTreeMap;

use api::field::FieldErrors;
use regex_lite::Regex;
use serde_json::{Map, Value};

use crate::decode::{self, MAX_COMPLAINTS, Misfit};
use crate::types::{At, TypeId, Types};

/// The type of a custom kind.
#[derive(Debug)]
pub struct CustomType {
    schema: Structural,
    types: Types,
    root: TypeId,
}

/// A structural schema: every place has one type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Structural {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`; empty where anything may stand.
    kind: Box<str>,
    properties: BTreeMap<Box<str>, Structural>,
    additional: Additional,
    items: Option<Box<Structural>>,
    is_nullable: bool,
    default: Option<Value>,
    is_int_or_string: bool,
    keeps_unknown: bool,
    is_embedded: bool,
    /// `set`, `map` or `atomic`; empty is atomic.
    list_type: Box<str>,
    list_keys: Vec<Box<str>>,
    is_atomic_map: bool,
    has_rules: bool,
    checks: Option<Box<Checks>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Additional {
    #[default]
    None,
    /// Any key with any value.
    Any,
    Of(Box<Structural>),
}

/// What is asked of a value beyond its type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checks {
    format: Box<str>,
    pattern: Option<(Box<str>, Regex)>,
    required: Vec<Box<str>>,
    allowed: Vec<Value>,
    maximum: Option<f64>,
    is_maximum_exclusive: bool,
    minimum: Option<f64>,
    is_minimum_exclusive: bool,
    multiple_of: Option<f64>,
    max_length: Option<usize>,
    min_length: Option<usize>,
    max_items: Option<usize>,
    min_items: Option<usize>,
    max_properties: Option<usize>,
    min_properties: Option<usize>,
    is_unique: bool,
    all_of: Vec<Structural>,
    any_of: Vec<Structural>,
    one_of: Vec<Structural>,
    not: Option<Structural>,
}

// === impl CustomType ===

impl CustomType {
    /// Reads an `openAPIV3Schema` that `check_schema` found no fault with; what cannot be read is taken as absent.
    #[must_use]
    pub fn new(schema: &Value) -> CustomType {
        let mut schema = Structural::read(schema);
        // The root is a resource like any embedded one.
        schema.is_embedded = true;
        let (types, root) = shape::types_of(&schema);
        CustomType { schema, types, root }
    }

    /// The place where an object of this kind stands: what `apply` and `patch` ask for.
    #[must_use]
    pub fn at(&self) -> At<'_> {
        self.types.at(self.root)
    }

    /// Whether the schema holds CEL rules, which are kept but not evaluated.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.schema.any(&|place| place.has_rules)
    }

    /// Whether the schema fills in anything.
    #[must_use]
    pub fn has_defaults(&self) -> bool {
        self.schema.any(&|place| place.default.is_some())
    }

    /// Brings what lies in the store into the form the schema has now, which may have changed since it was written.
    pub fn refresh(&self, object: &mut Value) {
        // Metadata that was stored before anybody looked at it stays as it is.
        let _ = prune::prune(object, &self.schema, &mut Vec::new());
        self.set_defaults(object);
    }

    /// Brings the metadata into its form, drops what the schema does not know, and returns the complaints about it
    /// (`unknown field "spec.foo"`).
    pub fn conform(&self, object: &mut Value) -> Result<Vec<String>, Misfit> {
        let mut complaints = Vec::new();
        if let (Some(at), Value::Object(map)) = (At::named(shape::OBJECT_META), &mut *object) {
            let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if metadata.is_null() {
                *metadata = Value::Object(Map::new());
            }
            let within = decode::conform(metadata, at)?;
            complaints.extend(within.iter().map(|c| c.replacen("field \"", "field \"metadata.", 1)));
        }
        prune::prune(object, &self.schema, &mut complaints)?;
        complaints.truncate(MAX_COMPLAINTS);
        Ok(complaints)
    }

    /// Fills what the user left out; nulls that the schema does not allow are taken as left out.
    pub fn set_defaults(&self, object: &mut Value) {
        prune::drop_nulls(object, Some(&self.schema));
        prune::set_defaults(object, &self.schema, &mut { prune::MAX_DEFAULTED });
    }

    /// `old` is what the object replaces: what of it is unchanged is not judged again.
    pub fn validate(&self, object: &Value, old: Option<&Value>, errors: &mut FieldErrors) {
        validate::validate(object, old, &self.schema, errors);
    }
}

// === impl Structural ===

impl Structural {
    /// Whether `test` holds anywhere in the schema.
    fn any(&self, test: &dyn Fn(&Structural) -> bool) -> bool {
        let additional = match &self.additional {
            Additional::Of(schema) => Some(&**schema),
            _ => None,
        };
        let mut below = self.properties.values().chain(self.items.as_deref()).chain(additional);
        test(self) || below.any(|schema| schema.any(test))
    }

    /// The schema of a key: a property, or what stands for all others.
    fn child(&self, key: &str) -> Option<&Structural> {
        match (self.properties.get(key), &self.additional) {
            (Some(schema), _) => Some(schema),
            (None, Additional::Of(schema)) => Some(schema),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
