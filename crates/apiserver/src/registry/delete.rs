//! Delete: at once, after a grace, or when the last finalizer is gone.

use serde_json::Value;

use super::create::stored_form;
use super::document::Document;
use super::options::{DeleteOptions, ListOptions, Propagation};
use super::selection::{Selection, present};
use super::{Call, Registry, is_service, meta};
use crate::kind::Kind;
use crate::refusal::Refusal;
use crate::trouble;
use store::{Expect, WriteError};

/// What a deletion came to.
#[derive(Clone, Debug)]
pub struct Deletion {
    /// The object as it was last, or as it now waits for its end.
    pub object: Value,
    /// Whether it is gone.
    pub done: bool,
}

/// What to do with an object that is to be deleted.
#[derive(Debug, PartialEq)]
enum Step {
    Remove,
    Write(Value),
    /// It waits already, and nothing about that changes.
    Leave,
}

/// How often somebody else may be quicker.
const TRIES: usize = 16;

impl Registry {
    /// Deletes the object the call names.
    pub async fn delete(&self, call: &mut Call, options: &DeleteOptions) -> Result<Deletion, Refusal> {
        let name = call.name().to_owned();
        for _ in 0..TRIES {
            let document = self.get(&call.kind, call.namespace(), &name).await?;
            let old = present(&call.kind, &document);
            check_preconditions(call, options, &old)?;
            self.admit_deletion(call, &old).await?;
            if let Some(outcome) = self.delete_version(call, options, &document, old).await {
                return outcome;
            }
        }
        Err(Refusal::modified(&call.kind, &name))
    }

    /// Deletes what is selected; what others delete meanwhile is not missed. Tells what was there.
    pub async fn delete_collection(
        &self,
        call: &mut Call,
        selection: Selection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<Vec<Value>, Refusal> {
        let mut lister = self.list(selection, list).await?;
        let mut out = Vec::new();
        while let Some(page) = lister.next_page().await? {
            for document in page {
                let object = present(&call.kind, &document);
                let mut one = call.clone();
                if let Some(resource) = &mut one.attributes.resource {
                    meta::name(&object).clone_into(&mut resource.name);
                    meta::namespace(&object).clone_into(&mut resource.namespace);
                }
                match self.delete(&mut one, options).await {
                    Ok(deletion) => out.push(deletion.object),
                    Err(refusal) if refusal.reason == "NotFound" => {}
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        Ok(out)
    }

    /// None when the object changed meanwhile.
    async fn delete_version(
        &self,
        call: &Call,
        options: &DeleteOptions,
        document: &Document,
        old: Value,
    ) -> Option<Result<Deletion, Refusal>> {
        let kind = &call.kind;
        let step = self.next_step(call, options, &old);
        let done = step == Step::Remove;
        let dry = options.dry_run || call.options.dry_run;
        let expect = Expect::Rev(document.rev);
        let error = match step {
            Step::Leave => return Some(Ok(Deletion { object: old, done: false })),
            Step::Write(object) if dry => return Some(Ok(Deletion { object, done })),
            Step::Remove if dry => return Some(Ok(Deletion { object: old, done })),
            Step::Write(object) => {
                match self.store().put(&document.key, stored_form(kind, &object), expect).await {
                    Ok(entry) => {
                        let object = present(kind, &Document::from(entry));
                        return Some(Ok(Deletion { object, done }));
                    }
                    Err(error) => error,
                }
            }
            Step::Remove => match self.end(kind, document, &old).await {
                Ok(()) => return Some(Ok(Deletion { object: old, done })),
                Err(error) => error,
            },
        };
        match error {
            WriteError::Conflict { .. } => None,
            other => Some(Err(trouble::of_write(&other))),
        }
    }

    /// Removes an object for good, and gives back what it had.
    pub(super) async fn end(&self, kind: &Kind, document: &Document, last: &Value) -> Result<(), WriteError> {
        self.store().delete(&document.key, Expect::Rev(document.rev)).await?;
        if is_service(kind) {
            self.addresses().release(last, None);
            self.follow_addresses(Some(last), None).await;
        }
        Ok(())
    }

    fn next_step(&self, call: &Call, options: &DeleteOptions, old: &Value) -> Step {
        let strategy = &call.kind.strategy;
        let mut new = old.clone();
        let propagation = options.propagation.or_else(|| default_propagation(call, old));
        match propagation {
            Some(Propagation::Orphan) => {
                meta::set_finalizer(&mut new, meta::FOREGROUND, false);
                meta::set_finalizer(&mut new, meta::ORPHAN, true);
            }
            Some(Propagation::Foreground) => {
                meta::set_finalizer(&mut new, meta::ORPHAN, false);
                meta::set_finalizer(&mut new, meta::FOREGROUND, true);
            }
            Some(Propagation::Background) => {
                meta::set_finalizer(&mut new, meta::ORPHAN, false);
                meta::set_finalizer(&mut new, meta::FOREGROUND, false);
            }
            None => {}
        }
        let held = meta::finalizers(&new).next().is_some() || strategy.is_held(&new);
        let asked = options.grace_seconds.map(|s| s.max(0));
        let grace = strategy.grace(old, asked).unwrap_or_default().max(0);
        let pending = old["metadata"]["deletionGracePeriodSeconds"].as_i64();
        let now = self.now();
        match (meta::is_deleting(old), pending) {
            // A deletion that is under way can only be hastened, and only by somebody who says so.
            (true, pending) => {
                let pending = pending.unwrap_or_default();
                let wanted = if asked.is_some() { grace.min(pending) } else { pending };
                if wanted == 0 && !held {
                    return Step::Remove;
                }
                if wanted < pending {
                    let end = base::time::Wall::from_secs(now.secs() + wanted);
                    set_deletion(&mut new, end, wanted);
                    bump_generation(&mut new);
                }
            }
            (false, _) if grace == 0 && !held => return Step::Remove,
            (false, _) => {
                let end = base::time::Wall::from_secs(now.secs() + grace);
                set_deletion(&mut new, end, grace);
                bump_generation(&mut new);
            }
        }
        strategy.begin_deletion(&mut new);
        if new == *old { Step::Leave } else { Step::Write(new) }
    }
}

/// Whether nothing holds a deleted object any more: the write that brought it there is its end.
pub(super) fn is_over(kind: &Kind, object: &Value) -> bool {
    meta::is_deleting(object)
        && meta::finalizers(object).next().is_none()
        && object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() == 0
        && !kind.strategy.is_held(object)
}

/// What an object says itself about its dependents, or its kind does.
fn default_propagation(call: &Call, old: &Value) -> Option<Propagation> {
    // Said by an earlier deletion: it stands, also when its word has been carried out and the finalizer is gone.
    let said =
        meta::is_deleting(old) || meta::finalizers(old).any(|f| f == meta::ORPHAN || f == meta::FOREGROUND);
    (!said && call.kind.strategy.orphans_by_default()).then_some(Propagation::Orphan)
}

fn set_deletion(object: &mut Value, end: base::time::Wall, grace: i64) {
    let metadata = meta::metadata_mut(object);
    metadata.insert("deletionTimestamp".to_owned(), meta::timestamp(end).into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
}

fn bump_generation(object: &mut Value) {
    let metadata = meta::metadata_mut(object);
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64).filter(|g| *g > 0) {
        metadata.insert("generation".to_owned(), (generation + 1).into());
    }
}

pub(super) fn check_preconditions(call: &Call, options: &DeleteOptions, old: &Value) -> Result<(), Refusal> {
    let checks = [
        ("UID", &options.uid, meta::uid(old)),
        ("ResourceVersion", &options.version, meta::text(old, "resourceVersion")),
    ];
    for (what, wanted, present) in checks {
        if let Some(wanted) = wanted
            && wanted != present
        {
            let why = format!(
                "the {what} in the precondition ({wanted}) does not match the {what} in record ({present}). The object might have been deleted and then recreated"
            );
            return Err(Refusal::conflict(&call.kind, call.name(), &why));
        }
    }
    Ok(())
}
