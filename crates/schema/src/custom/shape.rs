//! A structural schema as `Types`.

use std::collections::BTreeMap;

use super::{Additional, Structural};
use crate::types::{Field, ListKind, Merge, Presence, Shape, TypeId, Types, builtin};

pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

pub(super) fn types_of(schema: &Structural) -> (Types, TypeId) {
    let mut types = Types::default();
    let metadata = match builtin().id(OBJECT_META) {
        Some(id) => Shape::Object(import(&mut types, id, &mut BTreeMap::new())),
        None => Shape::Raw,
    };
    let mut build = Build { types, metadata };
    let root = build.object(schema);
    (build.types, root)
}

struct Build {
    types: Types,
    /// The shape of `metadata` of a resource.
    metadata: Shape,
}

// === impl Build ===

impl Build {
    fn shape(&mut self, schema: &Structural) -> Shape {
        if schema.is_int_or_string {
            return Shape::IntOrString;
        }
        match &*schema.kind {
            "string" => Shape::String,
            "integer" => Shape::Int64,
            "number" => Shape::Number,
            "boolean" => Shape::Boolean,
            "array" => {
                let item = schema.items.as_ref().map_or(Shape::Any, |items| self.shape(items));
                let kind = match &*schema.list_type {
                    "set" => ListKind::Set,
                    "map" => ListKind::Keyed(schema.list_keys.clone().into()),
                    _ => ListKind::Atomic,
                };
                Shape::List { item: Box::new(item), kind }
            }
            "object" => match &schema.additional {
                _ if !schema.properties.is_empty() || schema.is_embedded => {
                    Shape::Object(self.object(schema))
                }
                Additional::Of(value) => {
                    Shape::Map { value: Box::new(self.shape(value)), atomic: schema.is_atomic_map }
                }
                Additional::Any => Shape::Map { value: Box::new(Shape::Any), atomic: schema.is_atomic_map },
                Additional::None if schema.keeps_unknown && !schema.is_atomic_map => Shape::Any,
                Additional::None => Shape::Object(self.object(schema)),
            },
            _ => Shape::Any,
        }
    }

    fn object(&mut self, schema: &Structural) -> TypeId {
        let mut fields: BTreeMap<Box<str>, Field> = BTreeMap::new();
        for (name, property) in &schema.properties {
            let shape = self.shape(property);
            fields.insert(name.clone(), field(name, shape, property));
        }
        if schema.is_embedded {
            let text = Structural::default();
            fields.insert("apiVersion".into(), field("apiVersion", Shape::String, &text));
            fields.insert("kind".into(), field("kind", Shape::String, &text));
            fields.insert("metadata".into(), field("metadata", self.metadata.clone(), &text));
        }
        let is_open = schema.keeps_unknown || !matches!(schema.additional, Additional::None);
        self.types.add("", fields.into_values().collect(), schema.is_atomic_map, is_open)
    }
}

fn field(name: &str, shape: Shape, schema: &Structural) -> Field {
    Field {
        name: name.into(),
        shape,
        required: false,
        presence: Presence::Pointer,
        merge: Merge::default(),
        default: schema.default.clone(),
    }
}

/// Copies a built-in type and all it is made of.
fn import(types: &mut Types, id: TypeId, done: &mut BTreeMap<TypeId, TypeId>) -> TypeId {
    if let Some(id) = done.get(&id) {
        return *id;
    }
    let known = builtin().get(id);
    // Reserved before its fields are copied: types may refer to themselves.
    let copy = types.add(&known.name, Vec::new(), known.atomic, known.open);
    done.insert(id, copy);
    let fields = known.fields.iter().map(|field| Field {
        name: field.name.clone(),
        shape: imported(types, &field.shape, done),
        required: field.required,
        presence: field.presence,
        merge: field.merge.clone(),
        default: field.default.clone(),
    });
    let fields = fields.collect();
    types.set_fields(copy, fields);
    copy
}

fn imported(types: &mut Types, shape: &Shape, done: &mut BTreeMap<TypeId, TypeId>) -> Shape {
    match shape {
        Shape::Object(id) => Shape::Object(import(types, *id, done)),
        Shape::Either(id) => Shape::Either(import(types, *id, done)),
        Shape::Map { value, atomic } => {
            Shape::Map { value: Box::new(imported(types, value, done)), atomic: *atomic }
        }
        Shape::List { item, kind } => {
            Shape::List { item: Box::new(imported(types, item, done)), kind: kind.clone() }
        }
        scalar => scalar.clone(),
    }
}
