//! Label selectors inside objects.

use api::field::FieldErrors;
use api::names;

use super::check;
use crate::doc::Field;

pub use crate::label_selector::{is_empty, matches, to_text};

pub fn validate(errors: &mut FieldErrors, selector: &Field<'_>) {
    check::labels(errors, &selector.get("matchLabels"));
    for requirement in selector.get("matchExpressions").items() {
        let (values, operator) = (requirement.get("values"), requirement.get("operator"));
        match operator.text() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&values.at, "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                errors.forbidden(
                    &values.at,
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&operator.at, other, "not a valid selector operator"),
        }
        check::spelled(errors, &requirement.get("key"), names::qualified_name);
        for value in values.items() {
            check::spelled(errors, &value, names::label_value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn statuses() {
        let selector = json!({"matchLabels": {"a": "-"}, "matchExpressions": [
            {"key": "k", "operator": "In"},
            {"key": "k", "operator": "Exists", "values": ["v"]},
            {"key": "k", "operator": "Like", "values": ["v"]},
        ]});
        let mut errors = FieldErrors::default();
        validate(&mut errors, &Field { value: &selector, at: api::field::Path::new("spec.selector") });
        let text = errors.to_string();
        for want in [
            "spec.selector.matchLabels: Invalid value: \"-\"",
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
            "spec.selector.matchExpressions[1].values: Forbidden: may not be specified",
            "spec.selector.matchExpressions[2].operator: Invalid value: \"Like\": not a valid selector operator",
        ] {
            assert!(text.contains(want), "{text}");
        }
    }
}
