//! Objects in the shapes clients ask for: whole, as rows of a Table, or only their metadata.

use base::time::Wall;
use bytes::BytesMut;
use serde_json::{Value, json};

use super::accept::Shape;
use apiserver_core::document::Document;
use apiserver_core::kind::{Column, Kind};
use apiserver_core::refusal::Refusal;
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
    pub(crate) fn parse(text: Option<&str>) -> Result<Include, Refusal> {
        match text {
            None | Some("" | "Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::Nothing),
            Some("Object") => Ok(Include::Object),
            Some(other) => {
                let why = format!(
                    "includeObject: Invalid value: {other:?}: must be 'Metadata', 'Object', 'None', or empty"
                );
                Err(Refusal::bad_request(why))
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
            Shape::Whole if !kind.strategy.converts() => document.write_json(out),
            Shape::Whole => push(out, &present(kind, document)),
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
