//! StatefulSet: Pods with names and volumes of their own.

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::{Value, json};

use super::{check, persistent_volume_claim, pod_template, replicas};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, NameRule, ScalePaths, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Ready", "How many Pods are ready, and how many there shall be"),
    Column::AGE,
    Column::wide("Containers", "Names of the containers in the template"),
    Column::wide("Images", "Images of the containers in the template"),
];

const CHANGEABLE: &[&str] = &[
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
];

const FIXED: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', \
                     'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and \
                     'minReadySeconds' are forbidden";

pub(super) fn kind() -> Kind {
    Kind::new("apps", "v1", "StatefulSet", "statefulsets", StatefulSet)
        .short(&["sts"])
        .category("all")
        .with_scale()
        .with_status()
}

#[derive(Debug)]
struct StatefulSet;

// === impl StatefulSet ===

impl Strategy for StatefulSet {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill_text(object, "spec.podManagementPolicy", "OrderedReady");
        if doc::text(object, "spec.updateStrategy.type").is_empty() {
            doc::set(object, "spec.updateStrategy.type", "RollingUpdate");
            doc::fill(object, "spec.updateStrategy.rollingUpdate", json!({}));
        }
        if doc::text(object, "spec.updateStrategy.type") == "RollingUpdate"
            && !doc::at(object, "spec.updateStrategy.rollingUpdate").is_null()
        {
            doc::fill(object, "spec.updateStrategy.rollingUpdate.partition", 0);
        }
        for event in ["whenDeleted", "whenScaled"] {
            doc::fill_text(object, &format!("spec.persistentVolumeClaimRetentionPolicy.{event}"), "Retain");
        }
        doc::fill(object, "spec.replicas", 1);
        doc::fill(object, "spec.revisionHistoryLimit", 10);
        pod_template::set_defaults(object, "spec.template");
        for claim in doc::list_mut(object, "spec.volumeClaimTemplates") {
            doc::fill(claim, "apiVersion", "v1");
            doc::fill(claim, "kind", "PersistentVolumeClaim");
            persistent_volume_claim::set_defaults(claim);
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        for claim in spec.get("volumeClaimTemplates").items() {
            persistent_volume_claim::validate_spec(errors, &claim.get("spec"));
        }
        let name = spec.get("serviceName");
        if !name.is_empty() {
            check::spelled(errors, &name, names::dns_label);
        }
        self::spec(errors, &spec);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self::spec(errors, &Field::root(new).get("spec"));
        let mut rest = new["spec"].clone();
        for field in CHANGEABLE {
            doc::keep(&mut rest, &old["spec"], field);
        }
        if !doc::same(&rest, &old["spec"]) {
            errors.forbidden(&Path::new("spec"), FIXED);
        }
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let status = Field::root(new).get("status");
        let parts = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
        pod_template::counts(errors, &status, &["replicas"]);
        pod_template::counts(errors, &status, &parts);
        pod_template::counts(errors, &status, &["observedGeneration", "collisionCount"]);
        for part in parts {
            pod_template::at_most(
                errors,
                &status,
                part,
                "replicas",
                "cannot be greater than status.replicas",
            );
        }
        let message = "cannot be greater than status.readyReplicas";
        pod_template::at_most(errors, &status, "availableReplicas", "readyReplicas", message);
        pod_template::collisions_grow(errors, new, old);
    }

    fn name_rule(&self) -> NameRule {
        NameRule::DnsLabel
    }

    fn counts_generation(&self) -> bool {
        true
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
        vec![table::name(object), ready.into(), table::age(object, now).into(), names, images]
    }
}

fn spec(errors: &mut FieldErrors, spec: &Field<'_>) {
    let policy = spec.get("podManagementPolicy");
    match policy.text() {
        "" => errors.required(&policy.at, ""),
        "OrderedReady" | "Parallel" => {}
        other => errors.invalid(&policy.at, other, "must be 'OrderedReady' or 'Parallel'"),
    }
    update_strategy(errors, &spec.get("updateStrategy"));
    let retention = spec.get("persistentVolumeClaimRetentionPolicy");
    for event in ["whenDeleted", "whenScaled"] {
        if retention.is_set() {
            check::one_of_if_set(errors, &retention.get(event), &["Retain", "Delete"]);
        }
    }
    check::non_negative(errors, &spec.get("replicas"));
    check::non_negative(errors, &spec.get("minReadySeconds"));
    check::non_negative(errors, &spec.get("ordinals").get("start"));
    pod_template::validate_selector(errors, spec, "statefulset");
    let template = with_claims(spec);
    let field = Field { value: &template, at: spec.at.child("template") };
    pod_template::validate_lasting(errors, &field, "StatefulSet");
}

fn update_strategy(errors: &mut FieldErrors, strategy: &Field<'_>) {
    let rolling = strategy.get("rollingUpdate");
    match strategy.get("type").text() {
        "" => errors.required(&strategy.at, ""),
        "OnDelete" if rolling.is_set() => {
            errors.invalid(
                &rolling.at,
                rolling.value.clone(),
                "only allowed for updateStrategy 'RollingUpdate'",
            );
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            check::non_negative(errors, &rolling.get("partition"));
            let unavailable = rolling.get("maxUnavailable");
            if unavailable.is_set() {
                check::count_or_percent(errors, &unavailable);
                if check::is_zero(&unavailable) {
                    errors.invalid(&unavailable.at, unavailable.value.clone(), "cannot be 0");
                }
                check::at_most_whole(errors, &unavailable);
            }
        }
        _ => errors.invalid(&strategy.at, strategy.value.clone(), "must be 'RollingUpdate' or 'OnDelete'"),
    }
}

/// The template as its Pods will be: each claim is a volume, and the controller gives host names itself.
fn with_claims(spec: &Field<'_>) -> Value {
    let mut template = spec.get("template").value.clone();
    doc::remove(&mut template, "spec.subdomain");
    doc::remove(&mut template, "spec.hostname");
    let claims: Vec<&str> =
        doc::list(spec.value, "volumeClaimTemplates").iter().map(|c| doc::text(c, "metadata.name")).collect();
    if claims.is_empty() || doc::at(&template, "spec").is_null() {
        return template;
    }
    doc::fill(&mut template, "spec.volumes", json!([]));
    if let Some(volumes) = doc::at_mut(&mut template, "spec.volumes").and_then(Value::as_array_mut) {
        volumes.retain(|v| !claims.contains(&doc::text(v, "name")));
        volumes.extend(claims.iter().map(|c| json!({"name": c, "persistentVolumeClaim": {"claimName": c}})));
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> Value {
        let mut object = json!({"metadata": {"name": "db"}, "spec": {"serviceName": "db", "selector": {"matchLabels": {"a": "b"}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}],
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
                {"name": "c", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}}}});
        StatefulSet.set_defaults(&mut object);
        let once = object.clone();
        StatefulSet.set_defaults(&mut object);
        assert_eq!(once, object, "idempotent");
        object
    }

    #[test]
    fn defaults_and_claims() {
        let object = set();
        assert_eq!(
            object["spec"]["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
        );
        assert_eq!(
            object["spec"]["persistentVolumeClaimRetentionPolicy"],
            json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
        );
        assert_eq!(object["spec"]["volumeClaimTemplates"][0]["spec"]["volumeMode"], "Filesystem");
        let mut errors = FieldErrors::default();
        StatefulSet.validate(&object, &mut errors);
        assert_eq!(errors.to_string(), "[]", "the mount finds its claim");
    }

    #[test]
    fn most_of_it_is_fixed() {
        let old = set();
        let mut new = old.clone();
        new["spec"]["replicas"] = json!(5);
        new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("y");
        let mut errors = FieldErrors::default();
        StatefulSet.validate_update(&new, &old, &mut errors);
        assert_eq!(errors.to_string(), "[]");
        new["spec"]["serviceName"] = json!("other");
        StatefulSet.validate_update(&new, &old, &mut errors);
        assert_eq!(errors.to_string(), format!("spec: Forbidden: {FIXED}"));
    }
}
