//! The garbage collector: objects whose owners are gone go too.
//!
//! It knows who owns whom from one watch over everything and holds only that: keys and owner references. Whether an
//! owner is still there it asks the store.

mod graph;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::time::Duration;

use client::workqueue::{RetryPauses, WorkQueue};
use serde_json::Value;
use tokio::time::Instant;

use self::graph::{Graph, may_own, waits};
use super::{Located, locate};
use crate::registry::Registry;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::doc;
use apiserver_core::document::Document;
use apiserver_core::meta;
use apiserver_core::options::{DeleteOptions, Propagation};
use apiserver_core::selection::{Selection, present};
use store::ChangeKind;

/// Before a lost watch is started again.
const REST: Duration = Duration::from_secs(1);
/// Before an item that failed is tried again.
const PAUSES: RetryPauses = RetryPauses { first: Duration::from_millis(200), last: Duration::from_secs(60) };
/// Failures of one item after which somebody should hear of it.
const LOUD: u32 = 6;

/// Collects until the store closes.
pub(crate) async fn run(registry: Registry) {
    loop {
        let mut collector =
            Collector { registry: registry.clone(), graph: Graph::default(), queue: WorkQueue::new(PAUSES) };
        if let Err(api_status) = collector.follow().await {
            tracing::warn!(error = %api_status.message, "the garbage collector lost its watch; starting over");
        }
        tokio::time::sleep(REST).await;
    }
}

struct Collector {
    registry: Registry,
    graph: Graph,
    queue: WorkQueue<Work>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Work {
    /// Does it still have an owner?
    Judge(Box<str>),
    /// Its dependents go before it.
    Foreground(Box<str>),
    /// Its dependents lose it and stay.
    Orphan(Box<str>),
}

/// What an owner reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Solid,
    /// It is there and waits for its dependents to go.
    Waiting,
    Absent,
}

// === impl Collector ===

impl Collector {
    async fn follow(&mut self) -> Result<(), ApiStatus> {
        let revision = self.registry.store().revision();
        self.load().await?;
        let watch = self.registry.store().watch("/", revision);
        let mut watch = watch.map_err(|e| ApiStatus::expired(e.to_string()))?;
        loop {
            // Everything that is known goes first: decisions are made on the newest picture there is.
            while let Some(change) = watch.try_next() {
                self.note(&change);
            }
            if let Some(work) = self.queue.take() {
                self.attempt(work).await;
                continue;
            }
            let due = self.queue.due().unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                change = watch.next() => {
                    let change = change.map_err(|e| ApiStatus::unavailable(e.to_string()))?;
                    self.note(&change);
                }
                () = tokio::time::sleep_until(due) => self.queue.wake(Instant::now()),
            }
        }
    }

    async fn load(&mut self) -> Result<(), ApiStatus> {
        let catalog = self.registry.catalog();
        for kind in catalog.places() {
            let mut lister = self.registry.list(Selection::all(kind.clone()), &Default::default()).await?;
            while let Some(page) = lister.next_page().await? {
                for document in page {
                    self.see(&document.key, &document.to_value());
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, change: &store::Change) {
        let value = || Document::new(change.key.clone(), change.rev, change.value.clone()).to_value();
        if change.kind == ChangeKind::Deleted {
            let last = value();
            let relieved = self.graph.forget(&change.key, meta::uid(&last));
            relieved.into_iter().for_each(|owner| self.queue.add(Work::Foreground(owner)));
            let bereft = self.graph.dependents(meta::uid(&last));
            bereft.into_iter().for_each(|key| self.queue.add(Work::Judge(key)));
            return;
        }
        // Most objects have no owner and are not ending.
        if self.graph.knows(&change.key)
            || change.mentions("\"ownerReferences\"")
            || change.mentions("\"deletionTimestamp\"")
        {
            self.see(&change.key, &value());
        }
    }

    /// Learns who owns an object, and whether it is ending in a way that concerns us.
    fn see(&mut self, key: &str, object: &Value) {
        let news = self.graph.see(key, object);
        news.relieved.into_iter().for_each(|owner| self.queue.add(Work::Foreground(owner)));
        if news.owned_anew {
            self.queue.add(Work::Judge(key.into()));
        }
        if meta::is_deleting(object) && meta::finalizers(object).any(|f| f == meta::ORPHAN) {
            self.queue.add(Work::Orphan(key.into()));
        } else if waits(object) {
            self.queue.add(Work::Foreground(key.into()));
        }
    }

    async fn attempt(&mut self, work: Work) {
        let outcome = self.do_work(&work).await;
        self.queue.done(&work);
        let Err(api_status) = outcome else { return self.queue.forget(&work) };
        match self.queue.retry(work.clone(), Instant::now()) {
            LOUD => tracing::warn!(?work, error = %api_status.message, "collecting keeps failing"),
            times => {
                tracing::debug!(?work, times, error = %api_status.message, "collecting failed; trying again")
            }
        }
    }

    async fn do_work(&mut self, work: &Work) -> Result<(), ApiStatus> {
        let (Work::Judge(key) | Work::Foreground(key) | Work::Orphan(key)) = work;
        let Some(located) = locate(&self.registry.catalog(), key) else { return Ok(()) };
        let Located { kind, namespace, name } = &located;
        let Some(document) = self.registry.find(kind, namespace, name).await? else { return Ok(()) };
        let object = present(kind, &document);
        match work {
            Work::Judge(_) => self.judge(&located, &object).await,
            Work::Foreground(_) => self.foreground(&located, &object).await,
            Work::Orphan(_) => self.orphan(&located, &object).await,
        }
    }

    async fn judge(&mut self, located: &Located, object: &Value) -> Result<(), ApiStatus> {
        let references = doc::list(object, "metadata.ownerReferences");
        if references.is_empty() {
            return Ok(());
        }
        let mut states = Vec::new();
        for reference in references {
            states.push(self.state_of(reference, located).await?);
        }
        if states.contains(&Owner::Solid) {
            let gone: Vec<&str> = references
                .iter()
                .zip(&states)
                .filter(|(_, state)| **state != Owner::Solid)
                .map(|(reference, _)| doc::text(reference, "uid"))
                .collect();
            return if gone.is_empty() { Ok(()) } else { self.disown(located, &gone).await };
        }
        if meta::is_deleting(object) {
            return Ok(());
        }
        let has = |finalizer: &str| meta::finalizers(object).any(|f| f == finalizer);
        let propagation = if states.contains(&Owner::Waiting) && self.graph.owns_any(meta::uid(object)) {
            Propagation::Foreground
        } else if has(meta::ORPHAN) {
            Propagation::Orphan
        } else if has(meta::FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        self.delete(located, object, propagation).await
    }

    async fn foreground(&mut self, located: &Located, object: &Value) -> Result<(), ApiStatus> {
        if !waits(object) {
            return Ok(());
        }
        let uid = meta::uid(object);
        let mut blocked = false;
        for key in self.graph.dependents(uid) {
            let Some(dependent) = locate(&self.registry.catalog(), &key) else { continue };
            let found = self.registry.find(&dependent.kind, &dependent.namespace, &dependent.name).await?;
            let Some(document) = found else { continue };
            let value = document.to_value();
            let blocks = doc::list(&value, "metadata.ownerReferences")
                .iter()
                .any(|r| r["uid"] == uid && r["blockOwnerDeletion"] == true);
            blocked |= blocks && may_own(&located.namespace, &dependent.namespace);
            if !meta::is_deleting(&value) {
                self.queue.add(Work::Judge(key));
            }
        }
        if !blocked {
            return self.drop_finalizer(located, meta::FOREGROUND).await;
        }
        // Objects that wait for each other would do so for ever: one of them lets its owners go first.
        if self.graph.is_in_circle(uid) { self.unblock(located).await } else { Ok(()) }
    }

    async fn orphan(&mut self, located: &Located, object: &Value) -> Result<(), ApiStatus> {
        let uid = meta::uid(object);
        for key in self.graph.dependents(uid) {
            if let Some(dependent) = locate(&self.registry.catalog(), &key) {
                self.disown(&dependent, &[uid]).await?;
            }
        }
        self.drop_finalizer(located, meta::ORPHAN).await
    }

    /// Removes references to owners that are gone.
    async fn disown(&self, located: &Located, gone: &[&str]) -> Result<(), ApiStatus> {
        let Located { kind, namespace, name } = located;
        let drop_references = |object: &mut Value| {
            let references = doc::list(object, "metadata.ownerReferences");
            let kept: Vec<Value> =
                references.iter().filter(|r| !gone.contains(&doc::text(r, "uid"))).cloned().collect();
            if kept.len() == references.len() {
                return Ok(false);
            }
            let metadata = meta::metadata_mut(object);
            meta::set_or_remove(metadata, "ownerReferences", (!kept.is_empty()).then_some(kept.into()));
            Ok(true)
        };
        self.registry.rewrite(kind, namespace, name, drop_references).await.map(drop)
    }

    /// Holds back none of its owners any more.
    async fn unblock(&self, located: &Located) -> Result<(), ApiStatus> {
        let Located { kind, namespace, name } = located;
        let unblock = |object: &mut Value| {
            let mut changed = false;
            for reference in doc::list_mut(object, "metadata.ownerReferences") {
                changed |= reference["blockOwnerDeletion"] == true;
                reference["blockOwnerDeletion"] = false.into();
            }
            Ok(changed)
        };
        self.registry.rewrite(kind, namespace, name, unblock).await.map(drop)
    }

    /// The write that takes the last finalizer also ends the object: a deletion of its own would ask again what
    /// shall become of the dependents.
    async fn drop_finalizer(&self, located: &Located, finalizer: &str) -> Result<(), ApiStatus> {
        let Located { kind, namespace, name } = located;
        let drop_it = |object: &mut Value| {
            let had = meta::finalizers(object).any(|f| f == finalizer);
            meta::set_finalizer(object, finalizer, false);
            Ok(had)
        };
        self.registry.rewrite(kind, namespace, name, drop_it).await.map(drop)
    }

    async fn delete(&self, located: &Located, object: &Value, how: Propagation) -> Result<(), ApiStatus> {
        let options = DeleteOptions {
            uid: Some(meta::uid(object).to_owned()),
            version: Some(meta::text(object, "resourceVersion").to_owned()),
            propagation: Some(how),
            ..DeleteOptions::default()
        };
        let mut call = Call::internal(located.kind.clone(), "delete", &located.namespace, &located.name);
        match self.registry.delete(&mut call, &options).await {
            Ok(_) => Ok(()),
            Err(api_status) if api_status.is_not_found() => Ok(()),
            Err(api_status) => Err(api_status),
        }
    }

    async fn state_of(&self, reference: &Value, dependent: &Located) -> Result<Owner, ApiStatus> {
        let catalog = self.registry.catalog();
        let (version, kind) = (doc::text(reference, "apiVersion"), doc::text(reference, "kind"));
        // A kind that is not served may come back: nothing is deleted on its account.
        let Some(kind) = catalog.find_kind(version, kind) else { return Ok(Owner::Solid) };
        // What is in no namespace cannot belong to what is in one: upstream complains and deletes nothing.
        if kind.is_namespaced() && dependent.namespace.is_empty() {
            return Ok(Owner::Solid);
        }
        let found = self.registry.find(kind, &dependent.namespace, doc::text(reference, "name")).await?;
        let Some(owner) = found.map(|d| present(kind, &d)) else { return Ok(Owner::Absent) };
        if meta::uid(&owner) != doc::text(reference, "uid") {
            return Ok(Owner::Absent);
        }
        Ok(if waits(&owner) { Owner::Waiting } else { Owner::Solid })
    }
}
