//! Which objects of a kind a request is about.

use std::borrow::Cow;
use std::sync::Arc;

use api::selector::{FieldSelector, LabelSelector};
use serde_json::Value;

use crate::api_status::ApiStatus;
use crate::document::Document;
use crate::kind::Kind;
use crate::meta;

/// A kind, perhaps one namespace of it, and what labels and fields must satisfy.
#[derive(Clone, Debug)]
pub struct Selection {
    pub kind: Arc<Kind>,
    /// Empty: all namespaces, or a kind without.
    pub namespace: String,
    labels: LabelSelector,
    fields: FieldSelector,
}

// === impl Selection ===

impl Selection {
    /// Refuses a field the kind cannot be selected by.
    pub fn new(
        kind: Arc<Kind>,
        namespace: &str,
        labels: LabelSelector,
        fields: FieldSelector,
    ) -> Result<Selection, ApiStatus> {
        for term in fields.terms() {
            let field = term.field.as_str();
            let known = field == "metadata.name"
                || (field == "metadata.namespace" && kind.is_namespaced())
                || kind.strategy.field(field, &Value::Null).is_some();
            if !known {
                return Err(ApiStatus::bad_request(format!("field label not supported: {field}")));
            }
        }
        Ok(Selection { kind, namespace: namespace.to_owned(), labels, fields })
    }

    /// Everything of a kind.
    #[must_use]
    pub fn all(kind: Arc<Kind>) -> Selection {
        Selection {
            kind,
            namespace: String::new(),
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
        }
    }

    /// Where its objects lie. Ends in a slash unless it is one object's key.
    #[must_use]
    pub fn prefix(&self) -> String {
        let mut prefix = self.kind.place();
        if self.kind.is_namespaced() && !self.namespace.is_empty() {
            prefix.push_str(&self.namespace);
            prefix.push('/');
        }
        prefix
    }

    /// The one key it can be about.
    #[must_use]
    pub fn key(&self) -> Option<String> {
        let name = self.fields.exact("metadata.name")?;
        let placed = !self.kind.is_namespaced() || !self.namespace.is_empty();
        // What is no name is in no store; it must not reach into other places either.
        (placed && !name.is_empty() && !name.contains('/')).then(|| format!("{}{name}", self.prefix()))
    }

    /// Whether anything is left out.
    #[must_use]
    pub fn is_filtering(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    #[must_use]
    pub fn takes(&self, document: &Document) -> bool {
        if !self.labels.is_empty()
            && !document.labels_satisfy(|label| {
                self.labels.requirements().iter().all(|r| r.holds(label(&r.key).as_deref()))
            })
        {
            return false;
        }
        self.fields.is_empty() || self.takes_fields(document)
    }

    fn takes_fields(&self, document: &Document) -> bool {
        let (namespace, name) = split_key(&document.key, self.kind.is_namespaced());
        let only_name = self.fields.terms().iter().all(|t| t.field.starts_with("metadata.name"));
        let object = if only_name { Value::Null } else { present(&self.kind, document) };
        self.fields.matches(|field| match field {
            "metadata.name" => name.to_owned(),
            "metadata.namespace" => namespace.to_owned(),
            other => self.kind.strategy.field(other, &object).map(Cow::into_owned).unwrap_or_default(),
        })
    }
}

/// The object as this kind shows it.
#[must_use]
pub fn present(kind: &Kind, document: &Document) -> Value {
    let mut object = document.to_value();
    if kind.strategy.converts() {
        kind.strategy.show_as_here(&mut object);
    }
    object
}

/// The key of an object.
#[must_use]
pub fn key(kind: &Kind, namespace: &str, name: &str) -> String {
    let place = kind.place();
    if kind.is_namespaced() { format!("{place}{namespace}/{name}") } else { format!("{place}{name}") }
}

/// The key of an object that says itself where it belongs.
#[must_use]
pub fn key_of(kind: &Kind, object: &Value) -> String {
    key(kind, meta::namespace(object), meta::name(object))
}

/// Namespace and name, from a key.
#[must_use]
pub fn split_key(key: &str, namespaced: bool) -> (&str, &str) {
    let mut parts = key.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let namespace = if namespaced { parts.next().unwrap_or_default() } else { "" };
    (namespace, name)
}
