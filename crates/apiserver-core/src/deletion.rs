//! Deletion: grace, finalizers and propagation decide whether an object goes at once, waits, or is left as it is.

use base::time::Wall;
use serde_json::Value;

use crate::api_status::ApiStatus;
use crate::call::Call;
use crate::kind::Kind;
use crate::meta;
use crate::options::{DeleteOptions, Propagation};

/// What to do with an object that is to be deleted.
#[derive(Debug, PartialEq)]
pub enum Step {
    Remove,
    Write(Value),
    /// It waits already, and nothing about that changes.
    Leave,
}

/// Decides what a deletion does to an object.
#[must_use]
pub fn next_step(call: &Call, options: &DeleteOptions, old: &Value, now: Wall) -> Step {
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
    match (meta::is_deleting(old), pending) {
        // A deletion that is under way can only be hastened, and only by somebody who says so.
        (true, pending) => {
            let pending = pending.unwrap_or_default();
            let wanted = if asked.is_some() { grace.min(pending) } else { pending };
            if wanted == 0 && !held {
                return Step::Remove;
            }
            if wanted < pending {
                let end = Wall::from_secs(now.secs() + wanted);
                set_deletion(&mut new, end, wanted);
                bump_generation(&mut new);
            }
        }
        (false, _) if grace == 0 && !held => return Step::Remove,
        (false, _) => {
            let end = Wall::from_secs(now.secs() + grace);
            set_deletion(&mut new, end, grace);
            bump_generation(&mut new);
        }
    }
    strategy.begin_deletion(&mut new);
    if new == *old { Step::Leave } else { Step::Write(new) }
}

/// Whether nothing holds a deleted object any more: the write that brought it there is its end.
#[must_use]
pub fn is_over(kind: &Kind, object: &Value) -> bool {
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

fn set_deletion(object: &mut Value, end: Wall, grace: i64) {
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

/// The object must still be the one the caller saw.
pub fn check_preconditions(call: &Call, options: &DeleteOptions, old: &Value) -> Result<(), ApiStatus> {
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
            return Err(ApiStatus::conflict(&call.kind, call.name(), &why));
        }
    }
    Ok(())
}
