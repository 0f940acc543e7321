//! The garbage collector: objects whose owners are gone go too.
//!
//! It knows who owns whom from one watch over everything and holds only that: keys and owner references. Whether an
//! owner is still there it asks the store.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Located, locate};
use crate::doc;
use crate::refusal::Refusal;
use crate::registry::document::Document;
use crate::registry::options::{DeleteOptions, Propagation};
use crate::registry::selection::{Selection, present};
use crate::registry::{Call, Registry, meta};
use crate::store::ChangeKind;

/// Before something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Collects until the store closes.
pub(crate) async fn run(registry: Registry) {
    loop {
        let mut collector = Collector {
            registry: registry.clone(),
            owners: HashMap::new(),
            dependents: HashMap::new(),
            queue: VecDeque::new(),
            later: Vec::new(),
        };
        if let Err(refusal) = collector.follow().await {
            tracing::warn!(error = %refusal.message, "the garbage collector lost its watch; starting over");
        }
        tokio::time::sleep(RETRY).await;
    }
}

struct Collector {
    registry: Registry,
    /// Key of an object to the uids of its owners.
    owners: HashMap<Box<str>, Vec<Box<str>>>,
    /// Uid of an owner to the keys of what it owns.
    dependents: HashMap<Box<str>, HashSet<Box<str>>>,
    queue: VecDeque<Work>,
    later: Vec<(Instant, Work)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    async fn follow(&mut self) -> Result<(), Refusal> {
        let revision = self.registry.store().revision();
        self.load().await?;
        let watch = self.registry.store().watch("/", revision);
        let mut watch = watch.map_err(|e| Refusal::expired(e.to_string()))?;
        loop {
            // Everything that is known goes first: decisions are made on the newest picture there is.
            while let Some(change) = watch.try_next() {
                self.note(&change);
            }
            if let Some(work) = self.queue.pop_front() {
                if let Err(refusal) = self.do_work(&work).await {
                    tracing::debug!(?work, error = %refusal.message, "collecting failed; trying again");
                    self.later.push((Instant::now() + RETRY, work));
                }
                continue;
            }
            let due = self.later.iter().map(|(at, _)| *at).min();
            let due = due.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                change = watch.next() => {
                    let change = change.map_err(|e| Refusal::unavailable(e.to_string()))?;
                    self.note(&change);
                }
                () = tokio::time::sleep_until(due) => {
                    let now = Instant::now();
                    let (ready, rest) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= now);
                    self.later = rest;
                    let ready: Vec<(Instant, Work)> = ready;
                    self.queue.extend(ready.into_iter().map(|(_, work)| work));
                }
            }
        }
    }

    async fn load(&mut self) -> Result<(), Refusal> {
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

    fn note(&mut self, change: &crate::store::Change) {
        if change.kind != ChangeKind::Deleted {
            // Most objects have no owner and are not ending.
            if self.owners.contains_key(&*change.key)
                || change.mentions("\"ownerReferences\"")
                || change.mentions("\"deletionTimestamp\"")
            {
                let document = Document::new(change.key.clone(), change.rev, change.value.clone());
                self.see(&change.key, &document.to_value());
            }
            return;
        }
        let gone = self.owners.remove(&*change.key).unwrap_or_default();
        for owner in gone {
            if let Some(keys) = self.dependents.get_mut(&owner) {
                keys.remove(&*change.key);
                if keys.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
            // An owner that waits for its dependents may have waited for this one.
            self.wake_owner(change, &owner);
        }
        let last = Document::new(change.key.clone(), change.rev, change.value.clone()).to_value();
        if let Some(keys) = self.dependents.get(meta::uid(&last)) {
            self.queue.extend(keys.iter().cloned().map(Work::Judge));
        }
    }

    fn wake_owner(&mut self, change: &crate::store::Change, owner: &str) {
        let object = Document::new(change.key.clone(), change.rev, change.value.clone()).to_value();
        let references = doc::list(&object, "metadata.ownerReferences");
        let Some(reference) = references.iter().find(|r| r["uid"] == owner) else { return };
        if let Some(key) = self.key_of_owner(reference, meta::namespace(&object)) {
            self.queue.push_back(Work::Foreground(key));
        }
    }

    fn key_of_owner(&self, reference: &Value, namespace: &str) -> Option<Box<str>> {
        let catalog = self.registry.catalog();
        let (version, kind) = (doc::text(reference, "apiVersion"), doc::text(reference, "kind"));
        let kind = catalog.find_kind(version, kind)?;
        Some(crate::registry::selection::key(kind, namespace, doc::text(reference, "name")).into())
    }

    /// Learns who owns an object, and whether it is ending in a way that concerns us.
    fn see(&mut self, key: &str, object: &Value) {
        let references = doc::list(object, "metadata.ownerReferences");
        let now: Vec<Box<str>> =
            references.iter().filter_map(|r| r["uid"].as_str().map(Into::into)).collect();
        let before = self.owners.get(key).cloned().unwrap_or_default();
        if now != before {
            for owner in &before {
                if let Some(keys) = self.dependents.get_mut(owner) {
                    keys.remove(key);
                }
            }
            for owner in &now {
                self.dependents.entry(owner.clone()).or_default().insert(key.into());
            }
            if now.is_empty() {
                self.owners.remove(key);
            } else {
                self.owners.insert(key.into(), now);
                self.queue.push_back(Work::Judge(key.into()));
            }
        }
        if meta::is_deleting(object) {
            if meta::finalizers(object).any(|f| f == meta::ORPHAN) {
                self.queue.push_back(Work::Orphan(key.into()));
            } else if meta::finalizers(object).any(|f| f == meta::FOREGROUND) {
                self.queue.push_back(Work::Foreground(key.into()));
            }
        }
    }

    async fn do_work(&mut self, work: &Work) -> Result<(), Refusal> {
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

    async fn judge(&mut self, located: &Located, object: &Value) -> Result<(), Refusal> {
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
        let owns = self.dependents.get(meta::uid(object)).is_some_and(|keys| !keys.is_empty());
        let propagation = if states.contains(&Owner::Waiting) && owns {
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

    async fn foreground(&mut self, located: &Located, object: &Value) -> Result<(), Refusal> {
        let waits = meta::is_deleting(object) && meta::finalizers(object).any(|f| f == meta::FOREGROUND);
        if !waits {
            return Ok(());
        }
        let uid = meta::uid(object);
        let dependents: Vec<Box<str>> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        let mut blocked = false;
        for key in dependents {
            let Some(dependent) = locate(&self.registry.catalog(), &key) else { continue };
            let found = self.registry.find(&dependent.kind, &dependent.namespace, &dependent.name).await?;
            let Some(document) = found else { continue };
            let value = document.to_value();
            let blocks = doc::list(&value, "metadata.ownerReferences")
                .iter()
                .any(|r| r["uid"] == uid && r["blockOwnerDeletion"] == true);
            blocked |= blocks;
            if !meta::is_deleting(&value) {
                self.queue.push_back(Work::Judge(key));
            }
        }
        if blocked { Ok(()) } else { self.drop_finalizer(located, meta::FOREGROUND).await }
    }

    async fn orphan(&mut self, located: &Located, object: &Value) -> Result<(), Refusal> {
        let uid = meta::uid(object).to_owned();
        let dependents: Vec<Box<str>> = self.dependents.get(&*uid).into_iter().flatten().cloned().collect();
        for key in dependents {
            if let Some(dependent) = locate(&self.registry.catalog(), &key) {
                self.disown(&dependent, &[&uid]).await?;
            }
        }
        self.drop_finalizer(located, meta::ORPHAN).await
    }

    /// Removes references to owners that are gone.
    async fn disown(&self, located: &Located, gone: &[&str]) -> Result<(), Refusal> {
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

    async fn drop_finalizer(&self, located: &Located, finalizer: &str) -> Result<(), Refusal> {
        let Located { kind, namespace, name } = located;
        let left = self
            .registry
            .rewrite(kind, namespace, name, |object| {
                let had = meta::finalizers(object).any(|f| f == finalizer);
                meta::set_finalizer(object, finalizer, false);
                Ok(had)
            })
            .await?;
        let Some(object) = left else { return Ok(()) };
        // The last thing that held it may be gone now.
        if meta::is_deleting(&object) && meta::finalizers(&object).next().is_none() {
            self.delete_as_is(located, &object).await?;
        }
        Ok(())
    }

    async fn delete(&self, located: &Located, object: &Value, how: Propagation) -> Result<(), Refusal> {
        let options = DeleteOptions {
            uid: Some(meta::uid(object).to_owned()),
            version: Some(meta::text(object, "resourceVersion").to_owned()),
            propagation: Some(how),
            ..DeleteOptions::default()
        };
        self.ask(located, &options).await
    }

    async fn delete_as_is(&self, located: &Located, object: &Value) -> Result<(), Refusal> {
        let options = DeleteOptions { uid: Some(meta::uid(object).to_owned()), ..DeleteOptions::default() };
        self.ask(located, &options).await
    }

    async fn ask(&self, located: &Located, options: &DeleteOptions) -> Result<(), Refusal> {
        let mut call = Call::internal(located.kind.clone(), "delete", &located.namespace, &located.name);
        match self.registry.delete(&mut call, options).await {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.reason == "NotFound" => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    async fn state_of(&self, reference: &Value, dependent: &Located) -> Result<Owner, Refusal> {
        let catalog = self.registry.catalog();
        let (version, kind) = (doc::text(reference, "apiVersion"), doc::text(reference, "kind"));
        // A kind that is not served may come back: nothing is deleted on its account.
        let Some(kind) = catalog.find_kind(version, kind) else { return Ok(Owner::Solid) };
        let found = self.registry.find(kind, &dependent.namespace, doc::text(reference, "name")).await?;
        let Some(owner) = found.map(|d| present(kind, &d)) else { return Ok(Owner::Absent) };
        if meta::uid(&owner) != doc::text(reference, "uid") {
            return Ok(Owner::Absent);
        }
        let waits = meta::is_deleting(&owner) && meta::finalizers(&owner).any(|f| f == meta::FOREGROUND);
        Ok(if waits { Owner::Waiting } else { Owner::Solid })
    }
}
