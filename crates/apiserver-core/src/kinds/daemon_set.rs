//! DaemonSet: the same Pod on every node.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::{check, pod_template, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::number("Desired", "On how many nodes it shall run"),
    Column::number("Current", "On how many nodes it runs"),
    Column::number("Ready", "On how many nodes it is ready"),
    Column::number("Up-to-date", "On how many nodes it is of the newest template"),
    Column::number("Available", "On how many nodes it has been ready for long enough"),
    Column::text("Node Selector", "Labels of the nodes it runs on"),
    Column::AGE,
    Column::wide("Containers", "Names of the containers in the template"),
    Column::wide("Images", "Images of the containers in the template"),
    Column::wide("Selector", "Which Pods belong to it"),
];

/// Counts the changes of the template; kept from the days when users saw it as a field.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) fn kind() -> Kind {
    Kind::new("apps", "v1", "DaemonSet", "daemonsets", DaemonSet).short(&["ds"]).category("all").with_status()
}

#[derive(Debug)]
struct DaemonSet;

// === impl DaemonSet ===

impl Strategy for DaemonSet {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill_text(object, "spec.updateStrategy.type", "RollingUpdate");
        if doc::text(object, "spec.updateStrategy.type") == "RollingUpdate" {
            doc::fill(object, "spec.updateStrategy.rollingUpdate.maxUnavailable", 1);
            doc::fill(object, "spec.updateStrategy.rollingUpdate.maxSurge", 0);
        }
        doc::fill(object, "spec.revisionHistoryLimit", 10);
        pod_template::set_defaults(object, "spec.template");
    }

    fn prepare_create(&self, object: &mut Value) {
        set_template_generation(object, 1);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        let changed = !doc::same(doc::at(new, "spec.template"), doc::at(old, "spec.template"));
        let before = doc::at(old, "metadata.annotations")
            .get(TEMPLATE_GENERATION)
            .and_then(Value::as_str)
            .and_then(|g| g.parse::<i64>().ok())
            .unwrap_or(1);
        set_template_generation(new, if changed { before.saturating_add(1) } else { before });
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        let (selector, template) = (spec.get("selector"), spec.get("template"));
        selector::validate(errors, &selector);
        pod_template::matches_template(errors, &selector, &template);
        if selector.is_set() && selector::is_empty(selector.value) {
            let message = "empty selector is invalid for daemonset";
            errors.invalid(&selector.at, selector.value.clone(), message);
        }
        pod_template::validate_lasting(errors, &template, "DaemonSet");
        check::non_negative(errors, &spec.get("minReadySeconds"));
        update_strategy(errors, &spec.get("updateStrategy"));
        check::non_negative(errors, &spec.get("revisionHistoryLimit"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "spec.selector");
        self.validate(new, errors);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let counts = [
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ];
        pod_template::counts(errors, &Field::root(new).get("status"), &counts);
        pod_template::collisions_grow(errors, new, old);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let count = |name: &str| Value::from(doc::int(object, &format!("status.{name}")));
        let [names, images] = table::containers(doc::at(object, "spec.template"));
        vec![
            table::name(object),
            count("desiredNumberScheduled"),
            count("currentNumberScheduled"),
            count("numberReady"),
            count("updatedNumberScheduled"),
            count("numberAvailable"),
            table::labels(doc::at(object, "spec.template.spec.nodeSelector")).into(),
            table::age(object, now).into(),
            names,
            images,
            table::selector(doc::at(object, "spec.selector")).into(),
        ]
    }
}

fn set_template_generation(object: &mut Value, generation: i64) {
    doc::fill(object, "metadata.annotations", serde_json::json!({}));
    if let Some(annotations) = doc::at_mut(object, "metadata.annotations").and_then(Value::as_object_mut) {
        annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string().into());
    }
}

fn update_strategy(errors: &mut FieldErrors, strategy: &Field<'_>) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "OnDelete" => {}
        "RollingUpdate" if !rolling.is_set() => errors.required(&rolling.at, ""),
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            for share in [&unavailable, &surge] {
                check::count_or_percent(errors, share);
            }
            for share in [&unavailable, &surge] {
                check::at_most_whole(errors, share);
            }
            match (check::is_zero(&unavailable), check::is_zero(&surge)) {
                (false, false) => {
                    let message = "may not be set when maxUnavailable is non-zero";
                    errors.invalid(&surge.at, surge.value.clone(), message);
                }
                (true, true) => errors.required(&unavailable.at, "cannot be 0 when maxSurge is 0"),
                _ => {}
            }
        }
        _ => errors.unsupported_value(&strategy.at, strategy.value.clone(), &["RollingUpdate", "OnDelete"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_changed_template_is_counted() {
        let mut old = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}}});
        DaemonSet.set_defaults(&mut old);
        DaemonSet.prepare_create(&mut old);
        let mut errors = FieldErrors::default();
        DaemonSet.validate(&old, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        assert_eq!(
            old["spec"]["updateStrategy"]["rollingUpdate"],
            json!({"maxUnavailable": 1, "maxSurge": 0})
        );
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("y");
        DaemonSet.prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["annotations"][TEMPLATE_GENERATION], "2");
        new["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] = json!("10%");
        DaemonSet.validate(&new, &mut errors);
        assert_eq!(
            errors.to_string(),
            "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: \"10%\": may not be set when maxUnavailable is non-zero"
        );
    }
}
