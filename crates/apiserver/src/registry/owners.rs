//! Who owns which field: managedFields after every write, and server-side apply.

use schema::apply::{self, ApplyError, Set, Writer};
use serde_json::Value;

use super::body;
use super::options::FieldValidation;
use super::{Call, Registry, Written, meta};
use crate::refusal::{Cause, Refusal};

impl Registry {
    /// Notes in managedFields what a plain write changes.
    pub(super) fn own_fields(&self, call: &Call, object: &mut Value, old: Option<&Value>) {
        if call.applied {
            return;
        }
        let now = meta::timestamp(self.now());
        let (version, ignored) = (call.kind.api_version(), ignored(call));
        apply::update(old, object, call.kind.at(), &writer(call, &version, &ignored, &now));
    }

    /// Server-side apply: the body says all that its manager wants of the object.
    pub(super) async fn apply(&self, call: &mut Call, sent: &Value) -> Result<Written, Refusal> {
        let config = read_config(call, sent)?;
        call.applied = true;
        let now = meta::timestamp(self.now());
        // Somebody may create or delete the object while we look.
        for _ in 0..4 {
            if self.find(&call.kind, call.namespace(), call.name()).await?.is_some() {
                let modified = self.modify(call, &mut |call, old| lay(call, Some(old), &config, &now)).await;
                match modified {
                    Err(refusal) if refusal.reason == "NotFound" => continue,
                    outcome => return outcome,
                }
            }
            if !call.subresource().is_empty() || !meta::uid(&config).is_empty() {
                return Err(Refusal::not_found(&call.kind, call.name()));
            }
            let object = lay(call, None, &config, &now)?;
            match self.create(call, object).await {
                Err(refusal) if refusal.reason == "AlreadyExists" => {}
                outcome => return outcome,
            }
        }
        Err(Refusal::modified(&call.kind, call.name()))
    }
}

/// What is applied must say what it is. Which fields there are its type decides when it is laid over the object.
fn read_config(call: &Call, sent: &Value) -> Result<Value, Refusal> {
    let kind = call.kind.clone();
    let mut config = sent.clone();
    if config["apiVersion"].as_str().is_none_or(str::is_empty)
        || config["kind"].as_str().is_none_or(str::is_empty)
    {
        return Err(Refusal::bad_request(
            "couldn't get version/kind; apiVersion and kind must be set in an apply",
        ));
    }
    body::check_kind(&kind, &mut config)?;
    let name = call.name().to_owned();
    if meta::name(&config).is_empty() {
        meta::metadata_mut(&mut config).insert("name".to_owned(), name.into());
    }
    if kind.is_namespaced() && meta::namespace(&config).is_empty() {
        let namespace = call.namespace().to_owned();
        meta::metadata_mut(&mut config).insert("namespace".to_owned(), namespace.into());
    }
    Ok(config)
}

/// What stands twice in a text that fits its type otherwise.
fn complain(call: &mut Call) -> Result<(), Refusal> {
    for complaint in call.complaints.clone() {
        match call.options.field_validation {
            FieldValidation::Strict => {
                let why = format!("error strict decoding YAML: error converting YAML to JSON: {complaint}");
                return Err(Refusal::bad_request(why));
            }
            FieldValidation::Warn => call.warn([format!("error converting YAML to JSON: {complaint}")]),
            FieldValidation::Ignore => {}
        }
    }
    Ok(())
}

fn lay(call: &mut Call, live: Option<&Value>, config: &Value, now: &str) -> Result<Value, Refusal> {
    let (version, ignored) = (call.kind.api_version(), ignored(call));
    let writer = writer(call, &version, &ignored, now);
    let applied = apply::apply(live, config, call.kind.at(), &writer, call.options.force);
    let mut object = applied.map_err(|error| refuse(call, error))?;
    complain(call)?;
    body::conform(&call.kind, &mut object).map_err(|why| body::cannot_handle(&call.kind, &why))?;
    Ok(object)
}

fn writer<'w>(call: &'w Call, version: &'w str, ignored: &'w Set, now: &'w str) -> Writer<'w> {
    Writer {
        manager: &call.options.field_manager,
        api_version: version,
        subresource: call.subresource(),
        ignored,
        now,
    }
}

/// What this way of writing cannot change, and therefore does not own.
fn ignored(call: &Call) -> Set {
    match call.subresource() {
        "" if call.kind.has_status() => Set::of(&[&["status"]]),
        "status" => Set::of(&[&["spec"]]),
        _ => Set::default(),
    }
}

fn refuse(call: &Call, error: ApplyError) -> Refusal {
    let message = error.to_string();
    match error {
        ApplyError::BadRequest(_) => Refusal::bad_request(message),
        ApplyError::Untyped(_) => Refusal::new(500, "", message),
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.into_iter().map(|conflict| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", conflict.manager),
                field: conflict.field,
            });
            Refusal::new(409, "Conflict", message)
                .about(&call.kind, call.name())
                .with_causes(causes.collect())
        }
    }
}
