//! PodTemplate: a template that belongs to no controller.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::pod_template;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Containers", "Names of the containers in the template"),
    Column::text("Images", "Images of the containers in the template"),
    Column::text("Pod Labels", "Labels of the Pods to be made"),
];

pub(super) fn kind() -> Kind {
    Kind::core("PodTemplate", "podtemplates", PodTemplate)
}

#[derive(Debug)]
struct PodTemplate;

// === impl PodTemplate ===

impl Strategy for PodTemplate {
    fn set_defaults(&self, object: &mut Value) {
        pod_template::set_defaults(object, "template");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        pod_template::validate(errors, &Field::root(object).get("template"));
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _now: Wall) -> Vec<Value> {
        let [names, images] = table::containers(&object["template"]);
        let labels = table::labels(doc::at(object, "template.metadata.labels"));
        vec![table::name(object), names, images, labels.into()]
    }
}
