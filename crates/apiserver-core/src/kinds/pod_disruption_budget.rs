//! PodDisruptionBudget: how many Pods may be missing on purpose.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::{check, pod_template, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Min Available", "How many Pods must be there"),
    Column::text("Max Unavailable", "How many Pods may be missing"),
    Column::number("Allowed Disruptions", "How many Pods may be taken now"),
    Column::AGE,
];

pub(super) fn kind() -> Kind {
    Kind::new("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", PodDisruptionBudget)
        .short(&["pdb"])
        .with_status()
}

#[derive(Debug)]
struct PodDisruptionBudget;

// === impl PodDisruptionBudget ===

impl Strategy for PodDisruptionBudget {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        let (min, max) = (spec.get("minAvailable"), spec.get("maxUnavailable"));
        if min.is_set() && max.is_set() {
            errors.invalid(
                &spec.at,
                spec.value.clone(),
                "minAvailable and maxUnavailable cannot be both set",
            );
        }
        for share in [&min, &max] {
            check::count_or_percent(errors, share);
            check::at_most_whole(errors, share);
        }
        selector::validate(errors, &spec.get("selector"));
        let policy = spec.get("unhealthyPodEvictionPolicy");
        check::one_of_if_set(errors, &policy, &["AlwaysAllow", "IfHealthyBudget"]);
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        let counts = ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"];
        pod_template::counts(errors, &Field::root(new).get("status"), &counts);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let share = |path: &str| match doc::at(object, path) {
            Value::Null => "N/A".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        vec![
            table::name(object),
            share("spec.minAvailable").into(),
            share("spec.maxUnavailable").into(),
            doc::int(object, "status.disruptionsAllowed").into(),
            table::age(object, now).into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_bound_is_enough() {
        let object =
            json!({"metadata": {"name": "b"}, "spec": {"minAvailable": "150%", "maxUnavailable": 1}});
        let mut errors = FieldErrors::default();
        PodDisruptionBudget.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[spec: Invalid value: {\"maxUnavailable\":1,\"minAvailable\":\"150%\"}: minAvailable and maxUnavailable \
             cannot be both set, spec.minAvailable: Invalid value: \"150%\": must not be greater than 100%]"
        );
        assert_eq!(
            json!(PodDisruptionBudget.cells(&object, Wall::from_secs(0))),
            json!(["b", "150%", "1", 0, "<unknown>"])
        );
    }
}
