//! What a create owns. It is what a comparison with the blank object would find, written down on the way: most writes of
//! a busy server are creates, and nobody's fields have to be weighed against theirs.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::{Element, Node, Set};
use super::walk::{self, Atom, atom, item_element};
use crate::types::{At, ListKind};

/// The fields `new` takes, in the form of managedFields. What is in `ignored` or below a field of it is left out; what
/// is in `nobodys` is not owned itself.
pub(super) fn owned(new: &Value, at: At<'_>, ignored: &Set, nobodys: &Set) -> Map<String, Value> {
    let except = Except { ignored: Some(ignored), nobodys: Some(nobodys) };
    taken(Some(&walk::blank(at)), new, at, except).below
}

/// Fields that are not owned, at the place where the walk is.
#[derive(Clone, Copy)]
struct Except<'s> {
    ignored: Option<&'s Set>,
    nobodys: Option<&'s Set>,
}

/// Whether a place is owned, and what below it.
#[derive(Default)]
struct Taken {
    is_member: bool,
    below: Map<String, Value>,
}

// === impl Except ===

impl<'s> Except<'s> {
    fn is_nothing(self) -> bool {
        self.ignored.is_none() && self.nobodys.is_none()
    }

    fn below(self, element: &Element) -> Except<'s> {
        let below = |set: Option<&'s Set>| set.and_then(|set| set.below(element));
        Except { ignored: below(self.ignored), nobodys: below(self.nobodys) }
    }
}

// === impl Taken ===

impl Taken {
    /// What a comparison found.
    fn of(mut found: Node, except: Except<'_>) -> Taken {
        if let Some(ignored) = except.ignored {
            found.below.cut(ignored);
        }
        if let Some(nobodys) = except.nobodys {
            found.below.subtract(nobodys);
        }
        let below = match found.below.to_value() {
            Value::Object(below) => below,
            _ => Map::new(),
        };
        Taken { is_member: found.is_member, below }
    }

    fn put_field(&mut self, name: &str, except: Except<'_>, found: impl FnOnce(Except<'_>) -> Taken) {
        if except.is_nothing() {
            self.put(["f:", name].concat(), found(except));
        } else {
            self.put_item(&Element::field(name), except, found);
        }
    }

    fn put_item(&mut self, element: &Element, except: Except<'_>, found: impl FnOnce(Except<'_>) -> Taken) {
        let has = |set: Option<&Set>| set.is_some_and(|set| set.has(element));
        if has(except.ignored) {
            return;
        }
        let mut found = found(except.below(element));
        found.is_member &= !has(except.nobodys);
        self.put(element.render(), found);
    }

    fn put(&mut self, name: String, found: Taken) {
        let Taken { is_member, mut below } = found;
        if below.is_empty() && !is_member {
            return;
        }
        if is_member && !below.is_empty() {
            below.insert(".".to_owned(), Value::Object(Map::new()));
        }
        self.below.insert(name, Value::Object(below));
    }
}

fn taken(old: Option<&Value>, new: &Value, at: At<'_>, except: Except<'_>) -> Taken {
    let (old_atom, new_atom) = (atom(at, old), atom(at, Some(new)));
    let is_odd = old.is_some() && !old_atom.is_same_kind(&new_atom);
    if is_odd || old.and_then(Value::as_array).is_some_and(|list| !list.is_empty()) {
        return Taken::of(walk::taken(old, new, at), except);
    }
    let mut found = Taken { is_member: old.is_none(), ..Taken::default() };
    let is_empty = |value: &Value| match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => true,
    };
    match new_atom {
        _ if is_empty(new) && old.is_none_or(is_empty) => found.is_member = old != Some(new),
        Atom::List(item, kind) => list(&mut found, new, item, kind, except),
        Atom::Map(at) => {
            let old = old.and_then(Value::as_object);
            for (key, value) in new.as_object().into_iter().flatten() {
                let old = old.and_then(|old| old.get(key));
                found.put_field(key, except, |except| taken(old, value, at.child(key), except));
            }
        }
        Atom::Leaf => found.is_member = old != Some(new),
    }
    found
}

fn list(found: &mut Taken, new: &Value, at: At<'_>, kind: &ListKind, except: Except<'_>) {
    // None for several that cannot be told apart: of them only the key is owned.
    let mut items: BTreeMap<Element, Option<&Value>> = BTreeMap::new();
    for item in new.as_array().into_iter().flatten() {
        if let Ok(element) = item_element(item, at, kind) {
            items.entry(element).and_modify(|item| *item = None).or_insert(Some(item));
        }
    }
    for (element, item) in items {
        found.put_item(&element, except, |except| match item {
            Some(item) => taken(None, item, at, except),
            None => Taken { is_member: true, ..Taken::default() },
        });
    }
}
