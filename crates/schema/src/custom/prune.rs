//! What a schema does not know goes; what it defaults comes.

use serde_json::{Map, Value};

use super::shape::OBJECT_META;
use super::{Additional, Structural};
use crate::decode::{self, Crumb, Misfit, Step, complain};
use crate::types::At;

/// Kept in every resource, and checked elsewhere.
const META: &[&str] = &["apiVersion", "kind", "metadata"];

/// Drops what the schema does not know, and complains of it. The metadata of the root is not looked at: its owner has it in
/// its form.
pub(super) fn prune(
    object: &mut Value,
    schema: &Structural,
    complaints: &mut Vec<String>,
) -> Result<(), Misfit> {
    let mut told = Told { complaints, misfit: None };
    place(object, Some(schema), None, &mut told);
    told.misfit.map_or(Ok(()), Err)
}

/// What a walk found.
struct Told<'c> {
    complaints: &'c mut Vec<String>,
    /// The first metadata of an embedded resource that is none.
    misfit: Option<Misfit>,
}

fn place(value: &mut Value, schema: Option<&Structural>, at: Option<&Crumb<'_>>, told: &mut Told<'_>) {
    match value {
        Value::Object(map) => object(map, schema, at, told),
        Value::Array(list) => {
            for (i, item) in list.iter_mut().enumerate() {
                let crumb = Crumb { parent: at, step: Step::Index(i) };
                match schema {
                    // An open list is open for its items too, unless they say otherwise.
                    Some(open) if open.keeps_unknown && open.items.is_none() => {}
                    _ => place(item, schema.and_then(|s| s.items.as_deref()), Some(&crumb), told),
                }
            }
        }
        _ => {}
    }
}

fn object(
    map: &mut Map<String, Value>,
    schema: Option<&Structural>,
    at: Option<&Crumb<'_>>,
    told: &mut Told<'_>,
) {
    map.retain(|key, value| {
        let crumb = Crumb { parent: at, step: Step::Key(key) };
        let Some(schema) = schema else {
            complain(told.complaints, "unknown", &crumb);
            return false;
        };
        if schema.is_embedded && META.contains(&key.as_str()) {
            if at.is_some() && key == "metadata" && !value.is_null() {
                metadata(value, &crumb, told);
            }
            return true;
        }
        match (schema.child(key), &schema.additional) {
            (Some(child), _) => place(value, Some(child), Some(&crumb), told),
            (None, Additional::Any) => {}
            (None, _) if schema.keeps_unknown => {}
            (None, _) => {
                complain(told.complaints, "unknown", &crumb);
                return false;
            }
        }
        true
    });
}

/// An embedded resource's metadata is of the type every object's is, whatever the schema says of it.
fn metadata(value: &mut Value, at: &Crumb<'_>, told: &mut Told<'_>) {
    let Some(form) = At::named(OBJECT_META) else { return };
    match decode::conform(value, form) {
        Ok(within) => {
            let below = format!("field \"{at}.");
            told.complaints.extend(within.iter().map(|c| c.replacen("field \"", &below, 1)));
        }
        Err(misfit) => {
            told.misfit.get_or_insert(misfit);
        }
    }
}

/// A null where the schema allows none and has nothing to put there is an absent field.
pub(super) fn drop_nulls(value: &mut Value, schema: Option<&Structural>) {
    match value {
        Value::Object(map) => map.retain(|key, value| {
            let child = schema.and_then(|schema| schema.child(key));
            if value.is_null() {
                return child.is_none_or(|child| child.is_nullable || child.default.is_some());
            }
            drop_nulls(value, child);
            true
        }),
        Value::Array(list) => {
            let items = schema.and_then(|schema| schema.items.as_deref());
            list.iter_mut().for_each(|item| drop_nulls(item, items));
        }
        _ => {}
    }
}

/// Bytes that defaults may add to one object. A short list of empty items would else become as large as its author likes.
/// What is beyond is left out: such an object is too large to be stored.
pub(super) const MAX_DEFAULTED: usize = 4 << 20;

/// Fills in what is missing, as long as there is room for it.
pub(super) fn set_defaults(value: &mut Value, schema: &Structural, room: &mut usize) {
    match value {
        Value::Object(map) => {
            for (key, property) in &schema.properties {
                let is_missing = match map.get(&**key) {
                    Some(value) => value.is_null() && !property.is_nullable,
                    None => true,
                };
                if let (true, Some(default)) = (is_missing, &property.default) {
                    if !take(room, key.len() + size(default)) {
                        return;
                    }
                    map.insert(key.to_string(), default.clone());
                }
            }
            for (key, value) in map.iter_mut() {
                let Some(child) = schema.child(key) else { continue };
                replace_null(value, child, room);
                set_defaults(value, child, room);
            }
        }
        Value::Array(list) => {
            let Some(items) = &schema.items else { return };
            for item in list {
                replace_null(item, items, room);
                set_defaults(item, items, room);
            }
        }
        _ => {}
    }
}

fn take(room: &mut usize, bytes: usize) -> bool {
    *room = room.saturating_sub(bytes);
    *room > 0
}

/// About as many bytes as it takes.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 4,
        Value::Array(list) => list.iter().map(size).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + 4 + size(value)).sum::<usize>() + 2,
        _ => 8,
    }
}

fn replace_null(value: &mut Value, schema: &Structural, room: &mut usize) {
    if let (true, false, Some(default)) = (value.is_null(), schema.is_nullable, &schema.default)
        && take(room, size(default))
    {
        *value = default.clone();
    }
}
