//! What a controller wants done, as data: requests in steps, events, and when to look again.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::key::Key;
use crate::object::{Object, Unreadable};
use crate::resource::Resource;

/// What follows from looking at one key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// One after the other. A step with a failure is the last.
    pub steps: Vec<Step>,
    pub events: Vec<Event>,
    /// Look again after this, if nothing happens before.
    pub wake: Option<Duration>,
    /// Look again as soon as the cache shows what the steps did.
    pub again: bool,
    /// Other keys of this controller to look at.
    pub others: Vec<Key>,
    /// Why the work on this key failed though no request did: it is tried again after a pause, as after a refused request.
    pub failure: Option<String>,
}

/// Requests that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Asked of the API server itself before anything of the step is done.
    pub guard: Option<Guard>,
    pub pace: Pace,
    pub acts: Vec<Act>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Each after the one before has succeeded.
    #[default]
    InTurn,
    /// All at once, whatever becomes of the others.
    AtOnce,
    /// 1, 2, 4, … at once. The first batch with a failure is the last.
    SlowStart,
}

/// This object must be there with this UID, and must not be deleted: who adopts must be alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Create {
        resource: Resource,
        namespace: String,
        body: Bytes,
    },
    /// The whole object with the resourceVersion it was read at: who was overtaken gets a conflict.
    Update {
        target: Target,
        body: Bytes,
    },
    Patch {
        target: Target,
        kind: PatchKind,
        body: Bytes,
    },
    /// Only the object with this UID, if one is given. What is gone already counts as deleted.
    Delete {
        target: Target,
        uid: Option<String>,
        grace: Option<i64>,
        propagation: Option<Propagation>,
    },
    /// Deletes what is at a path: an object, or all of a kind in a namespace.
    DeleteAt {
        path: String,
    },
    /// Deletes the object at a path as its DeleteOptions say.
    DeleteIf {
        path: String,
        options: Bytes,
    },
    /// A merge patch of what has a path.
    Merge {
        path: String,
        body: Bytes,
    },
    /// Reads what is not cached: a live object, `/scale`, metrics. The path begins with a slash.
    Get {
        path: String,
    },
    /// Writes what has a path of its own anew: `/scale` of a kind that somebody named.
    Put {
        path: String,
        body: Bytes,
    },
    /// Writes to a path of its own: `/finalize`, `/token`, `/eviction`. Empty body: none.
    Post {
        path: String,
        body: Bytes,
    },
}

/// An object, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
    /// `status`, `scale`, `finalize`; empty for the object.
    pub subresource: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Strategic,
    Merge,
    Json,
    /// Server-side apply with this field manager, by force.
    Apply(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Something to tell about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub about: Regarding,
    pub is_warning: bool,
    pub reason: String,
    pub message: String,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regarding {
    pub resource: Resource,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

/// What became of the acts of a sync so far, all rounds.
#[derive(Clone, Debug, Default)]
pub struct Done {
    pub acts: Vec<(Act, Outcome)>,
    /// Where the last round begins.
    pub last: usize,
    /// Rounds so far: one after the steps of `reconcile`, one more after those of each `settle`.
    pub rounds: usize,
}

#[derive(Clone, Debug)]
pub enum Outcome {
    /// What the server answered: the object as it is now.
    Done(Bytes),
    Failed(WriteError),
    /// Something before it failed.
    Skipped,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct WriteError {
    pub why: Why,
    /// The server's message, word for word.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    NotFound,
    AlreadyExists,
    /// Somebody else wrote first, or a precondition does not hold.
    Conflict,
    Invalid,
    Forbidden,
    /// The namespace is ending: whatever is tried there will fail, and nobody needs to know.
    NamespaceTerminating,
    /// 429: a disruption budget, or a busy server.
    TooManyRequests,
    /// No answer: it may have been done, or not.
    Lost,
    Other,
}

// === impl Plan ===

impl Plan {
    /// All is as it should be.
    #[must_use]
    pub fn nothing() -> Plan {
        Plan::default()
    }

    #[must_use]
    pub fn of(step: Step) -> Plan {
        Plan { steps: vec![step], ..Plan::default() }
    }

    /// Tried again after a pause that grows.
    #[must_use]
    pub fn failed(why: impl Into<String>) -> Plan {
        Plan { failure: Some(why.into()), ..Plan::default() }
    }

    /// An object that nobody can read: told on that object, and looked at again when it changes.
    #[must_use]
    pub fn unreadable(object: &Object, error: &Unreadable) -> Plan {
        Plan { events: vec![Event::warning(object, "Unreadable", error.why.clone())], ..Plan::default() }
    }

    #[must_use]
    pub fn then(mut self, step: Step) -> Plan {
        if !step.acts.is_empty() {
            self.steps.push(step);
        }
        self
    }

    #[must_use]
    pub fn event(mut self, event: Event) -> Plan {
        self.events.push(event);
        self
    }

    /// The earlier of two times.
    #[must_use]
    pub fn wake(mut self, after: Option<Duration>) -> Plan {
        self.wake = [self.wake, after].into_iter().flatten().min();
        self
    }

    #[must_use]
    pub fn again(mut self) -> Plan {
        self.again = true;
        self
    }

    #[must_use]
    pub fn has_acts(&self) -> bool {
        self.steps.iter().any(|step| !step.acts.is_empty())
    }

    pub fn acts(&self) -> impl Iterator<Item = &Act> {
        self.steps.iter().flat_map(|step| &step.acts)
    }
}

// === impl Step ===

impl Step {
    #[must_use]
    pub fn in_turn(acts: impl IntoIterator<Item = Act>) -> Step {
        Step { acts: acts.into_iter().collect(), ..Step::default() }
    }

    #[must_use]
    pub fn at_once(acts: impl IntoIterator<Item = Act>) -> Step {
        Step { pace: Pace::AtOnce, ..Step::in_turn(acts) }
    }

    #[must_use]
    pub fn slow_start(acts: impl IntoIterator<Item = Act>) -> Step {
        Step { pace: Pace::SlowStart, ..Step::in_turn(acts) }
    }

    #[must_use]
    pub fn guarded(self, guard: Guard) -> Step {
        Step { guard: Some(guard), ..self }
    }
}

// === impl Guard ===

impl Guard {
    #[must_use]
    pub fn alive(object: &Object) -> Guard {
        let meta = &object.meta;
        Guard {
            resource: meta.resource,
            namespace: meta.namespace.to_string(),
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
        }
    }
}

// === impl Target ===

impl Target {
    #[must_use]
    pub fn of(object: &Object) -> Target {
        Target::at(object, "")
    }

    #[must_use]
    pub fn at(object: &Object, subresource: &'static str) -> Target {
        let meta = &object.meta;
        let (namespace, name) = (meta.namespace.to_string(), meta.name.to_string());
        Target { resource: meta.resource, namespace, name, subresource }
    }

    #[must_use]
    pub fn path(&self) -> String {
        let path = self.resource.object_path(&self.namespace, &self.name);
        if self.subresource.is_empty() { path } else { format!("{path}/{}", self.subresource) }
    }
}

// === impl Act ===

impl Act {
    /// The body says its own apiVersion and kind, or leaves them to be filled in here.
    #[must_use]
    pub fn create(resource: Resource, namespace: &str, mut object: Value) -> Act {
        if let Some(object) = object.as_object_mut() {
            object.insert("apiVersion".into(), resource.api_version().into());
            object.insert("kind".into(), resource.kind.into());
        }
        Act::Create { resource, namespace: namespace.to_owned(), body: bytes(&object) }
    }

    /// Writes the object anew after a change to what the cache has of it. Unknown fields stay.
    #[must_use]
    pub fn update(object: &Object, change: impl FnOnce(&mut Value)) -> Act {
        let mut value = object.value();
        change(&mut value);
        Act::Update { target: Target::of(object), body: bytes(&value) }
    }

    /// Writes the status anew.
    #[must_use]
    pub fn update_status(object: &Object, status: Value) -> Act {
        let mut value = object.value();
        value["status"] = status;
        Act::Update { target: Target::at(object, "status"), body: bytes(&value) }
    }

    /// The same from the whole object, changed: of its metadata only annotations are taken.
    #[must_use]
    pub fn replace_status(object: &Object, whole: &Value) -> Act {
        Act::Update { target: Target::at(object, "status"), body: bytes(whole) }
    }

    #[must_use]
    pub fn patch(object: &Object, kind: PatchKind, patch: &Value) -> Act {
        Act::Patch { target: Target::of(object), kind, body: bytes(patch) }
    }

    #[must_use]
    pub fn patch_status(object: &Object, kind: PatchKind, patch: &Value) -> Act {
        Act::Patch { target: Target::at(object, "status"), kind, body: bytes(patch) }
    }

    /// Deletes this object and no later one of its name.
    #[must_use]
    pub fn delete(object: &Object) -> Act {
        Act::Delete {
            target: Target::of(object),
            uid: Some(object.meta.uid.to_string()),
            grace: None,
            propagation: None,
        }
    }

    #[must_use]
    pub fn with_grace(self, seconds: i64) -> Act {
        match self {
            Act::Delete { target, uid, propagation, .. } => {
                Act::Delete { target, uid, grace: Some(seconds), propagation }
            }
            other => other,
        }
    }

    #[must_use]
    pub fn with_propagation(self, propagation: Propagation) -> Act {
        match self {
            Act::Delete { target, uid, grace, .. } => {
                Act::Delete { target, uid, grace, propagation: Some(propagation) }
            }
            other => other,
        }
    }

    /// Short, for messages and tests: `create pods in a`, `delete pods a/x`.
    #[must_use]
    pub fn name(&self) -> String {
        let on = |verb: &str, target: &Target| {
            let Target { resource, namespace, name, subresource } = target;
            let slash = if namespace.is_empty() { "" } else { "/" };
            let part = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
            format!("{verb} {resource}{part} {namespace}{slash}{name}")
        };
        match self {
            Act::Create { resource, namespace, .. } => format!("create {resource} in {namespace}"),
            Act::Update { target, .. } => on("update", target),
            Act::Patch { target, .. } => on("patch", target),
            Act::Delete { target, .. } => on("delete", target),
            Act::Get { path } => format!("get {path}"),
            Act::DeleteAt { path } | Act::DeleteIf { path, .. } => format!("delete {path}"),
            Act::Merge { path, .. } => format!("merge {path}"),
            Act::Put { path, .. } => format!("put {path}"),
            Act::Post { path, .. } => format!("post {path}"),
        }
    }

    /// The body of a write as JSON; null for the others.
    #[must_use]
    pub fn body(&self) -> Value {
        match self {
            Act::Create { body, .. }
            | Act::Update { body, .. }
            | Act::Patch { body, .. }
            | Act::Put { body, .. }
            | Act::Merge { body, .. }
            | Act::DeleteIf { options: body, .. }
            | Act::Post { body, .. } => serde_json::from_slice(body).unwrap_or_default(),
            Act::Delete { uid, grace, propagation, .. } => json!({
                "uid": uid, "gracePeriodSeconds": grace,
                "propagationPolicy": propagation.map(Propagation::text),
            }),
            Act::Get { .. } | Act::DeleteAt { .. } => Value::Null,
        }
    }

    /// The resource whose cache will show what was done.
    #[must_use]
    pub fn resource(&self) -> Option<Resource> {
        match self {
            Act::Create { resource, .. } => Some(*resource),
            Act::Update { target, .. } | Act::Patch { target, .. } | Act::Delete { target, .. } => {
                Some(target.resource)
            }
            Act::DeleteAt { .. }
            | Act::DeleteIf { .. }
            | Act::Merge { .. }
            | Act::Get { .. }
            | Act::Put { .. }
            | Act::Post { .. } => None,
        }
    }
}

fn bytes(value: &Value) -> Bytes {
    serde_json::to_vec(value).unwrap_or_default().into()
}

// === impl Propagation ===

impl Propagation {
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
            Propagation::Orphan => "Orphan",
        }
    }
}

// === impl Event ===

impl Event {
    #[must_use]
    pub fn normal(about: &Object, reason: impl Into<String>, message: impl Into<String>) -> Event {
        let about = Regarding::of(about);
        Event { about, is_warning: false, reason: reason.into(), message: message.into() }
    }

    #[must_use]
    pub fn warning(about: &Object, reason: impl Into<String>, message: impl Into<String>) -> Event {
        Event { is_warning: true, ..Event::normal(about, reason, message) }
    }
}

// === impl Regarding ===

impl Regarding {
    #[must_use]
    pub fn of(object: &Object) -> Regarding {
        let meta = &object.meta;
        Regarding {
            resource: meta.resource,
            namespace: meta.namespace.to_string(),
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
            resource_version: meta.resource_version.to_string(),
        }
    }
}

// === impl Done ===

impl Done {
    /// What was done in the last round.
    #[must_use]
    pub fn last(&self) -> &[(Act, Outcome)] {
        &self.acts[self.last.min(self.acts.len())..]
    }

    /// The first error of all rounds that counts: an ending namespace refuses everything, and that is no failure. What was
    /// only asked for is the asker's to judge.
    #[must_use]
    pub fn failure(&self) -> Option<&WriteError> {
        let acts = self.acts.iter().filter(|(act, _)| !matches!(act, Act::Get { .. }));
        let errors = acts.filter_map(|(_, outcome)| outcome.error());
        errors.into_iter().find(|error| error.why != Why::NamespaceTerminating)
    }

    /// The answer to a `Get`, in whichever round it was asked.
    #[must_use]
    pub fn answer(&self, path: &str) -> Option<&Outcome> {
        let asked = |act: &Act| matches!(act, Act::Get { path: asked } if asked == path);
        self.acts.iter().rev().find(|(act, _)| asked(act)).map(|(_, outcome)| outcome)
    }
}

// === impl Outcome ===

impl Outcome {
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done(_))
    }

    #[must_use]
    pub fn error(&self) -> Option<&WriteError> {
        match self {
            Outcome::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// The object that was written, as the server has it now.
    #[must_use]
    pub fn object(&self, resource: Resource) -> Option<Object> {
        match self {
            Outcome::Done(json) => Object::new(resource, json),
            _ => None,
        }
    }
}

// === impl WriteError ===

impl WriteError {
    pub fn new(why: Why, message: impl Into<String>) -> WriteError {
        WriteError { why, message: message.into() }
    }
}
