//! `pods/binding`: a scheduler says where a Pod runs.

use api::field::FieldErrors;
use api::names;
use serde_json::{Value, json};

use super::Registry;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::call::Call;
use apiserver_core::doc::Field;
use apiserver_core::kind::Kind;
use apiserver_core::kinds;
use apiserver_core::meta;
use apiserver_core::selection::present;

impl Registry {
    /// Binds the Pod the call names, as the Binding says.
    pub async fn bind(&self, call: &Call, binding: &Value) -> Result<(), ApiStatus> {
        if meta::name(binding) != call.name() {
            return Err(ApiStatus::bad_request("name in URL does not match name in Binding object"));
        }
        let errors = complaints(binding);
        if !errors.is_empty() {
            let kind = self.kind("", "v1", "bindings")?;
            return Err(ApiStatus::invalid(&kind, call.name(), &errors));
        }
        let kind = self.kind("", "v1", "pods")?;
        let (name, now) = (call.name(), meta::timestamp(self.now()));
        if call.options.dry_run {
            let mut pod = present(&kind, &self.get(&kind, call.namespace(), name).await?);
            return assign(&kind, &mut pod, binding, &now);
        }
        let bound = self.rewrite(&kind, call.namespace(), name, |pod| {
            assign(&kind, pod, binding, &now)?;
            Ok(true)
        });
        bound.await?.map(drop).ok_or_else(|| ApiStatus::not_found(&kind, name))
    }
}

/// What upstream refuses, and what it lets slip into the Pod: labels and annotations that no Pod could be created with.
fn complaints(binding: &Value) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let root = Field::root(binding);
    let (kind, name) = (root.get("target").get("kind"), root.get("target").get("name"));
    if !matches!(kind.text(), "" | "Node") {
        errors.unsupported(&kind.at, kind.text(), &["Node", "<empty>"]);
    }
    if name.text().is_empty() {
        errors.required(&name.at, "");
    } else {
        errors.each(&name.at, name.text(), names::dns_subdomain(name.text()));
    }
    kinds::meta::labels_and_annotations(&mut errors, &root.get("metadata"));
    kinds::pod::change::annotations(&mut errors, binding, &Value::Null);
    errors
}

fn assign(kind: &Kind, pod: &mut Value, binding: &Value, now: &str) -> Result<(), ApiStatus> {
    let name = meta::name(pod).to_owned();
    for (what, field) in [("UID", "uid"), ("ResourceVersion", "resourceVersion")] {
        let (wanted, present) = (meta::text(binding, field), meta::text(pod, field));
        if !wanted.is_empty() && wanted != present {
            let why = format!(
                "Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {present}"
            );
            return Err(ApiStatus::conflict(kind, &name, &why));
        }
    }
    let conflict = |why: String| {
        let mut kind = kind.clone();
        kind.plural = "pods/binding".into();
        Err(ApiStatus::conflict(&kind, &name, &why))
    };
    if meta::is_deleting(pod) {
        return conflict(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let assigned = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !assigned.is_empty() {
        return conflict(format!("pod {name} is already assigned to node {assigned:?}"));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return conflict(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    pod["spec"]["nodeName"] = binding["target"]["name"].clone();
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    if let Some(status) = pod["status"].as_object_mut() {
        // A place that was kept for it is of no interest any more.
        status.remove("nominatedNodeName");
    }
    kinds::pod::set_condition(pod, json!({"type": "PodScheduled", "status": "True"}), now);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_brings_nothing_that_a_pod_could_not_be_created_with() {
        let good = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1.example"}});
        assert_eq!(complaints(&good).to_string(), "[]");
        let with = |field: &str, value: Value| {
            let mut binding = good.clone();
            apiserver_core::doc::set(&mut binding, field, value);
            complaints(&binding).to_string()
        };
        for (field, value, why) in [
            ("target.kind", json!("Pod"), "target.kind: Unsupported value: \"Pod\""),
            ("target.name", json!(""), "target.name: Required value"),
            ("target.name", json!("../n"), "target.name: Invalid value: \"../n\""),
            ("metadata.labels", json!({"a b": "c"}), "metadata.labels: Invalid value"),
            ("metadata.labels", json!({"a": "b c"}), "metadata.labels: Invalid value"),
            ("metadata.annotations", json!({"a b": "c"}), "metadata.annotations: Invalid value"),
            ("metadata.annotations", json!({"a": "b".repeat(300_000)}), "metadata.annotations: Too long"),
            (
                "metadata.annotations",
                json!({"kubernetes.io/config.mirror": "x"}),
                "may not add mirror pod annotation",
            ),
        ] {
            let said = with(field, value);
            assert!(said.contains(why), "{field}: {said}");
        }
    }

    #[test]
    fn a_binding_is_about_the_pod_it_saw() {
        let kind =
            kinds::all().into_iter().find(|k| k.plural == "pods").unwrap_or_else(|| kinds::all().remove(0));
        let pod = json!({
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7"}, "spec": {},
            "status": {"nominatedNodeName": "n2"},
        });
        let bind = |uid: &str, version: &str| {
            let (mut pod, metadata) = (pod.clone(), json!({"uid": uid, "resourceVersion": version}));
            assign(&kind, &mut pod, &json!({"metadata": metadata, "target": {"name": "n1"}}), "t")
                .map(|()| pod)
        };
        let message =
            |outcome: Result<Value, ApiStatus>| outcome.err().map(|r| r.message).unwrap_or_default();
        assert!(message(bind("v", "")).contains("UID in precondition: v, UID in object meta: u"));
        assert!(message(bind("u", "6")).contains("ResourceVersion in precondition: 6"));
        let bound = bind("u", "7").unwrap_or_default();
        assert_eq!(
            (&bound["spec"]["nodeName"], &bound["status"]["nominatedNodeName"]),
            (&json!("n1"), &Value::Null)
        );
    }
}
