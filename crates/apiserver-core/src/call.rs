//! A request for a verb, as the machinery carries it.

use std::sync::Arc;

use crate::api_status::ApiStatus;
use crate::kind::Kind;
use crate::options::WriteOptions;
use crate::request::{Attributes, Resource, User};
use crate::selection;

/// One request for a verb.
#[derive(Clone, Debug)]
pub struct Call {
    pub kind: Arc<Kind>,
    pub attributes: Attributes,
    pub options: WriteOptions,
    /// Why this call may not create what it finds missing; it was allowed to change, which is not the same.
    pub create_refused: Option<Box<ApiStatus>>,
    /// What is odd about the text of a patch. Told when the patch fits.
    pub complaints: Vec<String>,
    /// Whether managedFields were settled by an apply.
    pub applied: bool,
    /// Sentences for `Warning` headers, whether the call succeeds or not.
    pub warnings: Vec<String>,
}

// === impl Call ===

impl Call {
    /// A call of the server itself.
    #[must_use]
    pub fn internal(kind: Arc<Kind>, verb: &'static str, namespace: &str, name: &str) -> Call {
        let resource = Resource {
            group: kind.group.to_string(),
            version: kind.version.to_string(),
            plural: kind.plural.to_string(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Resource::default()
        };
        let attributes = Attributes {
            user: Arc::new(User::server()),
            verb: verb.into(),
            resource: Some(resource),
            ..Attributes::default()
        };
        let options = WriteOptions { field_manager: "longshore".to_owned(), ..WriteOptions::default() };
        Call {
            kind,
            attributes,
            options,
            create_refused: None,
            complaints: Vec::new(),
            applied: false,
            warnings: Vec::new(),
        }
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        // The namespace of a Namespace is a courtesy to authorization, not a place.
        match &self.attributes.resource {
            Some(resource) if self.kind.is_namespaced() => &resource.namespace,
            _ => "",
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.attributes.resource.as_ref().map(|r| r.name.as_str()).unwrap_or_default()
    }

    #[must_use]
    pub fn subresource(&self) -> &str {
        self.attributes.resource.as_ref().map(|r| r.subresource.as_str()).unwrap_or_default()
    }

    #[must_use]
    pub fn key(&self, name: &str) -> String {
        selection::key(&self.kind, self.namespace(), name)
    }

    pub fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        self.warnings.extend(warnings);
    }
}
