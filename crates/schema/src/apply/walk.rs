//! Walks that know which fields of an object can be owned apart: what there is, what changed, what is taken out.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::{Element, Node, Set};
use crate::types::{At, ListKind, Presence, Shape};

/// How one place is owned.
#[derive(Clone, Copy, Debug)]
pub(super) enum Atom<'a> {
    /// As one.
    Leaf,
    /// Item by item.
    List(At<'a>, &'a ListKind),
    /// Field by field.
    Map(At<'a>),
}

/// What differs between two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) removed: Set,
    pub(super) modified: Set,
    pub(super) added: Set,
}

/// How the place `at` is owned while `value` stands there.
pub(super) fn atom<'a>(at: At<'a>, value: Option<&Value>) -> Atom<'a> {
    match at.shape {
        Shape::Object(id) if at.types.get(*id).atomic => Atom::Leaf,
        Shape::Object(_) => Atom::Map(at),
        Shape::Map { atomic: true, .. } | Shape::List { kind: ListKind::Atomic, .. } => Atom::Leaf,
        Shape::Map { .. } => Atom::Map(at),
        Shape::List { kind, .. } => Atom::List(at.item(), kind),
        // Of unknown places only objects are owned field by field.
        Shape::Any | Shape::Raw | Shape::FieldSet | Shape::Either(_) => match value {
            Some(Value::Object(_)) => Atom::Map(At::UNKNOWN),
            _ => Atom::Leaf,
        },
        _ => Atom::Leaf,
    }
}

impl Atom<'_> {
    pub(super) fn is_same_kind(&self, other: &Atom<'_>) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// What tells an item of such a list from its siblings.
pub(super) fn item_element(item: &Value, at: At<'_>, kind: &ListKind) -> Result<Element, String> {
    match kind {
        ListKind::Atomic => Err("invalid indexing of non-associative list".into()),
        ListKind::Set => match item {
            Value::Object(_) => Err("associative list without keys has an element that's a map type".into()),
            Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
            Value::Null => Err("associative list without keys has an element that's an explicit null".into()),
            scalar => Ok(Element::Value(scalar.to_string().into())),
        },
        ListKind::Keyed(keys) => {
            let Value::Object(map) = item else {
                let kind = if item.is_null() { "a null element" } else { "non-map elements" };
                return Err(format!("associative list with keys may not have {kind}"));
            };
            let default = |key: &str| at.object()?.field(key)?.key_default();
            let mut found: Vec<(&str, Cow<'_, Value>)> = keys
                .iter()
                .filter_map(|key| {
                    let said = map.get(&**key).map(Cow::Borrowed);
                    Some((&**key, said.or_else(|| default(key).map(Cow::Owned))?))
                })
                .collect();
            if found.is_empty() {
                return Err(format!(
                    "associative list with keys has an element that omits all key fields {keys:?} \
                     (and doesn't have default values for any key fields)"
                ));
            }
            found.sort_unstable_by_key(|(key, _)| *key);
            Ok(Element::Key(key_text(&found)))
        }
    }
}

/// The keys of an item as one text: `{"containerPort":80,"protocol":"TCP"}`.
fn key_text(keys: &[(&str, Cow<'_, Value>)]) -> Box<str> {
    let mut text = Vec::with_capacity(64);
    for (i, (key, value)) in keys.iter().enumerate() {
        text.push(if i == 0 { b'{' } else { b',' });
        // Writing JSON to memory cannot fail.
        let _ = serde_json::to_writer(&mut text, key);
        text.push(b':');
        let _ = serde_json::to_writer(&mut text, &**value);
    }
    text.push(b'}');
    String::from_utf8(text).unwrap_or_default().into()
}

/// The fields that are set in `value`.
pub(super) fn fields_of(value: &Value, at: At<'_>) -> Set {
    // Nobody owns the whole object.
    collect(value, at).below
}

fn collect(value: &Value, at: At<'_>) -> Node {
    let mut node = Node::default();
    match (atom(at, Some(value)), value) {
        (Atom::Leaf, _) => node.is_member = true,
        (Atom::List(item_at, kind), Value::Array(list)) => {
            let mut items: BTreeMap<Element, Vec<&Value>> = BTreeMap::new();
            for item in list {
                if let Ok(element) = item_element(item, item_at, kind) {
                    items.entry(element).or_default().push(item);
                }
            }
            for (element, items) in items {
                // Of items that cannot be told apart only the key is owned.
                let mut found = match &*items {
                    [item] => collect(item, item_at),
                    _ => Node::default(),
                };
                found.is_member = true;
                node.below.put(element, found);
            }
        }
        (Atom::Map(map_at), Value::Object(map)) => {
            for (key, value) in map {
                let mut found = collect(value, map_at.child(key));
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                found.is_member |= is_empty || !is_named_field(map_at, key);
                node.below.put(Element::field(key), found);
            }
        }
        _ => {}
    }
    node
}

/// A field of a type, as against a key of a map: its presence alone says nothing.
pub(super) fn is_named_field(at: At<'_>, key: &str) -> bool {
    matches!(at.shape, Shape::Object(id) if at.types.get(*id).field(key).is_some())
}

/// Adds the fields of types that only have members below them.
pub(super) fn with_named_fields(set: &Set, at: At<'_>) -> Set {
    set.mapped(&|element, is_member, below| {
        let (named, child) = match element {
            Element::Field(name) => (is_named_field(at, name), at.child(name)),
            Element::Key(_) => (false, at.item()),
            _ => (false, At::UNKNOWN),
        };
        let is_member = is_member || (named && !below.is_empty());
        (is_member, with_named_fields(below, child))
    })
}

/// What makes `new` of `old`.
pub(super) fn compare(old: &Value, new: &Value, at: At<'_>) -> Comparison {
    let found = Delta::of(Some(old), Some(new), at);
    Comparison { removed: found.removed.below, modified: found.modified.below, added: found.added.below }
}

/// What whoever makes `new` of `old` takes, at a place and below it.
pub(super) fn taken(old: Option<&Value>, new: &Value, at: At<'_>) -> Node {
    let Delta { modified: mut taken, added, .. } = Delta::of(old, Some(new), at);
    taken.is_member |= added.is_member;
    taken.below.merge(added.below);
    taken
}

/// What differs at one place and below it.
#[derive(Default)]
struct Delta {
    removed: Node,
    modified: Node,
    added: Node,
}

impl Delta {
    fn of(old: Option<&Value>, new: Option<&Value>, at: At<'_>) -> Delta {
        let mut delta = Delta::default();
        let (old_atom, new_atom) = (atom(at, old), atom(at, new));
        let mut is_leaf = false;
        if new.is_none() {
            is_leaf = delta.atom(old_atom, old, new);
        } else {
            if old.is_some() && !old_atom.is_same_kind(&new_atom) {
                delta.atom(old_atom, old, new);
            }
            is_leaf |= delta.atom(new_atom, old, new);
        }
        if !is_leaf {
            delta.presence(old, new);
        }
        delta
    }

    /// Compares as `atom` says; true where the place is one leaf.
    fn atom(&mut self, atom: Atom<'_>, old: Option<&Value>, new: Option<&Value>) -> bool {
        let is_empty = |value: Option<&Value>| match value {
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            _ => true,
        };
        match atom {
            Atom::List(item, kind) if !(is_empty(old) && is_empty(new)) => {
                self.list(old.and_then(Value::as_array), new.and_then(Value::as_array), item, kind);
                false
            }
            Atom::Map(at) if !(is_empty(old) && is_empty(new)) => {
                self.map(old.and_then(Value::as_object), new.and_then(Value::as_object), at);
                false
            }
            _ => {
                if old.is_some() && new.is_some() {
                    self.modified.is_member |= old != new;
                } else {
                    self.presence(old, new);
                }
                true
            }
        }
    }

    fn presence(&mut self, old: Option<&Value>, new: Option<&Value>) {
        self.added.is_member |= old.is_none() && new.is_some();
        self.removed.is_member |= old.is_some() && new.is_none();
    }

    fn map(&mut self, old: Option<&Map<String, Value>>, new: Option<&Map<String, Value>>, at: At<'_>) {
        for (key, value) in old.into_iter().flatten() {
            let below = Delta::of(Some(value), new.and_then(|n| n.get(key)), at.child(key));
            self.put(|| Element::field(key), below);
        }
        for (key, value) in new.into_iter().flatten() {
            if !old.is_some_and(|o| o.contains_key(key)) {
                self.put(|| Element::field(key), Delta::of(None, Some(value), at.child(key)));
            }
        }
    }

    fn list(&mut self, old: Option<&Vec<Value>>, new: Option<&Vec<Value>>, at: At<'_>, kind: &ListKind) {
        // Items by key; each side may hold several that cannot be told apart.
        let mut items: BTreeMap<Element, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
        for item in old.into_iter().flatten() {
            if let Ok(element) = item_element(item, at, kind) {
                items.entry(element).or_default().0.push(item);
            }
        }
        for item in new.into_iter().flatten() {
            if let Ok(element) = item_element(item, at, kind) {
                items.entry(element).or_default().1.push(item);
            }
        }
        for (element, (old, new)) in items {
            let mut below = Delta::default();
            match (&*old, &*new) {
                ([_, _, ..], [_, _, ..]) => below.modified.is_member = old != new,
                ([_, _, ..], rest) => {
                    if let Some(item) = rest.first() {
                        below = Delta::of(None, Some(item), at);
                    }
                    below.removed.is_member = true;
                }
                (rest, [_, _, ..]) => {
                    if let Some(item) = rest.first() {
                        below = Delta::of(Some(item), None, at);
                    }
                    below.added.is_member = true;
                }
                (old, new) => below = Delta::of(old.first().copied(), new.first().copied(), at),
            }
            self.put(|| element.clone(), below);
        }
    }

    /// Names what was found below this place, where something was.
    fn put(&mut self, element: impl Fn() -> Element, found: Delta) {
        for (set, node) in [
            (&mut self.removed.below, found.removed),
            (&mut self.modified.below, found.modified),
            (&mut self.added.below, found.added),
        ] {
            if !node.is_empty() {
                set.put(element(), node);
            }
        }
    }
}

/// `value` without the fields of `gone`; None where nothing is left.
pub(super) fn remove(value: &Value, gone: &Set, at: At<'_>) -> Option<Value> {
    match (atom(at, Some(value)), value) {
        (Atom::List(item_at, kind), Value::Array(list)) => {
            let kept: Vec<Value> = list
                .iter()
                .filter_map(|item| {
                    let Ok(element) = item_element(item, item_at, kind) else { return Some(item.clone()) };
                    if gone.has(&element) {
                        return None;
                    }
                    match gone.below(&element) {
                        Some(below) => remove(item, below, item_at),
                        None => Some(item.clone()),
                    }
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Array(kept))
        }
        (Atom::Map(map_at), Value::Object(map)) => {
            let kept: Map<String, Value> = map
                .iter()
                .filter_map(|(key, value)| {
                    let element = Element::field(key);
                    if gone.has(&element) {
                        return None;
                    }
                    let value = match gone.below(&element) {
                        Some(below) => remove(value, below, map_at.child(key))?,
                        None => value.clone(),
                    };
                    Some((key.clone(), value))
                })
                .collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        (Atom::Leaf, Value::Array(_) | Value::Object(_)) => None,
        _ => Some(value.clone()),
    }
}

/// An object of the type as it is before anything was said about it: the fields that are always there.
pub(super) fn blank(at: At<'_>) -> Value {
    let Some(known) = at.object() else { return Value::Object(Map::new()) };
    let always = known.fields.iter().filter(|f| f.presence == Presence::Always);
    let fields = always.map(|field| {
        let value = match &field.shape {
            Shape::String => "".into(),
            Shape::Int32 | Shape::Int64 => 0.into(),
            Shape::Boolean => false.into(),
            Shape::Object(_) => blank(at.with(&field.shape)),
            _ => Value::Null,
        };
        (field.name.to_string(), value)
    });
    fields.collect()
}

/// Mistakes that keep `value` from being owned field by field, each with its place.
pub(super) fn mistakes(value: &Value, at: At<'_>) -> Vec<String> {
    let mut found = Vec::new();
    check(value, at, &mut String::new(), &mut found);
    found
}

fn check(value: &Value, at: At<'_>, path: &mut String, found: &mut Vec<String>) {
    if value.is_null() || found.len() >= crate::decode::MAX_COMPLAINTS {
        return;
    }
    let wrong = |what: &str, found: &mut Vec<String>| {
        found.push(if path.is_empty() { what.to_owned() } else { format!("{path}: {what}") });
    };
    let shown = || value.to_string().chars().take(128).collect::<String>();
    match (at.shape, value) {
        (Shape::Object(_) | Shape::Map { .. }, Value::Object(map)) => {
            for (key, value) in map {
                let length = path.len();
                path.push('.');
                path.push_str(key);
                let is_open = at.object().is_none_or(|t| t.open || t.field(key).is_some());
                if is_open {
                    check(value, at.child(key), path, found);
                } else {
                    found.push(format!("{path}: field not declared in schema"));
                }
                path.truncate(length);
            }
        }
        (Shape::Object(_) | Shape::Map { .. }, _) => wrong(&format!("expected map, got {}", shown()), found),
        (Shape::List { item, kind }, Value::Array(list)) => {
            let mut seen = std::collections::BTreeSet::new();
            for (i, value) in list.iter().enumerate() {
                let element = match kind {
                    ListKind::Atomic => Element::Index(i64::try_from(i).unwrap_or(i64::MAX)),
                    _ => match item_element(value, at.with(item), kind) {
                        Ok(element) => element,
                        Err(what) => {
                            found.push(format!("{path}: element {i}: {what}"));
                            return;
                        }
                    },
                };
                if !seen.insert(element.clone()) {
                    found.push(format!("{path}: duplicate entries for key {element}"));
                }
                let length = path.len();
                path.push_str(&element.to_string());
                check(value, at.with(item), path, found);
                path.truncate(length);
            }
        }
        (Shape::List { .. }, _) => wrong(&format!("expected list, got {}", shown()), found),
        (Shape::String | Shape::Bytes | Shape::Time | Shape::MicroTime, value) if !value.is_string() => {
            wrong(&format!("expected string, got {}", shown()), found);
        }
        (Shape::Int32 | Shape::Int64 | Shape::Number, value) if !value.is_number() => {
            wrong(&format!("expected numeric (int or float), got {}", go_kind(value)), found);
        }
        (Shape::Boolean, value) if !value.is_boolean() => {
            wrong(&format!("expected boolean, got {}", shown()), found);
        }
        _ => {}
    }
}

/// What upstream's messages call the kind of a value.
fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
