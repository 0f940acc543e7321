//! Update and patch: a new version made from the old, written only if the old is still there.

use api::field::{FieldErrors, Path};
use serde_json::Value;

use super::create::{place, stored_form};
use super::document::Document;
use super::selection::present;
use super::{Call, Outcome, Registry, Written, meta, write_fault};
use crate::kinds;
use crate::refusal::Refusal;
use crate::store::{Expect, WriteError};

/// How often somebody else may be quicker before we say so.
const TRIES: usize = 16;

/// Makes the wanted object from the present one. Called again when the present one changed meanwhile.
pub(super) type Propose<'p> = dyn FnMut(&mut Call, &Value) -> Result<Value, Refusal> + Send + 'p;

impl Registry {
    /// Replaces an object, or its status when the call says so.
    pub async fn update(&self, call: &mut Call, body: Value) -> Result<Written, Refusal> {
        check_identity(call, &body)?;
        if call.kind.strategy.creates_on_update()
            && call.subresource().is_empty()
            && self.find(&call.kind, call.namespace(), call.name()).await?.is_none()
        {
            return self.create_instead(call, body).await;
        }
        self.modify(call, &mut |_, _| Ok(body.clone())).await
    }

    /// Makes a new version of the object the call names.
    pub(super) async fn modify(
        &self,
        call: &mut Call,
        propose: &mut Propose<'_>,
    ) -> Result<Written, Refusal> {
        let name = call.name().to_owned();
        for _ in 0..TRIES {
            let document = self.get(&call.kind, call.namespace(), &name).await?;
            let old = present(&call.kind, &document);
            let warnings = call.warnings.len();
            let new = propose(call, &old)?;
            check_identity(call, &new)?;
            check_versions(call, &new, &old)?;
            let new = self.prepare_change(call, new, &old).await?;
            match self.write_change(call, &document, &new, &old).await {
                Some(written) => return written,
                None => call.warnings.truncate(warnings),
            }
        }
        Err(Refusal::modified(&call.kind, &name))
    }

    async fn create_instead(&self, call: &mut Call, mut body: Value) -> Result<Written, Refusal> {
        meta::metadata_mut(&mut body).insert("name".to_owned(), call.name().into());
        if !meta::uid(&body).is_empty() || !meta::text(&body, "resourceVersion").is_empty() {
            return Err(Refusal::not_found(&call.kind, call.name()));
        }
        call.attributes.verb = "create".into();
        self.create(call, body).await
    }

    /// What happens to every new version before it is written.
    async fn prepare_change(&self, call: &mut Call, mut new: Value, old: &Value) -> Result<Value, Refusal> {
        let kind = call.kind.clone();
        let strategy = &kind.strategy;
        place(call, &mut new)?;
        strategy.set_defaults(&mut new);
        let mut errors = FieldErrors::default();
        if call.subresource() == "status" {
            keep_all_but_status(&mut new, old);
            meta::carry_over(&mut new, old);
            self.admit(call, &mut new, Some(old)).await?;
            strategy.prepare_status(&mut new, old);
            self.own_fields(call, &mut new, Some(old));
            kinds::meta::validate_update(&kind, &new, old, &mut errors);
            strategy.validate_status(&new, old, &mut errors);
        } else {
            if kind.has_status() {
                keep(&mut new, old, "status");
            }
            meta::carry_over(&mut new, old);
            self.admit(call, &mut new, Some(old)).await?;
            strategy.prepare_update(&mut new, old);
            self.own_fields(call, &mut new, Some(old));
            if strategy.counts_generation() && strategy.is_new_generation(&new, old) {
                let next = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
                meta::metadata_mut(&mut new).insert("generation".to_owned(), next.into());
            }
            kinds::meta::validate_update(&kind, &new, old, &mut errors);
            strategy.validate_update(&new, old, &mut errors);
        }
        if !errors.is_empty() {
            return Err(Refusal::invalid(&kind, meta::name(&new), &errors));
        }
        call.warn(strategy.warnings(&new, Some(old)));
        self.admit_final(call, &new, Some(old)).await?;
        Ok(new)
    }

    /// None when somebody else was quicker and it is worth another try.
    async fn write_change(
        &self,
        call: &Call,
        document: &Document,
        new: &Value,
        old: &Value,
    ) -> Option<Result<Written, Refusal>> {
        let kind = &call.kind;
        let over = meta::is_deleting(new)
            && meta::finalizers(new).next().is_none()
            && new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() == 0
            && !kind.strategy.is_held(new);
        let outcome = if over { Outcome::Deleted } else { Outcome::Updated };
        if call.options.dry_run || (new == old && !over) {
            return Some(Ok(Written { object: new.clone(), outcome }));
        }
        let expect = Expect::Rev(document.rev);
        let error = if over {
            match self.store().delete(&document.key, expect).await {
                Ok(_) => return Some(Ok(Written { object: new.clone(), outcome })),
                Err(error) => error,
            }
        } else {
            match self.store().put(&document.key, stored_form(kind, new), expect).await {
                Ok(entry) => {
                    let object = present(kind, &Document::from(entry));
                    return Some(Ok(Written { object, outcome }));
                }
                Err(error) => error,
            }
        };
        match error {
            WriteError::Conflict { .. } => None,
            other => Some(Err(write_fault(&other))),
        }
    }
}

/// The body must be about the object in the path.
fn check_identity(call: &Call, body: &Value) -> Result<(), Refusal> {
    let (asked, said) = (call.name(), meta::name(body));
    if said.is_empty() {
        let mut errors = FieldErrors::default();
        errors.required(&Path::new("metadata").child("name"), "name is required");
        return Err(Refusal::bad_request("name must be provided"));
    }
    if asked != said {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({asked})"
        )));
    }
    Ok(())
}

/// What the new version claims to be based on.
fn check_versions(call: &Call, new: &Value, old: &Value) -> Result<(), Refusal> {
    let kind = &call.kind;
    let (wanted, present) = (meta::uid(new), meta::uid(old));
    if !wanted.is_empty() && wanted != present {
        let why =
            format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {present}");
        return Err(Refusal::conflict(kind, call.name(), &why));
    }
    let based_on = meta::text(new, "resourceVersion");
    if based_on.is_empty() {
        if kind.strategy.updates_unconditionally() {
            return Ok(());
        }
        let mut errors = FieldErrors::default();
        let at = Path::new("metadata").child("resourceVersion");
        errors.invalid(&at, 0, "must be specified for an update");
        return Err(Refusal::invalid(kind, call.name(), &errors));
    }
    if based_on != "0" && based_on != meta::text(old, "resourceVersion") {
        return Err(Refusal::modified(kind, call.name()));
    }
    Ok(())
}

/// A top-level field keeps its old value.
fn keep(new: &mut Value, old: &Value, field: &str) {
    if let Some(map) = new.as_object_mut() {
        meta::set_or_remove(map, field, old.get(field).cloned());
    }
}

/// Through `/status`, only metadata and status are new.
fn keep_all_but_status(new: &mut Value, old: &Value) {
    let mut kept = old.clone();
    for field in ["metadata", "status"] {
        keep(&mut kept, new, field);
    }
    *new = kept;
}
