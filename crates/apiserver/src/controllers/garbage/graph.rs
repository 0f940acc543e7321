//! Who owns whom, as the collector has seen it: keys, uids and nothing else. Pure.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use apiserver_core::doc;
use apiserver_core::meta;

#[derive(Debug, Default)]
pub(super) struct Graph {
    /// Key of an object to its owners.
    owners: HashMap<Box<str>, Owned>,
    /// Uid of an owner to the keys of what it owns.
    dependents: HashMap<Box<str>, HashSet<Box<str>>>,
    /// Uid of an owner to the namespaces of the dependents that ask to hold it back, and how many there are in each.
    blockers: HashMap<Box<str>, HashMap<Box<str>, usize>>,
    /// Owners that wait for their dependents to go, by uid.
    waiting: HashMap<Box<str>, Waiting>,
}

/// An object that says who owns it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    /// Empty for what is in none.
    namespace: Box<str>,
    owners: Vec<Reference>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    key: Box<str>,
    namespace: Box<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Reference {
    uid: Box<str>,
    blocks: bool,
}

/// What an object that was seen means for others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// Its owners are others than before, and there are some.
    pub(super) owned_anew: bool,
    /// Keys of owners that wait, and that nothing holds back any more.
    pub(super) relieved: Vec<Box<str>>,
}

// === impl Graph ===

impl Graph {
    pub(super) fn knows(&self, key: &str) -> bool {
        self.owners.contains_key(key)
    }

    /// Learns who owns an object, and whether it waits for what it owns.
    pub(super) fn see(&mut self, key: &str, object: &Value) -> News {
        let references = doc::list(object, "metadata.ownerReferences").iter();
        let namespace: Box<str> = meta::namespace(object).into();
        let now =
            Owned { namespace: namespace.clone(), owners: references.filter_map(Reference::read).collect() };
        if waits(object) {
            self.waiting.insert(meta::uid(object).into(), Waiting { key: key.into(), namespace });
        } else {
            self.waiting.remove(meta::uid(object));
        }
        if self.owners.get(key).map_or(now.owners.is_empty(), |before| *before == now) {
            return News::default();
        }
        let relieved = self.part(key);
        self.attach(key, &now);
        let owned_anew = !now.owners.is_empty();
        if owned_anew {
            self.owners.insert(key.into(), now);
        }
        News { owned_anew, relieved }
    }

    /// Forgets an object. Tells which owners waited for it last.
    pub(super) fn forget(&mut self, key: &str, uid: &str) -> Vec<Box<str>> {
        self.waiting.remove(uid);
        self.part(key)
    }

    pub(super) fn dependents(&self, uid: &str) -> Vec<Box<str>> {
        self.dependents.get(uid).into_iter().flatten().cloned().collect()
    }

    pub(super) fn owns_any(&self, uid: &str) -> bool {
        self.dependents.contains_key(uid)
    }

    /// Whether an object that waits for its dependents waits, through others that wait too, for itself.
    pub(super) fn is_in_circle(&self, uid: &str) -> bool {
        let uids: HashMap<&str, &str> = self.waiting.iter().map(|(uid, w)| (&*w.key, &**uid)).collect();
        let (mut seen, mut next) = (HashSet::new(), vec![uid]);
        while let Some(owner) = next.pop() {
            for key in self.dependents.get(owner).into_iter().flatten().filter(|key| self.blocks(key, owner))
            {
                match uids.get(&**key) {
                    Some(found) if *found == uid => return true,
                    Some(found) if seen.insert(*found) => next.push(found),
                    _ => {}
                }
            }
        }
        false
    }

    /// Whether a dependent holds back an owner that waits. What is in a namespace owns nothing outside of it.
    fn blocks(&self, key: &str, owner: &str) -> bool {
        let (Some(owned), Some(waiting)) = (self.owners.get(key), self.waiting.get(owner)) else {
            return false;
        };
        waiting.may_own_in(&owned.namespace) && owned.owners.iter().any(|r| r.blocks && *r.uid == *owner)
    }

    fn attach(&mut self, key: &str, now: &Owned) {
        for Reference { uid, blocks } in &now.owners {
            self.dependents.entry(uid.clone()).or_default().insert(key.into());
            if *blocks {
                *self.blockers.entry(uid.clone()).or_default().entry(now.namespace.clone()).or_default() += 1;
            }
        }
    }

    /// Takes an object from its owners. Tells which of them nothing holds back any more.
    fn part(&mut self, key: &str) -> Vec<Box<str>> {
        let Some(before) = self.owners.remove(key) else { return Vec::new() };
        self.detach(key, &before);
        self.relieved(&before.owners)
    }

    fn detach(&mut self, key: &str, before: &Owned) {
        for Reference { uid, blocks } in &before.owners {
            if *blocks && let Some(counts) = self.blockers.get_mut(uid) {
                if let Some(count) = counts.get_mut(&before.namespace) {
                    *count -= 1;
                }
                counts.retain(|_, count| *count > 0);
                if counts.is_empty() {
                    self.blockers.remove(uid);
                }
            }
            if let Some(keys) = self.dependents.get_mut(uid) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(uid);
                }
            }
        }
    }

    /// The owners among these that wait and are held back by nothing. While something still does, there is no use in
    /// looking at an owner again for each of its dependents that goes.
    fn relieved(&self, owners: &[Reference]) -> Vec<Box<str>> {
        let waiting = owners.iter().filter_map(|r| Some((r, self.waiting.get(&r.uid)?)));
        let free = waiting.filter(|(r, owner)| {
            let mut namespaces = self.blockers.get(&r.uid).into_iter().flat_map(HashMap::keys);
            !namespaces.any(|namespace| owner.may_own_in(namespace))
        });
        free.map(|(_, owner)| owner.key.clone()).collect()
    }
}

// === impl Waiting ===

impl Waiting {
    fn may_own_in(&self, namespace: &str) -> bool {
        may_own(&self.namespace, namespace)
    }
}

// === impl Reference ===

impl Reference {
    fn read(reference: &Value) -> Option<Reference> {
        let uid = reference["uid"].as_str()?;
        Some(Reference { uid: uid.into(), blocks: reference["blockOwnerDeletion"] == true })
    }
}

/// Whether what is in the one namespace, or in none, can own what is in the other. Otherwise whoever writes in one namespace
/// could hold back deletions in another.
pub(super) fn may_own(owner: &str, dependent: &str) -> bool {
    owner.is_empty() || owner == dependent
}

/// Whether an object is ending and waits for its dependents to go first.
pub(super) fn waits(object: &Value) -> bool {
    meta::is_deleting(object) && meta::finalizers(object).any(|f| f == meta::FOREGROUND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(uid: &str, owners: &[(&str, bool)], waits: bool) -> Value {
        let references: Vec<Value> =
            owners.iter().map(|(uid, blocks)| json!({"uid": uid, "blockOwnerDeletion": blocks})).collect();
        let mut object = json!({"metadata": {"uid": uid, "ownerReferences": references}});
        if waits {
            object["metadata"]["deletionTimestamp"] = "t".into();
            object["metadata"]["finalizers"] = json!([meta::FOREGROUND]);
        }
        object
    }

    #[test]
    fn an_owner_that_waits_hears_when_nothing_holds_it_back() {
        let mut graph = Graph::default();
        graph.see("/owner", &object("o", &[], true));
        assert!(graph.see("/a", &object("a", &[("o", true)], false)).owned_anew);
        assert_eq!(graph.see("/a", &object("a", &[("o", true)], false)), News::default(), "nothing new");
        assert_eq!(graph.see("/a", &object("a", &[("o", false)], false)).relieved, [Box::from("/owner")]);
        assert_eq!(graph.see("/a", &object("a", &[], false)).relieved, [Box::from("/owner")]);
        assert!(!graph.owns_any("o") && !graph.knows("/a"));
        graph.see("/a", &object("a", &[("o", true)], false));
        assert_eq!(graph.forget("/a", "a"), [Box::from("/owner")]);
        for name in ["/a", "/b"] {
            graph.see(name, &object(name, &[("o", true)], false));
        }
        assert!(graph.forget("/a", "/a").is_empty(), "another one still holds it back");
        assert_eq!(graph.forget("/b", "/b"), [Box::from("/owner")]);
        graph.forget("/owner", "o");
        assert!(graph.blockers.is_empty());
        assert!(graph.owners.is_empty() && graph.dependents.is_empty() && graph.waiting.is_empty());
    }

    #[test]
    fn a_circle_is_one_of_objects_that_all_wait_and_block() {
        let circle = |last_waits: bool, last_blocks: bool| {
            let mut graph = Graph::default();
            graph.see("/a", &object("a", &[("c", true)], true));
            graph.see("/b", &object("b", &[("a", true)], true));
            graph.see("/c", &object("c", &[("b", last_blocks)], last_waits));
            ["a", "b", "c"].map(|uid| graph.is_in_circle(uid))
        };
        assert_eq!(circle(true, true), [true; 3]);
        assert_eq!(circle(false, true), [false; 3]);
        assert_eq!(circle(true, false), [false; 3]);
        let mut graph = Graph::default();
        graph.see("/a", &object("a", &[("a", true)], true));
        assert!(graph.is_in_circle("a"));
    }

    #[test]
    fn only_what_an_owner_can_own_holds_it_back() {
        // The owner's namespace, the dependent's, and whether that holds the owner back.
        for (owner, other, holds) in [("x", "x", true), ("x", "y", false), ("x", "", false), ("", "y", true)]
        {
            let mut graph = Graph::default();
            let place = |mut object: Value, namespace: &str| {
                object["metadata"]["namespace"] = namespace.into();
                object
            };
            graph.see("/owner", &place(object("o", &[], true), owner));
            graph.see("/own", &place(object("own", &[("o", true)], false), owner));
            graph.see("/other", &place(object("other", &[("o", true), ("other", true)], true), other));
            let relieved = graph.forget("/own", "own");
            assert_eq!(relieved.is_empty(), holds, "{owner:?} {other:?}");
            assert_eq!(graph.blocks("/other", "o"), holds, "{owner:?} {other:?}");
        }
    }
}
