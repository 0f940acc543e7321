//! Create.

use api::field::FieldErrors;
use schema::nesting;
use serde_json::Value;

use super::addresses::Claim;
use super::{Outcome, Registry, Written};
use crate::random::{generated_name, new_uid};
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::document;
use apiserver_core::kind::{Kind, Verb};
use apiserver_core::kinds;
use apiserver_core::managed_fields::own_fields;
use apiserver_core::meta;
use store::{Entry, Expect, WriteError};

/// How often a generated name may be taken already.
const TRIES: usize = 8;

impl Registry {
    /// Writes a new object. It was decoded as the call's kind.
    pub async fn create(&self, call: &mut Call, mut object: Value) -> Result<Written, ApiStatus> {
        if let Some(api_status) = &call.create_refused {
            return Err((**api_status).clone());
        }
        if call.kind.is_custom() && !call.kind.verbs.contains(&Verb::Create) {
            let mut api_status = ApiStatus::method_not_allowed();
            api_status.message =
                "create not allowed while custom resource definition is terminating".to_owned();
            return Err(api_status);
        }
        if !meta::text(&object, "resourceVersion").is_empty() {
            let why = "resourceVersion should not be set on objects to be created";
            return Err(ApiStatus::new(500, "", why));
        }
        place(call, &mut object)?;
        let kind = call.kind.clone();
        let base = meta::text(&object, "generateName").to_owned();
        let generated = meta::name(&object).is_empty() && !base.is_empty();
        if !generated {
            return self.create_once(call, object).await;
        }
        for _ in 0..TRIES {
            let mut object = object.clone();
            let name = generated_name(&base);
            meta::metadata_mut(&mut object).insert("name".to_owned(), name.into());
            match self.create_once(call, object).await {
                Err(api_status) if api_status.is_already_exists() => {}
                outcome => return outcome,
            }
        }
        let name = base.as_str();
        let mut api_status = ApiStatus::already_exists(&kind, name);
        api_status.message = format!(
            "{} {name:?} already exists, the server was not able to generate a unique name for the object",
            kind.resource_name()
        );
        Err(api_status)
    }

    async fn create_once(&self, call: &mut Call, object: Value) -> Result<Written, ApiStatus> {
        let (object, claim) = self.prepare_new(call, object).await?;
        let written = match self.write_new(call, &object).await {
            Ok(Some(entry)) => Written::to_store(&call.kind, object, entry, Outcome::Created),
            Ok(None) => Written::elsewhere(object, Outcome::Created),
            Err(api_status) => {
                self.withdraw(call, &object, None).await;
                return Err(api_status);
            }
        };
        if let Some(claim) = claim.filter(|_| !call.options.dry_run) {
            claim.keep();
            self.follow_addresses(None, Some(&written.object)).await;
        }
        Ok(written)
    }

    async fn prepare_new(
        &self,
        call: &mut Call,
        mut object: Value,
    ) -> Result<(Value, Option<Claim>), ApiStatus> {
        let kind = call.kind.clone();
        kind.strategy.set_defaults(&mut object);
        self.admit(call, &mut object, None).await?;
        meta::stamp(&mut object, new_uid(), self.now(), kind.strategy.counts_generation());
        if kind.has_status()
            && !kind.strategy.keeps_status()
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        kind.strategy.prepare_create(&mut object);
        let mut errors = FieldErrors::default();
        let claim = self.assign_addresses(&kind, &mut object, &mut errors);
        own_fields(call, &mut object, None, self.now());
        check_nesting(&object)?;
        kinds::meta::validate(&kind, &object, &mut errors);
        kind.strategy.validate(&object, &mut errors);
        if !errors.is_empty() {
            return Err(ApiStatus::invalid(&kind, meta::name(&object), &errors));
        }
        call.warn(kind.strategy.warnings(&object, None));
        self.admit_final(call, &object, None).await?;
        Ok((object, claim))
    }

    /// None for a dry run.
    async fn write_new(&self, call: &Call, object: &Value) -> Result<Option<Entry>, ApiStatus> {
        let kind = &call.kind;
        let name = meta::name(object);
        let key = call.key(name);
        if call.options.dry_run {
            return match self.find(kind, call.namespace(), name).await? {
                Some(_) => Err(ApiStatus::already_exists(kind, name)),
                None => Ok(None),
            };
        }
        let stored = stored_form(kind, object);
        match self.store().put(&key, stored, Expect::Absent).await {
            Ok(entry) => Ok(Some(entry)),
            Err(WriteError::Conflict { .. }) => Err(ApiStatus::already_exists(kind, name)),
            Err(error) => Err(store_errors::of_write(&error)),
        }
    }
}

/// The bytes of an object, in the form all kinds of its place share.
pub(super) fn stored_form(kind: &Kind, object: &Value) -> bytes::Bytes {
    if kind.strategy.converts() {
        let mut converted = object.clone();
        kind.strategy.write_as_stored(&mut converted);
        return document::encode(&converted);
    }
    document::encode(object)
}

/// What could not be read again is not written.
pub(super) fn check_nesting(object: &Value) -> Result<(), ApiStatus> {
    if nesting::exceeds(object, nesting::MAX_STORED) {
        let levels = nesting::MAX_STORED;
        return Err(ApiStatus::bad_request(format!("the object nests deeper than {levels} levels")));
    }
    Ok(())
}

/// Puts the object where the path says it belongs, unless it says otherwise itself.
pub(super) fn place(call: &Call, object: &mut Value) -> Result<(), ApiStatus> {
    let namespace = call.namespace();
    if !call.kind.is_namespaced() {
        // Upstream forgives a namespace on what has none.
        meta::metadata_mut(object).remove("namespace");
        return Ok(());
    }
    match meta::namespace(object) {
        "" => {
            meta::metadata_mut(object).insert("namespace".to_owned(), namespace.into());
        }
        same if same == namespace => {}
        other => {
            let _ = other;
            return Err(ApiStatus::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
    }
    Ok(())
}
