//! PodSecurity: the levels a namespace's labels ask of its Pods, enforced on Pods and warned about on what makes them.

mod checks;
mod level;

use serde_json::Value;

use super::{Operation, Review, Warnings};
use crate::api_status::ApiStatus;
use crate::doc;
use level::{Level, Policy};

pub use level::Standard;

/// Judges a Pod, or what makes Pods, by the labels of its namespace.
pub fn validate(labels: &Value, review: &Review<'_>, object: &Value) -> Result<Warnings, ApiStatus> {
    let Some((metadata, spec)) = pod_of(review, object) else { return Ok(Warnings::new()) };
    let (policy, _) = Policy::read(labels);
    if policy.is_privileged() {
        return Ok(Warnings::new());
    }
    if review.is_at("", "pods") {
        if !is_judged(review, object) {
            return Ok(Warnings::new());
        }
        if let Some(problems) = problems(&policy.enforce, metadata, spec) {
            let why = format!("violates PodSecurity \"{}\": {problems}", policy.enforce);
            return Err(review.forbid(object, &why));
        }
    }
    let warning = problems(&policy.warn, metadata, spec)
        .map(|problems| format!("would violate PodSecurity \"{}\": {problems}", policy.warn));
    Ok(warning.into_iter().collect())
}

/// Judges the labels of a namespace: one that says nonsense is refused. Answers the standard that the Pods already
/// there have to be held against, where it is tighter than before.
pub fn validate_namespace(review: &Review<'_>, object: &Value) -> Result<Option<Standard>, ApiStatus> {
    let (policy, errors) = Policy::read(&object["metadata"]["labels"]);
    let old = review.old.map(|old| Policy::read(&old["metadata"]["labels"]));
    let was_fine = old.as_ref().is_none_or(|(_, errors)| errors.is_empty());
    if !errors.is_empty() && was_fine {
        return Err(ApiStatus::invalid(review.kind, doc::text(object, "metadata.name"), &errors));
    }
    let Some((before, _)) = old else { return Ok(None) };
    let tighter = policy.enforce.level > before.enforce.level
        || (policy.enforce.level == before.enforce.level && policy.enforce.version != before.enforce.version);
    Ok((tighter && policy.enforce.level != Level::Privileged).then_some(policy.enforce))
}

/// Warns about the Pods of a namespace that do not meet its new standard.
pub fn warnings_about<'p>(
    standard: &Standard,
    namespace: &str,
    pods: impl IntoIterator<Item = &'p Value>,
) -> Warnings {
    let mut warnings = Warnings::new();
    for pod in pods {
        if let Some(problems) = problems(standard, &pod["metadata"], &pod["spec"]) {
            warnings.push(format!("{}: {problems}", doc::text(pod, "metadata.name")));
        }
    }
    if !warnings.is_empty() {
        let head = format!(
            "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{standard}\""
        );
        warnings.insert(0, head);
    }
    warnings
}

/// What is wrong with a Pod by a standard: `hostPort (container "a" uses hostPort 80), …`.
fn problems(standard: &Standard, metadata: &Value, spec: &Value) -> Option<String> {
    if standard.level == Level::Privileged {
        return None;
    }
    let found: Vec<String> = checks::all(standard)
        .filter_map(|check| check(metadata, spec, standard.version))
        .map(|(reason, detail)| if detail.is_empty() { reason } else { format!("{reason} ({detail})") })
        .collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// The Pod in an object: itself, or the template of what makes Pods.
#[must_use]
pub fn pod_of<'o>(review: &Review<'_>, object: &'o Value) -> Option<(&'o Value, &'o Value)> {
    let ephemeral = review.is_at("", "pods") && review.subresource() == "ephemeralcontainers";
    if !ephemeral && !review.subresource().is_empty() {
        return None;
    }
    let template = match (review.kind.group.as_ref(), review.kind.plural.as_ref()) {
        ("", "pods") => object,
        ("", "podtemplates") => &object["template"],
        ("", "replicationcontrollers")
        | ("apps", "deployments" | "replicasets" | "daemonsets" | "statefulsets")
        | ("batch", "jobs") => &object["spec"]["template"],
        ("batch", "cronjobs") => &object["spec"]["jobTemplate"]["spec"]["template"],
        _ => return None,
    };
    template["spec"].is_object().then_some((&template["metadata"], &template["spec"]))
}

/// An update that brings no new image and no new container passes, so that a Pod from before the label can still be
/// finalized.
fn is_judged(review: &Review<'_>, pod: &Value) -> bool {
    let Some(old) = review.old else { return review.operation == Operation::Create };
    let images = |pod: &Value, field: &str| -> Vec<String> {
        doc::list(pod, field).iter().map(|c| doc::text(c, "image").to_owned()).collect()
    };
    let ephemeral = |pod: &Value| -> Vec<(String, String)> {
        let containers = doc::list(pod, "spec.ephemeralContainers").iter();
        containers.map(|c| (doc::text(c, "name").to_owned(), doc::text(c, "image").to_owned())).collect()
    };
    let before = ephemeral(old);
    ["spec.containers", "spec.initContainers"].into_iter().any(|f| images(pod, f) != images(old, f))
        || ephemeral(pod).iter().any(|c| !before.contains(c))
}
