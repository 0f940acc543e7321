//! What ReplicaSets and ReplicationControllers share.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::pod_template;
use crate::doc::{self, Field};
use crate::kind::{Column, ScalePaths};
use crate::table;

pub(super) const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::number("Desired", "How many Pods there shall be"),
    Column::number("Current", "How many Pods there are"),
    Column::number("Ready", "How many of them are ready"),
    Column::AGE,
    Column::wide("Containers", "Names of the containers in the template"),
    Column::wide("Images", "Images of the containers in the template"),
    Column::wide("Selector", "Which Pods belong to it"),
];

pub(super) const fn scale_paths(selector: &'static str) -> ScalePaths {
    use std::borrow::Cow::Borrowed;
    ScalePaths {
        replicas: Borrowed("spec.replicas"),
        status_replicas: Borrowed("status.replicas"),
        selector: Some(Borrowed(selector)),
    }
}

pub(super) fn cells(object: &Value, now: Wall, selector: String) -> Vec<Value> {
    let [names, images] = table::containers(doc::at(object, "spec.template"));
    vec![
        table::name(object),
        doc::int(object, "spec.replicas").into(),
        doc::int(object, "status.replicas").into(),
        doc::int(object, "status.readyReplicas").into(),
        table::age(object, now).into(),
        names,
        images,
        selector.into(),
    ]
}

pub(super) fn validate_status(errors: &mut FieldErrors, object: &Value) {
    let status = Field::root(object).get("status");
    let parts = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    pod_template::counts(errors, &status, &["replicas", parts[0], parts[1], parts[2], "observedGeneration"]);
    for part in parts {
        pod_template::at_most(errors, &status, part, "replicas", "cannot be greater than status.replicas");
    }
    let message = "cannot be greater than readyReplicas";
    pod_template::at_most(errors, &status, "availableReplicas", "readyReplicas", message);
}
