//! ResourceQuota: how much a namespace may use.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{check, quantity};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Request", "What is requested, and how much may be"),
    Column::text("Limit", "What the limits come to, and how much they may"),
    Column::AGE,
];

const STANDARD: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

const SCOPES: &[&str] = &[
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

pub(super) fn kind() -> Kind {
    Kind::core("ResourceQuota", "resourcequotas", ResourceQuota).short(&["quota"]).with_status()
}

#[derive(Debug)]
struct ResourceQuota;

// === impl ResourceQuota ===

impl Strategy for ResourceQuota {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        amounts(errors, &spec.get("hard"));
        let scopes = spec.get("scopes");
        for _ in scopes.items().filter(|s| !SCOPES.contains(&s.text())) {
            errors.invalid(&scopes.at, scopes.value.clone(), "unsupported scope");
        }
        conflicting(errors, &scopes, scopes.items().map(|s| s.text()).collect());
        selector(errors, &spec.get("scopeSelector").get("matchExpressions"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        let scopes = |object: &Value| -> BTreeSet<String> {
            doc::list(object, "spec.scopes").iter().filter_map(|s| s.as_str().map(str::to_owned)).collect()
        };
        if scopes(new) != scopes(old) {
            let now = doc::at(new, "spec.scopes").clone();
            errors.invalid(&Path::new("spec.scopes"), now, check::IMMUTABLE);
        }
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        let status = Field::root(new).get("status");
        amounts(errors, &status.get("hard"));
        amounts(errors, &status.get("used"));
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        let mut hard: Vec<(&str, &Value)> = doc::entries(object, "status.hard").collect();
        hard.sort_by_key(|(name, _)| *name);
        for (name, amount) in hard {
            let used = doc::at(object, "status.used").get(name).unwrap_or(&Value::Null);
            let cell = format!("{name}: {}/{}", quantity::cell(used), quantity::cell(amount));
            if name.starts_with("limits.") { limits.push(cell) } else { requests.push(cell) }
        }
        vec![
            table::name(object),
            requests.join(", ").into(),
            limits.join(", ").into(),
            table::age(object, now).into(),
        ]
    }
}

fn amounts(errors: &mut FieldErrors, list: &Field<'_>) {
    for (name, amount) in list.entries() {
        errors.each(&amount.at, name, names::qualified_name(name));
        let pages = |n: &str| n.starts_with("hugepages-");
        let is_standard =
            STANDARD.contains(&name) || pages(name) || name.strip_prefix("requests.").is_some_and(pages);
        if !name.contains('/') && !is_standard {
            errors.invalid(&amount.at, name, "must be a standard resource for quota");
        }
        let counted = quantity::non_negative(errors, &amount);
        let is_count = name.starts_with("count/")
            || matches!(
                name,
                "pods" | "services" | "secrets" | "configmaps" | "resourcequotas" | "replicationcontrollers"
            )
            || matches!(name, "persistentvolumeclaims" | "services.nodeports" | "services.loadbalancers");
        if is_count && counted.is_some_and(|a| !a.is_whole()) {
            errors.invalid(&amount.at, amount.value.clone(), "must be an integer");
        }
    }
}

fn conflicting(errors: &mut FieldErrors, scopes: &Field<'_>, set: BTreeSet<&str>) {
    for (a, b) in [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")] {
        if set.contains(a) && set.contains(b) {
            errors.invalid(&scopes.at, scopes.value.clone(), "conflicting scopes");
        }
    }
}

fn selector(errors: &mut FieldErrors, expressions: &Field<'_>) {
    // Upstream's messages name the list, not the element.
    let at = &expressions.at;
    for expression in expressions.items() {
        let (scope, operator) =
            (doc::text(expression.value, "scopeName"), doc::text(expression.value, "operator"));
        let values = doc::at(expression.value, "values");
        if !SCOPES.contains(&scope) {
            errors.invalid(&at.child("scopeName"), scope, "unsupported scope");
        }
        if scope != "PriorityClass" && scope != "VolumeAttributesClass" && operator != "Exists" {
            let message = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                           ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                           ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(&at.child("operator"), operator, message);
        }
        match operator {
            "In" | "NotIn" if doc::is_unset(values) => {
                let message =
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(&at.child("values"), message);
            }
            "Exists" | "DoesNotExist" if !doc::is_unset(values) => {
                let message =
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(&at.child("values"), values.clone(), message);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
    }
    let scopes = expressions.items().map(|e| doc::text(e.value, "scopeName")).collect();
    conflicting(errors, expressions, scopes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_and_refusals() {
        let object = json!({"metadata": {"name": "q"},
            "spec": {"hard": {"pods": "1.5", "gold": "1", "count/deployments.apps": "3"}, "scopes": ["BestEffort", "NotBestEffort"]},
            "status": {"hard": {"pods": "4", "limits.cpu": "2", "cpu": "1"}, "used": {"pods": "1", "cpu": "500m"}}});
        assert_eq!(
            json!(ResourceQuota.cells(&object, Wall::from_secs(0))),
            json!(["q", "cpu: 500m/1, pods: 1/4", "limits.cpu: 0/2", "<unknown>"])
        );
        let mut errors = FieldErrors::default();
        ResourceQuota.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[spec.hard[gold]: Invalid value: \"gold\": must be a standard resource for quota, spec.hard[pods]: \
             Invalid value: \"1.5\": must be an integer, spec.scopes: Invalid value: \
             [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes]"
        );
    }
}
