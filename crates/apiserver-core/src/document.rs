//! Objects as they lie in the store, and as clients see them.
//!
//! A stored document is JSON whose first member is `metadata`, without `resourceVersion`: that is the revision of the
//! store, known only once the write is done. It is put in by splicing text, so that reading, listing and watching
//! need not parse anything.

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How every stored document begins.
const HEAD: &[u8] = b"{\"metadata\":{";

/// An object at a revision.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where it lies.
    pub key: Arc<str>,
    pub rev: u64,
    stored: Bytes,
}

/// The part of a document that label selectors look at.
#[derive(Deserialize)]
struct Labelled<'d> {
    #[serde(borrow)]
    metadata: Labels<'d>,
}

#[derive(Deserialize)]
struct Labels<'d> {
    #[serde(borrow, default)]
    labels: BTreeMap<Cow<'d, str>, Cow<'d, str>>,
}

/// The stored form of an object.
#[must_use]
pub fn encode(object: &Value) -> Bytes {
    let empty = Map::new();
    let metadata = object["metadata"].as_object().unwrap_or(&empty);
    let mut out = Vec::with_capacity(1024);
    out.extend_from_slice(HEAD);
    let mut first = true;
    for (name, value) in metadata {
        if !matches!(name.as_str(), "resourceVersion" | "selfLink") {
            write_member(&mut out, &mut first, name, value);
        }
    }
    out.push(b'}');
    let mut first = false;
    for (name, value) in object.as_object().into_iter().flatten() {
        if name != "metadata" {
            write_member(&mut out, &mut first, name, value);
        }
    }
    out.push(b'}');
    Bytes::from(out)
}

fn write_member(out: &mut Vec<u8>, first: &mut bool, name: &str, value: &Value) {
    if !std::mem::take(first) {
        out.push(b',');
    }
    // Writing JSON to memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, name);
    out.push(b':');
    let _ = serde_json::to_writer(&mut *out, value);
}

// === impl Document ===

impl Document {
    #[must_use]
    pub fn new(key: impl Into<Arc<str>>, rev: u64, stored: Bytes) -> Document {
        Document { key: key.into(), rev, stored }
    }

    /// Bytes it takes as JSON.
    #[must_use]
    pub fn size(&self) -> usize {
        self.stored.len() + 44
    }

    /// Appends the JSON clients see.
    pub fn write_json(&self, out: &mut BytesMut) {
        let Some(rest) = self.stored.strip_prefix(HEAD) else {
            // Only a hand that wrote to the file could bring us here.
            out.extend_from_slice(&self.stored);
            return;
        };
        out.extend_from_slice(HEAD);
        out.extend_from_slice(b"\"resourceVersion\":\"");
        out.extend_from_slice(itoa(self.rev, &mut [0; 20]));
        out.extend_from_slice(if rest.starts_with(b"}") { b"\"" } else { b"\"," });
        out.extend_from_slice(rest);
    }

    #[must_use]
    pub fn to_json(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.size());
        self.write_json(&mut out);
        out.freeze()
    }

    /// The object, without what nests too deep to be read. An undecodable document (a damaged store says so earlier) is null.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut value = schema::nesting::read_stored(&self.stored).unwrap_or_default();
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.insert("resourceVersion".to_owned(), self.rev.to_string().into());
        }
        value
    }

    /// Whether a test of labels holds, without building the object.
    #[must_use]
    pub fn labels_satisfy(&self, test: impl FnOnce(&dyn Fn(&str) -> Option<String>) -> bool) -> bool {
        match serde_json::from_slice::<Labelled<'_>>(&self.stored) {
            Ok(document) => test(&|key| document.metadata.labels.get(key).map(|v| v.to_string())),
            Err(_) => test(&|_| None),
        }
    }
}

fn itoa(mut n: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &buffer[at..];
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_revision_is_spliced_in() {
        let object =
            json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "a", "resourceVersion": "1"}});
        let stored = encode(&object);
        assert!(!String::from_utf8_lossy(&stored).contains("resourceVersion"));
        let document = Document::new("/registry/x/a", 42, stored);
        assert_eq!(document.to_value()["metadata"]["resourceVersion"], "42");
        assert_eq!(serde_json::from_slice::<Value>(&document.to_json()).unwrap(), document.to_value());
        let bare = Document::new("k", u64::MAX, encode(&json!({"metadata": {}})));
        assert_eq!(serde_json::from_slice::<Value>(&bare.to_json()).unwrap(), bare.to_value());
    }

    #[test]
    fn labels_are_seen_without_the_rest() {
        let object =
            json!({"metadata": {"name": "a", "labels": {"k\"": "v\n"}}, "spec": {"labels": {"x": "y"}}});
        let document = Document::new("k", 1, encode(&object));
        assert!(
            document.labels_satisfy(|label| label("k\"").as_deref() == Some("v\n") && label("x").is_none())
        );
    }

    proptest! {
        #[test]
        fn nothing_is_lost(name in ".*", rev: u64, spec in ".*", n: i64) {
            let object = json!({"metadata": {"name": name}, "spec": {"a": spec, "n": n}, "kind": "X"});
            let document = Document::new("k", rev, encode(&object));
            let mut seen: Value = serde_json::from_slice(&document.to_json()).unwrap();
            prop_assert_eq!(seen["metadata"]["resourceVersion"].take(), Value::from(rev.to_string()));
            seen["metadata"].as_object_mut().unwrap().remove("resourceVersion");
            prop_assert_eq!(seen, object);
        }
    }
}
