//! Role, ClusterRole and their bindings: who may do what.

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{check, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, NameRule, Strategy};
use crate::table;

const GROUP: &str = "rbac.authorization.k8s.io";

const BINDING_COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Role", "What is granted"),
    Column::AGE,
    Column::wide("Users", "Users it is granted to"),
    Column::wide("Groups", "Groups it is granted to"),
    Column::wide("ServiceAccounts", "Service accounts it is granted to"),
];

pub(super) fn roles() -> Kind {
    Kind::new(GROUP, "v1", "Role", "roles", Role { is_cluster: false })
}

pub(super) fn cluster_roles() -> Kind {
    Kind::new(GROUP, "v1", "ClusterRole", "clusterroles", Role { is_cluster: true }).cluster_scoped()
}

pub(super) fn role_bindings() -> Kind {
    Kind::new(GROUP, "v1", "RoleBinding", "rolebindings", Binding { is_cluster: false })
}

pub(super) fn cluster_role_bindings() -> Kind {
    let binding = Binding { is_cluster: true };
    Kind::new(GROUP, "v1", "ClusterRoleBinding", "clusterrolebindings", binding).cluster_scoped()
}

#[derive(Debug)]
struct Role {
    is_cluster: bool,
}

#[derive(Debug)]
struct Binding {
    is_cluster: bool,
}

// === impl Role ===

impl Strategy for Role {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        for rule in root.get("rules").items() {
            self.rule(errors, &rule);
        }
        let aggregation = root.get("aggregationRule");
        if self.is_cluster && aggregation.is_set() {
            let selectors = aggregation.get("clusterRoleSelectors");
            if selectors.is_empty() {
                let message = "at least one clusterRoleSelector required if aggregationRule is non-nil";
                errors.required(&selectors.at, message);
            }
            selectors.items().for_each(|s| selector::validate(errors, &s));
        }
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

impl Role {
    fn rule(&self, errors: &mut FieldErrors, rule: &Field<'_>) {
        let (verbs, urls) = (rule.get("verbs"), rule.get("nonResourceURLs"));
        let (groups, resources) = (rule.get("apiGroups"), rule.get("resources"));
        if verbs.is_empty() {
            errors.required(&verbs.at, "verbs must contain at least one value");
        }
        if !urls.is_empty() {
            if !self.is_cluster {
                let message = "namespaced rules cannot apply to non-resource URLs";
                errors.invalid(&urls.at, urls.value.clone(), message);
            }
            if !groups.is_empty() || !resources.is_empty() || !rule.get("resourceNames").is_empty() {
                let message = "rules cannot apply to both regular resources and non-resource URLs";
                errors.invalid(&urls.at, urls.value.clone(), message);
            }
            return;
        }
        if groups.is_empty() {
            errors.required(&groups.at, "resource rules must supply at least one api group");
        }
        if resources.is_empty() {
            errors.required(&resources.at, "resource rules must supply at least one resource");
        }
    }
}

// === impl Binding ===

impl Strategy for Binding {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill_text(object, "roleRef.apiGroup", GROUP);
        for subject in doc::list_mut(object, "subjects") {
            if matches!(doc::text(subject, "kind"), "User" | "Group") {
                doc::fill_text(subject, "apiGroup", GROUP);
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        let role = root.get("roleRef");
        check::one_of_or_empty(errors, &role.get("apiGroup"), &[GROUP]);
        let kinds: &[&str] = if self.is_cluster { &["ClusterRole"] } else { &["Role", "ClusterRole"] };
        check::one_of_or_empty(errors, &role.get("kind"), kinds);
        let name = role.get("name");
        if name.is_empty() {
            errors.required(&name.at, "");
        } else {
            check::spelled(errors, &name, names::path_segment);
        }
        for subject in root.get("subjects").items() {
            self.subject(errors, &subject);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        if !doc::same(&new["roleRef"], &old["roleRef"]) {
            errors.invalid(&Path::new("roleRef"), new["roleRef"].clone(), "cannot change roleRef");
        }
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        BINDING_COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let role = format!("{}/{}", doc::text(object, "roleRef.kind"), doc::text(object, "roleRef.name"));
        let subjects = |kind: &str| {
            let name = |subject: &Value| match kind {
                "ServiceAccount" => {
                    format!("{}/{}", doc::text(subject, "namespace"), doc::text(subject, "name"))
                }
                _ => doc::text(subject, "name").to_owned(),
            };
            let of_kind = doc::list(object, "subjects").iter().filter(|s| doc::text(s, "kind") == kind);
            Value::from(of_kind.map(name).collect::<Vec<_>>().join(", "))
        };
        vec![
            table::name(object),
            role.into(),
            table::age(object, now).into(),
            subjects("User"),
            subjects("Group"),
            subjects("ServiceAccount"),
        ]
    }
}

impl Binding {
    fn subject(&self, errors: &mut FieldErrors, subject: &Field<'_>) {
        let (name, group, namespace) =
            (subject.get("name"), subject.get("apiGroup"), subject.get("namespace"));
        if name.is_empty() {
            errors.required(&name.at, "");
        }
        match subject.get("kind").text() {
            "ServiceAccount" => {
                if !name.is_empty() {
                    check::spelled(errors, &name, names::dns_subdomain);
                }
                if !group.is_empty() {
                    errors.unsupported(&group.at, group.text(), &[""]);
                }
                if self.is_cluster && namespace.is_empty() {
                    errors.required(&namespace.at, "");
                }
            }
            "User" | "Group" => check::one_of_or_empty(errors, &group, &[GROUP]),
            other => {
                errors.unsupported(&subject.at.child("kind"), other, &["ServiceAccount", "User", "Group"])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rules() {
        let complaints = |is_cluster: bool, rule: Value| {
            let mut errors = FieldErrors::default();
            Role { is_cluster }.validate(&json!({"rules": [rule]}), &mut errors);
            errors.to_string()
        };
        assert_eq!(
            complaints(false, json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})),
            "[]"
        );
        assert_eq!(complaints(true, json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})), "[]");
        assert_eq!(
            complaints(false, json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})),
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs"
        );
        assert_eq!(
            complaints(true, json!({})),
            "[rules[0].verbs: Required value: verbs must contain at least one value, rules[0].apiGroups: Required \
             value: resource rules must supply at least one api group, rules[0].resources: Required value: resource \
             rules must supply at least one resource]"
        );
    }

    #[test]
    fn bindings() {
        let binding = Binding { is_cluster: true };
        let mut object = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "Group", "name": "g"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]});
        binding.set_defaults(&mut object);
        let mut errors = FieldErrors::default();
        binding.validate(&object, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        assert_eq!(
            json!(binding.cells(&object, Wall::from_secs(0))),
            json!(["b", "ClusterRole/r", "<unknown>", "u", "g", "n/s"])
        );
        let mut new = object.clone();
        new["roleRef"]["name"] = json!("other");
        new["subjects"][2]["namespace"] = Value::Null;
        binding.validate_update(&new, &object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[subjects[2].namespace: Required value, roleRef: Invalid value: \
             {\"apiGroup\":\"rbac.authorization.k8s.io\",\"kind\":\"ClusterRole\",\"name\":\"other\"}: cannot change roleRef]"
        );
    }
}
