//! Labels and what selects them, read once and asked often.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::Name;

/// The labels of an object, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(Arc<[(Name, Name)]>);

/// What labels must satisfy: every requirement at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// None selects nothing.
    requirements: Option<Box<[Requirement]>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: Name,
    operator: Operator,
    values: Box<[Name]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

/// Terms of which one has to match a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSelector(Box<[NodeTerm]>);

/// Requirements on a node's labels and on its name. A term without any matches no node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    labels: Selector,
    names: Selector,
    is_empty: bool,
}

// === impl Labels ===

impl Labels {
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Name> {
        let at = self.0.binary_search_by(|(known, _)| known.as_ref().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Name, Name)> {
        self.0.iter()
    }
}

impl From<&BTreeMap<String, String>> for Labels {
    fn from(map: &BTreeMap<String, String>) -> Self {
        Labels(map.iter().map(|(k, v)| (k.as_str().into(), v.as_str().into())).collect())
    }
}

impl From<Option<&BTreeMap<String, String>>> for Labels {
    fn from(map: Option<&BTreeMap<String, String>>) -> Self {
        map.map(Labels::from).unwrap_or_default()
    }
}

// === impl Selector ===

impl Selector {
    pub const NOTHING: Selector = Selector { requirements: None };

    /// Selects all there is.
    #[must_use]
    pub fn everything() -> Selector {
        Selector { requirements: Some(Box::default()) }
    }

    /// No selector at all selects nothing, an empty one everything. What is malformed selects nothing: validation keeps it
    /// out, and a store that was edited by hand must not bring Pods where nobody wants them.
    #[must_use]
    pub fn read(selector: Option<&LabelSelector>) -> Selector {
        let Some(selector) = selector else { return Selector::NOTHING };
        let mut all = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            all.push(Requirement::one(key, value));
        }
        for expression in selector.match_expressions.iter().flatten() {
            let values = expression.values.as_deref().unwrap_or_default();
            match Requirement::read(&expression.key, &expression.operator, values) {
                Some(requirement) => all.push(requirement),
                None => return Selector::NOTHING,
            }
        }
        Selector { requirements: Some(all.into()) }
    }

    /// Each of these labels with exactly this value.
    #[must_use]
    pub fn exactly(labels: &BTreeMap<String, String>) -> Selector {
        Selector { requirements: Some(labels.iter().map(|(k, v)| Requirement::one(k, v)).collect()) }
    }

    /// Requires all that both require.
    #[must_use]
    pub fn and(&self, other: &Selector) -> Selector {
        let (Some(a), Some(b)) = (&self.requirements, &other.requirements) else { return Selector::NOTHING };
        Selector { requirements: Some(a.iter().chain(b.iter()).cloned().collect()) }
    }

    /// Whether it requires nothing, and so selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requirements.as_ref().is_some_and(|all| all.is_empty())
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.as_ref().is_some_and(|all| all.iter().all(|r| r.holds(labels.get(&r.key))))
    }

    fn holds_for_name(&self, name: &Name) -> bool {
        self.requirements.as_ref().is_some_and(|all| all.iter().all(|r| r.holds(Some(name))))
    }
}

// === impl Requirement ===

impl Requirement {
    fn one(key: &str, value: &str) -> Requirement {
        Requirement { key: key.into(), operator: Operator::In, values: [value.into()].into() }
    }

    fn read(key: &str, operator: &str, values: &[String]) -> Option<Requirement> {
        let operator = match operator {
            "In" => Operator::In,
            "NotIn" => Operator::NotIn,
            "Exists" => Operator::Exists,
            "DoesNotExist" => Operator::DoesNotExist,
            "Gt" => Operator::GreaterThan,
            "Lt" => Operator::LessThan,
            _ => return None,
        };
        let is_sound = match operator {
            Operator::In | Operator::NotIn => !values.is_empty(),
            Operator::Exists | Operator::DoesNotExist => values.is_empty(),
            Operator::GreaterThan | Operator::LessThan => {
                values.len() == 1 && values[0].parse::<i64>().is_ok()
            }
        };
        let values = values.iter().map(|v| v.as_str().into()).collect();
        is_sound.then(|| Requirement { key: key.into(), operator, values })
    }

    fn holds(&self, value: Option<&Name>) -> bool {
        let listed = |value: &Name| self.values.contains(value);
        let number = |text: &Name| text.parse::<i64>().ok();
        let bound = || self.values.first().and_then(number);
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan => value.and_then(number).zip(bound()).is_some_and(|(v, b)| v > b),
            Operator::LessThan => value.and_then(number).zip(bound()).is_some_and(|(v, b)| v < b),
        }
    }
}

// === impl NodeSelector ===

impl NodeSelector {
    #[must_use]
    pub fn read(terms: &[NodeSelectorTerm]) -> NodeSelector {
        NodeSelector(terms.iter().map(NodeTerm::read).collect())
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels, name: &Name) -> bool {
        self.0.iter().any(|term| term.matches(labels, name))
    }

    /// The nodes that can match at all, where every term names some: its names, sorted; None where any node may.
    /// Terms that require two names at once name nobody.
    #[must_use]
    pub fn named(&self) -> Option<Vec<Name>> {
        let mut all = Vec::new();
        for term in &self.0 {
            all.extend(term.named()?);
        }
        all.sort();
        all.dedup();
        (!self.0.is_empty()).then_some(all)
    }
}

// === impl NodeTerm ===

impl NodeTerm {
    #[must_use]
    pub fn read(term: &NodeSelectorTerm) -> NodeTerm {
        let read = |all: Option<&Vec<NodeSelectorRequirement>>, field: bool| {
            let mut out = Vec::new();
            for r in all.into_iter().flatten() {
                let values = r.values.as_deref().unwrap_or_default();
                let known = !field || r.key == "metadata.name";
                match Requirement::read(&r.key, &r.operator, values).filter(|_| known) {
                    Some(requirement) => out.push(requirement),
                    None => return Selector::NOTHING,
                }
            }
            Selector { requirements: Some(out.into()) }
        };
        let labels = read(term.match_expressions.as_ref(), false);
        let names = read(term.match_fields.as_ref(), true);
        let is_empty = labels.is_empty() && names.is_empty();
        NodeTerm { labels, names, is_empty }
    }

    #[must_use]
    pub fn matches(&self, labels: &Labels, name: &Name) -> bool {
        !self.is_empty && self.labels.matches(labels) && self.names.holds_for_name(name)
    }

    fn named(&self) -> Option<Vec<Name>> {
        let all = self.names.requirements.as_ref()?;
        let mut named: Option<Vec<Name>> = None;
        for r in all.iter().filter(|r| r.operator == Operator::In) {
            named = Some(match named {
                None => r.values.to_vec(),
                Some(known) => known.into_iter().filter(|name| r.values.contains(name)).collect(),
            });
        }
        named
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn labels(value: Value) -> Labels {
        let map: BTreeMap<String, String> = serde_json::from_value(value).unwrap();
        Labels::from(&map)
    }

    #[test]
    fn selectors_select_as_upstreams() {
        let web = labels(json!({"app": "web", "tier": "front", "n": "7"}));
        for (selector, expected) in [
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "web"]}]}), true),
            (json!({"matchExpressions": [{"key": "app", "operator": "In"}]}), false),
            (json!({"matchExpressions": [{"key": "none", "operator": "NotIn", "values": ["x"]}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}), true),
            (json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}), false),
            (json!({"matchExpressions": [{"key": "tier", "operator": "Sounds"}]}), false),
        ] {
            let read = Selector::read(Some(&serde_json::from_value(selector.clone()).unwrap()));
            assert_eq!(read.matches(&web), expected, "{selector}");
        }
        assert!(!Selector::read(None).matches(&web));
    }

    #[test]
    fn node_terms_are_alternatives_and_an_empty_one_is_none() {
        let (gpu, name) = (labels(json!({"gpu": "8"})), Name::from("n1"));
        for (terms, expected) in [
            (json!([]), false),
            (json!([{}]), false),
            (json!([{"matchExpressions": [{"key": "gpu", "operator": "Gt", "values": ["4"]}]}]), true),
            (json!([{"matchExpressions": [{"key": "gpu", "operator": "Lt", "values": ["4"]}]}]), false),
            (json!([{"matchExpressions": [{"key": "gpu", "operator": "Gt", "values": ["x"]}]}]), false),
            (
                json!([{}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]),
                true,
            ),
            (
                json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}]),
                false,
            ),
            (json!([{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["n1"]}]}]), false),
        ] {
            let read =
                NodeSelector::read(&serde_json::from_value::<Vec<NodeSelectorTerm>>(terms.clone()).unwrap());
            assert_eq!(read.matches(&gpu, &name), expected, "{terms}");
        }
    }

    #[test]
    fn terms_that_name_nodes_name_them() {
        let field = |values: Value| json!({"key": "metadata.name", "operator": "In", "values": values});
        let named = |terms: Value| {
            let terms: Vec<NodeSelectorTerm> = serde_json::from_value(terms).unwrap();
            NodeSelector::read(&terms)
                .named()
                .map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(named(json!([{"matchFields": [field(json!(["b", "a"]))]}])).unwrap(), ["a", "b"]);
        assert_eq!(
            named(json!([{"matchFields": [field(json!(["b"])), field(json!(["a"]))]}])).unwrap(),
            [""; 0]
        );
        assert_eq!(named(json!([{"matchFields": [field(json!(["b"]))]}, {}])), None);
    }
}
