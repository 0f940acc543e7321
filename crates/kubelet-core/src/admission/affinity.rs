//! nodeSelector and required node affinity against this one node.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};

/// Whether the Pod accepts the node.
pub(super) fn matches(pod: &Pod, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let selected = spec.node_selector.iter().flatten().all(|(k, v)| labels.get(k) == Some(v));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|n| n.required_during_scheduling_ignored_during_execution.as_ref());
    selected && required.is_none_or(|r| r.node_selector_terms.iter().any(|t| term(t, node, labels)))
}

/// Whether some term accepts the node, for what is tied to nodes in the same words as Pods are.
#[must_use]
pub fn any_term_matches(terms: &[NodeSelectorTerm], node: &str, labels: &BTreeMap<String, String>) -> bool {
    terms.iter().any(|t| term(t, node, labels))
}

/// All requirements of a term must hold; a term without any matches nothing.
fn term(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let labels_wanted = term.match_expressions.as_deref().unwrap_or_default();
    let fields_wanted = term.match_fields.as_deref().unwrap_or_default();
    if labels_wanted.is_empty() && fields_wanted.is_empty() {
        return false;
    }
    let field = |r: &NodeSelectorRequirement| r.key == "metadata.name" && holds(r, Some(node));
    labels_wanted.iter().all(|r| holds(r, labels.get(&r.key).map(String::as_str)))
        && fields_wanted.iter().all(field)
}

fn holds(r: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = r.values.as_deref().unwrap_or_default();
    let listed = |v: &str| values.iter().any(|w| w == v);
    let numbers = || Some((value?.parse::<i64>().ok()?, values.first()?.parse::<i64>().ok()?));
    match r.operator.as_str() {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(have, want)| have > want),
        "Lt" => numbers().is_some_and(|(have, want)| have < want),
        _ => false,
    }
}
