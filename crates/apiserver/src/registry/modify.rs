//! Update and patch: a new version made from the old, written only if the old is still there.

use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use super::addresses::Claim;
use super::create::{check_nesting, place};
use super::{Outcome, Registry, Written, is_service};
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::deletion::is_over;
use apiserver_core::document::Document;
use apiserver_core::kind::Kind;
use apiserver_core::kinds;
use apiserver_core::managed_fields::own_fields;
use apiserver_core::meta;
use apiserver_core::selection::present;
use store::{Entry, Expect, WriteError};

/// How often somebody else may be quicker before we say so.
const TRIES: usize = 16;

/// Makes the wanted object from the present one. Called again when the present one changed meanwhile.
pub(super) type Propose<'p> = dyn FnMut(&mut Call, &Value) -> Result<Value, ApiStatus> + Send + 'p;

/// Which subresource a change is made by, and so what it may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The object itself, or its `/scale`.
    Main,
    Status,
    EphemeralContainers,
    Resize,
    Approval,
    Finalize,
}

impl Registry {
    /// Replaces an object, or its status when the call says so.
    pub async fn update(&self, call: &mut Call, body: Value) -> Result<Written, ApiStatus> {
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
    ) -> Result<Written, ApiStatus> {
        let name = call.name().to_owned();
        for _ in 0..TRIES {
            let document = self.get(&call.kind, call.namespace(), &name).await?;
            let old = present(&call.kind, &document);
            let warnings = call.warnings.len();
            let new = propose(call, &old)?;
            check_identity(call, &new)?;
            check_versions(call, &new, &old)?;
            let (new, claim) = self.prepare_change(call, new, &old).await?;
            let outcome = if is_over(&call.kind, &new) { Outcome::Deleted } else { Outcome::Updated };
            let written = match self.write_change(call, &document, (&new, outcome), &old).await {
                Ok(Some(entry)) => Written::to_store(&call.kind, new, entry, outcome),
                Ok(None) => Written::elsewhere(new, outcome),
                Err(error) => {
                    self.withdraw(call, &new, Some(&old)).await;
                    let WriteError::Conflict { .. } = error else {
                        return Err(store_errors::of_write(&error));
                    };
                    // Somebody else was quicker; it is worth another try.
                    call.warnings.truncate(warnings);
                    continue;
                }
            };
            self.settle_addresses(call, claim, &written, &old).await;
            return Ok(written);
        }
        Err(ApiStatus::modified(&call.kind, &name))
    }

    async fn create_instead(&self, call: &mut Call, mut body: Value) -> Result<Written, ApiStatus> {
        meta::metadata_mut(&mut body).insert("name".to_owned(), call.name().into());
        if !meta::uid(&body).is_empty() || !meta::text(&body, "resourceVersion").is_empty() {
            return Err(ApiStatus::not_found(&call.kind, call.name()));
        }
        call.attributes.verb = "create".into();
        self.create(call, body).await
    }

    /// What happens to every new version before it is written.
    async fn prepare_change(
        &self,
        call: &mut Call,
        mut new: Value,
        old: &Value,
    ) -> Result<(Value, Option<Claim>), ApiStatus> {
        let kind = call.kind.clone();
        let strategy = &kind.strategy;
        place(call, &mut new)?;
        strategy.set_defaults(&mut new);
        let way = Way::of(call.subresource());
        way.keep(&kind, &mut new, old);
        meta::carry_over(&mut new, old);
        self.admit(call, &mut new, Some(old)).await?;
        way.prepare(&kind, &mut new, old, self.now());
        let (mut errors, mut unassigned) = (FieldErrors::default(), FieldErrors::default());
        let claim = match way {
            Way::Main => self.assign_addresses(&kind, &mut new, &mut unassigned),
            _ => None,
        };
        own_fields(call, &mut new, Some(old), self.now());
        check_nesting(&new)?;
        if strategy.counts_generation() && way != Way::Status && strategy.is_new_generation(&new, old) {
            let next = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
            meta::metadata_mut(&mut new).insert("generation".to_owned(), next.into());
        }
        kinds::meta::validate_update(&kind, &new, old, &mut errors);
        way.validate(&kind, &new, old, &mut errors);
        // An address that may not change need not be complained about twice.
        let errors = if errors.is_empty() { unassigned } else { errors };
        if !errors.is_empty() {
            return Err(ApiStatus::invalid(&kind, meta::name(&new), &errors));
        }
        call.warn(strategy.warnings(&new, Some(old)));
        self.admit_final(call, &new, Some(old)).await?;
        Ok((new, claim))
    }

    /// After a write: what was claimed is kept, what the Service no longer has is free again.
    async fn settle_addresses(&self, call: &Call, claim: Option<Claim>, written: &Written, old: &Value) {
        if call.options.dry_run || !is_service(&call.kind) {
            return;
        }
        if let Some(claim) = claim {
            claim.keep();
        }
        let left = (written.outcome != Outcome::Deleted).then_some(&written.object);
        self.addresses().release(old, left);
        self.follow_addresses(Some(old), left).await;
    }

    /// None when nothing is left in the store, or nothing was written.
    async fn write_change(
        &self,
        call: &Call,
        document: &Document,
        (new, outcome): (&Value, Outcome),
        old: &Value,
    ) -> Result<Option<Entry>, WriteError> {
        let over = outcome == Outcome::Deleted;
        if call.options.dry_run || (new == old && !over) {
            return Ok(None);
        }
        if over {
            return self.store().delete(&document.key, Expect::Rev(document.rev)).await.map(|_| None);
        }
        self.write_version(&call.kind, document, new).await.map(Some)
    }
}

/// The body must be about the object in the path.
fn check_identity(call: &Call, body: &Value) -> Result<(), ApiStatus> {
    let (asked, said) = (call.name(), meta::name(body));
    if said.is_empty() {
        return Err(ApiStatus::bad_request("name must be provided"));
    }
    if asked != said {
        return Err(ApiStatus::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({asked})"
        )));
    }
    Ok(())
}

/// What the new version claims to be based on.
fn check_versions(call: &Call, new: &Value, old: &Value) -> Result<(), ApiStatus> {
    let kind = &call.kind;
    let (wanted, present) = (meta::uid(new), meta::uid(old));
    if !wanted.is_empty() && wanted != present {
        let why =
            format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {present}");
        return Err(ApiStatus::conflict(kind, call.name(), &why));
    }
    let based_on = meta::text(new, "resourceVersion");
    if based_on.is_empty() {
        if kind.strategy.updates_unconditionally() {
            return Ok(());
        }
        let mut errors = FieldErrors::default();
        let at = Path::new("metadata").child("resourceVersion");
        errors.invalid(&at, 0, "must be specified for an update");
        return Err(ApiStatus::invalid(kind, call.name(), &errors));
    }
    if based_on != "0" && based_on != meta::text(old, "resourceVersion") {
        return Err(ApiStatus::modified(kind, call.name()));
    }
    Ok(())
}

// === impl Way ===

impl Way {
    fn of(subresource: &str) -> Way {
        match subresource {
            "status" => Way::Status,
            "ephemeralcontainers" => Way::EphemeralContainers,
            "resize" => Way::Resize,
            "approval" => Way::Approval,
            "finalize" => Way::Finalize,
            _ => Way::Main,
        }
    }

    /// Whole parts of the object that this subresource does not change.
    fn keep(self, kind: &Kind, new: &mut Value, old: &Value) {
        match self {
            Way::Main | Way::Resize | Way::EphemeralContainers if kind.has_status() => {
                keep(new, old, "status")
            }
            Way::Main | Way::Resize | Way::EphemeralContainers => {}
            Way::Status | Way::Approval => keep_all_but(new, old, &["metadata", "status"]),
            Way::Finalize => keep_all_but(new, old, &["metadata", "spec"]),
        }
    }

    fn prepare(self, kind: &Kind, new: &mut Value, old: &Value, now: Wall) {
        match self {
            Way::Main => kind.strategy.prepare_update(new, old),
            Way::Status => kind.strategy.prepare_status(new, old),
            Way::EphemeralContainers => kinds::pod::change::prepare_ephemeral(new, old),
            Way::Resize => kinds::pod::prepare_resize(new, old),
            Way::Approval => {
                kinds::certificate_signing_request::prepare_approval(new, old);
                kinds::certificate_signing_request::stamp_conditions(new, old, now);
            }
            Way::Finalize => {}
        }
    }

    fn validate(self, kind: &Kind, new: &Value, old: &Value, errors: &mut FieldErrors) {
        match self {
            Way::Main => kind.strategy.validate_update(new, old, errors),
            Way::Status => kind.strategy.validate_status(new, old, errors),
            Way::EphemeralContainers => kinds::pod::change::validate_ephemeral(new, old, errors),
            Way::Resize => kinds::pod::validate_resize(new, old, errors),
            Way::Approval => kinds::certificate_signing_request::validate_approval(new, old, errors),
            Way::Finalize => {}
        }
    }
}

/// A top-level field keeps its old value.
fn keep(new: &mut Value, old: &Value, field: &str) {
    if let Some(map) = new.as_object_mut() {
        meta::set_or_remove(map, field, old.get(field).cloned());
    }
}

/// Only these top-level fields are new.
fn keep_all_but(new: &mut Value, old: &Value, fields: &[&str]) {
    let mut kept = old.clone();
    for field in fields {
        keep(&mut kept, new, field);
    }
    *new = kept;
}
