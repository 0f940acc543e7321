//! Who owns which field: managedFields after every write, and what server-side apply makes of them.

use base::time::Wall;
use schema::apply::{self, ApplyError, Set, Writer};
use serde_json::Value;

use crate::api_status::{ApiStatus, Cause};
use crate::call::Call;
use crate::options::FieldValidation;
use crate::{body, meta};

/// Notes in managedFields what a plain write changes.
pub fn own_fields(call: &Call, object: &mut Value, old: Option<&Value>, now: Wall) {
    if call.applied {
        return;
    }
    let now = meta::timestamp(now);
    let (version, ignored) = (call.kind.api_version(), ignored(call));
    apply::update(old, object, call.kind.at(), &writer(call, &version, &ignored, &now));
}

/// What is applied must say what it is. Which fields there are its type decides when it is laid over the object.
pub fn read_config(call: &Call, sent: &Value) -> Result<Value, ApiStatus> {
    let kind = call.kind.clone();
    let mut config = sent.clone();
    if config["apiVersion"].as_str().is_none_or(str::is_empty)
        || config["kind"].as_str().is_none_or(str::is_empty)
    {
        return Err(ApiStatus::bad_request(
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
fn complain(call: &mut Call) -> Result<(), ApiStatus> {
    for complaint in call.complaints.clone() {
        match call.options.field_validation {
            FieldValidation::Strict => {
                let why = format!("error strict decoding YAML: error converting YAML to JSON: {complaint}");
                return Err(ApiStatus::bad_request(why));
            }
            FieldValidation::Warn => call.warn([format!("error converting YAML to JSON: {complaint}")]),
            FieldValidation::Ignore => {}
        }
    }
    Ok(())
}

/// Lays what is applied over the live object.
pub fn lay(call: &mut Call, live: Option<&Value>, config: &Value, now: &str) -> Result<Value, ApiStatus> {
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

fn refuse(call: &Call, error: ApplyError) -> ApiStatus {
    let message = error.to_string();
    match error {
        ApplyError::BadRequest(_) => ApiStatus::bad_request(message),
        ApplyError::Untyped(_) => ApiStatus::new(500, "", message),
        ApplyError::Conflicts(conflicts) => {
            let causes = conflicts.into_iter().map(|conflict| Cause {
                reason: "FieldManagerConflict".to_owned(),
                message: format!("conflict with {}", conflict.manager),
                field: conflict.field,
            });
            ApiStatus::new(409, "Conflict", message)
                .about(&call.kind, call.name())
                .with_causes(causes.collect())
        }
    }
}
