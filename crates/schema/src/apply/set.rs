//! Sets of fields, as managedFields writes them: `f:` a field, `k:` an item by key, `v:` an item by value, `i:` by index.

use std::collections::{BTreeMap, btree_map};
use std::fmt;

use serde_json::{Map, Value};

/// A step to a field. Keys and values are kept as canonical JSON text, which makes them comparable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    Field(Box<str>),
    /// `{"containerPort":80,"protocol":"TCP"}`
    Key(Box<str>),
    /// `"example.com/protect"`
    Value(Box<str>),
    Index(i64),
}

/// Fields of an object. A field may be in the set itself, or only have fields below it in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    nodes: BTreeMap<Element, Node>,
}

/// One field of a set, and what of it is in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) is_member: bool,
    pub(super) below: Set,
}

/// Why a document is no set of fields.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fields are not readable at {0:?}")]
pub struct BadSet(String);

// === impl Element ===

impl Element {
    #[must_use]
    pub fn field(name: &str) -> Element {
        Element::Field(name.into())
    }

    fn parse(text: &str) -> Result<Option<Element>, BadSet> {
        let bad = || BadSet(text.chars().take(100).collect());
        let (kind, rest) = text.split_at_checked(2).ok_or_else(bad)?;
        Ok(Some(match kind {
            "f:" => Element::Field(rest.into()),
            "v:" => Element::Value(canonical(rest).ok_or_else(bad)?),
            "k:" => Element::Key(canonical(rest).filter(|t| t.starts_with('{')).ok_or_else(bad)?),
            "i:" => Element::Index(rest.parse().map_err(|_| bad())?),
            // A kind of a later version.
            _ if kind.ends_with(':') => return Ok(None),
            _ => return Err(bad()),
        }))
    }

    pub(super) fn render(&self) -> String {
        match self {
            Element::Field(name) => ["f:", name].concat(),
            Element::Key(text) => ["k:", text].concat(),
            Element::Value(text) => ["v:", text].concat(),
            Element::Index(i) => format!("i:{i}"),
        }
    }
}

fn canonical(text: &str) -> Option<Box<str>> {
    let value: Value = serde_json::from_str(text).ok()?;
    Some(value.to_string().into())
}

/// `.spec`, `[name="web"]`, `[="a"]`, `[3]`
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Field(name) => write!(f, ".{name}"),
            Element::Key(text) => {
                let keys: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
                let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
            Element::Value(text) => write!(f, "[={text}]"),
            Element::Index(i) => write!(f, "[{i}]"),
        }
    }
}

// === impl Node ===

impl Node {
    pub(super) fn is_empty(&self) -> bool {
        !self.is_member && self.below.is_empty()
    }
}

// === impl Set ===

impl Set {
    /// A set of plain fields: `[&["metadata", "name"], &["status"]]`.
    #[must_use]
    pub fn of(paths: &[&[&str]]) -> Set {
        let mut set = Set::default();
        for path in paths {
            let path: Vec<Element> = path.iter().map(|name| Element::field(name)).collect();
            set.insert(&path);
        }
        set
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        // A node without members below is never kept.
        self.nodes.is_empty()
    }

    /// The empty path names the whole object, which nobody owns.
    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else { return };
        let node = self.nodes.entry(first.clone()).or_default();
        if rest.is_empty() {
            node.is_member = true;
        } else {
            node.below.insert(rest);
        }
    }

    /// Adds what was found at `element`, if anything was.
    pub(super) fn put(&mut self, element: Element, found: Node) {
        if found.is_empty() {
            return;
        }
        match self.nodes.entry(element) {
            btree_map::Entry::Vacant(place) => drop(place.insert(found)),
            btree_map::Entry::Occupied(mut place) => {
                let node = place.get_mut();
                node.is_member |= found.is_member;
                node.below.merge(found.below);
            }
        }
    }

    #[must_use]
    pub fn has(&self, element: &Element) -> bool {
        self.nodes.get(element).is_some_and(|node| node.is_member)
    }

    #[must_use]
    pub fn has_path(&self, path: &[Element]) -> bool {
        match path {
            [] => false,
            [last] => self.has(last),
            [first, rest @ ..] => self.below(first).is_some_and(|below| below.has_path(rest)),
        }
    }

    /// The fields below `element`; None where there are none.
    #[must_use]
    pub fn below(&self, element: &Element) -> Option<&Set> {
        self.nodes.get(element).map(|node| &node.below).filter(|below| !below.is_empty())
    }

    #[must_use]
    pub fn union(&self, other: &Set) -> Set {
        let mut both = self.clone();
        both.merge(other.clone());
        both
    }

    pub(super) fn merge(&mut self, other: Set) {
        if self.is_empty() {
            *self = other;
            return;
        }
        for (element, node) in other.nodes {
            self.put(element, node);
        }
    }

    #[must_use]
    pub fn intersection(&self, other: &Set) -> Set {
        let nodes = self.nodes.iter().filter_map(|(element, node)| {
            let other = other.nodes.get(element)?;
            let both = Node {
                is_member: node.is_member && other.is_member,
                below: node.below.intersection(&other.below),
            };
            (!both.is_empty()).then(|| (element.clone(), both))
        });
        Set { nodes: nodes.collect() }
    }

    /// What is in `self` and not itself in `other`; what stands below a field of `other` stays.
    #[must_use]
    pub fn difference(&self, other: &Set) -> Set {
        let mut rest = self.clone();
        rest.subtract(other);
        rest
    }

    /// Makes this the difference to `other`.
    pub(super) fn subtract(&mut self, other: &Set) {
        if other.is_empty() {
            return;
        }
        self.nodes.retain(|element, node| {
            if let Some(other) = other.nodes.get(element) {
                node.is_member &= !other.is_member;
                node.below.subtract(&other.below);
            }
            !node.is_empty()
        });
    }

    /// Takes out what is in `other` or below a field of `other`.
    pub(super) fn cut(&mut self, other: &Set) {
        if other.is_empty() {
            return;
        }
        self.nodes.retain(|element, node| match other.nodes.get(element) {
            Some(other) if other.is_member => false,
            Some(other) => {
                node.below.cut(&other.below);
                !node.is_empty()
            }
            None => true,
        });
    }

    /// Applies `change` to every node: the set below, and whether the node is a member.
    pub(super) fn mapped(&self, change: &impl Fn(&Element, bool, &Set) -> (bool, Set)) -> Set {
        let nodes = self.nodes.iter().map(|(element, node)| {
            let (is_member, below) = change(element, node.is_member, &node.below);
            (element.clone(), Node { is_member, below })
        });
        Set { nodes: nodes.collect() }
    }

    /// Every path of the set: the fields of an object before what stands below them.
    #[must_use]
    pub fn paths(&self) -> Vec<Vec<Element>> {
        let mut paths = Vec::new();
        self.collect(&mut Vec::new(), &mut paths);
        paths
    }

    fn collect(&self, at: &mut Vec<Element>, paths: &mut Vec<Vec<Element>>) {
        for (element, _) in self.nodes.iter().filter(|(_, node)| node.is_member) {
            paths.push(at.iter().chain([element]).cloned().collect());
        }
        for (element, node) in &self.nodes {
            at.push(element.clone());
            node.below.collect(at, paths);
            at.pop();
        }
    }

    #[must_use]
    pub fn to_value(&self) -> Value {
        let entries = self.nodes.iter().map(|(element, node)| {
            let mut below = node.below.to_value();
            if node.is_member && !node.below.is_empty() {
                below["."] = Value::Object(Map::new());
            }
            (element.render(), below)
        });
        entries.collect()
    }

    pub fn from_value(value: &Value) -> Result<Set, BadSet> {
        Ok(Set::read(value)?.0)
    }

    /// The set, and whether the place itself is a member: said by a dot, or by there being nothing else.
    fn read(value: &Value) -> Result<(Set, bool), BadSet> {
        let Value::Object(map) = value else {
            return Err(BadSet(value.to_string().chars().take(100).collect()));
        };
        let mut set = Set::default();
        for (key, value) in map.iter().filter(|(key, _)| *key != ".") {
            let Some(element) = Element::parse(key)? else { continue };
            let (below, is_member) = Set::read(value)?;
            set.nodes.insert(element, Node { is_member, below });
        }
        let is_member = map.contains_key(".") || set.is_empty();
        Ok((set, is_member))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub(in crate::apply) fn arbitrary_set() -> impl Strategy<Value = Set> {
        let element = prop_oneof![
            "[a-c]".prop_map(|s| Element::Field(s.into())),
            "[a-b]".prop_map(|s| Element::Key(json!({"name": s}).to_string().into())),
            (0..2_i64).prop_map(|n| Element::Value(n.to_string().into())),
        ];
        vec(vec(element, 1..4), 0..8).prop_map(|paths| {
            let mut set = Set::default();
            paths.iter().for_each(|p| set.insert(p));
            set
        })
    }

    #[test]
    fn text_form() {
        let fields = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {"f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}}},
                "f:finalizers": {"v:\"x\"": {}}, "f:list": {"i:3": {}}}});
        let set = Set::from_value(&fields).unwrap();
        assert_eq!(set.to_value(), fields);
        let shown: Vec<String> =
            set.paths().iter().map(|p| p.iter().map(ToString::to_string).collect()).collect();
        assert_eq!(
            shown,
            [
                ".metadata.labels",
                ".metadata.labels.app",
                ".spec.finalizers[=\"x\"]",
                ".spec.list[3]",
                ".spec.ports[containerPort=80,protocol=\"TCP\"]",
                ".spec.ports[containerPort=80,protocol=\"TCP\"].name",
            ]
        );
        // Key order and spaces do not make another key.
        let spaced = json!({"k:{ \"b\":1, \"a\":2}": {}});
        assert_eq!(Set::from_value(&spaced).unwrap().to_value(), json!({"k:{\"a\":2,\"b\":1}": {}}));
        for bad in [json!([]), json!({"f": {}}), json!({"v:{": {}}), json!({"k:1": {}}), json!({"f:a": 1})] {
            assert!(Set::from_value(&bad).is_err(), "{bad}");
        }
        assert!(Set::from_value(&json!({"z:later": {}})).unwrap().is_empty());
    }

    fn without(set: &Set, other: &Set) -> Set {
        let mut set = set.clone();
        set.cut(other);
        set
    }

    proptest! {
        #[test]
        fn round_trip(set in arbitrary_set()) {
            prop_assert_eq!(Set::from_value(&set.to_value()).unwrap(), set);
        }

        #[test]
        fn algebra_agrees_with_paths(a in arbitrary_set(), b in arbitrary_set()) {
            let has = |set: &Set, path: &Vec<Element>| set.paths().contains(path);
            let (union, both, rest, without) = (a.union(&b), a.intersection(&b), a.difference(&b), without(&a, &b));
            for path in union.paths() {
                prop_assert_eq!(has(&both, &path), has(&a, &path) && has(&b, &path));
                prop_assert_eq!(has(&rest, &path), has(&a, &path) && !has(&b, &path));
                let is_covered = (1..=path.len()).any(|n| has(&b, &path[..n].to_vec()));
                prop_assert_eq!(has(&without, &path), has(&a, &path) && !is_covered);
                prop_assert!(has(&a, &path) || has(&b, &path));
                prop_assert!(union.has_path(&path));
            }
            prop_assert_eq!(a.paths().len() + b.paths().len(), union.paths().len() + both.paths().len());
            prop_assert!(a.difference(&a).is_empty());
        }
    }
}
