//! The shared cache: each resource once per process, with the indexes that controllers ask for.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::object::Object;
use crate::resource::{PODS, Resource};
use crate::view::View;

/// Every resource that somebody asked for. Which they are is known when it is made.
#[derive(Debug)]
pub struct Cache {
    stores: HashMap<Resource, RwLock<Store>>,
}

/// Something that changed: an object came (no old one), changed, or went (no new one).
#[derive(Clone, Debug)]
pub struct Change {
    pub old: Option<Arc<Object>>,
    pub new: Option<Arc<Object>>,
}

#[derive(Debug, Default)]
struct Store {
    /// By namespace and name.
    objects: BTreeMap<Name, Arc<Object>>,
    /// By namespace and UID of the controller; an empty UID for those that have none.
    owned: HashMap<Name, BTreeSet<Box<str>>>,
    /// Pods by Node.
    on_node: HashMap<Box<str>, BTreeSet<Name>>,
    /// Everything up to here was seen.
    revision: u64,
    is_complete: bool,
}

type Name = (Arc<str>, Box<str>);

// === impl Cache ===

impl Cache {
    #[must_use]
    pub fn new(resources: impl IntoIterator<Item = Resource>) -> Cache {
        Cache { stores: resources.into_iter().map(|resource| (resource, RwLock::default())).collect() }
    }

    pub fn resources(&self) -> impl Iterator<Item = Resource> + '_ {
        self.stores.keys().copied()
    }

    /// An object was made or changed. None: what is known is as new.
    pub fn apply(&self, object: Object) -> Option<Change> {
        let mut store = self.write(object.meta.resource)?;
        store.saw(object.meta.resource_version);
        store.insert(Arc::new(object))
    }

    /// An object was removed. Its last state says at which revision.
    pub fn remove(&self, last: &Object) -> Option<Change> {
        let mut store = self.write(last.meta.resource)?;
        store.saw(last.meta.resource_version);
        let old = store.take(&name_of(last))?;
        Some(Change { old: Some(old), new: None })
    }

    /// All there are now, at this revision: what is not among them is gone.
    pub fn replace(&self, resource: Resource, objects: Vec<Object>, revision: u64) -> Vec<Change> {
        let Some(mut store) = self.write(resource) else { return Vec::new() };
        let names: BTreeSet<Name> = objects.iter().map(name_of).collect();
        let gone: Vec<Name> = store.objects.keys().filter(|name| !names.contains(*name)).cloned().collect();
        let mut changes: Vec<Change> = Vec::new();
        changes.extend(
            gone.iter().filter_map(|name| store.take(name)).map(|old| Change { old: Some(old), new: None }),
        );
        changes.extend(objects.into_iter().filter_map(|object| store.insert(Arc::new(object))));
        store.saw(revision);
        store.is_complete = true;
        changes
    }

    /// Nothing else happened to this resource up to here.
    pub fn saw(&self, resource: Resource, revision: u64) {
        if let Some(mut store) = self.write(resource) {
            store.saw(revision);
        }
    }

    /// Whether anybody asked for this resource.
    #[must_use]
    pub fn holds(&self, resource: Resource) -> bool {
        self.stores.contains_key(&resource)
    }

    /// Up to where a resource is known.
    #[must_use]
    pub fn revision(&self, resource: Resource) -> u64 {
        self.read(resource).map_or(0, |store| store.revision)
    }

    fn read(&self, resource: Resource) -> Option<RwLockReadGuard<'_, Store>> {
        Some(self.stores.get(&resource)?.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self, resource: Resource) -> Option<RwLockWriteGuard<'_, Store>> {
        Some(self.stores.get(&resource)?.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl View for Cache {
    fn get(&self, resource: Resource, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.read(resource)?.objects.get(&(namespace.into(), name.into())).cloned()
    }

    fn list(&self, resource: Resource, namespace: &str) -> Vec<Arc<Object>> {
        let Some(store) = self.read(resource) else { return Vec::new() };
        if namespace.is_empty() {
            return store.objects.values().cloned().collect();
        }
        store.in_namespace(namespace).cloned().collect()
    }

    fn owned_by(&self, resource: Resource, namespace: &str, uid: &str) -> Vec<Arc<Object>> {
        let Some(store) = self.read(resource) else { return Vec::new() };
        let namespace: Arc<str> = namespace.into();
        let names = store.owned.get(&(namespace.clone(), uid.into()));
        let objects = names.into_iter().flatten();
        objects.filter_map(|name| store.objects.get(&(namespace.clone(), name.clone())).cloned()).collect()
    }

    fn on_node(&self, node: &str) -> Vec<Arc<Object>> {
        let Some(store) = self.read(PODS) else { return Vec::new() };
        let names = store.on_node.get(node).into_iter().flatten();
        names.filter_map(|name| store.objects.get(name).cloned()).collect()
    }

    fn is_complete(&self, resource: Resource) -> bool {
        self.read(resource).is_some_and(|store| store.is_complete)
    }
}

// === impl Store ===

impl Store {
    fn saw(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    fn insert(&mut self, object: Arc<Object>) -> Option<Change> {
        let name = name_of(&object);
        let version = object.meta.resource_version;
        if self.objects.get(&name).is_some_and(|known| known.meta.resource_version == version && version != 0)
        {
            return None;
        }
        let old = self.take(&name);
        let owner = object.meta.controller.as_ref().map_or("", |owner| &owner.uid);
        self.owned.entry((name.0.clone(), owner.into())).or_default().insert(name.1.clone());
        if !object.meta.node.is_empty() {
            self.on_node.entry(object.meta.node.clone()).or_default().insert(name.clone());
        }
        self.objects.insert(name, object.clone());
        Some(Change { old, new: Some(object) })
    }

    fn take(&mut self, name: &Name) -> Option<Arc<Object>> {
        let object = self.objects.remove(name)?;
        let owner = object.meta.controller.as_ref().map_or("", |owner| &owner.uid);
        let key = (name.0.clone(), Box::from(owner));
        if let Some(names) = self.owned.get_mut(&key) {
            names.remove(&name.1);
            if names.is_empty() {
                self.owned.remove(&key);
            }
        }
        if let Some(names) = self.on_node.get_mut(&object.meta.node) {
            names.remove(name);
            if names.is_empty() {
                self.on_node.remove(&object.meta.node);
            }
        }
        Some(object)
    }

    fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<Object>> {
        let first: Name = (namespace.into(), "".into());
        let all = self.objects.range((Bound::Included(first), Bound::Unbounded));
        all.take_while(move |((known, _), _)| &**known == namespace).map(|(_, object)| object)
    }
}

// === impl Change ===

impl Change {
    /// The object as it is now, or as it was last.
    #[must_use]
    pub fn object(&self) -> Option<&Arc<Object>> {
        self.new.as_ref().or(self.old.as_ref())
    }

    /// An object that was replaced by another of its name is two changes.
    pub fn split(self) -> impl Iterator<Item = Change> {
        let is_other =
            matches!((&self.old, &self.new), (Some(old), Some(new)) if old.meta.uid != new.meta.uid);
        let (first, second) = if is_other {
            (Change { new: None, ..self.clone() }, Some(Change { old: None, ..self }))
        } else {
            (self, None)
        };
        std::iter::once(first).chain(second)
    }

    #[must_use]
    pub fn is_deletion(&self) -> bool {
        self.new.is_none()
    }
}

fn name_of(object: &Object) -> Name {
    (object.meta.namespace.clone(), object.meta.name.clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, version: u64, owner: &str, node: &str) -> Object {
        let owners = if owner.is_empty() { json!([]) } else { json!([{"uid": owner, "controller": true}]) };
        let doc = json!({"metadata": {"name": name, "namespace": "a", "resourceVersion": version.to_string(),
            "ownerReferences": owners}, "spec": {"nodeName": node}});
        Object::new(PODS, doc.to_string().as_bytes()).unwrap()
    }

    fn names(objects: &[Arc<Object>]) -> Vec<&str> {
        objects.iter().map(|object| &*object.meta.name).collect()
    }

    #[test]
    fn objects_are_found_by_owner_and_node_however_they_change() {
        let cache = Cache::new([PODS]);
        assert!(!cache.is_complete(PODS));
        let first = cache.replace(PODS, vec![pod("x", 1, "", ""), pod("y", 2, "u", "n")], 5);
        assert_eq!((first.len(), cache.revision(PODS), cache.is_complete(PODS)), (2, 5, true));
        assert_eq!(names(&cache.owned_by(PODS, "a", "u")), ["y"]);
        assert_eq!(names(&cache.owned_by(PODS, "a", "")), ["x"]);
        let change = cache.apply(pod("x", 7, "u", "n")).unwrap();
        assert!(change.old.is_some() && cache.revision(PODS) == 7);
        assert_eq!(
            (names(&cache.owned_by(PODS, "a", "u")), names(&cache.on_node("n"))),
            (vec!["x", "y"], vec!["x", "y"])
        );
        assert!(cache.owned_by(PODS, "a", "").is_empty() && cache.owned_by(PODS, "b", "u").is_empty());
        assert!(cache.apply(pod("x", 7, "u", "n")).is_none(), "the same again is no news");
        assert!(cache.remove(&pod("y", 8, "u", "n")).unwrap().is_deletion());
        assert_eq!((names(&cache.on_node("n")), cache.revision(PODS)), (vec!["x"], 8));
    }

    #[test]
    fn a_list_says_what_is_gone() {
        let cache = Cache::new([PODS]);
        cache.replace(PODS, vec![pod("x", 1, "", ""), pod("y", 2, "", "")], 2);
        let changes = cache.replace(PODS, vec![pod("y", 2, "", ""), pod("z", 9, "", "")], 9);
        let said: Vec<(bool, bool)> = changes.iter().map(|c| (c.old.is_some(), c.new.is_some())).collect();
        assert_eq!(said, [(true, false), (false, true)]);
        assert_eq!(names(&cache.list(PODS, "a")), ["y", "z"]);
        assert!(cache.list(PODS, "").len() == 2 && cache.list(PODS, "b").is_empty());
    }
}
