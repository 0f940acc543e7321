//! The protobuf form of objects, which Go clients prefer: from bytes to the same document JSON would give, and back.
//!
//! The message of a type follows from the type itself; only the numbers of its fields are told apart, in
//! `numbers.txt`. A few types have a form of their own: times, quantities, and whatever is either one thing or another.

mod encode;

pub use encode::{Form, LIST_TAIL, encode, list_head, watch_frame, write_item};

use std::collections::HashMap;
use std::sync::OnceLock;

use base::rfc3339::Moment;
use serde_json::{Map, Value};

use crate::decode::MAX_DEPTH;
use crate::types::{At, Shape};

/// How every protobuf body begins.
pub const MAGIC: &[u8] = b"k8s\0";

static NUMBERS: &str = include_str!("../numbers.txt");

/// An object and what it says it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub api_version: String,
    pub kind: String,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("the body is not in the protobuf form of an object")]
    NoEnvelope,
    #[error("proto: the message is cut short")]
    Truncated,
    #[error("proto: wrong wire type for field {0:?}")]
    WireType(String),
    #[error("proto: field {0:?} is not valid UTF-8")]
    NotText(String),
    #[error("proto: the message nests too deeply")]
    TooDeep,
    #[error("proto: {0} is not of its type")]
    Misfit(String),
    #[error("no protobuf form is known of {0}")]
    Unknown(String),
}

/// Reads the envelope and the object in it. `at` finds the type of what the envelope names.
pub fn decode<'t>(
    bytes: &[u8],
    at: impl FnOnce(&str, &str) -> Option<At<'t>>,
) -> Result<Decoded, ProtobufError> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoEnvelope)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields(envelope) {
        match field? {
            (1, Wire::Bytes(names)) => {
                for name in Fields(names) {
                    match name? {
                        (1, Wire::Bytes(text)) => api_version = self::text(text, "apiVersion")?,
                        (2, Wire::Bytes(text)) => kind = self::text(text, "kind")?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let at =
        at(&api_version, &kind).ok_or_else(|| ProtobufError::Unknown(format!("{api_version} {kind}")))?;
    let mut value = read_object(raw, at, 0)?;
    if let Value::Object(map) = &mut value {
        map.insert("apiVersion".to_owned(), api_version.as_str().into());
        map.insert("kind".to_owned(), kind.as_str().into());
    }
    Ok(Decoded { api_version, kind, value })
}

/// Whether a type has a protobuf form that is known.
#[must_use]
pub fn is_known(at: At<'_>) -> bool {
    at.object().is_some_and(|t| numbers(&t.name).is_some())
}

fn read_object(bytes: &[u8], at: At<'_>, depth: usize) -> Result<Value, ProtobufError> {
    let unknown = |name: &str| ProtobufError::Unknown(name.to_owned());
    let name = at.object().map(|t| &*t.name).ok_or_else(|| unknown("an untyped object"))?;
    let mut out = Map::new();
    read_fields(bytes, at, numbers(name).ok_or_else(|| unknown(name))?, depth, &mut out)?;
    Ok(Value::Object(out))
}

/// Reads the fields of a message, whose numbers `row` tells, into `out`; their types are those below `at`.
fn read_fields(
    bytes: &[u8],
    at: At<'_>,
    row: &'static str,
    depth: usize,
    out: &mut Map<String, Value>,
) -> Result<(), ProtobufError> {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    for field in Fields(bytes) {
        let (number, wire) = field?;
        // A field of a newer release: passed over, as every protobuf reader does.
        let Some(name) = field_name(row, number) else { continue };
        if let Some(inline) = name.strip_prefix('+') {
            let Wire::Bytes(bytes) = wire else { return Err(ProtobufError::WireType(name.to_owned())) };
            let row = rows().get(inline).ok_or_else(|| ProtobufError::Unknown(inline.to_owned()))?;
            read_fields(bytes, at, row, depth + 1, out)?;
            continue;
        }
        if let Some(name) = name.strip_prefix('~') {
            let mut items = Vec::new();
            for item in Fields(wire.bytes(name)?) {
                items.push(read_value(&item?.1, at.child(name).item(), name, depth + 1)?);
            }
            out.insert(name.to_owned(), Value::Array(items));
            continue;
        }
        let place = at.child(name);
        match place.shape {
            Shape::List { .. } => {
                let item = read_value(&wire, place.item(), name, depth + 1)?;
                let list = out.entry(name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(items) = list {
                    items.push(item);
                }
            }
            Shape::Map { .. } => {
                let (key, value) = read_entry(&wire, place, name, depth + 1)?;
                let map = out.entry(name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key, value);
                }
            }
            _ => {
                let value = read_value(&wire, place, name, depth + 1)?;
                out.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn read_entry(
    wire: &Wire<'_>,
    at: At<'_>,
    name: &str,
    depth: usize,
) -> Result<(String, Value), ProtobufError> {
    let value_at = at.child("");
    let (mut key, mut value) = (String::new(), Value::Null);
    for field in Fields(wire.bytes(name)?) {
        match field? {
            (1, Wire::Bytes(bytes)) => key = text(bytes, name)?,
            // A list cannot be a map's value: a message holds it as its first field.
            (2, wire) if matches!(value_at.shape, Shape::List { .. }) => {
                let mut items = Vec::new();
                for item in Fields(wire.bytes(name)?) {
                    items.push(read_value(&item?.1, value_at.item(), name, depth)?);
                }
                value = Value::Array(items);
            }
            (2, wire) => value = read_value(&wire, value_at, name, depth)?,
            _ => {}
        }
    }
    if value.is_null() {
        value = match value_at.shape {
            Shape::String => "".into(),
            Shape::Object(_) => Value::Object(Map::new()),
            _ => Value::Null,
        };
    }
    Ok((key, value))
}

fn read_value(wire: &Wire<'_>, at: At<'_>, name: &str, depth: usize) -> Result<Value, ProtobufError> {
    let wrong = || ProtobufError::WireType(name.to_owned());
    Ok(match at.shape {
        Shape::String => text(wire.bytes(name)?, name)?.into(),
        Shape::Bytes => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.encode(wire.bytes(name)?).into()
        }
        // Negative numbers are sent as ten bytes of two's complement.
        Shape::Int32 => i64::from(wire.varint(name)? as i32).into(),
        Shape::Int64 => (wire.varint(name)? as i64).into(),
        Shape::Boolean => (wire.varint(name)? != 0).into(),
        Shape::Number => match wire {
            Wire::Fixed64(bits) => number(f64::from_bits(*bits)),
            _ => return Err(wrong()),
        },
        Shape::Quantity => text(first_bytes(wire.bytes(name)?)?, name)?.into(),
        Shape::Time => time(wire.bytes(name)?, false)?,
        Shape::MicroTime => time(wire.bytes(name)?, true)?,
        Shape::IntOrString => int_or_string(wire.bytes(name)?, name)?,
        Shape::Raw | Shape::Any | Shape::FieldSet => {
            let raw = first_bytes(wire.bytes(name)?)?;
            if raw.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(raw).map_err(|_| ProtobufError::NotText(name.to_owned()))?
            }
        }
        Shape::Object(_) => read_object(wire.bytes(name)?, at, depth)?,
        Shape::Either(id) => read_either(wire.bytes(name)?, at.types.at(*id), name, depth)?,
        Shape::Map { .. } | Shape::List { .. } => {
            return Err(ProtobufError::Unknown(name.to_owned()));
        }
    })
}

/// A whole number is written without a fraction, as Go writes it.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9.0e15 { (value as i64).into() } else { value.into() }
}

/// In a JSON schema, where a schema stands or something simpler in its place: the number of the schema, and of the
/// simpler thing, which is a truth value, a list of schemas or a list of names.
fn either_numbers(name: &str) -> Option<(u32, u32)> {
    match name {
        "items" | "dependencies" => Some((1, 2)),
        "additionalProperties" | "additionalItems" => Some((2, 1)),
        _ => None,
    }
}

fn read_either(bytes: &[u8], schema: At<'_>, name: &str, depth: usize) -> Result<Value, ProtobufError> {
    let unknown = || ProtobufError::Unknown(name.to_owned());
    let (whole, simple) = either_numbers(name).ok_or_else(unknown)?;
    let (mut found, mut list, mut allows) = (None, Vec::new(), false);
    for field in Fields(bytes) {
        match field? {
            (n, Wire::Bytes(bytes)) if n == whole => found = Some(read_object(bytes, schema, depth)?),
            (n, Wire::Varint(is)) if n == simple => allows = is != 0,
            (n, Wire::Bytes(bytes)) if n == simple && name == "dependencies" => {
                list.push(text(bytes, name)?.into());
            }
            (n, Wire::Bytes(bytes)) if n == simple => list.push(read_object(bytes, schema, depth)?),
            _ => {}
        }
    }
    Ok(match found {
        Some(schema) => schema,
        None if simple == 1 => allows.into(),
        None => Value::Array(list),
    })
}

/// The first field of a message that only wraps bytes.
fn first_bytes(bytes: &[u8]) -> Result<&[u8], ProtobufError> {
    for field in Fields(bytes) {
        if let (1, Wire::Bytes(bytes)) = field? {
            return Ok(bytes);
        }
    }
    Ok(&[])
}

/// Seconds and nanoseconds; none at all is no time.
fn time(bytes: &[u8], micro: bool) -> Result<Value, ProtobufError> {
    let (mut seconds, mut nanos) = (0, 0);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Varint(n)) => seconds = n as i64,
            (2, Wire::Varint(n)) => nanos = n as i32,
            _ => {}
        }
    }
    if seconds == 0 && nanos == 0 {
        return Ok(Value::Null);
    }
    Ok(rfc3339(seconds, if micro { Some(nanos / 1000) } else { None }).into())
}

/// What no calendar knows comes out as the epoch, and is refused like any odd value later.
fn rfc3339(seconds: i64, micros: Option<i32>) -> String {
    let nanos = u32::try_from(micros.unwrap_or(0)).unwrap_or(0).min(999_999) * 1000;
    let time = Moment { secs: seconds, nanos };
    let time = if time.is_written() { time } else { Moment { secs: 0, nanos } };
    if micros.is_some() { time.to_micros() } else { time.to_seconds() }
}

fn int_or_string(bytes: &[u8], name: &str) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut words) = (false, 0, String::new());
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Varint(kind)) => is_text = kind == 1,
            (2, Wire::Varint(n)) => number = n as i32,
            (3, Wire::Bytes(bytes)) => words = text(bytes, name)?,
            _ => {}
        }
    }
    Ok(if is_text { words.into() } else { number.into() })
}

fn text(bytes: &[u8], name: &str) -> Result<String, ProtobufError> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| ProtobufError::NotText(name.to_owned()))
}

// --- the table of numbers ---

/// Type to its row: `core.v1.Pod` to `metadata spec status`.
fn rows() -> &'static HashMap<&'static str, &'static str> {
    static ROWS: OnceLock<HashMap<&'static str, &'static str>> = OnceLock::new();
    ROWS.get_or_init(|| {
        NUMBERS.lines().filter(|l| !l.starts_with('#')).filter_map(|l| l.split_once(' ')).collect()
    })
}

fn numbers(type_name: &str) -> Option<&'static str> {
    const FROM: [&str; 4] = [
        "io.k8s.api.",
        "io.k8s.apimachinery.pkg.apis.",
        "io.k8s.apiextensions-apiserver.pkg.apis.",
        "io.k8s.kube-aggregator.pkg.apis.",
    ];
    let short = FROM.iter().find_map(|prefix| type_name.strip_prefix(prefix))?;
    rows().get(short).copied()
}

fn field_name(row: &'static str, wanted: u32) -> Option<&'static str> {
    let mut number = 0;
    for word in row.split(' ') {
        match word.strip_prefix('=') {
            Some(next) => number = next.parse::<u32>().ok()? - 1,
            None => {
                number += 1;
                if number == wanted {
                    return Some(word);
                }
            }
        }
    }
    None
}

// --- the wire ---

enum Wire<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'b [u8]),
}

/// The fields of a message, one after the other.
struct Fields<'b>(&'b [u8]);

// === impl Wire ===

impl<'b> Wire<'b> {
    fn bytes(&self, name: &str) -> Result<&'b [u8], ProtobufError> {
        match self {
            Wire::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::WireType(name.to_owned())),
        }
    }

    fn varint(&self, name: &str) -> Result<u64, ProtobufError> {
        match self {
            Wire::Varint(n) => Ok(*n),
            _ => Err(ProtobufError::WireType(name.to_owned())),
        }
    }
}

// === impl Fields ===

impl<'b> Fields<'b> {
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let mut out = 0;
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(ProtobufError::Truncated)?;
            self.0 = rest;
            out |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or_default();
            if byte & 0x80 == 0 {
                return Ok(out);
            }
        }
        Err(ProtobufError::Truncated)
    }

    fn take(&mut self, length: u64) -> Result<&'b [u8], ProtobufError> {
        let length = usize::try_from(length).map_err(|_| ProtobufError::Truncated)?;
        let (head, rest) = self.0.split_at_checked(length).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    fn field(&mut self) -> Result<(u32, Wire<'b>), ProtobufError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| ProtobufError::Truncated)?;
        let wire = match tag & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => {
                let bytes = self.take(8)?;
                Wire::Fixed64(u64::from_le_bytes(bytes.try_into().map_err(|_| ProtobufError::Truncated)?))
            }
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed32
            }
            // Groups, which nobody writes any more.
            _ => return Err(ProtobufError::WireType(number.to_string())),
        };
        Ok((number, wire))
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u32, Wire<'b>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::builtin;
    use proptest::prelude::*;
    use serde_json::json;

    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, content.len() as u8];
        out.extend_from_slice(content);
        out
    }

    fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let names = [bytes(1, version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &names), bytes(2, raw)].concat()
    }

    fn find(version: &str, kind: &str) -> Option<At<'static>> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        At::kind(group, version, kind)
    }

    #[test]
    fn an_object_comes_out_as_json_would_give_it() {
        let metadata = [
            bytes(1, b"a"),
            bytes(8, &[8, 0x80, 0xa3, 5]),
            bytes(11, &[bytes(1, b"k"), bytes(2, b"v")].concat()),
        ];
        let port = [bytes(1, b"http"), vec![3 << 3, 80], bytes(4, &[vec![8, 1], bytes(3, b"web")].concat())]
            .concat();
        let spec = [bytes(1, &port), bytes(4, b"ClusterIP"), vec![0x80, 1, 1]].concat();
        let raw = [bytes(1, &metadata.concat()), bytes(2, &spec)].concat();
        let decoded = decode(&envelope("v1", "Service", &raw), find).unwrap();
        assert_eq!(decoded.kind, "Service");
        let port = json!({"name": "http", "port": 80, "targetPort": "web"});
        assert_eq!(decoded.value["spec"]["ports"], json!([port]));
        assert_eq!(decoded.value["metadata"]["labels"], json!({"k": "v"}));
        assert_eq!(decoded.value["metadata"]["creationTimestamp"], "1970-01-02T00:00:00Z");
    }

    #[test]
    fn nested_messages_are_laid_among_the_outer_fields() {
        let path = bytes(1, b"/x");
        let volume = [bytes(1, b"v"), bytes(2, &bytes(1, &path))].concat();
        let raw = bytes(2, &bytes(1, &volume));
        let decoded = decode(&envelope("v1", "Pod", &raw), find).unwrap();
        assert_eq!(decoded.value["spec"]["volumes"], json!([{"name": "v", "hostPath": {"path": "/x"}}]));
    }

    #[test]
    fn every_field_of_every_type_has_a_number() {
        let types = builtin();
        let mut missing = Vec::new();
        for id in types.ids() {
            let kind = types.get(id);
            let Some(row) = numbers(&kind.name) else {
                missing.push(kind.name.to_string());
                continue;
            };
            let mut known: Vec<&str> = Vec::new();
            let mut rows_to_read = vec![row];
            while let Some(row) = rows_to_read.pop() {
                for word in row.split(' ').filter(|w| !w.starts_with('=')) {
                    match word.strip_prefix('+') {
                        Some(inline) => rows_to_read.push(rows()[inline]),
                        None => known.push(word.trim_start_matches('~')),
                    }
                }
            }
            for field in &kind.fields {
                if !matches!(&*field.name, "apiVersion" | "kind") && !known.contains(&&*field.name) {
                    missing.push(format!("{} {}", kind.name, field.name));
                }
            }
        }
        assert_eq!(missing, Vec::<String>::new());
    }

    #[test]
    fn dates() {
        for (seconds, told) in [
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_763_251_199, "2025-11-15T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(seconds, None), told);
        }
        assert_eq!(rfc3339(0, Some(5)), "1970-01-01T00:00:00.000005Z");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(junk in proptest::collection::vec(any::<u8>(), 0..200), tail in any::<bool>()) {
            let body = if tail { envelope("v1", "Pod", &junk[..junk.len().min(100)]) } else { [MAGIC, &junk].concat() };
            let _ = decode(&body, find);
        }
    }
}
