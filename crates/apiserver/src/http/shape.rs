//! Objects in the shapes clients ask for: whole, as rows of a Table, or only their metadata.

use std::ops::Range;

use base::time::Wall;
use bytes::BytesMut;
use serde_json::{Value, json};

use super::accept::Shape;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::document::Document;
use apiserver_core::kind::{Column, Kind};
use apiserver_core::selection::present;

/// How objects of a request are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) shape: Shape,
    pub(crate) include: Include,
}

/// What a Table row carries of its object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    #[default]
    Metadata,
    Object,
}

// === impl Include ===

impl Include {
    pub(crate) fn parse(text: Option<&str>) -> Result<Include, ApiStatus> {
        match text {
            None | Some("" | "Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::Nothing),
            Some("Object") => Ok(Include::Object),
            Some(other) => {
                let why = format!(
                    "includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
                );
                Err(ApiStatus::bad_request(why))
            }
        }
    }
}

// === impl View ===

impl View {
    pub(crate) const WHOLE: View = View { shape: Shape::Whole, include: Include::Metadata };

    /// Appends one object in this shape, as an item of a list.
    pub(crate) fn write_item(self, kind: &Kind, document: &Document, now: Wall, out: &mut BytesMut) {
        match self.shape {
            Shape::Whole if kind.strategy.converts() => push(out, &untyped(kind, present(kind, document))),
            Shape::Whole if kind.is_custom() => document.write_json(out),
            Shape::Whole => write_untyped(document, out),
            Shape::Table => push(out, &self.row(kind, &present(kind, document), now)),
            Shape::Metadata => push(out, &partial(&document.to_value())),
        }
    }

    /// One object in this shape, by itself. `columns` is whether a Table says its columns.
    pub(crate) fn object(self, kind: &Kind, object: &Value, now: Wall, columns: bool) -> Value {
        match self.shape {
            Shape::Whole => object.clone(),
            Shape::Metadata => partial(object),
            Shape::Table => {
                let version = &object["metadata"]["resourceVersion"];
                json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                    "metadata": {"resourceVersion": version},
                    "columnDefinitions": if columns { columns_of(kind) } else { Value::Null },
                    "rows": [self.row(kind, object, now)],
                })
            }
        }
    }

    /// A list of objects that are at hand.
    pub(crate) fn list(self, kind: &Kind, objects: &[Value], now: Wall) -> Value {
        let (list, metadata) = match self.shape {
            Shape::Whole => (json!({"kind": kind.list_kind, "apiVersion": kind.api_version()}), json!({})),
            Shape::Metadata => {
                (json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}), json!({}))
            }
            Shape::Table => {
                let head = json!({
                    "kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": columns_of(kind),
                });
                (head, json!({"resourceVersion": ""}))
            }
        };
        let (mut list, mut items) = (list, Vec::with_capacity(objects.len()));
        for object in objects {
            items.push(match self.shape {
                Shape::Whole => untyped(kind, object.clone()),
                Shape::Metadata => partial(object),
                Shape::Table => self.row(kind, object, now),
            });
        }
        list["metadata"] = metadata;
        list[if self.shape == Shape::Table { "rows" } else { "items" }] = items.into();
        list
    }

    /// What a list says before its items, and between them and its metadata.
    pub(crate) fn list_frame(self, kind: &Kind) -> (String, &'static str) {
        match self.shape {
            Shape::Whole => {
                let (list, version) = (quote(&kind.list_kind), quote(&kind.api_version()));
                (format!(r#"{{"kind":{list},"apiVersion":{version},"items":["#), "]")
            }
            Shape::Metadata => (
                r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":["#.to_owned(),
                "]",
            ),
            Shape::Table => {
                let columns = columns_of(kind);
                let head = r#"{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":"#;
                (format!(r#"{head}{columns},"rows":["#), "]")
            }
        }
    }

    fn row(self, kind: &Kind, object: &Value, now: Wall) -> Value {
        let cells = kind.strategy.cells(object, now);
        match self.include {
            Include::Nothing => json!({"cells": cells, "object": null}),
            Include::Metadata => json!({"cells": cells, "object": partial(object)}),
            Include::Object => json!({"cells": cells, "object": object}),
        }
    }
}

/// A list of the server's own kinds says once what its items are, and they do not say it again. Clients compare: the same
/// object in a protobuf list has no place to say it.
pub(crate) fn untyped(kind: &Kind, mut item: Value) -> Value {
    if let (false, Some(members)) = (kind.is_custom(), item.as_object_mut()) {
        members.remove("apiVersion");
        members.remove("kind");
    }
    item
}

/// The same by text, without parsing what follows: stored members stand in the order of their names after metadata.
fn write_untyped(document: &Document, out: &mut BytesMut) {
    let start = out.len();
    document.write_json(out);
    for said in type_members(&out[start..]).into_iter().flatten().rev() {
        let (from, to) = (start + said.start, start + said.end);
        out.copy_within(to.., from);
        out.truncate(out.len() - said.len());
    }
}

/// Where `,"apiVersion":"…"` and `,"kind":"…"` stand among the members of the object itself.
fn type_members(json: &[u8]) -> [Option<Range<usize>>; 2] {
    let mut found = [None, None];
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = json.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(end) = text_end(json, at) else { break };
                let is_key = depth == 1 && json.get(end) == Some(&b':') && json.get(end + 1) == Some(&b'"');
                let which = match &json[at..end] {
                    br#""apiVersion""# if is_key => Some(0),
                    br#""kind""# if is_key => Some(1),
                    _ => None,
                };
                if let Some(which) = which {
                    let Some(value) = text_end(json, end + 1) else { break };
                    found[which] = Some(at.saturating_sub(1)..value);
                    if which == 1 {
                        break;
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    found
}

/// The end of the text that begins with the quote at `at`.
fn text_end(json: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', json.get(at..)?)?;
        match json[at] {
            b'"' => return Some(at + 1),
            _ => at += 2,
        }
    }
}

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

fn push(out: &mut BytesMut, value: &Value) {
    use bytes::BufMut;
    // Writing JSON to memory cannot fail.
    let _ = serde_json::to_writer(out.writer(), value);
}

fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
    })
}

fn columns_of(kind: &Kind) -> Value {
    kind.strategy.columns().iter().map(column).collect()
}

fn column(column: &Column) -> Value {
    json!({
        "name": column.name, "type": column.kind, "format": column.format,
        "description": column.description, "priority": column.priority,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use apiserver_core::document::encode;
    use proptest::prelude::*;

    fn without(object: &Value) -> Value {
        let mut out = BytesMut::new();
        write_untyped(&Document::new("k", 7, encode(object)), &mut out);
        serde_json::from_slice(&out).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out)))
    }

    fn expected(object: &Value) -> Value {
        let mut expected = object.clone();
        expected["metadata"]["resourceVersion"] = "7".into();
        expected.as_object_mut().unwrap().retain(|key, _| !matches!(key.as_str(), "apiVersion" | "kind"));
        expected
    }

    #[test]
    fn an_item_says_not_what_it_is_and_everything_else() {
        let trap = r#"\"},"apiVersion":"v1","kind":"Secret"\"#;
        let owner = json!({"apiVersion": "v1", "controller": true, "kind": "Secret"});
        for object in [
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {}}),
            json!({"apiVersion": "v1", "data": {"kind": "x", "a": trap}, "kind": "Secret", "type": trap,
                "metadata": {"annotations": {"kind": "a", "apiVersion": trap}, "ownerReferences": [owner]}}),
            json!({"aggregationRule": {"kind": "x"}, "apiVersion": "v1", "kind": "K", "metadata": {"name": "a"},
                "rules": [{"kind": "y"}]}),
            json!({"metadata": {"name": "a"}, "spec": {"kind": "x"}}),
        ] {
            assert_eq!(without(&object), expected(&object));
        }
    }

    proptest! {
        #[test]
        fn nothing_else_is_lost(name in ".*", a in ".*", b in ".*", key in ".*") {
            let object = json!({"apiVersion": a, "data": {key: b}, "kind": b, "metadata": {"name": name}, "z": a});
            prop_assert_eq!(without(&object), expected(&object));
        }
    }
}
