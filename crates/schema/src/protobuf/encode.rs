//! From documents to the protobuf form: what Go clients that prefer it are answered with.
//!
//! Only what a document says is written. Upstream writes zeros too; a reader cannot tell the two apart.

use base::rfc3339::Moment;
use serde_json::{Map, Value};

use super::{MAGIC, ProtobufError, either_numbers, numbers, rows};
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

/// What stands before the items of a list that take `length` bytes together.
pub fn list_head(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    length: usize,
) -> Result<Vec<u8>, ProtobufError> {
    let at = At::named(LIST_META).ok_or_else(|| ProtobufError::Unknown(LIST_META.to_owned()))?;
    let mut said = Vec::new();
    nested(&mut said, 1, |out| write_message(out, metadata, at, 0))?;
    let mut out = Vec::new();
    write_names(&mut out, api_version, kind);
    tag(&mut out, 2, BYTES);
    varint(&mut out, (said.len() + length) as u64);
    out.extend_from_slice(&said);
    Ok(out)
}

/// What stands after them, and after every object: neither encoded nor of another type. Upstream says so, in empty words.
pub const LIST_TAIL: &[u8] = b"\x1a\x00\x22\x00";

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
    write_names(&mut out, api_version, kind);
    bytes(&mut out, 2, raw);
    out.extend_from_slice(LIST_TAIL);
    out
}

fn write_names(out: &mut Vec<u8>, api_version: &str, kind: &str) {
    out.extend_from_slice(MAGIC);
    let _ = nested(out, 1, |out| {
        bytes(out, 1, api_version.as_bytes());
        bytes(out, 2, kind.as_bytes());
        Ok(())
    });
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
        if let Some(word) = word.strip_prefix('~') {
            if let Some(Value::Array(items)) = fields.get(word) {
                let place = at.child(word).item();
                nested(out, number, |out| {
                    items.iter().try_for_each(|item| write_value(out, 1, item, place, word, depth + 1))
                })?;
            }
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
            Value::Array(items) if matches!(at.shape, Shape::List { .. }) => nested(out, 2, |out| {
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
        Shape::Either(id) => {
            return nested(out, number, |out| write_either(out, value, at.types.at(*id), name, depth));
        }
        Shape::Map { .. } | Shape::List { .. } => {
            return Err(ProtobufError::Unknown(name.to_owned()));
        }
    }
    Ok(())
}

/// A schema, or a truth value, or a list of schemas or names.
fn write_either(out: &mut Vec<u8>, value: &Value, schema: At<'_>, name: &str, depth: usize) -> Outcome {
    let misfit = || ProtobufError::Misfit(name.to_owned());
    let (whole, simple) = either_numbers(name).ok_or_else(misfit)?;
    match value {
        Value::Bool(allows) => scalar(out, simple, u64::from(*allows)),
        Value::Array(list) => {
            for item in list {
                match item {
                    Value::String(text) => bytes(out, simple, text.as_bytes()),
                    _ => nested(out, simple, |out| write_message(out, item, schema, depth))?,
                }
            }
        }
        Value::Object(_) => {
            if simple == 1 {
                // Upstream's reader of JSON says so too: where there is a schema, something is allowed.
                scalar(out, simple, 1);
            }
            nested(out, whole, |out| write_message(out, value, schema, depth))?;
        }
        _ => return Err(misfit()),
    }
    Ok(())
}

fn write_time(out: &mut Vec<u8>, number: u32, value: &Value, name: &str) -> Outcome {
    let misfit = || ProtobufError::Misfit(name.to_owned());
    let Moment { secs, nanos } = value.as_str().and_then(Moment::parse_lenient).ok_or_else(misfit)?;
    nested(out, number, |out| {
        scalar(out, 1, secs as u64);
        scalar(out, 2, u64::from(nanos));
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

    /// A definition with everything that has a form of its own.
    fn definition() -> Value {
        let schema = json!({
            "$schema": "s", "$ref": "r", "type": "object", "required": ["a"],
            "properties": {
                "a": {"type": "array", "items": {"type": "string", "enum": ["x", 1, null, {"y": []}], "default": "x"}},
                "b": {"items": [{"type": "string"}, {}], "additionalItems": false},
                "c": {"additionalProperties": true, "maximum": 5, "minimum": 0.5, "multipleOf": -2, "maxLength": 7},
                "d": {"additionalProperties": {"type": "object", "additionalProperties": {}}},
                "e": {"dependencies": {"f": ["g", "h"], "i": {"type": "string"}}, "not": {"nullable": true}},
                "j": {"x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-list-map-keys": ["k"],
                    "x-kubernetes-validations": [{"rule": "self", "optionalOldSelf": true}]},
                "empty": {},
            },
            "allOf": [{"oneOf": [{"type": "string"}]}], "example": {"any": ["thing"]}, "externalDocs": {"url": "u"},
        });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "xs.a.b", "finalizers": ["f"]},
            "spec": {"group": "a.b", "scope": "Cluster", "names": {"plural": "xs", "kind": "X", "shortNames": ["x"]},
                "conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                    "clientConfig": {"service": {"namespace": "n", "name": "s", "port": 1}, "caBundle": "AAEC"}}},
                "versions": [{"name": "v1", "served": true, "storage": false, "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".a", "statusReplicasPath": ".b"}},
                    "selectableFields": [{"jsonPath": ".c"}], "deprecated": true, "deprecationWarning": "w",
                    "additionalPrinterColumns": [{"name": "N", "type": "string", "jsonPath": ".n", "priority": 1}]}]},
            "status": {"storedVersions": ["v1"], "acceptedNames": {"plural": "xs", "kind": "X"},
                "conditions": [{"type": "Established", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]},
        })
    }

    /// By hand from upstream's generated.proto, byte by byte.
    #[test]
    fn discovery_is_as_go_clients_read_it() {
        let resource = json!({"name": "pods", "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get", "list"],
            "shortNames": ["po"], "categories": ["all"], "group": "g", "version": "v1", "storageVersionHash": "h="});
        let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [resource]});
        let versions = json!([{"groupVersion": "apps/v1", "version": "v1"}]);
        let group = json!({"name": "apps", "versions": versions, "preferredVersion": versions[0],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "a:1"}]});
        let groups = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]});
        let mut one = group.clone();
        one["kind"] = "APIGroup".into();
        one["apiVersion"] = "v1".into();
        let api = json!({"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"],
            "serverAddressByClientCIDRs": group["serverAddressByClientCIDRs"]});
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "c", "remainingItemCount": 2},
            "status": "Failure", "message": "m", "reason": "NotFound", "code": 404,
            "details": {"name": "n", "group": "g", "kind": "k", "uid": "u", "retryAfterSeconds": 1,
                "causes": [{"reason": "r", "message": "m", "field": "f"}]}});
        let group_bytes: &[u8] =
            b"\x0a\x04apps\x12\x0d\x0a\x07apps/v1\x12\x02v1\x1a\x0d\x0a\x07apps/v1\x12\x02v1\
            \x22\x10\x0a\x090.0.0.0/0\x12\x03a:1";
        let rows: [(&Value, Vec<u8>); 5] = [
            (&resources, b"\x0a\x02v1\x12\x33\x0a\x04pods\x10\x01\x1a\x03Pod\x22\x0b\x0a\x03get\x0a\x04list\
                \x2a\x02po\x32\x03pod\x3a\x03all\x42\x01g\x4a\x02v1\x52\x02h=".to_vec()),
            (&groups, [b"\x0a\x36", group_bytes].concat()),
            (&one, group_bytes.to_vec()),
            (&api, b"\x0a\x02v1\x12\x10\x0a\x090.0.0.0/0\x12\x03a:1".to_vec()),
            (&status, b"\x0a\x08\x12\x017\x1a\x01c\x20\x02\x12\x07Failure\x1a\x01m\x22\x08NotFound\
                \x2a\x19\x0a\x01n\x12\x01g\x1a\x01k\x22\x09\x0a\x01r\x12\x01m\x1a\x01f\x28\x01\x32\x01u\x30\x94\x03".to_vec()),
        ];
        for (object, expected) in rows {
            let at = find("v1", object["kind"].as_str().unwrap()).unwrap();
            let mut raw = Vec::new();
            write_object(&mut raw, object, Form::Whole(at)).unwrap();
            assert_eq!(String::from_utf8_lossy(&raw), String::from_utf8_lossy(&expected), "{object}");
            assert_eq!(there_and_back(object), *object);
        }
    }

    /// As upstream writes it, with the zeros we leave out: what client-go sends to make a definition.
    #[test]
    fn a_schema_is_read_as_go_clients_send_it() {
        let schema =
            b"\x0a\x00\x12\x00\x22\x00\x2a\x06object\x32\x00\x3a\x00\x50\x00\x60\x00\x7a\x00\x90\x01\x00\
            \xea\x01\x0b\x0a\x01a\x12\x06\x2a\x04text\xf2\x01\x02\x08\x01\xa8\x02\x00";
        let at =
            At::named("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").unwrap();
        let mut read = super::super::read_object(schema, at, 0).unwrap();
        crate::decode::conform(&mut read, at).unwrap();
        let expected =
            json!({"type": "object", "properties": {"a": {"type": "text"}}, "additionalProperties": true});
        assert_eq!(read, expected);
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
            definition(),
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "spec": {"group": "g", "version": "v1",
                "service": {"namespace": "n", "name": "s", "port": 443}, "groupPriorityMinimum": 1, "versionPriority": 2}}),
        ] {
            assert_eq!(there_and_back(&object), object);
        }
    }

    /// A list as one message.
    fn whole(api_version: &str, kind: &str, metadata: &Value, items: &[u8]) -> Vec<u8> {
        let mut raw = Vec::new();
        nested(&mut raw, 1, |out| write_message(out, metadata, At::named(LIST_META).unwrap(), 0)).unwrap();
        raw.extend_from_slice(items);
        let mut out = MAGIC.to_vec();
        let names = |out: &mut Vec<u8>| {
            bytes(out, 1, api_version.as_bytes());
            bytes(out, 2, kind.as_bytes());
            Ok(())
        };
        nested(&mut out, 1, names).unwrap();
        bytes(&mut out, 2, &raw);
        bytes(&mut out, 3, b"");
        bytes(&mut out, 4, b"");
        out
    }

    #[test]
    fn lists_and_events_are_put_together_from_parts() {
        let at = find("v1", "Pod").unwrap();
        let mut items = Vec::new();
        for name in ["a", "b"] {
            write_item(&mut items, &json!({"metadata": {"name": name}}), Form::Whole(at)).unwrap();
        }
        let metadata = json!({"resourceVersion": "9", "continue": "t", "remainingItemCount": 2});
        let head = list_head("v1", "PodList", &metadata, items.len()).unwrap();
        let bytes = [&*head, &*items, LIST_TAIL].concat();
        assert_eq!(bytes, whole("v1", "PodList", &metadata, &items));
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
