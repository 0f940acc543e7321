//! A configuration document against the table of its fields: types, unknown names, defaults.

use std::collections::BTreeSet;

use base::duration::GoDuration;
use base::quantity::Quantity;
use serde_json::{Map, Value};

use super::FieldError;

/// What JSON a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    Bool,
    Int32,
    Int64,
    Uint32,
    Float,
    Text,
    Duration,
    /// A duration, or a bare number of nanoseconds.
    DurationOrNanos,
    Quantity,
    TextList,
    Int32List,
    TextMap,
    BoolMap,
    TextListMap,
    /// A list of objects, checked when it is decoded into its type.
    ObjectList,
}

/// What a field holds when nobody sets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// Nothing: the type's zero, or none.
    Absent,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'static str),
    List(&'static [&'static str]),
}

/// Whether an explicit zero differs from silence. Upstream's plain fields cannot tell the two
/// apart, so `port: 0` means the default port; its pointer fields can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Plain,
    Pointer,
}

/// Whether this build acts on a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Honoured,
    NotYet,
    /// Acts on it, but not in every way it should; the text says in which.
    InPart(&'static str),
    /// Has no effect upstream either.
    Inert,
}

/// One leaf of a configuration kind.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub path: &'static str,
    pub kind: FieldType,
    pub default: Default,
    pub shape: Shape,
    pub standing: Standing,
}

/// What checking a document found. The document itself is only read.
#[derive(Debug, Default)]
pub struct Findings {
    /// Leaves the author set, by table path. A plain zero sets nothing, nor does the default: programs write both for
    /// what they leave alone.
    pub set: BTreeSet<&'static str>,
    pub unknown: Vec<String>,
    pub errors: Vec<FieldError>,
}

/// Walks a document: every leaf must be in the table and hold its kind.
pub fn check(table: &'static [Field], doc: &Map<String, Value>) -> Findings {
    let mut findings = Findings::default();
    walk(table, doc, "", &mut findings);
    findings
}

/// Fills what is unset from the table.
pub fn fill_defaults(table: &[Field], doc: &mut Map<String, Value>) {
    for field in table {
        if let Some(value) = field.default.value()
            && field.is_unset(get(doc, field.path))
        {
            set(doc, field.path, value);
        }
    }
}

/// Gives every field that is not there its type's zero, so that the document can be decoded.
pub fn fill_zeros(table: &[Field], doc: &mut Map<String, Value>) {
    for field in table {
        if get(doc, field.path).is_none_or(Value::is_null) {
            set(doc, field.path, field.zero());
        }
    }
}

/// Removes what upstream's encoder omits: plain fields holding their zero.
pub fn omit_zeros(table: &[Field], doc: &mut Map<String, Value>) {
    for field in table {
        let Some(value) = get(doc, field.path) else {
            continue;
        };
        let duration = matches!(field.kind, FieldType::Duration | FieldType::DurationOrNanos);
        let plain = field.shape == Shape::Plain && !duration && is_zero(value);
        if value.is_null() || plain {
            remove(doc, field.path);
        }
    }
}

/// RFC 7386: objects merge by key, null removes, everything else replaces.
pub fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    if let Value::Object(target) = target {
        for (key, value) in patch {
            if value.is_null() {
                target.remove(key);
            } else {
                merge_patch(target.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }
}

/// The value at a dotted path.
pub fn get<'d>(doc: &'d Map<String, Value>, path: &str) -> Option<&'d Value> {
    match path.split_once('.') {
        None => doc.get(path),
        Some((head, rest)) => get(doc.get(head)?.as_object()?, rest),
    }
}

/// Puts a value at a dotted path, making the objects on the way.
pub fn set(doc: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            doc.insert(path.to_owned(), value);
        }
        Some((head, rest)) => {
            let child = doc.entry(head.to_owned()).or_insert(Value::Null);
            if !child.is_object() {
                *child = Value::Object(Map::new());
            }
            if let Value::Object(child) = child {
                set(child, rest, value);
            }
        }
    }
}

/// Takes the value at a dotted path away.
pub fn remove(doc: &mut Map<String, Value>, path: &str) {
    match path.split_once('.') {
        None => {
            doc.remove(path);
        }
        Some((head, rest)) => {
            if let Some(Value::Object(child)) = doc.get_mut(head) {
                remove(child, rest);
            }
        }
    }
}

fn walk(table: &'static [Field], doc: &Map<String, Value>, prefix: &str, out: &mut Findings) {
    for (key, value) in doc {
        let path = format!("{prefix}{key}");
        if let Some(field) = table.iter().find(|f| f.path == path) {
            if value.is_null() {
                continue;
            }
            if !field.is_unset(Some(value)) && field.default.value().as_ref() != Some(value) {
                out.set.insert(field.path);
            }
            field.kind.check(&path, value, &mut out.errors);
            continue;
        }
        let below = format!("{path}.");
        if !table.iter().any(|f| f.path.starts_with(&below)) {
            out.unknown.push(path);
            continue;
        }
        match value {
            Value::Object(child) => walk(table, child, &below, out),
            Value::Null => {}
            other => out.errors.push(wrong_type(&path, "an object", other)),
        }
    }
}

// === impl Field ===

impl Field {
    /// What the typed field holds when the document is silent and there is no default.
    pub fn zero(&self) -> Value {
        match self.kind {
            _ if self.shape == Shape::Pointer => Value::Null,
            FieldType::Bool => Value::Bool(false),
            FieldType::Int32 | FieldType::Int64 | FieldType::Uint32 => Value::from(0),
            FieldType::Float => Value::from(0.0),
            FieldType::Text => Value::from(""),
            FieldType::Duration | FieldType::DurationOrNanos => Value::from("0s"),
            FieldType::Quantity => Value::from("0"),
            FieldType::TextList | FieldType::Int32List | FieldType::ObjectList => Value::Array(Vec::new()),
            FieldType::TextMap | FieldType::BoolMap | FieldType::TextListMap => Value::Object(Map::new()),
        }
    }

    pub fn is_unset(&self, value: Option<&Value>) -> bool {
        match value {
            None | Some(Value::Null) => true,
            Some(v) => self.shape == Shape::Plain && is_zero(v),
        }
    }
}

/// Zero as Go's encoder sees it; a zero duration is spelled "0s", or "0", or "0h".
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty() || s.parse() == Ok(GoDuration::ZERO),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

// === impl Default ===

impl Default {
    pub fn value(self) -> Option<Value> {
        Some(match self {
            Self::Absent => return None,
            Self::Bool(b) => Value::from(b),
            Self::Int(i) => Value::from(i),
            Self::Float(f) => Value::from(f),
            Self::Text(s) => Value::from(s),
            Self::List(items) => Value::from(items),
        })
    }
}

// === impl FieldType ===

impl FieldType {
    /// Reports the first place where a value is not of this kind.
    fn check(self, path: &str, value: &Value, errors: &mut Vec<FieldError>) {
        let result = match self {
            Self::Bool => expect(value.is_boolean(), path, "a boolean", value),
            Self::Int32 => integer(path, value, i32::MIN.into(), i32::MAX.into()),
            Self::Int64 => integer(path, value, i64::MIN, i64::MAX),
            Self::Uint32 => integer(path, value, 0, u32::MAX.into()),
            Self::Float => expect(value.is_number(), path, "a number", value),
            Self::Text => expect(value.is_string(), path, "a string", value),
            Self::Duration => parsed::<GoDuration>(path, value, "a duration such as \"1m30s\""),
            Self::DurationOrNanos if value.is_i64() => Ok(()),
            Self::DurationOrNanos => parsed::<GoDuration>(path, value, "a duration"),
            Self::Quantity if value.is_number() => Ok(()),
            Self::Quantity => parsed::<Quantity>(path, value, "a quantity such as \"10Mi\""),
            Self::TextList => list(path, value, Self::Text, errors),
            Self::Int32List => list(path, value, Self::Int32, errors),
            Self::TextMap => map(path, value, Self::Text, errors),
            Self::BoolMap => map(path, value, Self::Bool, errors),
            Self::TextListMap => map(path, value, Self::TextList, errors),
            Self::ObjectList => expect(value.is_array(), path, "a list", value),
        };
        errors.extend(result.err());
    }
}

fn expect(ok: bool, path: &str, what: &str, value: &Value) -> Result<(), FieldError> {
    if ok { Ok(()) } else { Err(wrong_type(path, what, value)) }
}

fn integer(path: &str, value: &Value, min: i64, max: i64) -> Result<(), FieldError> {
    match value {
        Value::Number(n) if n.as_i64().is_some_and(|n| (min..=max).contains(&n)) => Ok(()),
        Value::Number(n) => {
            let text = format!("{n} is not an integer between {min} and {max}");
            Err(FieldError::new(path, text))
        }
        other => Err(wrong_type(path, "an integer", other)),
    }
}

fn parsed<T>(path: &str, value: &Value, what: &str) -> Result<(), FieldError>
where
    T: std::str::FromStr<Err: ToString>,
{
    match value {
        Value::String(text) => match text.parse::<T>() {
            Ok(_) => Ok(()),
            Err(e) => Err(FieldError::new(path, e.to_string())),
        },
        other => Err(wrong_type(path, what, other)),
    }
}

fn list(path: &str, value: &Value, item: FieldType, errors: &mut Vec<FieldError>) -> Result<(), FieldError> {
    let Value::Array(items) = value else {
        return Err(wrong_type(path, "a list", value));
    };
    for (i, child) in items.iter().enumerate() {
        item.check(&format!("{path}[{i}]"), child, errors);
    }
    Ok(())
}

fn map(path: &str, value: &Value, item: FieldType, errors: &mut Vec<FieldError>) -> Result<(), FieldError> {
    let Value::Object(entries) = value else {
        return Err(wrong_type(path, "an object", value));
    };
    // A null entry removes the key in a drop-in and is nothing in a file.
    for (key, child) in entries.iter().filter(|(_, v)| !v.is_null()) {
        item.check(&format!("{path}[{key}]"), child, errors);
    }
    Ok(())
}

/// Names the kind of what was found, not its text: a header or a password may sit there.
fn wrong_type(path: &str, what: &str, found: &Value) -> FieldError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    FieldError::new(path, format!("expected {what}, found {found}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patched(target: Value, patch: Value) -> Value {
        let mut target = target;
        merge_patch(&mut target, &patch);
        target
    }

    /// The examples of RFC 7386, appendix A.
    #[test]
    fn merge_patch_follows_the_rfc() {
        let rows = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (target, patch, want) in rows {
            assert_eq!(patched(target.clone(), patch.clone()), want, "{target} + {patch}");
        }
    }

    #[test]
    fn paths_reach_into_objects() {
        let mut doc = Map::new();
        set(&mut doc, "a.b.c", json!(1));
        set(&mut doc, "a.d", json!(2));
        assert_eq!(Value::Object(doc.clone()), json!({"a": {"b": {"c": 1}, "d": 2}}));
        assert_eq!(get(&doc, "a.b.c"), Some(&json!(1)));
        assert_eq!(get(&doc, "a.x.c"), None);
    }
}
