//! RuntimeClass: which handler of the container runtime runs a Pod.

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{check, quantity};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] =
    &[Column::NAME, Column::text("Handler", "The handler of the runtime"), Column::AGE];

pub(super) fn kind() -> Kind {
    Kind::new("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", RuntimeClass).cluster_scoped()
}

#[derive(Debug)]
struct RuntimeClass;

// === impl RuntimeClass ===

impl Strategy for RuntimeClass {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        let handler = root.get("handler");
        if handler.is_empty() {
            errors.required(&handler.at, "");
        } else {
            check::spelled(errors, &handler, names::dns_label);
        }
        let overhead = root.get("overhead");
        for (name, amount) in overhead.get("podFixed").entries() {
            let at = overhead.at.child("limits").key(name);
            quantity::non_negative(errors, &Field { value: amount.value, at });
        }
        check::labels(errors, &root.get("scheduling").get("nodeSelector"));
        let mut seen: Vec<&Value> = Vec::new();
        for toleration in root.get("scheduling").get("tolerations").items() {
            if seen.contains(&toleration.value) {
                errors.duplicate(&toleration.at, toleration.value.clone());
            }
            seen.push(toleration.value);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "handler");
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), doc::text(object, "handler").into(), table::age(object, now).into()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_handler_is_fixed() {
        let mut errors = FieldErrors::default();
        RuntimeClass.validate(&json!({}), &mut errors);
        RuntimeClass.validate_update(&json!({"handler": "a"}), &json!({"handler": "b"}), &mut errors);
        assert_eq!(
            errors.to_string(),
            "[handler: Required value, handler: Invalid value: \"a\": field is immutable]"
        );
    }
}
