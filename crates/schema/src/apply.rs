//! Field ownership: server-side apply, and what plain writes do to it.
//!
//! Every field of an object may have owners. A plain write takes what it changes from everybody else. An apply says all
//! that its manager wants: what it no longer says is removed if nobody else owns it, and what somebody else owns and
//! has set otherwise is a conflict, unless forced.

mod create;
mod managers;
mod merge;
mod set;
mod walk;

pub use managers::{How, Owner};
pub use set::{BadSet, Element, Set};

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::types::At;
use managers::{Entry, Managed};
use walk::Comparison;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Owns what an object held before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Who writes, through what.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The `fieldManager` of the request, or what stands for it (see `default_manager`).
    pub manager: &'a str,
    /// `apps/v1`
    pub api_version: &'a str,
    /// `status`; empty for the object itself.
    pub subresource: &'a str,
    /// Fields this way of writing cannot change, and therefore does not own: `status` for the object itself.
    pub ignored: &'a Set,
    /// Now, in RFC 3339.
    pub now: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: Owner,
    /// `.spec.replicas`
    pub field: String,
    path: Vec<Element>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// 400
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the type: 500, as upstream answers.
    #[error("failed to create typed patch object ({0}")]
    Untyped(String),
    /// 409, reason Conflict, with one cause per conflict.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
}

/// The manager of a request that names none: the part of its user agent before the first slash, cut to what fits.
#[must_use]
pub fn default_manager(user_agent: &str) -> String {
    let name = user_agent.split('/').next().unwrap_or_default();
    let printable = name.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' });
    printable.take(128).collect()
}

/// Notes in `new.metadata.managedFields` what a plain write changes. `live` is None for a create. Both are in the form
/// that `decode::conform` gives; what `new` says of managedFields itself is respected where it can be.
pub fn update(live: Option<&Value>, new: &mut Value, at: At<'_>, writer: &Writer<'_>) {
    let said = new.get_mut("metadata").and_then(Value::as_object_mut).and_then(|m| m.remove("managedFields"));
    let mut managed = starting_managers(live, said.as_ref(), writer);
    if live.is_none() && managed.is_empty() {
        return note_create(new, at, writer);
    }
    // An object that nobody tracks is tracked from its first apply on.
    let is_tracked = live.is_none() || !managed.is_empty();
    if is_tracked {
        match live {
            // Its managedFields are nobody's: that `new` lacks them here takes nothing from anybody.
            Some(live) => note_update(live, new, at, &mut managed, writer, writer.manager),
            None => note_update(&walk::blank(at), new, at, &mut managed, writer, writer.manager),
        }
        managed.cap();
    }
    managed.write(new);
}

/// Lays `config` over `live` (None: the object is created) and returns the new object with its managedFields. The
/// result may hold nulls and must be conformed and defaulted like any other.
pub fn apply(
    live: Option<&Value>,
    config: &Value,
    at: At<'_>,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    check_config(config, at, writer)?;
    let mut managed = match live {
        Some(live) => Managed::of(live)
            .map_err(|e| ApplyError::BadRequest(format!("failed to decode managed fields: {e}")))?,
        None => Managed::default(),
    };
    let bare = match live {
        Some(live) => without_managers(live),
        None => walk::blank(at),
    };
    if live.is_some() && managed.is_empty() {
        let before = walk::blank(at);
        note_update(&before, &bare, at, &mut managed, writer, BEFORE_FIRST_APPLY);
    }
    let mut outcome = apply_once(&bare, config, at, managed.clone(), writer, force);
    if let Err(conflicts) = &outcome
        && writer.manager == "kubectl"
    {
        outcome = match still_in_conflict(&bare, at, writer, conflicts) {
            Some(left) if left.is_empty() => apply_once(&bare, config, at, managed, writer, true),
            Some(left) => Err(left),
            None => outcome,
        };
    }
    let (mut object, managed) = outcome.map_err(ApplyError::Conflicts)?;
    if writer.manager == "kubectl" {
        refresh_last_applied(&mut object, config);
    }
    managed.write(&mut object);
    Ok(object)
}

fn starting_managers(live: Option<&Value>, said: Option<&Value>, writer: &Writer<'_>) -> Managed {
    let of_live = || live.and_then(|live| Managed::of(live).ok()).unwrap_or_default();
    // Through a subresource managedFields cannot be edited.
    let Some(Value::Array(said)) = said.filter(|_| writer.subresource.is_empty()) else { return of_live() };
    let is_reset = said.is_empty() || matches!(&**said, [Value::Object(only)] if only.is_empty());
    if is_reset {
        return Managed::default();
    }
    let said = serde_json::json!({"metadata": {"managedFields": said}});
    match Managed::of(&said) {
        Ok(managed) if !managed.is_empty() => managed,
        _ => of_live(),
    }
}

fn without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// Fields that belong to nobody.
static NOBODYS: LazyLock<Set> = LazyLock::new(|| {
    Set::of(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

fn compare(live: &Value, new: &Value, at: At<'_>, ignored: &Set) -> Comparison {
    let mut found = walk::compare(live, new, at);
    for set in [&mut found.removed, &mut found.modified, &mut found.added] {
        set.cut(ignored);
    }
    found
}

/// Whoever makes an object owns what it says.
fn note_create(new: &mut Value, at: At<'_>, writer: &Writer<'_>) {
    let owned = create::owned(new, at, writer.ignored, &NOBODYS);
    if owned.is_empty() {
        return;
    }
    let owner = updater(writer.manager, writer);
    let entry = managers::written_with(&owner, writer.api_version, Some(writer.now), owned.into());
    if let Value::Object(new) = new
        && let Value::Object(metadata) = new.entry("metadata").or_insert_with(|| Value::Object(Map::new()))
    {
        metadata.insert("managedFields".to_owned(), vec![entry].into());
    }
}

fn updater(name: &str, writer: &Writer<'_>) -> Owner {
    Owner {
        name: if name.is_empty() { "unknown".into() } else { name.into() },
        operation: How::Update,
        api_version: writer.api_version.into(),
        subresource: writer.subresource.into(),
    }
}

/// A plain write takes what it changes.
fn note_update(
    live: &Value,
    new: &Value,
    at: At<'_>,
    managed: &mut Managed,
    writer: &Writer<'_>,
    name: &str,
) {
    let Comparison { removed, modified: mut taken, added } = compare(live, new, at, writer.ignored);
    taken.merge(added);
    for entry in managed.entries.values_mut() {
        entry.set.subtract(&taken);
        entry.set.subtract(&removed);
    }
    taken.subtract(&NOBODYS);
    if !taken.is_empty() {
        let manager = updater(name, writer);
        let entry = managed.entries.entry(manager).or_insert_with(|| Entry {
            set: Set::default(),
            api_version: writer.api_version.into(),
            time: None,
        });
        entry.set.merge(taken);
        entry.time = Some(writer.now.to_owned());
    }
    managed.drop_empty();
}

fn apply_once(
    live: &Value,
    config: &Value,
    at: At<'_>,
    mut managed: Managed,
    writer: &Writer<'_>,
    force: bool,
) -> Result<(Value, Managed), Vec<Conflict>> {
    let manager = Owner {
        name: writer.manager.to_owned(),
        operation: How::Apply,
        api_version: String::new(),
        subresource: writer.subresource.to_owned(),
    };
    let merged = merge::merge(live, config, at);
    let mut wanted = walk::fields_of(config, at);
    wanted.cut(writer.ignored);
    let last = managed.entries.remove(&manager);
    let last_time = last.as_ref().and_then(|entry| entry.time.clone());
    let last_set = last.map(|entry| entry.set).unwrap_or_default();
    let new = prune(merged, at, &managed.all().union(&wanted), &last_set);

    let changes = compare(live, &new, at, writer.ignored);
    let taken = changes.modified.union(&changes.added);
    let mut conflicts = Vec::new();
    for (manager, entry) in &mut managed.entries {
        let contested = entry.set.intersection(&taken);
        conflicts.extend(contested.paths().into_iter().map(|path| Conflict {
            manager: manager.clone(),
            field: path.iter().map(ToString::to_string).collect(),
            path,
        }));
        entry.set.subtract(&contested);
        entry.set.subtract(&changes.removed);
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    let mut set = wanted;
    set.subtract(&NOBODYS);
    let is_changed = set != last_set || changes != Comparison::default();
    let time = if is_changed { Some(writer.now.to_owned()) } else { last_time };
    managed.entries.insert(manager, Entry { set, api_version: writer.api_version.to_owned(), time });
    managed.drop_empty();
    Ok((new, managed))
}

/// Takes out what the manager applied last time and nobody owns now.
fn prune(merged: Value, at: At<'_>, owned: &Set, last: &Set) -> Value {
    if last.is_empty() {
        return merged;
    }
    let nothing = || Value::Object(Map::new());
    let named = |set: &Set| walk::with_named_fields(set, at);
    let fields = |value: &Value| named(&walk::fields_of(value, at));
    let last = named(last);
    let bare = walk::remove(&merged, &last, at).unwrap_or_else(nothing);
    let all = fields(&merged);
    // What others own comes back, …
    let unowned = all.difference(&fields(&bare).union(&named(owned)));
    let kept = walk::remove(&merged, &unowned, at).unwrap_or_else(nothing);
    // … and so does what went along with its parent although this manager never applied it.
    let gone = all.difference(&fields(&kept)).intersection(&last);
    walk::remove(&merged, &gone, at).unwrap_or_else(nothing)
}

fn check_config(config: &Value, at: At<'_>, writer: &Writer<'_>) -> Result<(), ApplyError> {
    let said = config["apiVersion"].as_str().unwrap_or_default();
    if said != writer.api_version {
        return Err(ApplyError::BadRequest(format!(
            "Incorrect version specified in apply patch. Specified patch version: {said}, expected: {}",
            writer.api_version
        )));
    }
    if !config["metadata"]["managedFields"].is_null() {
        return Err(ApplyError::BadRequest("metadata.managedFields must be nil".into()));
    }
    let mistakes = walk::mistakes(config, at);
    let what = match &*mistakes {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    let text = |name: &str| config["metadata"][name].as_str().unwrap_or_default().to_owned();
    let kind = config["kind"].as_str().unwrap_or_default();
    Err(ApplyError::Untyped(format!("{}/{}; {said}, Kind={kind}): {what}", text("namespace"), text("name"))))
}

/// Of the conflicts of kubectl's apply, those that are not with its own earlier client-side applies: what the annotation
/// says and the object still holds is kubectl's already. None where there is no readable annotation.
fn still_in_conflict(
    live: &Value,
    at: At<'_>,
    writer: &Writer<'_>,
    conflicts: &[Conflict],
) -> Option<Vec<Conflict>> {
    let annotation = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
    let last = crate::decode::parse(annotation.as_bytes()).ok()?.value;
    if last["apiVersion"] != writer.api_version || !walk::mistakes(&last, at).is_empty() {
        return None;
    }
    let changes = walk::compare(&last, live, at);
    let allowed = walk::fields_of(&last, at)
        .difference(&changes.modified)
        .difference(&changes.added)
        .difference(&changes.removed);
    Some(conflicts.iter().filter(|c| !allowed.has_path(&c.path)).cloned().collect())
}

/// Keeps the annotation of client-side apply true while both ways are in use.
fn refresh_last_applied(object: &mut Value, config: &Value) {
    let Some(annotation) = object.pointer_mut("/metadata/annotations").and_then(|a| a.get_mut(LAST_APPLIED))
    else {
        return;
    };
    let mut config = config.clone();
    if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
    *annotation = format!("{config}\n").into();
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager, one.field);
    }
    let mut lines = Vec::new();
    let mut last: Option<&Owner> = None;
    for conflict in conflicts {
        if last != Some(&conflict.manager) {
            lines.push(format!("conflicts with {}:", conflict.manager));
            last = Some(&conflict.manager);
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}

#[cfg(test)]
mod tests;
