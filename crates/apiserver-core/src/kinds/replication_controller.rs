//! ReplicationController: what a ReplicaSet was called before there were set-based selectors.

use std::borrow::Cow;

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::{Value, json};

use super::{check, pod_template, replicas};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, ScalePaths, Strategy};
use crate::table;

pub(super) fn kind() -> Kind {
    Kind::core("ReplicationController", "replicationcontrollers", ReplicationController)
        .short(&["rc"])
        .category("all")
        .with_scale()
        .with_status()
}

#[derive(Debug)]
struct ReplicationController;

// === impl ReplicationController ===

impl Strategy for ReplicationController {
    fn set_defaults(&self, object: &mut Value) {
        let labels = doc::at(object, "spec.template.metadata.labels").clone();
        if !doc::is_unset(&labels) {
            for path in ["spec.selector", "metadata.labels"] {
                if doc::is_unset(doc::at(object, path)) {
                    doc::set(object, path, labels.clone());
                }
            }
        }
        doc::fill(object, "spec.replicas", 1);
        pod_template::set_defaults(object, "spec.template");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        check::non_negative(errors, &spec.get("minReadySeconds"));
        check::required(errors, &spec.get("selector"));
        check::non_negative(errors, &spec.get("replicas"));
        let template = spec.get("template");
        if !template.is_set() {
            return errors.required(&template.at, "");
        }
        let selector = json!({"matchLabels": spec.get("selector").value});
        pod_template::matches_template(
            errors,
            &Field { value: &selector, at: spec.at.child("selector") },
            &template,
        );
        pod_template::validate_lasting(errors, &template, "ReplicationController");
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        replicas::validate_status(errors, new);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn orphans_by_default(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "status.replicas").then(|| doc::int(object, name).to_string().into())
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(replicas::scale_paths("spec.selector"))
    }

    fn columns(&self) -> &[Column] {
        replicas::COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        replicas::cells(object, now, table::labels(doc::at(object, "spec.selector")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_the_template_are_the_selector() {
        let mut object = json!({"metadata": {"name": "r"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "x"}]}}}});
        ReplicationController.set_defaults(&mut object);
        assert_eq!(object["spec"]["selector"], json!({"a": "b"}));
        assert_eq!(object["metadata"]["labels"], json!({"a": "b"}));
        let mut errors = FieldErrors::default();
        ReplicationController.validate(&object, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        object["spec"]["selector"] = json!({"a": "c"});
        ReplicationController.validate(&object, &mut errors);
        assert!(errors.to_string().contains("`selector` does not match template `labels`"));
    }
}
