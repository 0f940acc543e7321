//! The verbs, over every kind: what is read from the store and what may be written to it.

use std::fmt;
use std::sync::Arc;

use api::field::FieldErrors;
use apiserver_core::call::Call;
use apiserver_core::catalog::Catalog;
use apiserver_core::document::Document;
use apiserver_core::{meta, selection};
use arc_swap::ArcSwap;
use base::time::{Clock, Wall};
use serde_json::Value;

use crate::admission::Chain;
use crate::store_errors;
use apiserver_core::admission::{Operation, Review};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::kind::Kind;
use store::{Entry, Expect, Store, Write};

mod address_objects;
pub mod addresses;
mod apply;
mod binding;
mod create;
mod delete;
mod evict;
pub mod list;
mod modify;
pub mod patch;
pub(crate) mod relocate;
mod rewrite;
mod scale;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod watch;

use addresses::{Addresses, Claim};

/// By how much an object may grow in a step of its deletion: a time stamp, a finalizer, a condition and who set them.
const DELETION_GROWTH: usize = 4 << 10;

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
    pub fn kind(&self, group: &str, version: &str, plural: &str) -> Result<Arc<Kind>, ApiStatus> {
        let catalog = self.0.catalog.load();
        catalog.find(group, version, plural).cloned().ok_or_else(ApiStatus::no_resource)
    }

    /// Who has which cluster address.
    #[must_use]
    pub fn addresses(&self) -> &Addresses {
        &self.0.addresses
    }

    /// Lets the admission chain complete an object before it is judged.
    async fn admit(&self, call: &mut Call, object: &mut Value, old: Option<&Value>) -> Result<(), ApiStatus> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        let warnings = chain.mutate(&self.review(call, old), object).await?;
        call.warn(warnings);
        Ok(())
    }

    /// Lets the admission chain judge what is about to be written.
    async fn admit_final(
        &self,
        call: &mut Call,
        object: &Value,
        old: Option<&Value>,
    ) -> Result<(), ApiStatus> {
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

    async fn admit_deletion(&self, call: &Call, old: &Value) -> Result<(), ApiStatus> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        chain.delete(&Review { operation: Operation::Delete, ..self.review(call, Some(old)) }).await
    }

    /// Lets the admission chain judge what is sent to a subresource that stores nothing by itself.
    pub async fn admit_sent(&self, call: &Call, sent: &Value) -> Result<(), ApiStatus> {
        let Some(chain) = &self.0.admission else { return Ok(()) };
        chain.send(&self.review(call, None), sent).await
    }

    /// Asks admission about a Binding, which it may complete.
    pub async fn admit_binding(&self, call: &Call, binding: &mut Value) -> Result<(), ApiStatus> {
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

    /// Writes a new version of an object, if the old one is still there. One that is being deleted may use the room that the
    /// store keeps for deletions, unless it grows: that is how a full disk gets room again.
    async fn write_version(
        &self,
        kind: &Kind,
        old: &Document,
        object: &Value,
    ) -> Result<Entry, store::WriteError> {
        let stored = create::stored_form(kind, object);
        let is_step = meta::is_deleting(object) && stored.len() <= old.size() + DELETION_GROWTH;
        let write = Write::put(&old.key, stored, Expect::Rev(old.rev));
        self.store().write_one(if is_step { write.of_deletion() } else { write }).await
    }

    /// One object.
    pub async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Document, ApiStatus> {
        let found = self.find(kind, namespace, name).await?;
        found.ok_or_else(|| ApiStatus::not_found(kind, name))
    }

    /// One object, if it is there.
    pub async fn find(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Document>, ApiStatus> {
        if name.is_empty() || name.contains('/') || namespace.contains('/') {
            return Ok(None);
        }
        let key = selection::key(kind, namespace, name);
        let entry = self.store().get(&key).await.map_err(|e| store_errors::of_read(&e))?;
        Ok(entry.map(from_entry))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("store", &self.0.store).finish_non_exhaustive()
    }
}

// === impl Written ===

impl Written {
    /// What came of a write to the store: where nothing is converted, what was written, without reading it again.
    fn to_store(kind: &Kind, mut object: Value, entry: Entry, outcome: Outcome) -> Written {
        let document = from_entry(entry);
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

/// What lies in the store, as an object.
pub(crate) fn from_entry(entry: Entry) -> Document {
    Document::new(entry.key, entry.rev, entry.value)
}
