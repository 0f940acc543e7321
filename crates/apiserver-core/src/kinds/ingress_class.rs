//! IngressClass: who carries out an Ingress.

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{check, ingress};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Controller", "Who carries out Ingresses of this class"),
    Column::text("Parameters", "An object with further settings"),
    Column::AGE,
];

const DEFAULT_ANNOTATION: &str = "ingressclass.kubernetes.io/is-default-class";

pub(super) fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "IngressClass", "ingressclasses", IngressClass).cluster_scoped()
}

#[derive(Debug)]
struct IngressClass;

// === impl IngressClass ===

impl Strategy for IngressClass {
    fn set_defaults(&self, object: &mut Value) {
        if !doc::at(object, "spec.parameters").is_null() {
            doc::fill(object, "spec.parameters.scope", "Cluster");
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        let controller = spec.get("controller");
        if controller.len() > 250 {
            errors.too_long(&controller.at, 250);
        }
        check::domain_path(errors, &controller);
        let parameters = spec.get("parameters");
        if parameters.is_set() {
            ingress::reference(errors, &parameters);
            scope(errors, &parameters);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "spec.controller");
        self.validate(new, errors);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let parameters = match doc::at(object, "spec.parameters") {
            Value::Null => "<none>".to_owned(),
            p => match p["apiGroup"].as_str() {
                Some(group) => format!("{}.{group}/{}", doc::text(p, "kind"), doc::text(p, "name")),
                None => format!("{}/{}", doc::text(p, "kind"), doc::text(p, "name")),
            },
        };
        vec![
            table::name_and_default(object, &[DEFAULT_ANNOTATION]),
            doc::text(object, "spec.controller").into(),
            parameters.into(),
            table::age(object, now).into(),
        ]
    }
}

fn scope(errors: &mut FieldErrors, parameters: &Field<'_>) {
    let (scope, namespace) = (parameters.get("scope"), parameters.get("namespace"));
    match (scope.text(), namespace.is_set()) {
        ("", _) => errors.required(&scope.at, ""),
        ("Namespace", false) => errors.required(&namespace.at, "`parameters.scope` is set to 'Namespace'"),
        ("Namespace", true) => check::spelled(errors, &namespace, names::dns_label),
        ("Cluster", true) => errors.forbidden(&namespace.at, "`parameters.scope` is set to 'Cluster'"),
        ("Cluster", false) => {}
        (other, _) => errors.unsupported(&scope.at, other, &["Cluster", "Namespace"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_and_refusals() {
        let object = json!({"metadata": {"name": "n", "annotations": {DEFAULT_ANNOTATION: "true"}},
            "spec": {"controller": "x", "parameters": {"apiGroup": "k.io", "kind": "P", "name": "p", "scope": "Namespace"}}});
        assert_eq!(
            json!(&IngressClass.cells(&object, Wall::from_secs(0))[..3]),
            json!(["n (default)", "x", "P.k.io/p"])
        );
        let mut errors = FieldErrors::default();
        IngressClass.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[spec.controller: Invalid value: \"x\": must be a domain-prefixed path (such as \"acme.io/foo\"), \
             spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace']"
        );
    }
}
