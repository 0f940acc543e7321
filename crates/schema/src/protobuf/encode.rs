//! From documents to the protobuf form: what Go clients that prefer it are answered with.
//!
//! Only what a document says is written. Upstream writes zeros too; a reader cannot tell the two apart.

use serde_json::{Map, Value};

use super::{MAGIC, ProtobufError, numbers, rows};
use crate::decode::MAX_DEPTH;
use crate::types::{At, Shape};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;

/// What of an object is written.
#[derive(Clone, Copy, Debug)]
pub enum Form<'t> {
    Whole(At<'t>),
    /// A PartialObjectMetadata, whatever the object is of.
    Metadata,
}

type Outcome = Result<(), ProtobufError>;

/// An object by itself, in its envelope. It says its version and kind.
pub fn encode(object: &Value, form: Form<'_>) -> Result<Vec<u8>, ProtobufError> {
    let mut raw = Vec::new();
    write_object(&mut raw, object, form)?;
    let said = |name: &str| object[name].as_str().unwrap_or_default();
    Ok(envelope(said("apiVersion"), said("kind"), &raw))
}

/// Appends an object as an item of a list.
pub fn write_item(out: &mut Vec<u8>, object: &Value, form: Form<'_>) -> Outcome {
    nested(out, 2, |out| write_object(out, object, form))
}

/// A list of items that are written already.
pub fn list(api_version: &str, kind: &str, metadata: &Value, items: &[u8]) -> Result<Vec<u8>, ProtobufError> {
    let at = At::named(LIST_META).ok_or_else(|| ProtobufError::Unknown(LIST_META.to_owned()))?;
    let mut raw = Vec::with_capacity(items.len() + 64);
    nested(&mut raw, 1, |out| write_message(out, metadata, at, 0))?;
    raw.extend_from_slice(items);
    Ok(envelope(api_version, kind, &raw))
}

/// One event of a watch: its length, its type, and an object in its envelope.
#[must_use]
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    bytes(&mut out, 1, event.as_bytes());
    tag(&mut out, 2, BYTES);
    let inner = 1 + varint_size(object.len() as u64) + object.len();
    varint(&mut out, inner as u64);
    bytes(&mut out, 1, object);
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}

fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len() + api_version.len() + kind.len() + 32);
    out.extend_from_slice(MAGIC);
    let _ = nested(&mut out, 1, |out| {
        bytes(out, 1, api_version.as_bytes());
        bytes(out, 2, kind.as_bytes());
        Ok(())
    });
    bytes(&mut out, 2, raw);
    // Neither encoded nor of another type: upstream says so, in empty words.
    bytes(&mut out, 3, b"");
    bytes(&mut out, 4, b"");
    out
}

fn write_object(out: &mut Vec<u8>, object: &Value, form: Form<'_>) -> Outcome {
    match form {
        Form::Whole(at) => write_message(out, object, at, 0),
        Form::Metadata => {
            let at = At::named(OBJECT_META).ok_or_else(|| ProtobufError::Unknown(OBJECT_META.to_owned()))?;
            nested(out, 1, |out| write_message(out, &object["metadata"], at, 0))
        }
    }
}

fn write_message(out: &mut Vec<u8>, object: &Value, at: At<'_>, depth: usize) -> Outcome {
    let unknown = |name: &str| ProtobufError::Unknown(name.to_owned());
    let name = at.object().map(|t| &*t.name).ok_or_else(|| unknown("an untyped object"))?;
    let row = numbers(name).ok_or_else(|| unknown(name))?;
    match object {
        Value::Null => Ok(()),
        Value::Object(fields) => write_fields(out, fields, at, row, depth),
        _ => Err(ProtobufError::Misfit(name.to_owned())),
    }
}

/// Writes the fields whose numbers `row` tells; their types are those below `at`.
fn write_fields(
    out: &mut Vec<u8>,
    fields: &Map<String, Value>,
    at: At<'_>,
    row: &'static str,
    depth: usize,
) -> Outcome {
    if depth > MAX_DEPTH {
        return Err(ProtobufError::TooDeep);
    }
    let mut number = 0;
    for word in row.split(' ') {
        if let Some(next) = word.strip_prefix('=') {
            number = next.parse::<u32>().map_err(|_| ProtobufError::Unknown(row.to_owned()))? - 1;
            continue;
        }
        number += 1;
        if let Some(inline) = word.strip_prefix('+') {
            let row = rows().get(inline).ok_or_else(|| ProtobufError::Unknown(inline.to_owned()))?;
            nested(out, number, |out| write_fields(out, fields, at, row, depth + 1))?;
            continue;
        }
        let Some(value) = fields.get(word).filter(|v| !v.is_null()) else { continue };
        let place = at.child(word);
        match (place.shape, value) {
            (Shape::List { .. }, Value::Array(items)) => {
                for item in items {
                    write_value(out, number, item, place.item(), word, depth + 1)?;
                }
            }
            (Shape::Map { .. }, Value::Object(entries)) => {
                for (key, value) in entries {
                    write_entry(out, number, (key, value), place.child(""), word, depth + 1)?;
                }
            }
            _ => write_value(out, number, value, place, word, depth + 1)?,
        }
    }
    Ok(())
}

fn write_entry(
    out: &mut Vec<u8>,
    number: u32,
    (key, value): (&str, &Value),
    at: At<'_>,
    name: &str,
    depth: usize,
) -> Outcome {
    nested(out, number, |out| {
        bytes(out, 1, key.as_bytes());
        match value {
            // A list cannot be a map's value: a message holds it as its first field.
            Value::Array(items) => nested(out, 2, |out| {
                items.iter().try_for_each(|item| write_value(out, 1, item, at.item(), name, depth))
            }),
            _ => write_value(out, 2, value, at, name, depth),
        }
    })
}

fn write_value(
    out: &mut Vec<u8>,
    number: u32,
    value: &Value,
    at: At<'_>,
    name: &str,
    depth: usize,
) -> Outcome {
    let misfit = || ProtobufError::Misfit(name.to_owned());
    match at.shape {
        Shape::String => bytes(out, number, value.as_str().ok_or_else(misfit)?.as_bytes()),
        Shape::Bytes => {
            use base64::Engine as _;
            let text = value.as_str().ok_or_else(misfit)?;
            let decoded = base64::engine::general_purpose::STANDARD.decode(text).map_err(|_| misfit())?;
            bytes(out, number, &decoded);
        }
        // Negative numbers are sent as ten bytes of two's complement.
        Shape::Int32 | Shape::Int64 => scalar(out, number, value.as_i64().ok_or_else(misfit)? as u64),
        Shape::Boolean => scalar(out, number, u64::from(value.as_bool().ok_or_else(misfit)?)),
        Shape::Number => {
            tag(out, number, FIXED64);
            out.extend_from_slice(&value.as_f64().ok_or_else(misfit)?.to_bits().to_le_bytes());
        }
        Shape::Quantity => {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return nested(out, number, |out| {
                bytes(out, 1, text.as_bytes());
                Ok(())
            });
        }
        Shape::Time | Shape::MicroTime => return write_time(out, number, value, name),
        Shape::IntOrString => return write_int_or_string(out, number, value, name),
        Shape::Raw | Shape::Any | Shape::FieldSet => {
            let text = value.to_string();
            return nested(out, number, |out| {
                bytes(out, 1, text.as_bytes());
                Ok(())
            });
        }
        Shape::Object(_) => return nested(out, number, |out| write_message(out, value, at, depth)),
        Shape::Either(_) | Shape::Map { .. } | Shape::List { .. } => {
            return Err(ProtobufError::Unknown(name.to_owned()));
        }
    }
    Ok(())
}

fn write_time(out: &mut Vec<u8>, number: u32, value: &Value, name: &str) -> Outcome {
    let misfit = || ProtobufError::Misfit(name.to_owned());
    let at: jiff::Timestamp = value.as_str().and_then(|t| t.parse().ok()).ok_or_else(misfit)?;
    // Before the epoch a Timestamp counts its fraction backwards; the wire counts it forwards.
    let (seconds, nanos) = match at.subsec_nanosecond() {
        nanos if nanos < 0 => (at.as_second() - 1, nanos + 1_000_000_000),
        nanos => (at.as_second(), nanos),
    };
    nested(out, number, |out| {
        scalar(out, 1, seconds as u64);
        scalar(out, 2, u64::from(nanos.unsigned_abs()));
        Ok(())
    })
}

fn write_int_or_string(out: &mut Vec<u8>, number: u32, value: &Value, name: &str) -> Outcome {
    let (kind, n, text) = match value {
        Value::String(text) => (1, 0, text.as_str()),
        other => (0, other.as_i64().ok_or_else(|| ProtobufError::Misfit(name.to_owned()))?, ""),
    };
    nested(out, number, |out| {
        scalar(out, 1, kind);
        scalar(out, 2, n as u64);
        bytes(out, 3, text.as_bytes());
        Ok(())
    })
}

// --- the wire ---

/// A message inside another. Its length goes before it and is known after it: what was written moves on by that much.
fn nested(out: &mut Vec<u8>, number: u32, write: impl FnOnce(&mut Vec<u8>) -> Outcome) -> Outcome {
    tag(out, number, BYTES);
    let start = out.len();
    // Most are shorter than 128 bytes: one byte is right, and nothing moves.
    out.push(0);
    write(out)?;
    let length = out.len() - start - 1;
    let size = varint_size(length as u64);
    if size > 1 {
        out.resize(out.len() + size - 1, 0);
        out.copy_within(start + 1..start + 1 + length, start + size);
    }
    let mut rest = length as u64;
    for (i, slot) in out[start..start + size].iter_mut().enumerate() {
        *slot = (rest & 0x7f) as u8 | if i + 1 < size { 0x80 } else { 0 };
        rest >>= 7;
    }
    Ok(())
}

fn bytes(out: &mut Vec<u8>, number: u32, content: &[u8]) {
    tag(out, number, BYTES);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

fn scalar(out: &mut Vec<u8>, number: u32, value: u64) {
    tag(out, number, VARINT);
    varint(out, value);
}

fn tag(out: &mut Vec<u8>, number: u32, wire: u64) {
    varint(out, u64::from(number) << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::decode;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn find(version: &str, kind: &str) -> Option<At<'static>> {
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        At::kind(group, version, kind)
    }

    fn there_and_back(object: &Value) -> Value {
        let said = |name: &str| object[name].as_str().unwrap();
        let at = find(said("apiVersion"), said("kind")).unwrap();
        decode(&encode(object, Form::Whole(at)).unwrap(), find).unwrap().value
    }

    #[test]
    fn what_is_written_is_read_again() {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "labels": {"k": "v".repeat(300), "empty": ""}, "generation": 3,
                "creationTimestamp": "2026-01-02T03:04:05Z", "deletionGracePeriodSeconds": 0,
                "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {".": {}}}, "time": "2026-01-02T03:04:05Z"}],
            },
            "spec": {
                "containers": [{
                    "name": "c", "command": ["a", ""], "args": [],
                    "resources": {"limits": {"cpu": "100m"}},
                    "livenessProbe": {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 5},
                    "env": [{"name": "E", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k", "optional": false}}}],
                }],
                "hostUsers": false, "terminationGracePeriodSeconds": -1,
                "securityContext": {"supplementalGroups": [1, 2, 70000]},
                "volumes": [{"name": "v", "hostPath": {"path": "/x", "type": ""}}],
                "tolerations": [{"operator": "Exists", "tolerationSeconds": 300}],
            },
        });
        let mut expected = pod.clone();
        // Nothing at all is what protobuf knows of an empty list.
        expected["spec"]["containers"][0].as_object_mut().unwrap().remove("args");
        assert_eq!(there_and_back(&pod), expected);
        for object in [
            json!({"apiVersion": "v1", "kind": "Secret", "data": {"k": "AAEC/w=="}, "type": "Opaque"}),
            json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80, "targetPort": 8080}]}}),
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "spec": {"renewTime": "2026-01-02T03:04:05.000006Z", "leaseDurationSeconds": 40}}),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                "status": {"user": {"extra": {"a": ["b", "c"]}}}}),
            json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"},
                "items": [{"metadata": {"name": "x"}}]}),
            json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "data": {"a": [1, null]}, "revision": 1}),
        ] {
            assert_eq!(there_and_back(&object), object);
        }
    }

    #[test]
    fn lists_and_events_are_put_together_from_parts() {
        let at = find("v1", "Pod").unwrap();
        let mut items = Vec::new();
        for name in ["a", "b"] {
            write_item(&mut items, &json!({"metadata": {"name": name}}), Form::Whole(at)).unwrap();
        }
        let metadata = json!({"resourceVersion": "9", "continue": "t", "remainingItemCount": 2});
        let bytes = list("v1", "PodList", &metadata, &items).unwrap();
        let read = decode(&bytes, find).unwrap().value;
        assert_eq!(read["metadata"], metadata);
        assert_eq!(read["items"], json!([{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]));
        let frame = watch_frame("ADDED", &bytes);
        assert_eq!(frame[..4], u32::try_from(frame.len() - 4).unwrap().to_be_bytes());
        assert_eq!(frame[4..11], *b"\x0a\x05ADDED");
        assert!(frame.ends_with(&bytes));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let at = find("v1", "Pod").unwrap();
        let odd = |object: Value| encode(&object, Form::Whole(at)).unwrap_err();
        assert_eq!(odd(json!({"spec": {"hostname": 5}})), ProtobufError::Misfit("hostname".into()));
        assert_eq!(odd(json!({"spec": []})), ProtobufError::Misfit("io.k8s.api.core.v1.PodSpec".into()));
    }

    proptest! {
        #[test]
        fn numbers_and_texts_of_any_size_survive(n: i64, text in ".{0,400}", times in 0usize..40) {
            let spec = json!({"activeDeadlineSeconds": n, "hostname": text});
            let containers: Vec<Value> = (0..times).map(|i| json!({"name": format!("{text}{i}")})).collect();
            let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
            if times > 0 {
                pod["spec"]["containers"] = containers.into();
            }
            prop_assert_eq!(there_and_back(&pod), pod);
        }
    }
}
