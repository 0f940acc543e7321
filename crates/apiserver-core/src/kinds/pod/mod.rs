//! Pod: the one kind whose objects run.

mod cells;
pub mod change;
mod resize;

use std::borrow::Cow;

use api::field::FieldErrors;
use api::pod::{QosClass, Stage};
use base::time::Wall;
use k8s_openapi::api::core::v1::{Pod as Typed, ResourceRequirements};
use serde::Deserialize;
use serde_json::{Value, json};

use super::pod_template;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy, Subresource, Verb};

pub use resize::{prepare_resize, validate_resize};

const READ_WRITE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const STREAM: &[Verb] = &[Verb::Create, Verb::Get];

pub(super) fn kind() -> Kind {
    Kind::core("Pod", "pods", Pod)
        .short(&["po"])
        .category("all")
        .with(Subresource::new("attach", "PodAttachOptions", STREAM))
        .with(Subresource::new("binding", "Binding", &[Verb::Create]))
        .with(Subresource::new("ephemeralcontainers", "Pod", READ_WRITE))
        .with(Subresource::new("eviction", "Eviction", &[Verb::Create]).of_group("policy", "v1"))
        .with(Subresource::new("exec", "PodExecOptions", STREAM))
        .with(Subresource::new("log", "Pod", &[Verb::Get]))
        .with(Subresource::new("portforward", "PodPortForwardOptions", STREAM))
        .with(Subresource::new("proxy", "PodProxyOptions", super::PROXY_VERBS))
        .with(Subresource::new("resize", "Pod", READ_WRITE))
        .with_status()
}

/// `bindings`, the older way to say what `pods/binding` says.
pub(super) fn binding() -> Kind {
    Kind::core("Binding", "bindings", Binding).verbs(&[Verb::Create]).stored_as("")
}

#[derive(Debug)]
struct Pod;

#[derive(Debug)]
struct Binding;

impl Strategy for Binding {}

/// Gives a Pod a condition, as upstream's `UpdatePodCondition` does: its time is that of the last change of its status.
/// Says whether anything is new.
pub fn set_condition(pod: &mut Value, mut condition: Value, now: &str) -> bool {
    let mut all = doc::list(pod, "status.conditions").to_vec();
    let old = all.iter_mut().find(|c| c["type"] == condition["type"]);
    let since = match &old {
        Some(old) if old["status"] == condition["status"] => old["lastTransitionTime"].clone(),
        _ => now.into(),
    };
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = since;
    match old {
        Some(old) if doc::same(old, &condition) => return false,
        Some(old) => *old = condition,
        None => all.push(condition),
    }
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    pod["status"]["conditions"] = all.into();
    true
}

// === impl Pod ===

impl Strategy for Pod {
    fn set_defaults(&self, object: &mut Value) {
        pod_template::default_spec(object, |spec| {
            let mut pod = Typed { spec: Some(std::mem::take(spec)), ..Typed::default() };
            api::pod::set_defaults(&mut pod);
            *spec = pod.spec.unwrap_or_default();
        });
    }

    fn prepare_create(&self, object: &mut Value) {
        // The class is a matter of the spec alone; a status sent along has no say.
        doc::remove(object, "status");
        let class = qos_class(object).unwrap_or(QosClass::BestEffort);
        let mut status = json!({"phase": "Pending", "qosClass": class.as_str()});
        if !doc::list(object, "spec.schedulingGates").is_empty() {
            status["conditions"] = json!([{
                "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }]);
        }
        doc::set(object, "status", status);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value) {
        for path in ["metadata.ownerReferences", "metadata.deletionTimestamp"] {
            doc::keep(new, old, path);
        }
        if doc::text(new, "status.qosClass").is_empty() {
            doc::keep(new, old, "status.qosClass");
        }
        change::keep_observed_generations(new, old);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        pod_template::validate_spec(errors, &root, Stage::Create);
        tokens_need_an_account(errors, &root);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let root = Field::root(new);
        pod_template::validate_spec(errors, &root, Stage::Update);
        tokens_need_an_account(errors, &root);
        change::validate(errors, new, old);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        change::validate_status(errors, new, old);
    }

    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        if old.is_some() { Vec::new() } else { warnings(new) }
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        Some(match name {
            "spec.nodeName"
            | "spec.restartPolicy"
            | "spec.schedulerName"
            | "spec.serviceAccountName"
            | "status.phase"
            | "status.nominatedNodeName" => doc::text(object, name).into(),
            // The name of the field in the first days of the API.
            "spec.host" => doc::text(object, "spec.nodeName").into(),
            "spec.hostNetwork" => doc::is_true(object, name).to_string().into(),
            "status.podIP" => {
                doc::list(object, "status.podIPs").first().map_or("", |ip| doc::text(ip, "ip")).into()
            }
            "status.podIPs" => "".into(),
            _ => return None,
        })
    }

    fn grace(&self, object: &Value, asked: Option<i64>) -> Option<i64> {
        let seconds = asked.unwrap_or_else(|| doc::int(object, "spec.terminationGracePeriodSeconds"));
        let is_over = matches!(doc::text(object, "status.phase"), "Failed" | "Succeeded");
        if doc::text(object, "spec.nodeName").is_empty() || is_over {
            return Some(0);
        }
        Some(if seconds < 0 { 1 } else { seconds })
    }

    fn columns(&self) -> &[Column] {
        cells::COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        cells::cells(object, now)
    }
}

/// The class its resources give a Pod; none where they cannot be read.
fn qos_class(pod: &Value) -> Option<QosClass> {
    let read = |owner: &Value| Option::<ResourceRequirements>::deserialize(&owner["resources"]).ok();
    let lists = ["spec.initContainers", "spec.containers"];
    let containers = lists.into_iter().flat_map(|list| doc::list(pod, list)).map(read);
    let containers: Vec<_> = containers.collect::<Option<_>>()?;
    let whole = read(&pod["spec"])?;
    Some(api::pod::qos_class_of(whole.as_ref(), containers.iter().map(Option::as_ref)))
}

fn tokens_need_an_account(errors: &mut FieldErrors, root: &Field<'_>) {
    if !doc::text(root.value, "spec.serviceAccountName").is_empty() {
        return;
    }
    for volume in root.get("spec").get("volumes").items() {
        for source in volume.get("projected").get("sources").items() {
            let token = source.get("serviceAccountToken");
            if token.is_set() {
                errors.forbidden(&token.at, "must not be specified when serviceAccountName is not set");
            }
        }
    }
}

fn warnings(pod: &Value) -> Vec<String> {
    let mut out = Vec::new();
    let renamed = [
        ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
        ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
        (
            "failure-domain.beta.kubernetes.io/region",
            "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
        ),
        (
            "failure-domain.beta.kubernetes.io/zone",
            "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead",
        ),
    ];
    for (key, _) in doc::entries(pod, "spec.nodeSelector") {
        if let Some((_, advice)) = renamed.iter().find(|(old, _)| *old == key) {
            out.push(format!("spec.nodeSelector[{key}]: {advice}"));
        }
    }
    for list in ["initContainers", "containers"] {
        for (i, container) in doc::list(pod, &format!("spec.{list}")).iter().enumerate() {
            let mut seen = std::collections::BTreeSet::new();
            for (j, env) in doc::list(container, "env").iter().enumerate() {
                let name = doc::text(env, "name");
                if !seen.insert(name) {
                    out.push(format!("spec.{list}[{i}].env[{j}]: hides previous definition of {name:?}, which may be dropped when using apply"));
                }
            }
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn created(spec: Value) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec});
        Pod.set_defaults(&mut pod);
        let once = pod.clone();
        Pod.set_defaults(&mut pod);
        assert_eq!(once, pod, "idempotent");
        Pod.prepare_create(&mut pod);
        pod
    }

    #[test]
    fn a_new_pod() {
        let pod = created(
            json!({"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": "1"}}}]}),
        );
        assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "Burstable"}));
        assert_eq!(
            pod["spec"],
            json!({
                "containers": [{"name": "a", "image": "x", "imagePullPolicy": "Always",
                    "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}],
                "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                "securityContext": {}, "enableServiceLinks": true, "terminationGracePeriodSeconds": 30,
            })
        );
        let bare =
            created(json!({"containers": [{"name": "a", "image": "x"}], "schedulingGates": [{"name": "g"}]}));
        assert_eq!(bare["spec"]["containers"][0]["resources"], json!({}));
        assert_eq!(bare["status"]["conditions"][0]["reason"], "SchedulingGated");
        let mut errors = FieldErrors::default();
        Pod.validate(&bare, &mut errors);
        assert_eq!(errors.to_string(), "[]");
    }

    #[test]
    fn statuses() {
        for (spec, want) in [
            (json!({"containers": []}), "spec.containers: Required value"),
            (json!({"containers": [{"name": "a"}]}), "spec.containers[0].image: Required value"),
            (
                json!({"containers": [{"name": "a", "image": "x"}], "restartPolicy": "Sometimes"}),
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ),
            (
                json!({"containers": [{"name": "a", "image": "x"}], "ephemeralContainers": [{"name": "b", "image": "x"}]}),
                "spec.ephemeralContainers: Forbidden: cannot be set on create",
            ),
            (
                json!({"containers": [{"name": "a", "image": "x"}], "nodeName": "n", "schedulingGates": [{"name": "g"}]}),
                "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
            ),
        ] {
            let mut errors = FieldErrors::default();
            Pod.validate(&created(spec), &mut errors);
            assert_eq!(errors.to_string(), want);
        }
    }

    #[test]
    fn selectors_and_grace() {
        let pod = json!({"spec": {"nodeName": "n", "hostNetwork": true, "terminationGracePeriodSeconds": 30},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}});
        for (name, want) in [
            ("spec.nodeName", Some("n")),
            ("spec.host", Some("n")),
            ("spec.hostNetwork", Some("true")),
            ("status.phase", Some("Running")),
            ("status.podIP", Some("10.0.0.1")),
            ("spec.restartPolicy", Some("")),
            ("spec.dnsPolicy", None),
        ] {
            assert_eq!(Pod.field(name, &pod).as_deref(), want, "{name}");
        }
        assert_eq!(Pod.grace(&pod, None), Some(30));
        assert_eq!(Pod.grace(&pod, Some(5)), Some(5));
        assert_eq!(Pod.grace(&pod, Some(-1)), Some(1));
        assert_eq!(Pod.grace(&json!({"spec": {}}), Some(5)), Some(0), "nobody runs it");
        assert_eq!(
            Pod.grace(&json!({"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}), None),
            Some(0)
        );
    }
}
