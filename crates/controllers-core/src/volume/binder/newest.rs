//! The cache with what this sync has written on top: each of the writes of a binding builds on the one before.

use std::sync::Arc;

use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Step, Why};
use crate::resource::{PERSISTENT_VOLUMES, Resource};
use crate::view::View;

/// What is known at this point of a sync.
#[derive(Clone, Copy)]
pub(super) struct Newest<'a> {
    pub(super) view: &'a dyn View,
    /// None: nothing was written yet.
    pub(super) done: Option<&'a Done>,
}

/// What the API server itself says of an object.
#[derive(Debug)]
pub(super) enum Live {
    Found(Arc<Object>),
    Gone,
    /// It has to be asked first, or could not be.
    Ask(Plan),
}

// === impl Newest ===

impl Newest<'_> {
    pub(super) fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.written(resource, namespace, name).or_else(|| self.view.get(resource, namespace, name))
    }

    /// In the order of their names.
    pub(super) fn volumes(&self) -> Vec<Arc<Object>> {
        let mut all = self.view.list(PERSISTENT_VOLUMES, "");
        if self.done.is_some() {
            for volume in &mut all {
                if let Some(newer) = self.written(PERSISTENT_VOLUMES, "", &volume.meta.name) {
                    *volume = newer;
                }
            }
        }
        all
    }

    /// For what must not be decided by a cache that may be behind.
    pub(super) fn live(&self, resource: Resource, namespace: &str, name: &str) -> Live {
        let path = resource.object_path(namespace, name);
        match self.done.and_then(|done| done.answer(&path)) {
            None => Live::Ask(Plan::of(Step::in_turn([Act::Get { path }]))),
            Some(Outcome::Done(json)) => match Object::new(resource, json) {
                Some(object) => Live::Found(Arc::new(object)),
                None => Live::Ask(Plan::failed(format!("the answer of {path} cannot be read"))),
            },
            Some(Outcome::Failed(refusal)) if refusal.why == Why::NotFound => Live::Gone,
            Some(Outcome::Failed(refusal)) => Live::Ask(Plan::failed(refusal.message.clone())),
            Some(Outcome::Skipped) => Live::Ask(Plan::nothing()),
        }
    }

    /// Whether the last thing done was to write this part of the object: what follows from it is told once.
    pub(super) fn just_wrote(&self, object: &Object, subresource: &str) -> bool {
        let last = self.done.and_then(|done| done.last().last());
        last.is_some_and(|(act, outcome)| match act {
            Act::Update { target, .. } => {
                outcome.is_done()
                    && target.resource == object.meta.resource
                    && *target.name == *object.meta.name
                    && target.subresource == subresource
            }
            _ => false,
        })
    }

    fn written(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let mut acts = self.done?.acts.iter().rev();
        acts.find_map(|(act, outcome)| match act {
            Act::Update { target, .. }
                if target.resource == resource && target.namespace == namespace && target.name == name =>
            {
                outcome.object(resource).map(Arc::new)
            }
            _ => None,
        })
    }
}
