//! The OpenAPI 2 document as protobuf messages, the only form in which Go clients ask for it.
//!
//! Field numbers are those of the public message definitions for OpenAPI 2 documents. What the messages type as "any"
//! travels as YAML text, of which JSON is a part.

use std::sync::LazyLock;

use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// A message being written.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

/// How a plain field is written.
#[derive(Clone, Copy)]
enum Form {
    Text,
    Texts,
    Flag,
    Integer,
    Double,
    Any,
    Anys,
}

const SCHEMA: &[(&str, u32, Form)] = &[
    ("$ref", 1, Form::Text),
    ("format", 2, Form::Text),
    ("title", 3, Form::Text),
    ("description", 4, Form::Text),
    ("default", 5, Form::Any),
    ("multipleOf", 6, Form::Double),
    ("maximum", 7, Form::Double),
    ("exclusiveMaximum", 8, Form::Flag),
    ("minimum", 9, Form::Double),
    ("exclusiveMinimum", 10, Form::Flag),
    ("maxLength", 11, Form::Integer),
    ("minLength", 12, Form::Integer),
    ("pattern", 13, Form::Text),
    ("maxItems", 14, Form::Integer),
    ("minItems", 15, Form::Integer),
    ("uniqueItems", 16, Form::Flag),
    ("maxProperties", 17, Form::Integer),
    ("minProperties", 18, Form::Integer),
    ("required", 19, Form::Texts),
    ("enum", 20, Form::Anys),
    ("example", 30, Form::Any),
];
const SCHEMA_EXTENSION: u32 = 31;

const OPERATION: &[(&str, u32, Form)] = &[
    ("tags", 1, Form::Texts),
    ("description", 3, Form::Text),
    ("operationId", 5, Form::Text),
    ("produces", 6, Form::Texts),
    ("consumes", 7, Form::Texts),
    ("schemes", 10, Form::Texts),
];
const OPERATION_EXTENSION: u32 = 13;

const BODY_PARAMETER: &[(&str, u32, Form)] = &[
    ("description", 1, Form::Text),
    ("name", 2, Form::Text),
    ("in", 3, Form::Text),
    ("required", 4, Form::Flag),
];
const QUERY_PARAMETER: &[(&str, u32, Form)] = &[
    ("required", 1, Form::Flag),
    ("in", 2, Form::Text),
    ("description", 3, Form::Text),
    ("name", 4, Form::Text),
    ("type", 6, Form::Text),
    ("uniqueItems", 20, Form::Flag),
];
const PATH_PARAMETER: &[(&str, u32, Form)] = &[
    ("required", 1, Form::Flag),
    ("in", 2, Form::Text),
    ("description", 3, Form::Text),
    ("name", 4, Form::Text),
    ("type", 5, Form::Text),
    ("uniqueItems", 19, Form::Flag),
];
const INFO: &[(&str, u32, Form)] = &[("title", 1, Form::Text), ("version", 2, Form::Text)];
const METHODS: &[(&str, u32)] = &[("get", 2), ("put", 3), ("post", 4), ("delete", 5), ("patch", 8)];

// === impl Message ===

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.number(u64::from(field << 3 | 2));
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn integer(&mut self, field: u32, value: u64) {
        self.number(u64::from(field << 3));
        self.number(value);
    }

    fn double(&mut self, field: u32, value: f64) {
        self.number(u64::from(field << 3 | 1));
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Seven bits at a time, the lowest first.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn any(&mut self, field: u32, value: &Value) {
        self.message(field, |any| any.text(2, &value.to_string()));
    }

    fn plain(&mut self, object: &Object, fields: &[(&str, u32, Form)]) {
        for (name, field, form) in fields {
            let Some(value) = object.get(*name) else { continue };
            match (form, value) {
                (Form::Text, Value::String(text)) => self.text(*field, text),
                (Form::Texts, Value::Array(list)) => {
                    list.iter().filter_map(Value::as_str).for_each(|text| self.text(*field, text));
                }
                (Form::Flag, Value::Bool(true)) => self.integer(*field, 1),
                (Form::Integer, value) => self.integer(*field, value.as_u64().unwrap_or_default()),
                (Form::Double, value) => self.double(*field, value.as_f64().unwrap_or_default()),
                (Form::Any, value) => self.any(*field, value),
                (Form::Anys, Value::Array(list)) => list.iter().for_each(|value| self.any(*field, value)),
                _ => {}
            }
        }
    }

    fn extensions(&mut self, field: u32, object: &Object) {
        for (name, value) in object.iter().filter(|(name, _)| name.starts_with("x-")) {
            self.message(field, |named| {
                named.text(1, name);
                named.any(2, value);
            });
        }
    }

    pub(super) fn info(&mut self, field: u32, info: &Value) {
        self.message(field, |m| m.plain(as_object(info), INFO));
    }

    pub(super) fn named_schema(&mut self, field: u32, name: &str, schema: &Value) {
        self.message(field, |named| {
            named.text(1, name);
            named.message(2, |m| m.schema(schema));
        });
    }

    fn schema(&mut self, schema: &Value) {
        let schema = as_object(schema);
        self.plain(schema, SCHEMA);
        match schema.get("additionalProperties") {
            Some(Value::Bool(value)) => self.message(21, |m| m.integer(2, u64::from(*value))),
            Some(inner @ Value::Object(_)) => self.message(21, |m| m.message(1, |m| m.schema(inner))),
            _ => {}
        }
        if let Some(Value::String(kind)) = schema.get("type") {
            self.message(22, |m| m.text(1, kind));
        }
        if let Some(items @ Value::Object(_)) = schema.get("items") {
            self.message(23, |m| m.message(1, |m| m.schema(items)));
        }
        if let Some(Value::Object(properties)) = schema.get("properties") {
            self.message(25, |m| properties.iter().for_each(|(name, inner)| m.named_schema(1, name, inner)));
        }
        self.extensions(SCHEMA_EXTENSION, schema);
    }

    pub(super) fn path(&mut self, field: u32, path: &str, item: &Value) {
        self.message(field, |named| {
            named.text(1, path);
            named.message(2, |m| {
                for (method, field) in METHODS {
                    if let Some(operation) = item.get(*method) {
                        m.message(*field, |m| m.operation(operation));
                    }
                }
                m.parameters(9, &item["parameters"]);
            });
        });
    }

    fn operation(&mut self, operation: &Value) {
        let object = as_object(operation);
        self.plain(object, OPERATION);
        self.parameters(8, &operation["parameters"]);
        self.message(9, |m| {
            for (code, response) in as_object(&operation["responses"]) {
                m.message(1, |named| {
                    named.text(1, code);
                    named.message(2, |m| m.message(1, |m| m.response(response)));
                });
            }
        });
        self.extensions(OPERATION_EXTENSION, object);
    }

    fn response(&mut self, response: &Value) {
        if let Some(words) = response["description"].as_str() {
            self.text(1, words);
        }
        if response["schema"].is_object() {
            self.message(2, |m| m.message(1, |m| m.schema(&response["schema"])));
        }
    }

    fn parameters(&mut self, field: u32, parameters: &Value) {
        for parameter in parameters.as_array().into_iter().flatten() {
            let object = as_object(parameter);
            self.message(field, |item| {
                item.message(1, |kind| match parameter["in"].as_str() {
                    Some("body") => kind.message(1, |m| {
                        m.plain(object, BODY_PARAMETER);
                        m.message(5, |m| m.schema(&parameter["schema"]));
                    }),
                    Some("path") => kind.message(2, |m| m.message(4, |m| m.plain(object, PATH_PARAMETER))),
                    _ => kind.message(2, |m| m.message(3, |m| m.plain(object, QUERY_PARAMETER))),
                });
            });
        }
    }
}

fn as_object(value: &Value) -> &Object {
    static NOTHING: LazyLock<Object> = LazyLock::new(Object::new);
    value.as_object().unwrap_or(&NOTHING)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wire_form() {
        let mut m = Message::default();
        m.named_schema(1, "A", &json!({"type": "object", "x-y": [1], "maximum": 1.0}));
        let schema: &[u8] =
            b"\x39\0\0\0\0\0\0\xf0\x3f\xb2\x01\x08\x0a\x06object\xfa\x01\x0c\x0a\x03x-y\x12\x05\x12\x03[1]";
        let mut want = vec![0x0a, (schema.len() + 5) as u8, 0x0a, 1, b'A', 0x12, schema.len() as u8];
        want.extend_from_slice(schema);
        assert_eq!(m.into_bytes(), want);
        let mut m = Message::default();
        m.integer(1, 300);
        assert_eq!(m.into_bytes(), [0x08, 0xac, 0x02]);
    }
}
