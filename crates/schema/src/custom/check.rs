//! Whether a schema is structural, in upstream's words.

use api::field::{FieldErrors, Path};
use serde_json::{Value, json};

use super::read;

/// Schemas nest as deep as objects may; deeper ones are refused before anything walks them.
const MAX_DEPTH: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Finds what is wrong with an `openAPIV3Schema`; `at` is its own place in the definition.
pub fn check_schema(schema: &Value, at: &Path, errors: &mut FieldErrors) {
    if depth(schema, 0) > MAX_DEPTH {
        errors.invalid(at, "", format!("must not nest deeper than {MAX_DEPTH} levels"));
        return;
    }
    place(schema, Level::Root, at, errors);
    complete(schema, schema, at, at, errors);
}

fn depth(schema: &Value, so_far: usize) -> usize {
    if so_far > MAX_DEPTH {
        return so_far;
    }
    schemas_below(schema).map(|below| depth(below, so_far + 1)).max().unwrap_or(so_far)
}

fn schemas_below(schema: &Value) -> impl Iterator<Item = &Value> {
    let single = ["items", "additionalProperties", "not"].into_iter().filter_map(|name| schema.get(name));
    let lists = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|name| schema[name].as_array()).flatten();
    let properties = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::values);
    single.chain(lists).chain(properties).filter(|below| below.is_object())
}

fn is_set(schema: &Value, name: &str) -> bool {
    schema[name] == Value::Bool(true)
}

fn place(schema: &Value, level: Level, at: &Path, errors: &mut FieldErrors) {
    let kind = schema["type"].as_str().unwrap_or_default();
    check_kind(schema, kind, level, at, errors);
    check_extensions(schema, kind, level, at, errors);
    check_lists(schema, kind, at, errors);
    if kind == "array" && !schema["items"].is_object() {
        errors.required(&at.child("items"), "must be specified");
    }
    if schema["items"].is_object() {
        place(&schema["items"], Level::Item, &at.child("items"), errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let at = at.child("properties").key(name);
        if level == Level::Root && name == "metadata" {
            check_metadata(property, &at, errors);
        } else {
            place(property, Level::Field, &at, errors);
        }
    }
    let additional = &schema["additionalProperties"];
    if *additional == Value::Bool(false) {
        errors.forbidden(&at.child("additionalProperties"), "additionalProperties cannot be set to false");
    } else if !additional.is_null() {
        let at = at.child("additionalProperties");
        if level == Level::Root {
            errors.forbidden(&at, "must not be used at the root");
        }
        if schema["properties"].as_object().is_some_and(|p| !p.is_empty()) {
            errors.forbidden(&at, "additionalProperties and properties are mutual exclusive");
        }
        if additional.as_object().is_some_and(|a| !a.is_empty()) {
            place(additional, Level::Field, &at, errors);
        }
    }
    check_values(schema, at, errors);
}

fn check_kind(schema: &Value, kind: &str, level: Level, at: &Path, errors: &mut FieldErrors) {
    let at = at.child("type");
    let is_embedded = is_set(schema, "x-kubernetes-embedded-resource");
    let may_be_empty = is_set(schema, "x-kubernetes-int-or-string")
        || is_set(schema, "x-kubernetes-preserve-unknown-fields");
    let known = ["array", "boolean", "integer", "number", "object", "string"];
    match kind {
        "" if is_embedded => errors.required(&at, "must be object if x-kubernetes-embedded-resource is true"),
        "" if may_be_empty => {}
        "" => errors.required(
            &at,
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ),
        kind if !known.contains(&kind) => errors.unsupported(&at, kind, &known),
        "object" => {}
        kind if is_embedded => {
            errors.invalid(&at, kind, "must be object if x-kubernetes-embedded-resource is true");
        }
        kind if level == Level::Root => errors.invalid(&at, kind, "must be object at the root"),
        _ => {}
    }
    if is_set(schema, "x-kubernetes-int-or-string") && !kind.is_empty() {
        errors.invalid(&at, kind, "must be empty if x-kubernetes-int-or-string is true");
    }
}

fn check_extensions(schema: &Value, _kind: &str, level: Level, at: &Path, errors: &mut FieldErrors) {
    let is_embedded = is_set(schema, "x-kubernetes-embedded-resource");
    let is_open = is_set(schema, "x-kubernetes-preserve-unknown-fields");
    if is_set(schema, "x-kubernetes-int-or-string") {
        for name in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if is_set(schema, name) {
                errors.invalid(&at.child(name), true, "must be false if x-kubernetes-int-or-string is true");
            }
        }
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == Value::Bool(false) {
        errors.invalid(&at.child("x-kubernetes-preserve-unknown-fields"), false, "must be true or undefined");
    }
    if is_embedded && !schema["additionalProperties"].is_null() {
        let what = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&at.child("additionalProperties"), what);
    }
    let has_properties = schema["properties"].as_object().is_some_and(|p| !p.is_empty());
    if is_embedded && !is_open && !has_properties {
        let what = "must not be empty if x-kubernetes-embedded-resource is true \
                    without x-kubernetes-preserve-unknown-fields";
        errors.required(&at.child("properties"), what);
    }
    if level == Level::Root || is_embedded {
        for name in ["apiVersion", "kind"] {
            let property = &schema["properties"][name];
            let kind = property["type"].as_str().unwrap_or_default();
            if !property.is_null() && kind != "string" {
                errors.invalid(&at.child("properties").key(name).child("type"), kind, "must be string");
            }
        }
    }
    for (name, why) in [
        ("$ref", "$ref is not supported"),
        ("definitions", "definitions is not supported"),
        ("dependencies", "dependencies is not supported"),
        ("id", "id is not supported"),
        ("patternProperties", "patternProperties is not supported"),
        ("additionalItems", "additionalItems is not supported"),
    ] {
        if !schema[name].is_null() {
            errors.forbidden(&at.child(name), why);
        }
    }
    if is_set(schema, "uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&at.child("uniqueItems"), why);
    }
}

/// The root's metadata is a type of its own; a schema may only ask something of the name.
fn check_metadata(schema: &Value, at: &Path, errors: &mut FieldErrors) {
    if schema["type"] != "object" {
        errors.invalid(&at.child("type"), schema["type"].as_str().unwrap_or_default(), "must be object");
    }
    let mut properties = schema["properties"].as_object().into_iter().flat_map(serde_json::Map::keys);
    let allowed = ["type", "properties", "description"];
    let mut keys = schema.as_object().into_iter().flat_map(serde_json::Map::keys);
    if properties.any(|name| !["name", "generateName"].contains(&name.as_str()))
        || keys.any(|key| !allowed.contains(&key.as_str()))
    {
        let what = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbidden(at, what);
    }
}

fn check_lists(schema: &Value, kind: &str, at: &Path, errors: &mut FieldErrors) {
    let list_type = schema["x-kubernetes-list-type"].as_str().unwrap_or_default();
    let list_at = at.child("x-kubernetes-list-type");
    let keys_at = at.child("x-kubernetes-list-map-keys");
    let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if !list_type.is_empty() {
        if kind != "array" {
            errors.invalid(&at.child("type"), kind, "must be array if x-kubernetes-list-type is specified");
        }
        if !["atomic", "set", "map"].contains(&list_type) {
            errors.unsupported(&list_at, list_type, &["atomic", "set", "map"]);
        }
    }
    if list_type != "map" && !keys.is_empty() {
        errors.forbidden(&keys_at, "must not be specified if x-kubernetes-list-type is not map");
    }
    if list_type == "map" {
        if keys.is_empty() {
            errors.required(&keys_at, "must not be empty if x-kubernetes-list-type is map");
        }
        let items = &schema["items"];
        if items["type"] != "object" {
            let kind = items["type"].as_str().unwrap_or_default();
            let what = "must be object if parent array's x-kubernetes-list-type is map";
            errors.invalid(&at.child("items").child("type"), kind, what);
        }
        let required = items["required"].as_array().cloned().unwrap_or_default();
        for (i, key) in keys.iter().enumerate() {
            let property = &items["properties"][*key];
            if property.is_null() {
                let what = "entries must all be names of item properties";
                errors.invalid(&keys_at.index(i), *key, what);
                continue;
            }
            if ["object", "array"].contains(&property["type"].as_str().unwrap_or_default()) {
                let at = at.child("items").child("properties").key(key).child("type");
                let what = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                errors.invalid(&at, property["type"].as_str().unwrap_or_default(), what);
            }
            if property["default"].is_null() && !required.iter().any(|r| r == key) {
                let at = at.child("items").child("properties").key(key).child("default");
                let what = "this property is in x-kubernetes-list-map-keys, so it must have a default \
                            or be a required property";
                errors.required(&at, what);
            }
        }
    }
    let map_type = schema["x-kubernetes-map-type"].as_str().unwrap_or_default();
    if !map_type.is_empty() {
        let map_at = at.child("x-kubernetes-map-type");
        if kind != "object" {
            errors.invalid(&at.child("type"), kind, "must be object if x-kubernetes-map-type is specified");
        }
        if !["atomic", "granular"].contains(&map_type) {
            errors.unsupported(&map_at, map_type, &["atomic", "granular"]);
        }
    }
}

/// Patterns, and what stands under the composites.
fn check_values(schema: &Value, at: &Path, errors: &mut FieldErrors) {
    if let Some(text) = schema["pattern"].as_str().filter(|text| !text.is_empty())
        && let Err(why) = read::pattern(text)
    {
        let what = format!("must be a valid regular expression, but isn't: {why}");
        errors.invalid(&at.child("pattern"), text, what);
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let is_either = is_set(schema, "x-kubernetes-int-or-string");
    for name in ["anyOf", "allOf", "oneOf"] {
        for (i, nested) in schema[name].as_array().into_iter().flatten().enumerate() {
            // The two usual ways to write an integer or a string.
            if is_either && name == "anyOf" && schema["anyOf"] == either {
                continue;
            }
            let skips = is_either && name == "allOf" && i == 0 && nested["anyOf"] == either;
            check_nested(nested, skips, &at.child(name).index(i), errors);
        }
    }
    if schema["not"].is_object() {
        check_nested(&schema["not"], false, &at.child("not"), errors);
    }
}

/// Below a composite nothing is said about types, only about values.
fn check_nested(schema: &Value, skips_any_of: bool, at: &Path, errors: &mut FieldErrors) {
    const FORBIDDEN: &[(&str, &str)] = &[
        ("type", "must be empty to be structural"),
        ("additionalProperties", "must be undefined to be structural"),
        ("default", "must be undefined to be structural"),
        ("title", "must be empty to be structural"),
        ("description", "must be empty to be structural"),
        ("nullable", "must be false to be structural"),
        ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
        ("x-kubernetes-embedded-resource", "must be false to be structural"),
        ("x-kubernetes-int-or-string", "must be false to be structural"),
        ("x-kubernetes-list-map-keys", "must be empty to be structural"),
        ("x-kubernetes-list-type", "must be undefined to be structural"),
        ("x-kubernetes-map-type", "must be undefined to be structural"),
    ];
    for (name, why) in FORBIDDEN {
        if !schema[*name].is_null() && schema[*name] != Value::Bool(false) {
            errors.forbidden(&at.child(name), why);
        }
    }
    if !skips_any_of {
        check_values(schema, at, errors);
    }
    if schema["items"].is_object() {
        check_nested(&schema["items"], false, &at.child("items"), errors);
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let at = at.child("properties").key(name);
        if name == "metadata" {
            errors.forbidden(&at, "must not be specified in a nested context");
        }
        check_nested(property, false, &at, errors);
    }
}

/// What a composite speaks of must be specified outside of it too.
fn complete(values: &Value, schema: &Value, schema_at: &Path, values_at: &Path, errors: &mut FieldErrors) {
    let mut nested = |inner: &Value, inner_at: Path| {
        complete(inner, schema, schema_at, &inner_at, errors);
        complete_below(inner, schema, schema_at, &inner_at, errors);
    };
    for name in ["allOf", "anyOf", "oneOf"] {
        for (i, inner) in values[name].as_array().into_iter().flatten().enumerate() {
            nested(inner, values_at.child(name).index(i));
        }
    }
    if values["not"].is_object() {
        nested(&values["not"], values_at.child("not"));
    }
}

fn complete_below(
    values: &Value,
    schema: &Value,
    schema_at: &Path,
    values_at: &Path,
    errors: &mut FieldErrors,
) {
    let mut both = |inner: &Value, known: &Value, known_at: Path, inner_at: Path| {
        if known.is_null() {
            errors.required(&known_at, &format!("because it is defined in {inner_at}"));
            return;
        }
        complete(inner, known, &known_at, &inner_at, errors);
        complete_below(inner, known, &known_at, &inner_at, errors);
    };
    if values["items"].is_object() {
        both(&values["items"], &schema["items"], schema_at.child("items"), values_at.child("items"));
    }
    for (name, inner) in values["properties"].as_object().into_iter().flatten() {
        let (known_at, inner_at) =
            (schema_at.child("properties").key(name), values_at.child("properties").key(name));
        both(inner, &schema["properties"][name.as_str()], known_at, inner_at);
    }
}
