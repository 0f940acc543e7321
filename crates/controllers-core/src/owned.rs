//! Who is woken by an object that has, had or might get a controller.

use std::sync::Arc;

use api::selector::LabelSelector;

use crate::cache::Change;
use crate::controller::{Key, Wakes};
use crate::object::Object;
use crate::resource::Resource;
use crate::view::View;

/// A change of an object wakes the one that controls it, the one that did, and, while nobody does, those that may adopt it.
pub(crate) fn wake(owners: Resource, change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let controller = |object: &Arc<Object>| view.controller_of(object, owners).map(|owner| Key::of(&owner));
    let (old, new) = (change.old.as_ref(), change.new.as_ref());
    let owner = |object: Option<&Arc<Object>>| object.and_then(|object| object.meta.controller.clone());
    let has_new_owner = owner(old) != owner(new);
    if has_new_owner {
        wakes.extend(old.and_then(controller));
    }
    let Some(object) = new else { return };
    if object.meta.controller.is_some() {
        return wakes.extend(controller(object));
    }
    let has_new_labels = old.is_none_or(|old| old.meta.labels != object.meta.labels);
    if (has_new_labels || has_new_owner) && !object.is_deleting() {
        let all = view.list(owners, &object.meta.namespace);
        wakes.extend(all.iter().filter(|owner| takes(owner, object)).map(|owner| Key::of(owner)));
    }
}

/// Whether an owner may want to adopt the object. One that takes everything wants nothing.
fn takes(owner: &Object, object: &Object) -> bool {
    let selector = LabelSelector::from_object(&owner.value()["spec"]["selector"]);
    !selector.is_empty() && object.is_selected(&selector)
}
