//! An object against its schema, in the words of upstream's validator.

use std::collections::{BTreeMap, BTreeSet};

use api::field::{FieldErrors, Path};
use serde_json::{Map, Value};

use super::{Checks, Structural, format};

/// Where composite schemas put their mistakes.
const NOWHERE: &str = "<nil>";

/// `old` is what the object replaces. What stands there unchanged may stay, whatever a newer schema says of it: else nobody
/// could change anything of an object that was good when it was written.
pub(super) fn validate(object: &Value, old: Option<&Value>, schema: &Structural, errors: &mut FieldErrors) {
    place(object, old, schema, "", errors);
}

fn place(value: &Value, old: Option<&Value>, schema: &Structural, at: &str, errors: &mut FieldErrors) {
    if old == Some(value) {
        return;
    }
    if value.is_null() {
        if !schema.is_nullable && !schema.kind.is_empty() {
            wrong_type(value, &schema.kind, at, errors);
        }
        return;
    }
    if !fits(value, schema) {
        let wanted = if schema.is_int_or_string { "integer,string" } else { &schema.kind };
        wrong_type(value, wanted, at, errors);
        return;
    }
    if let Some(checks) = &schema.checks {
        check(value, checks, &schema.kind, at, errors);
    }
    match value {
        Value::Object(map) => object(map, old, schema, at, errors),
        Value::Array(list) => items(list, old.and_then(Value::as_array), schema, at, errors),
        _ => {}
    }
}

fn object(
    map: &Map<String, Value>,
    old: Option<&Value>,
    schema: &Structural,
    at: &str,
    errors: &mut FieldErrors,
) {
    if schema.is_embedded && !at.is_empty() {
        for name in ["apiVersion", "kind"] {
            if map.get(name).and_then(Value::as_str).is_none_or(str::is_empty) {
                errors.required(&Path::new(&below(at, name)), "");
            }
        }
    }
    for (key, value) in map {
        let old = old.and_then(|old| old.get(key));
        if schema.is_embedded && key == "metadata" {
            // Its form is checked by its type; a schema may ask more of the name.
            if let Some(metadata) = schema.properties.get("metadata") {
                place(value, old, metadata, &below(at, key), errors);
            }
            continue;
        }
        if let Some(child) = schema.child(key) {
            place(value, old, child, &below(at, key), errors);
        }
    }
}

fn items(list: &[Value], old: Option<&Vec<Value>>, schema: &Structural, at: &str, errors: &mut FieldErrors) {
    let key_of = |item: &Value| key(item, schema);
    if let Some(items) = &schema.items {
        let before = by_key(old.filter(|_| &*schema.list_type == "map"), key_of);
        for (i, item) in list.iter().enumerate() {
            let key = if before.is_empty() { None } else { key_of(item) };
            let old = key.and_then(|key| *before.get(&key.to_string())?);
            place(item, old, items, &format!("{at}[{i}]"), errors);
        }
    }
    if old.is_some_and(|old| !repeated(old, key_of).is_empty()) {
        return;
    }
    for (i, key) in repeated(list, key_of) {
        errors.duplicate(&Path::new(&format!("{at}[{i}]")), key);
    }
}

/// Items by their keys. Only a key says which item was which; one among equals says it of neither.
fn by_key(
    list: Option<&Vec<Value>>,
    key_of: impl Fn(&Value) -> Option<Value>,
) -> BTreeMap<String, Option<&Value>> {
    let mut found = BTreeMap::new();
    for item in list.into_iter().flatten() {
        if let Some(key) = key_of(item) {
            found.entry(key.to_string()).and_modify(|one| *one = None).or_insert(Some(item));
        }
    }
    found
}

/// Items whose key an earlier one has.
fn repeated(list: &[Value], key_of: impl Fn(&Value) -> Option<Value>) -> Vec<(usize, Value)> {
    let mut seen = BTreeSet::new();
    let keys = list.iter().enumerate().filter_map(|(i, item)| Some((i, key_of(item)?)));
    keys.filter(|(_, key)| !seen.insert(key.to_string())).collect()
}

/// What tells an item of a set or a map from the others.
fn key(item: &Value, schema: &Structural) -> Option<Value> {
    match &*schema.list_type {
        "set" => Some(item.clone()),
        "map" => {
            let default = |key: &str| schema.items.as_ref()?.properties.get(key)?.default.clone();
            let keys = schema.list_keys.iter();
            let members = keys.filter_map(|key| {
                Some((key.to_string(), item.get(&**key).cloned().or_else(|| default(key))?))
            });
            Some(members.collect())
        }
        _ => None,
    }
}

fn below(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

fn fits(value: &Value, schema: &Structural) -> bool {
    if schema.is_int_or_string {
        return value.is_string() || is_integer(value);
    }
    match &*schema.kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => is_integer(value),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        _ => true,
    }
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn wrong_type(value: &Value, wanted: &str, at: &str, errors: &mut FieldErrors) {
    let given = kind_of(value);
    errors.invalid(&Path::new(at), given, format!("{at} in body must be of type {wanted}: {given:?}"));
}

fn check(value: &Value, checks: &Checks, kind: &str, at: &str, errors: &mut FieldErrors) {
    let path = Path::new(at);
    if !checks.allowed.is_empty() && !checks.allowed.contains(value) {
        let shown = |value: &Value| value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let allowed: Vec<String> = checks.allowed.iter().map(shown).collect();
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        errors.unsupported(&path, &shown(value), &allowed);
    }
    match value {
        Value::String(text) => check_text(text, checks, kind, at, errors),
        Value::Number(number) => check_number(number.as_f64().unwrap_or_default(), value, checks, at, errors),
        Value::Array(list) => check_list(list, checks, at, errors),
        Value::Object(map) => check_object(map, checks, at, errors),
        _ => {}
    }
    check_composites(value, checks, at, errors);
}

fn check_text(text: &str, checks: &Checks, kind: &str, at: &str, errors: &mut FieldErrors) {
    let path = Path::new(at);
    let length = text.chars().count();
    if let Some(max) = checks.max_length.filter(|max| length > *max) {
        errors.too_long(&path, max);
    }
    if let Some(min) = checks.min_length.filter(|min| length < *min) {
        errors.invalid(&path, text, format!("{at} in body should be at least {min} chars long"));
    }
    if let Some((pattern, _)) = checks.pattern.as_ref().filter(|(_, regex)| !regex.is_match(text)) {
        errors.invalid(&path, text, format!("{at} in body should match '{pattern}'"));
    }
    let is_text = kind.is_empty() || kind == "string";
    if is_text && !format::is(&checks.format, text) {
        errors.invalid(&path, text, format!("{at} in body must be of type {}: {text:?}", checks.format));
    }
}

fn check_number(number: f64, value: &Value, checks: &Checks, at: &str, errors: &mut FieldErrors) {
    let mut wrong = |what: &str, bound: f64| {
        errors.invalid(&Path::new(at), value.clone(), format!("{at} in body should be {what} {bound}"));
    };
    if let Some(max) = checks.maximum {
        if checks.is_maximum_exclusive && number >= max {
            wrong("less than", max);
        } else if number > max {
            wrong("less than or equal to", max);
        }
    }
    if let Some(min) = checks.minimum {
        if checks.is_minimum_exclusive && number <= min {
            wrong("greater than", min);
        } else if number < min {
            wrong("greater than or equal to", min);
        }
    }
    if let Some(factor) = checks.multiple_of.filter(|factor| *factor > 0.0) {
        let times = number / factor;
        if (times - times.round()).abs() > 1e-9 * times.abs().max(1.0) {
            wrong("a multiple of", factor);
        }
    }
    let is_32 = &*checks.format == "int32" && !(f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number);
    if is_32 {
        errors.invalid(
            &Path::new(at),
            value.clone(),
            format!("{at} in body must be of type int32: \"integer\""),
        );
    }
}

fn check_list(list: &[Value], checks: &Checks, at: &str, errors: &mut FieldErrors) {
    let path = Path::new(at);
    if let Some(max) = checks.max_items.filter(|max| list.len() > *max) {
        errors.too_many(&path, list.len(), max);
    }
    if let Some(min) = checks.min_items.filter(|min| list.len() < *min) {
        errors.invalid(&path, list.len(), format!("{at} in body should have at least {min} items"));
    }
    if checks.is_unique {
        let mut seen = BTreeSet::new();
        if !list.iter().all(|item| seen.insert(item.to_string())) {
            errors.invalid(&path, "", format!("{at} in body shouldn't contain duplicates"));
        }
    }
}

fn check_object(map: &Map<String, Value>, checks: &Checks, at: &str, errors: &mut FieldErrors) {
    for name in checks.required.iter().filter(|name| !map.contains_key(&***name)) {
        errors.required(&Path::new(&below(at, name)), "");
    }
    let path = Path::new(at);
    if let Some(max) = checks.max_properties.filter(|max| map.len() > *max) {
        errors.too_many(&path, map.len(), max);
    }
    if let Some(min) = checks.min_properties.filter(|min| map.len() < *min) {
        errors.invalid(&path, map.len(), format!("{at} in body should have at least {min} properties"));
    }
}

fn check_composites(value: &Value, checks: &Checks, at: &str, errors: &mut FieldErrors) {
    let mistakes = |schema: &Structural| {
        let mut found = FieldErrors::default();
        place(value, None, schema, at, &mut found);
        found
    };
    let passes = |schema: &&Structural| mistakes(schema).is_empty();
    let nowhere = Path::new(NOWHERE);
    for schema in &checks.all_of {
        let found = mistakes(schema);
        if !found.is_empty() {
            errors.extend(found);
            errors.invalid(&nowhere, "", format!("{at:?} must validate all the schemas (allOf)"));
        }
    }
    if let Some(first) = checks.any_of.first()
        && !checks.any_of.iter().any(|schema| passes(&schema))
    {
        errors.invalid(&nowhere, "", format!("{at:?} must validate at least one schema (anyOf)"));
        errors.extend(mistakes(first));
    }
    if !checks.one_of.is_empty() {
        let count = checks.one_of.iter().filter(passes).count();
        if count != 1 {
            let found =
                if count == 0 { "none valid".to_owned() } else { format!("{count} valid alternatives") };
            let what = format!("{at:?} must validate one and only one schema (oneOf). Found {found}");
            errors.invalid(&nowhere, "", what);
            if let (0, Some(first)) = (count, checks.one_of.first()) {
                errors.extend(mistakes(first));
            }
        }
    }
    if checks.not.as_ref().is_some_and(|schema| passes(&schema)) {
        errors.invalid(&nowhere, "", format!("{at:?} must not validate the schema (not)"));
    }
}
