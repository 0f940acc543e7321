//! What a controller may look at: the shared cache, through the questions controllers have.

use std::sync::Arc;

use api::selector::LabelSelector;

use crate::object::Object;
use crate::resource::{PODS, Resource};

/// The objects of the cluster as this process knows them. An empty namespace means all of them.
pub trait View {
    fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Object>>;

    /// In the order of their names.
    fn list(&self, resource: Resource, namespace: &str) -> Vec<Arc<Object>>;

    /// Those whose controller has this UID; with an empty one, those that have no controller.
    fn owned_by(&self, resource: Resource, namespace: &str, uid: &str) -> Vec<Arc<Object>>;

    /// Pods on a Node.
    fn on_node(&self, node: &str) -> Vec<Arc<Object>>;

    /// Those whose labels the selector takes.
    fn selected(&self, resource: Resource, namespace: &str, selector: &LabelSelector) -> Vec<Arc<Object>> {
        let mut all = self.list(resource, namespace);
        all.retain(|object| object.is_selected(selector));
        all
    }

    /// Whether the first complete list of a resource has been seen. Until then nothing is known to be absent.
    fn is_complete(&self, resource: Resource) -> bool;

    /// Pods whose controller has this UID, and those that anybody may adopt.
    fn pods_of(&self, namespace: &str, uid: &str) -> Vec<Arc<Object>> {
        let mut pods = self.owned_by(PODS, namespace, uid);
        pods.extend(self.owned_by(PODS, namespace, ""));
        pods
    }

    /// The controller of an object, if it is of this resource and is still the same.
    fn controller_of(&self, object: &Object, resource: Resource) -> Option<Arc<Object>> {
        let owner = object.meta.controller.as_ref().filter(|owner| owner.is_a(resource))?;
        let found = self.get(resource, &object.meta.namespace, &owner.name)?;
        (found.meta.uid == owner.uid).then_some(found)
    }
}
