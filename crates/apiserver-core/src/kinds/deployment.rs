//! Deployment: the same Pods many times over, replaced step by step.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::{check, pod_template, replicas};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, ScalePaths, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Ready", "How many Pods are ready, and how many there shall be"),
    Column::text("Up-to-date", "How many Pods are of the newest template"),
    Column::text("Available", "How many Pods have been ready for long enough"),
    Column::AGE,
    Column::wide("Containers", "Names of the containers in the template"),
    Column::wide("Images", "Images of the containers in the template"),
    Column::wide("Selector", "Which Pods belong to it"),
];

pub(super) fn kind() -> Kind {
    Kind::new("apps", "v1", "Deployment", "deployments", Deployment)
        .short(&["deploy"])
        .category("all")
        .with_scale()
        .with_status()
}

#[derive(Debug)]
struct Deployment;

// === impl Deployment ===

impl Strategy for Deployment {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill(object, "spec.replicas", 1);
        doc::fill_text(object, "spec.strategy.type", "RollingUpdate");
        if doc::text(object, "spec.strategy.type") == "RollingUpdate" {
            doc::fill(object, "spec.strategy.rollingUpdate.maxUnavailable", "25%");
            doc::fill(object, "spec.strategy.rollingUpdate.maxSurge", "25%");
        }
        doc::fill(object, "spec.revisionHistoryLimit", 10);
        doc::fill(object, "spec.progressDeadlineSeconds", 600);
        pod_template::set_defaults(object, "spec.template");
    }

    fn prepare_status(&self, new: &mut Value, old: &Value) {
        doc::keep(new, old, "metadata.labels");
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        check::non_negative(errors, &spec.get("replicas"));
        pod_template::validate_selector(errors, &spec, "deployment");
        pod_template::validate_lasting(errors, &spec.get("template"), "ReplicaSet");
        strategy(errors, &spec.get("strategy"));
        for name in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
            check::non_negative(errors, &spec.get(name));
        }
        let deadline = spec.get("progressDeadlineSeconds");
        if let Some(seconds) = deadline.int().filter(|s| *s <= doc::int(spec.value, "minReadySeconds")) {
            errors.invalid(&deadline.at, seconds, "must be greater than minReadySeconds");
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        check::immutable(errors, new, old, "spec.selector");
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let status = Field::root(new).get("status");
        let counts = [
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ];
        pod_template::counts(errors, &status, &counts);
        for part in ["updatedReplicas", "readyReplicas", "availableReplicas"] {
            pod_template::at_most(
                errors,
                &status,
                part,
                "replicas",
                "cannot be greater than status.replicas",
            );
        }
        let message = "cannot be greater than readyReplicas";
        pod_template::at_most(errors, &status, "availableReplicas", "readyReplicas", message);
        pod_template::collisions_grow(errors, new, old);
    }

    fn counts_generation(&self) -> bool {
        true
    }

    /// Annotations count too: the controller carries them over to its ReplicaSets.
    fn is_new_generation(&self, new: &Value, old: &Value) -> bool {
        let differs = |path: &str| !doc::same(doc::at(new, path), doc::at(old, path));
        differs("spec") || differs("metadata.annotations")
    }

    fn scale(&self) -> Option<ScalePaths> {
        Some(replicas::scale_paths("spec.selector"))
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let ready =
            format!("{}/{}", doc::int(object, "status.readyReplicas"), doc::int(object, "spec.replicas"));
        let [names, images] = table::containers(doc::at(object, "spec.template"));
        vec![
            table::name(object),
            ready.into(),
            doc::int(object, "status.updatedReplicas").into(),
            doc::int(object, "status.availableReplicas").into(),
            table::age(object, now).into(),
            names,
            images,
            super::selector::to_text(doc::at(object, "spec.selector")).into(),
        ]
    }
}

fn strategy(errors: &mut FieldErrors, strategy: &Field<'_>) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "Recreate" if rolling.is_set() => {
            errors.forbidden(&rolling.at, "may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let (unavailable, surge) = (rolling.get("maxUnavailable"), rolling.get("maxSurge"));
            check::count_or_percent(errors, &unavailable);
            check::count_or_percent(errors, &surge);
            if check::is_zero(&unavailable) && check::is_zero(&surge) {
                errors.invalid(
                    &unavailable.at,
                    unavailable.value.clone(),
                    "may not be 0 when `maxSurge` is 0",
                );
            }
            check::at_most_whole(errors, &unavailable);
        }
        _ => errors.unsupported_value(&strategy.at, strategy.value.clone(), &["Recreate", "RollingUpdate"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}}});
        change(&mut object["spec"]);
        Deployment.set_defaults(&mut object);
        let once = object.clone();
        Deployment.set_defaults(&mut object);
        assert_eq!(once, object, "idempotent");
        object
    }

    fn complaints(change: impl FnOnce(&mut Value)) -> String {
        let mut errors = FieldErrors::default();
        Deployment.validate(&deployment(change), &mut errors);
        errors.to_string()
    }

    #[test]
    fn defaults() {
        let object = deployment(|_| {});
        let mut spec = object["spec"].clone();
        doc::remove(&mut spec, "template");
        assert_eq!(
            spec,
            json!({"selector": {"matchLabels": {"a": "b"}}, "replicas": 1, "revisionHistoryLimit": 10,
                "progressDeadlineSeconds": 600,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}})
        );
        let template = &object["spec"]["template"]["spec"];
        assert_eq!(template["restartPolicy"], "Always");
        assert_eq!(template["enableServiceLinks"], Value::Null, "for the Pod to say");
        assert_eq!(template["containers"][0]["resources"], json!({}));
    }

    #[test]
    fn statuses() {
        assert_eq!(complaints(|_| {}), "[]");
        assert_eq!(
            complaints(|s| s["replicas"] = json!(-1)),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
        assert_eq!(complaints(|s| s["selector"] = Value::Null), "spec.selector: Required value");
        assert_eq!(
            complaints(|s| s["selector"] = json!({})),
            "spec.selector: Invalid value: {}: empty selector is invalid for deployment"
        );
        assert_eq!(
            complaints(|s| s["selector"]["matchLabels"]["a"] = json!("c")),
            "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"
        );
        assert_eq!(
            complaints(|s| s["template"]["spec"]["restartPolicy"] = json!("Never")),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""
        );
        assert_eq!(
            complaints(|s| s["template"]["spec"]["containers"] = json!([])),
            "spec.template.spec.containers: Required value"
        );
        assert_eq!(
            complaints(|s| s["strategy"] =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}})),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"
        );
        assert_eq!(
            complaints(|s| s["strategy"] = json!({"type": "Recreate", "rollingUpdate": {}})),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"
        );
        let mut errors = FieldErrors::default();
        let new = deployment(|s| {
            s["selector"] = json!({"matchLabels": {"n": "1"}});
            s["template"]["metadata"]["labels"] = json!({"n": "1"});
        });
        Deployment.validate_update(&new, &deployment(|_| {}), &mut errors);
        assert_eq!(
            errors.to_string(),
            "spec.selector: Invalid value: {\"matchLabels\":{\"n\":\"1\"}}: field is immutable"
        );
    }

    #[test]
    fn cells_and_generation() {
        let mut object = deployment(|s| s["replicas"] = json!(3));
        object["status"] = json!({"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1});
        assert_eq!(
            json!(Deployment.cells(&object, Wall::from_secs(0))),
            json!(["web", "2/3", 3, 1, "<unknown>", "c", "x:1", "a=b"])
        );
        let mut annotated = object.clone();
        annotated["metadata"]["annotations"] = json!({"k": "v"});
        assert!(Deployment.is_new_generation(&annotated, &object));
        let mut labelled = object.clone();
        labelled["metadata"]["labels"] = json!({"k": "v"});
        assert!(!Deployment.is_new_generation(&labelled, &object));
    }
}
