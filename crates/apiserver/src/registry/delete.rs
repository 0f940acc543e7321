//! Delete: at once, after a grace, or when the last finalizer is gone.

use serde_json::Value;

use super::{Registry, from_entry, is_service};
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::deletion::{Step, check_preconditions, next_step};
use apiserver_core::document::Document;
use apiserver_core::kind::Kind;
use apiserver_core::meta;
use apiserver_core::options::{DeleteOptions, ListOptions};
use apiserver_core::selection::{Selection, present};
use store::{Expect, WriteError};

/// What a deletion came to.
#[derive(Clone, Debug)]
pub struct Deletion {
    /// The object as it was last, or as it now waits for its end.
    pub object: Value,
    /// Whether it is gone.
    pub done: bool,
}

/// How often somebody else may be quicker.
const TRIES: usize = 16;

impl Registry {
    /// Deletes the object the call names.
    pub async fn delete(&self, call: &mut Call, options: &DeleteOptions) -> Result<Deletion, ApiStatus> {
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
        Err(ApiStatus::modified(&call.kind, &name))
    }

    /// Deletes what is selected; what others delete meanwhile is not missed. Tells what was there.
    pub async fn delete_collection(
        &self,
        call: &mut Call,
        selection: Selection,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<Vec<Value>, ApiStatus> {
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
                    Err(api_status) if api_status.is_not_found() => {}
                    Err(api_status) => return Err(api_status),
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
    ) -> Option<Result<Deletion, ApiStatus>> {
        let kind = &call.kind;
        let step = next_step(call, options, &old, self.now());
        let done = step == Step::Remove;
        let dry = options.dry_run || call.options.dry_run;
        let error = match step {
            Step::Leave => return Some(Ok(Deletion { object: old, done: false })),
            Step::Write(object) if dry => return Some(Ok(Deletion { object, done })),
            Step::Remove if dry => return Some(Ok(Deletion { object: old, done })),
            Step::Write(object) => match self.write_version(kind, document, &object).await {
                Ok(entry) => {
                    let object = present(kind, &from_entry(entry));
                    return Some(Ok(Deletion { object, done }));
                }
                Err(error) => error,
            },
            Step::Remove => match self.end(kind, document, &old).await {
                Ok(()) => return Some(Ok(Deletion { object: old, done })),
                Err(error) => error,
            },
        };
        match error {
            WriteError::Conflict { .. } => None,
            other => Some(Err(store_errors::of_write(&other))),
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
}
