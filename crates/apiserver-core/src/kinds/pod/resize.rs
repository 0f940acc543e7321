//! Changing what a running Pod may use: `pods/resize`.

use api::field::{FieldErrors, Path};
use api::pod::{Stage, static_pod};
use serde_json::Value;

use super::super::pod_template;
use crate::doc::{self, Field};

const LISTS: [&str; 2] = ["containers", "initContainers"];

/// A write through `/resize` changes nothing but resources and how a change of them is carried out.
pub fn prepare_resize(new: &mut Value, old: &Value) {
    let same_names = |list: &str| {
        let names = |pod: &Value| -> Vec<String> {
            doc::list(pod, &format!("spec.{list}")).iter().map(|c| doc::text(c, "name").to_owned()).collect()
        };
        names(new) == names(old)
    };
    // Containers that come, go or move are for validation to refuse.
    if !LISTS.into_iter().all(same_names) {
        return;
    }
    let asked = new["spec"].clone();
    doc::keep(new, old, "spec");
    doc::keep(new, old, "status");
    doc::keep(new, &serde_json::json!({"spec": asked}), "spec.resources");
    for list in LISTS {
        let containers = doc::list_mut(new, &format!("spec.{list}"));
        for (container, asked) in containers.zip(doc::list(&asked, list)) {
            doc::keep(container, asked, "resources");
            doc::keep(container, asked, "resizePolicy");
        }
    }
}

/// Only cpu and memory may change, none may be taken away, and the Pod stays in its class.
pub fn validate_resize(new: &Value, old: &Value, errors: &mut FieldErrors) {
    let whole = Path::new("");
    super::change::annotations(errors, new, old);
    if doc::at(old, "metadata.annotations").get(static_pod::MIRROR_ANNOTATION).is_some() {
        return errors.forbidden(&whole, "static pods cannot be resized");
    }
    if doc::text(old, "spec.os.name") == "windows" {
        return errors.forbidden(&whole, "windows pods cannot be resized");
    }
    pod_template::validate_spec(errors, &Field::root(new), Stage::Update);
    let spec = Path::new("spec");
    if super::qos_class(new) != super::qos_class(old) {
        let message = "Pod QOS Class may not change as a result of resizing";
        errors.invalid(&spec, doc::text(new, "status.qosClass"), message);
    }
    if !node_can_resize(old) {
        errors.forbidden(&spec, "Pod running on node without support for resize");
    }
    if !doc::list(old, "status.nodeAllocatableResourceClaimStatuses").is_empty() {
        errors.forbidden(&spec, "pods with node allocatable resource claims cannot be resized");
    }
    if !same_order(errors, new, old) {
        return;
    }
    no_restart_for_init(errors, new, old);
    nothing_removed(
        errors,
        &Path::new("spec.resources"),
        doc::at(new, "spec.resources"),
        doc::at(old, "spec.resources"),
        "pod-level resource",
    );
    let mut rest = new["spec"].clone();
    mask(&mut rest, &old["spec"]);
    for list in LISTS {
        let at = spec.child(list);
        for (i, (container, before)) in
            doc::list_mut(&mut rest, list).zip(doc::list(&old["spec"], list)).enumerate()
        {
            let at = at.index(i).child("resources");
            nothing_removed(errors, &at, &container["resources"], &before["resources"], "resource");
            mask(container, before);
            doc::keep(container, before, "resizePolicy");
        }
    }
    if errors.is_empty() && !doc::same(&rest, &old["spec"]) {
        errors.forbidden(&spec, "only cpu and memory resources are mutable");
    }
}

/// A kubelet that can resize says what its running containers have.
fn node_can_resize(pod: &Value) -> bool {
    let running =
        doc::list(pod, "status.containerStatuses").iter().find(|s| !doc::at(s, "state.running").is_null());
    running.is_none_or(|status| !status["resources"].is_null())
}

/// An init container runs once: it cannot be started again for other resources.
fn no_restart_for_init(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let list = "spec.initContainers";
    for (i, (container, before)) in doc::list(new, list).iter().zip(doc::list(old, list)).enumerate() {
        let is_sidecar = doc::text(container, "restartPolicy") == "Always";
        let mut policies = doc::list(container, "resizePolicy").iter();
        let restarts = policies.any(|p| doc::text(p, "restartPolicy") == "RestartContainer");
        if restarts && !is_sidecar && container != before {
            let message =
                "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.forbidden(&Path::new(list).index(i), message);
        }
    }
}

fn same_order(errors: &mut FieldErrors, new: &Value, old: &Value) -> bool {
    let mut is_same = true;
    for list in LISTS {
        let path = format!("spec.{list}");
        let (now, before) = (doc::list(new, &path), doc::list(old, &path));
        let at = Path::new(&path);
        if now.len() != before.len() {
            errors.forbidden(&at, &format!("{list} may not be added or removed on resize"));
            is_same = false;
            continue;
        }
        for (i, _) in now.iter().zip(before).enumerate().filter(|(_, (a, b))| a["name"] != b["name"]) {
            errors.forbidden(
                &at.index(i).child("name"),
                &format!("{list} may not be renamed or reordered on resize"),
            );
            is_same = false;
        }
    }
    is_same
}

fn nothing_removed(errors: &mut FieldErrors, at: &Path, new: &Value, old: &Value, word: &str) {
    for list in ["requests", "limits"] {
        if doc::entries(old, list).any(|(name, _)| new[list].get(name).is_none()) {
            errors.forbidden(&at.child(list), &format!("{word} {list} cannot be removed"));
        }
    }
}

/// Makes cpu and memory what they were, so that what is left to compare must be equal.
fn mask(new: &mut Value, old: &Value) {
    for list in ["requests", "limits"] {
        for name in ["cpu", "memory"] {
            doc::keep(new, old, &format!("resources.{list}.{name}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(resources: Value) -> Value {
        json!({"spec": {"containers": [{"name": "a", "image": "x", "imagePullPolicy": "Always",
            "terminationMessagePolicy": "File", "resources": resources}], "restartPolicy": "Always",
            "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1}, "status": {"qosClass": "Burstable"}})
    }

    #[test]
    fn only_cpu_and_memory_change() {
        let old = pod(json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}}));
        let resized = |resources: Value| {
            let mut new = pod(resources);
            new["spec"]["nodeName"] = json!("ignored");
            prepare_resize(&mut new, &old);
            assert_eq!(new["spec"]["nodeName"], Value::Null);
            let mut errors = FieldErrors::default();
            validate_resize(&new, &old, &mut errors);
            errors.to_string()
        };
        assert_eq!(resized(json!({"requests": {"cpu": "2", "ephemeral-storage": "1Gi"}})), "[]");
        assert_eq!(
            resized(json!({"requests": {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}})),
            "[]"
        );
        assert_eq!(
            resized(json!({"requests": {"ephemeral-storage": "1Gi"}})),
            "[spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result of resizing, \
             spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed]"
        );
        assert_eq!(
            resized(json!({"requests": {"cpu": "1", "ephemeral-storage": "2Gi"}})),
            "spec: Forbidden: only cpu and memory resources are mutable"
        );
    }

    #[test]
    fn an_init_container_does_not_start_again_for_a_resize() {
        let with = |cpu: &str, policy: Value| {
            let mut pod = pod(json!({"requests": {"cpu": "1"}}));
            let mut init = pod["spec"]["containers"][0].clone();
            init["name"] = json!("i");
            init["resources"] = json!({"requests": {"cpu": cpu}});
            init["restartPolicy"] = policy;
            init["resizePolicy"] = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
            pod["spec"]["initContainers"] = json!([init]);
            pod
        };
        let refused = |old: &Value, new: &Value| {
            let mut errors = FieldErrors::default();
            no_restart_for_init(&mut errors, new, old);
            errors.to_string()
        };
        let message = "spec.initContainers[0]: Forbidden: non-sidecar init containers with a resize policy of \
                       RestartContainer cannot be resized";
        assert_eq!(refused(&with("1", Value::Null), &with("2", Value::Null)), message);
        assert_eq!(refused(&with("1", Value::Null), &with("1", Value::Null)), "[]");
        assert_eq!(refused(&with("1", json!("Always")), &with("2", json!("Always"))), "[]");
    }

    #[test]
    fn containers_stay_where_they_are() {
        let old = pod(json!({}));
        let mut new = old.clone();
        new["spec"]["containers"][0]["name"] = json!("b");
        prepare_resize(&mut new, &old);
        let mut errors = FieldErrors::default();
        validate_resize(&new, &old, &mut errors);
        assert_eq!(
            errors.to_string(),
            "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"
        );
    }
}
