//! What mostly concerns a scheduler, as far as a Pod with it may be created at all.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::{labels, one_of};
use crate::field::{FieldErrors, Path};
use crate::names;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn all(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        tolerate(errors, toleration, &at.child("tolerations").index(i));
    }
    affinity(errors, spec, &at.child("affinity"));
    let spread = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    for (i, constraint) in spread.iter().enumerate() {
        let at = at.child("topologySpreadConstraints").index(i);
        spread_constraint(errors, constraint, &at);
        let same = |other: &TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key
                && other.when_unsatisfiable == constraint.when_unsatisfiable
        };
        if spread[i + 1..].iter().any(same) {
            let pair = format!("{{{}, {}}}", constraint.topology_key, constraint.when_unsatisfiable);
            errors.duplicate(&at.child("{topologyKey, whenUnsatisfiable}"), pair);
        }
    }
    let gates = spec.scheduling_gates.as_deref().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (i, gate) in gates.iter().enumerate() {
        let at = at.child("schedulingGates").index(i);
        errors.each(&at, &gate.name, names::qualified_name(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            errors.duplicate(&at, gate.name.as_str());
        }
    }
    if !gates.is_empty() && spec.node_name.as_deref().is_some_and(|n| !n.is_empty()) {
        let message = "cannot be set until all schedulingGates have been cleared";
        errors.forbidden(&at.child("nodeName"), message);
    }
}

fn tolerate(errors: &mut FieldErrors, t: &Toleration, at: &Path) {
    let key = t.key.as_deref().unwrap_or_default();
    let operator = t.operator.as_deref().unwrap_or_default();
    let value = t.value.as_deref().unwrap_or_default();
    let effect = t.effect.as_deref().unwrap_or_default();
    if !key.is_empty() {
        errors.each(&at.child("key"), key, names::qualified_name(key));
    } else if operator != "Exists" {
        let message =
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
        errors.invalid(&at.child("operator"), operator, message);
    }
    if t.toleration_seconds.is_some() && effect != "NoExecute" {
        let message = "effect must be 'NoExecute' when `tolerationSeconds` is set";
        errors.invalid(&at.child("effect"), effect, message);
    }
    match operator {
        "" | "Equal" => errors.each(&at.child("operator"), value, names::label_value(value)),
        "Exists" if !value.is_empty() => {
            errors.invalid(&at.child("operator"), value, "value must be empty when `operator` is 'Exists'");
        }
        "Exists" => {}
        other => errors.unsupported(&at.child("operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() && !EFFECTS.contains(&effect) {
        errors.unsupported(&at.child("effect"), effect, &EFFECTS);
    }
}

fn affinity(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    let Some(affinity) = &spec.affinity else { return };
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(node) = &affinity.node_affinity {
        let at = at.child("nodeAffinity");
        if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
            let at = at.child(REQUIRED).child("nodeSelectorTerms");
            if required.node_selector_terms.is_empty() {
                errors.required(&at, "must have at least one node selector term");
            }
            for (i, term) in required.node_selector_terms.iter().enumerate() {
                node_term(errors, term, &at.index(i));
            }
        }
        let preferred = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (i, term) in preferred.enumerate() {
            let at = at.child(PREFERRED).index(i);
            weight(errors, term.weight, &at);
            node_term(errors, &term.preference, &at.child("preference"));
        }
    }
    let pod = affinity.pod_affinity.as_ref().map(|a| {
        (
            "podAffinity",
            a.required_during_scheduling_ignored_during_execution.as_deref(),
            a.preferred_during_scheduling_ignored_during_execution.as_deref(),
        )
    });
    let anti = affinity.pod_anti_affinity.as_ref().map(|a| {
        (
            "podAntiAffinity",
            a.required_during_scheduling_ignored_during_execution.as_deref(),
            a.preferred_during_scheduling_ignored_during_execution.as_deref(),
        )
    });
    for (name, required, preferred) in pod.into_iter().chain(anti) {
        let at = at.child(name);
        for (i, term) in required.into_iter().flatten().enumerate() {
            pod_term(errors, term, &at.child(REQUIRED).index(i));
        }
        for (i, term) in preferred.into_iter().flatten().enumerate() {
            let at = at.child(PREFERRED).index(i);
            weight(errors, term.weight, &at);
            pod_term(errors, &term.pod_affinity_term, &at.child("podAffinityTerm"));
        }
    }
}

fn weight(errors: &mut FieldErrors, weight: i32, at: &Path) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&at.child("weight"), weight, "must be in the range 1-100");
    }
}

fn node_term(errors: &mut FieldErrors, term: &NodeSelectorTerm, at: &Path) {
    for (i, r) in term.match_expressions.iter().flatten().enumerate() {
        let at = at.child("matchExpressions").index(i);
        errors.each(&at.child("key"), &r.key, names::qualified_name(&r.key));
        node_requirement(errors, r, &at);
    }
    for (i, r) in term.match_fields.iter().flatten().enumerate() {
        let at = at.child("matchFields").index(i);
        if r.key != "metadata.name" {
            errors.invalid(&at.child("key"), r.key.as_str(), "not a valid field selector key");
        }
        one_of(errors, Some(&r.operator), &["In", "NotIn"], &at.child("operator"));
        if r.values.as_ref().map_or(0, Vec::len) != 1 {
            errors.required(
                &at.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            );
        }
    }
}

fn node_requirement(errors: &mut FieldErrors, r: &NodeSelectorRequirement, at: &Path) {
    let values = r.values.as_deref().unwrap_or_default();
    match r.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&at.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(
                &at.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            );
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(
                &at.child("values"),
                "must be specified single value when `operator` is 'Lt' or 'Gt'",
            );
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
    }
}

fn pod_term(errors: &mut FieldErrors, term: &PodAffinityTerm, at: &Path) {
    selector(errors, term.label_selector.as_ref(), &at.child("labelSelector"));
    selector(errors, term.namespace_selector.as_ref(), &at.child("namespaceSelector"));
    for (i, namespace) in term.namespaces.iter().flatten().enumerate() {
        errors.each(&at.child("namespaces").index(i), namespace, names::dns_label(namespace));
    }
    topology_key(errors, &term.topology_key, at);
}

fn topology_key(errors: &mut FieldErrors, key: &str, at: &Path) {
    if key.is_empty() {
        errors.required(&at.child("topologyKey"), "can not be empty");
    } else {
        errors.each(&at.child("topologyKey"), key, names::qualified_name(key));
    }
}

fn selector(errors: &mut FieldErrors, selector: Option<&LabelSelector>, at: &Path) {
    let Some(selector) = selector else { return };
    labels(errors, selector.match_labels.as_ref(), &at.child("matchLabels"));
    for (i, r) in selector.match_expressions.iter().flatten().enumerate() {
        let at = at.child("matchExpressions").index(i);
        let empty = r.values.as_ref().is_none_or(Vec::is_empty);
        match r.operator.as_str() {
            "In" | "NotIn" if empty => {
                errors.required(&at.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !empty => {
                errors.forbidden(
                    &at.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        errors.each(&at.child("key"), &r.key, names::qualified_name(&r.key));
    }
}

fn spread_constraint(errors: &mut FieldErrors, c: &TopologySpreadConstraint, at: &Path) {
    if c.max_skew <= 0 {
        errors.invalid(&at.child("maxSkew"), c.max_skew, "must be greater than zero");
    }
    if c.topology_key.is_empty() {
        errors.required(&at.child("topologyKey"), "can not be empty");
    }
    let actions = ["DoNotSchedule", "ScheduleAnyway"];
    if !actions.contains(&c.when_unsatisfiable.as_str()) {
        errors.unsupported(&at.child("whenUnsatisfiable"), &c.when_unsatisfiable, &actions);
    }
    if let Some(min) = c.min_domains {
        let at = at.child("minDomains");
        if min <= 0 {
            errors.invalid(&at, min, "must be greater than zero");
        }
        if c.when_unsatisfiable != "DoNotSchedule" {
            let action = &c.when_unsatisfiable;
            let message = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
            errors.invalid(&at, min, message);
        }
    }
    for (name, policy) in
        [("nodeAffinityPolicy", &c.node_affinity_policy), ("nodeTaintsPolicy", &c.node_taints_policy)]
    {
        let policies = ["Honor", "Ignore"];
        if let Some(policy) = policy.as_deref().filter(|p| !policies.contains(p)) {
            errors.unsupported(&at.child(name), policy, &policies);
        }
    }
    selector(errors, c.label_selector.as_ref(), &at.child("labelSelector"));
}
