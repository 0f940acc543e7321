//! Pods that look the same to other Pods are counted, not listed: a selector is asked once for all of them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::pod::Class;

/// A class in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClassId(u32);

/// All classes of placed Pods. One that nobody uses any more is forgotten, and its id is given again.
#[derive(Clone, Debug, Default)]
pub struct Classes {
    ids: HashMap<Arc<Class>, ClassId>,
    entries: Vec<Option<(Arc<Class>, usize)>>,
    free: Vec<ClassId>,
}

/// Answers about classes, each worked out when it is first asked for. Lives as long as one cycle.
#[derive(Clone, Debug)]
pub struct Answers<T>(Vec<Option<T>>);

// === impl Classes ===

impl Classes {
    /// The id of such a class, and the copy that all Pods of it share.
    pub fn take(&mut self, class: &Arc<Class>) -> (ClassId, Arc<Class>) {
        if let Some(id) = self.ids.get(class)
            && let Some(Some((known, users))) = self.entries.get_mut(id.index())
        {
            *users += 1;
            return (*id, known.clone());
        }
        let id = self.free.pop().unwrap_or(ClassId(self.entries.len() as u32));
        if id.index() == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[id.index()] = Some((class.clone(), 1));
        self.ids.insert(class.clone(), id);
        (id, class.clone())
    }

    pub fn release(&mut self, id: ClassId) {
        let Some(slot) = self.entries.get_mut(id.index()) else { return };
        let Some((class, users)) = slot else { return };
        *users -= 1;
        if *users == 0 {
            self.ids.remove(class);
            *slot = None;
            self.free.push(id);
        }
    }

    #[must_use]
    pub fn id(&self, class: &Class) -> Option<ClassId> {
        self.ids.get(class).copied()
    }

    #[must_use]
    pub fn get(&self, id: ClassId) -> Option<&Arc<Class>> {
        self.entries.get(id.index()).and_then(Option::as_ref).map(|(class, _)| class)
    }

    /// How many ids were given out so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

// === impl ClassId ===

impl ClassId {
    /// Of a Pod that is on a node only for a trial.
    pub const NOBODY: ClassId = ClassId(u32::MAX);

    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

// === impl Answers ===

impl<T> Answers<T> {
    #[must_use]
    pub fn new(classes: &Classes) -> Answers<T> {
        Answers((0..classes.len()).map(|_| None).collect())
    }

    /// The answer about a class; None for one that nobody knows.
    pub fn of(&mut self, classes: &Classes, id: ClassId, ask: impl FnOnce(&Class) -> T) -> Option<&T> {
        let slot = self.0.get_mut(id.index())?;
        if slot.is_none() {
            *slot = Some(ask(classes.get(id)?));
        }
        slot.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_classes_share_an_id_until_the_last_is_gone() {
        let mut classes = Classes::default();
        let class = |ns: &str| Arc::new(Class { namespace: ns.into(), ..Class::default() });
        let (a, _) = classes.take(&class("a"));
        let (again, _) = classes.take(&class("a"));
        let (b, _) = classes.take(&class("b"));
        assert!(a == again && a != b);
        classes.release(a);
        assert!(classes.get(a).is_some());
        classes.release(a);
        assert!(classes.get(a).is_none() && classes.id(&class("a")).is_none());
        assert_eq!(classes.take(&class("c")).0, a, "an id is used again");
        assert_eq!(classes.len(), 2);
    }
}
