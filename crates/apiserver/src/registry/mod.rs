//! The verbs, over every kind: what is read from the store and what may be written to it.

use std::fmt;
use std::sync::Arc;

use api::field::FieldErrors;
use arc_swap::ArcSwap;
use base::time::{Clock, Wall};
use serde_json::Value;

use crate::admission::{Chain, Operation, Review};
use crate::kind::Kind;
use crate::refusal::Refusal;
use crate::request::{Attributes, Resource, User};
use crate::trouble;
use store::{Entry, ReadError, Store};

mod address_objects;
pub mod addresses;
mod binding;
pub mod body;
pub mod catalog;
mod create;
mod delete;
pub mod document;
mod evict;
pub mod list;
pub mod meta;
mod modify;
pub mod options;
pub mod owners;
pub mod patch;
pub(crate) mod relocate;
mod rewrite;
mod scale;
pub mod selection;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod watch;

use addresses::{Addresses, Claim};
use catalog::Catalog;
use document::Document;
use options::WriteOptions;

/// Everything the verbs need. Cheap to clone.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    store: Store,
    catalog: ArcSwap<Catalog>,
    clock: Arc<dyn Clock>,
    admission: Option<Chain>,
    addresses: Addresses,
}

/// One request for a verb.
#[derive(Clone, Debug)]
pub struct Call {
    pub kind: Arc<Kind>,
    pub attributes: Attributes,
    pub options: WriteOptions,
    /// Why this call may not create what it finds missing; it was allowed to change, which is not the same.
    pub(crate) create_refused: Option<Box<Refusal>>,
    /// What is odd about the text of a patch. Told when the patch fits.
    pub(crate) complaints: Vec<String>,
    /// Whether managedFields were settled by an apply.
    pub(crate) applied: bool,
    /// Sentences for `Warning` headers, whether the call succeeds or not.
    pub warnings: Vec<String>,
}

/// What a write left behind.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object as its kind shows it.
    pub object: Value,
    /// The same as it lies in the store, where its kind shows it as it lies there.
    pub document: Option<Document>,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Created,
    Updated,
    /// The write removed the last thing that held a deleted object.
    Deleted,
}

// === impl Registry ===

impl Registry {
    /// `admission` is asked about every write; a test may do without.
    #[must_use]
    pub fn new(
        store: Store,
        catalog: Catalog,
        clock: Arc<dyn Clock>,
        admission: Option<Chain>,
        addresses: Addresses,
    ) -> Registry {
        let catalog = ArcSwap::from_pointee(catalog);
        Registry(Arc::new(Inner { store, catalog, clock, admission, addresses }))
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.0.catalog.load_full()
    }

    /// Serves other kinds from now on.
    pub fn set_catalog(&self, catalog: Catalog) {
        self.0.catalog.store(Arc::new(catalog));
    }

    #[must_use]
    pub fn now(&self) -> Wall {
        self.0.clock.now().wall
    }

    /// The kind, which a caller inside the server knows to exist.
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Result<Arc<Kind>, Refusal> {
        let catalog = self.0.catalog.load();
        catalog.find(group, version, plural).cloned().ok_or_else(Refusal::no_resource)
    }

    /// Who has which cluster address.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.0.addresses
    }

    /// Lets the admission chain complete an object before it is judged.
    async fn admit(&self, call: &mut Call, object: &mut Value, old: Option<&Value>) -> Result<(), Refusal> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        let warnings = chain.mutate(&self.review(call, old), object).await?;
        call.warn(warnings);
        Ok(())
    }

    /// Lets the admission chain judge what is about to be written.
    async fn admit_final(&self, call: &mut Call, object: &Value, old: Option<&Value>) -> Result<(), Refusal> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        let warnings = chain.validate(&self.review(call, old), object).await?;
        call.warn(warnings);
        Ok(())
    }

    /// Tells the admission chain that what it judged last was not written.
    async fn withdraw(&self, call: &Call, object: &Value, old: Option<&Value>) {
        if let Some(chain) = &self.0.admission {
            chain.withdraw(&self.review(call, old), object).await;
        }
    }

    async fn admit_deletion(&self, call: &Call, old: &Value) -> Result<(), Refusal> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        chain.delete(&Review { operation: Operation::Delete, ..self.review(call, Some(old)) }).await
    }

    /// Lets the admission chain judge what is sent to a subresource that stores nothing by itself.
    pub async fn admit_sent(&self, call: &Call, sent: &Value) -> Result<(), Refusal> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        chain.send(&self.review(call, None), sent).await
    }

    /// Asks admission about a Binding, which it may complete.
    pub async fn admit_binding(&self, call: &Call, binding: &mut Value) -> Result<(), Refusal> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        chain.bind(&self.review(call, None), binding).await
    }

    fn review<'r>(&self, call: &'r Call, old: Option<&'r Value>) -> Review<'r> {
        Review {
            kind: &call.kind,
            attributes: &call.attributes,
            operation: if old.is_some() { Operation::Update } else { Operation::Create },
            old,
            dry_run: call.options.dry_run,
            now: self.now(),
        }
    }

    /// Gives a Service what it needs, before it is validated.
    fn assign_addresses(&self, kind: &Kind, object: &mut Value, errors: &mut FieldErrors) -> Option<Claim> {
        is_service(kind).then(|| self.0.addresses.assign(object, errors))
    }

    /// One object.
    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Document, Refusal> {
        let found = self.find(kind, namespace, name).await?;
        found.ok_or_else(|| Refusal::not_found(kind, name))
    }

    /// One object, if it is there.
    pub async fn find(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Document>, Refusal> {
        if name.is_empty() || name.contains('/') || namespace.contains('/') {
            return Ok(None);
        }
        let key = selection::key(kind, namespace, name);
        let entry = self.store().get(&key).await.map_err(|e| trouble::of_read(&e))?;
        Ok(entry.map(Document::from))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("store", &self.0.store).finish_non_exhaustive()
    }
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

    fn key(&self, name: &str) -> String {
        selection::key(&self.kind, self.namespace(), name)
    }

    fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        self.warnings.extend(warnings);
    }
}

// === impl Written ===

impl Written {
    /// What came of a write to the store: where nothing is converted, what was written, without reading it again.
    fn to_store(kind: &Kind, mut object: Value, entry: Entry, outcome: Outcome) -> Written {
        let document = Document::from(entry);
        if kind.strategy.converts() {
            return Written { object: selection::present(kind, &document), document: None, outcome };
        }
        let metadata = meta::metadata_mut(&mut object);
        metadata.remove("selfLink");
        metadata.insert("resourceVersion".to_owned(), document.rev.to_string().into());
        Written { object, document: Some(document), outcome }
    }

    /// What would have come of a write, or what is no longer there.
    fn elsewhere(object: Value, outcome: Outcome) -> Written {
        Written { object, document: None, outcome }
    }
}

fn is_service(kind: &Kind) -> bool {
    kind.group.is_empty() && kind.plural == "services"
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Refusal {
        trouble::of_read(&error)
    }
}
