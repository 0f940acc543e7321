//! ReplicaSet: the same Pod many times over.

use std::borrow::Cow;

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::{check, pod_template, replicas};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, ScalePaths, Strategy};
use crate::table;

pub(super) fn kind() -> Kind {
    Kind::new("apps", "v1", "ReplicaSet", "replicasets", ReplicaSet)
        .short(&["rs"])
        .category("all")
        .with_scale()
        .with_status()
}

#[derive(Debug)]
struct ReplicaSet;

// === impl ReplicaSet ===

impl Strategy for ReplicaSet {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "spec.replicas", 1);
        pod_template::set_defaults(object, "spec.template");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        check::non_negative(errors, &spec.get("replicas"));
        check::non_negative(errors, &spec.get("minReadySeconds"));
        pod_template::validate_selector(errors, &spec, "deployment");
        pod_template::validate_lasting(errors, &spec.get("template"), "ReplicaSet");
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        check::immutable(errors, new, old, "spec.selector");
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        replicas::validate_status(errors, new);
    }

    fn counts_generation(&self) -> bool {
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
        replicas::cells(object, now, table::selector(doc::at(object, "spec.selector")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_and_status() {
        let object = json!({"metadata": {"name": "r"}, "spec": {"replicas": 2}, "status": {"replicas": 1, "readyReplicas": 2}});
        assert_eq!(
            json!(ReplicaSet.cells(&object, Wall::from_secs(0))),
            json!(["r", 2, 1, 2, "<unknown>", "", "", "<none>"])
        );
        assert_eq!(ReplicaSet.field("status.replicas", &object).as_deref(), Some("1"));
        let mut errors = FieldErrors::default();
        ReplicaSet.validate_status(&object, &object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas"
        );
    }
}
