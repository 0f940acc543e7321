//! OpenAPI documents: version 3 per group and version, version 2 for everything at once.
//!
//! kubectl reads them for `explain`, to learn which parameters a PATCH takes, and for the merge keys of lists. They are
//! written on demand, piece by piece, and kept by nobody: the prose alone is larger than the idle server should be.

mod definitions;
mod paths;
mod protobuf;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use definitions::Prose;
use protobuf::Message;

/// One resource as the documents tell of it.
#[derive(Clone, Debug)]
pub struct Resource<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub plural: &'a str,
    pub is_namespaced: bool,
    /// `get`, `list`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verbs: Vec<&'a str>,
    pub subresources: Vec<Sub<'a>>,
    pub schema: Source<'a>,
}

/// A path below an object.
#[derive(Clone, Debug)]
pub struct Sub<'a> {
    pub name: &'a str,
    /// Group, version and kind of what is read and written there.
    pub kind: (&'a str, &'a str, &'a str),
    pub verbs: Vec<&'a str>,
}

/// Where the type of a resource is told.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A built-in type: `io.k8s.api.core.v1.Pod`.
    Builtin(&'a str),
    /// The `openAPIV3Schema` of a custom kind.
    Custom(&'a Value),
}

/// The two dialects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    V2,
    V3,
}

/// The OpenAPI 3 document of one group and version: `resources` are those of that group and version.
#[must_use]
pub fn v3(resources: &[Resource<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(b"{\"openapi\":\"3.0.0\",\"info\":");
    write(&mut out, &info());
    out.extend_from_slice(b",\"paths\":{");
    write_document(&mut out, resources, Dialect::V3, b"},\"components\":{\"schemas\":{");
    out.extend_from_slice(b"}}}");
    out
}

/// The OpenAPI 2 document of all resources.
#[must_use]
pub fn v2(resources: &[Resource<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(b"{\"swagger\":\"2.0\",\"info\":");
    write(&mut out, &info());
    out.extend_from_slice(b",\"paths\":{");
    write_document(&mut out, resources, Dialect::V2, b"},\"definitions\":{");
    out.extend_from_slice(b"}}");
    out
}

/// The OpenAPI 2 document of all resources as protobuf
/// (`application/com.github.proto-openapi.spec.v2.v1.0+protobuf`, or `spec.v2@v1.0`): Go clients take no other.
#[must_use]
pub fn v2_protobuf(resources: &[Resource<'_>]) -> Vec<u8> {
    let mut document = Message::default();
    document.text(1, "2.0");
    document.info(2, &info());
    let mut wanted = BTreeSet::new();
    document.message(8, |paths| {
        wanted = each_path(resources, Dialect::V2, |path, item| paths.path(2, path, item));
    });
    document.message(9, |definitions| {
        each_definition(resources, wanted, Dialect::V2, |name, definition| {
            definitions.named_schema(1, name, definition);
        });
    });
    document.into_bytes()
}

/// `/openapi/v3`: where each document is. The items are a group and version as `api/v1` or `apis/apps/v1`, and the
/// document's `digest`; clients keep a document as long as its digest stays the same.
#[must_use]
pub fn v3_index<'a>(documents: impl IntoIterator<Item = (&'a str, String)>) -> Value {
    let paths: Value = documents
        .into_iter()
        .map(|(path, digest)| {
            let address = format!("/openapi/v3/{path}?hash={digest}");
            (path.to_owned(), json!({"serverRelativeURL": address}))
        })
        .collect();
    json!({"paths": paths})
}

/// Tells documents apart without writing them.
#[must_use]
pub fn digest(resources: &[Resource<'_>]) -> String {
    let mut all = String::from(env!("CARGO_PKG_VERSION"));
    for resource in resources {
        all.push_str(&format!("{resource:?}"));
    }
    all.push_str(&crate::types::source_digest());
    format!("{:032X}", base::fnv::fnv1a128(all.as_bytes()))
}

impl Dialect {
    fn reference(self, name: &str) -> Value {
        match self {
            Dialect::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Dialect::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

impl Resource<'_> {
    /// The name of the type in the documents.
    fn type_name(&self) -> String {
        match self.schema {
            Source::Builtin(name) => name.to_owned(),
            Source::Custom(_) => {
                let group: Vec<&str> = self.group.rsplit('.').collect();
                format!("{}.{}.{}", group.join("."), self.version, self.kind)
            }
        }
    }
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "unversioned"})
}

/// Tells every path to `tell`; returns the names of the types they speak of.
fn each_path(
    resources: &[Resource<'_>],
    dialect: Dialect,
    mut tell: impl FnMut(&str, &Value),
) -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    for resource in resources {
        for (path, item) in paths::of(resource, dialect, &mut wanted) {
            tell(&path, &item);
        }
    }
    wanted
}

/// Tells every type to `tell`: those wanted, and all they are made of.
fn each_definition(
    resources: &[Resource<'_>],
    mut wanted: BTreeSet<String>,
    dialect: Dialect,
    mut tell: impl FnMut(&str, &Value),
) {
    let text = crate::types::descriptions();
    let prose = Prose::read(&text);
    let mut done = BTreeSet::new();
    for resource in resources {
        if let Source::Custom(schema) = resource.schema {
            for (name, definition) in definitions::custom(resource, schema, &prose, dialect, &mut wanted) {
                tell(&name, &definition);
                done.insert(name);
            }
        }
    }
    while let Some(name) = wanted.pop_first() {
        if !done.insert(name.clone()) {
            continue;
        }
        let mut further = BTreeSet::new();
        if let Some(definition) = definitions::of(&name, &prose, dialect, &mut further) {
            tell(&name, &definition);
        }
        wanted.extend(further.into_iter().filter(|name| !done.contains(name)));
    }
}

/// Writes the paths and the types, each into its object.
fn write_document(out: &mut Vec<u8>, resources: &[Resource<'_>], dialect: Dialect, between: &[u8]) {
    let mut is_first = true;
    let wanted = each_path(resources, dialect, |path, item| write_entry(out, path, item, &mut is_first));
    out.extend_from_slice(between);
    let mut is_first = true;
    each_definition(resources, wanted, dialect, |name, definition| {
        write_entry(out, name, definition, &mut is_first);
    });
}

fn write_entry(out: &mut Vec<u8>, key: &str, value: &Value, is_first: &mut bool) {
    if !std::mem::take(is_first) {
        out.push(b',');
    }
    write(out, &Value::from(key));
    out.push(b':');
    write(out, value);
}

fn write(out: &mut Vec<u8>, value: &Value) {
    // Writing a document into memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}

#[cfg(test)]
mod tests;
