//! PodSecurity: the levels a namespace's labels ask of its Pods, enforced on Pods and warned about on what makes them.

mod checks;
mod level;

use serde_json::Value;

use super::{Chain, Operation, Review, Warnings};
use crate::doc;
use crate::objects::places;
use crate::refusal::Refusal;
use level::{Level, Policy, Standard};

pub(super) async fn validate(
    chain: &Chain,
    review: &Review<'_>,
    object: &Value,
) -> Result<Warnings, Refusal> {
    if review.is_on("", "namespaces") {
        return namespace(chain, review, object).await;
    }
    let Some((metadata, spec)) = pod_of(review, object) else { return Ok(Warnings::new()) };
    let Some(found) = chain.objects.find(places::NAMESPACES, "", review.namespace()).await? else {
        return Ok(Warnings::new());
    };
    let (policy, _) = Policy::read(&found.object["metadata"]["labels"]);
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
fn pod_of<'o>(review: &Review<'_>, object: &'o Value) -> Option<(&'o Value, &'o Value)> {
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

/// A label that says nonsense is refused; a level that running Pods do not meet is warned about.
async fn namespace(chain: &Chain, review: &Review<'_>, object: &Value) -> Result<Warnings, Refusal> {
    let (policy, errors) = Policy::read(&object["metadata"]["labels"]);
    let old = review.old.map(|old| Policy::read(&old["metadata"]["labels"]));
    let was_fine = old.as_ref().is_none_or(|(_, errors)| errors.is_empty());
    if !errors.is_empty() && was_fine {
        return Err(Refusal::invalid(review.kind, doc::text(object, "metadata.name"), &errors));
    }
    let Some((before, _)) = old else { return Ok(Warnings::new()) };
    let tighter = policy.enforce.level > before.enforce.level
        || (policy.enforce.level == before.enforce.level && policy.enforce.version != before.enforce.version);
    if !tighter || policy.enforce.level == Level::Privileged {
        return Ok(Warnings::new());
    }
    let name = doc::text(object, "metadata.name");
    let mut warnings = Warnings::new();
    for pod in chain.objects.list(places::PODS, name).await? {
        if let Some(problems) = problems(&policy.enforce, &pod.object["metadata"], &pod.object["spec"]) {
            warnings.push(format!("{}: {problems}", doc::text(&pod.object, "metadata.name")));
        }
    }
    if !warnings.is_empty() {
        let head = format!(
            "existing pods in namespace {name:?} violate the new PodSecurity enforce level \"{}\"",
            policy.enforce
        );
        warnings.insert(0, head);
    }
    Ok(warnings)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;
    use serde_json::json;

    async fn bench() -> Bench {
        let ns = |name: &str, labels: Value| {
            (places::NAMESPACES, json!({"metadata": {"name": name, "labels": labels}}))
        };
        Bench::with(&[
            ns("open", json!({})),
            ns(
                "base",
                json!({"pod-security.kubernetes.io/enforce": "baseline",
                "pod-security.kubernetes.io/warn": "restricted"}),
            ),
            ns("tight", json!({"pod-security.kubernetes.io/enforce": "restricted"})),
        ])
        .await
    }

    fn pod(extra: Value) -> Value {
        let mut spec = json!({"containers": [{"name": "a"}]});
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"metadata": {"name": "p"}, "spec": spec})
    }

    #[tokio::test]
    async fn levels_are_enforced_where_the_namespace_says_so() {
        let bench = bench().await;
        let ask = |ns: &str| Ask::create("", "pods", ns);
        let host = pod(json!({"hostNetwork": true}));
        assert!(validate(&bench.chain, &ask("open").review(), &host).await.unwrap().is_empty());
        let refusal = validate(&bench.chain, &ask("base").review(), &host).await.unwrap_err();
        assert_eq!(
            refusal.message,
            "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true)"
        );
        let warnings = validate(&bench.chain, &ask("base").review(), &pod(json!({}))).await.unwrap();
        assert_eq!(
            warnings,
            [
                "would violate PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"a\" must \
              set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"a\" must set \
              securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"a\" must set \
              securityContext.runAsNonRoot=true), seccompProfile (pod or container \"a\" must set \
              securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
            ]
        );
        let good = json!({"metadata": {"name": "p"}, "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]}}}]}});
        assert!(validate(&bench.chain, &ask("tight").review(), &good).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn templates_are_warned_about_and_old_pods_may_change_what_does_not_count() {
        let bench = bench().await;
        let template =
            json!({"metadata": {"name": "d"}, "spec": {"template": pod(json!({"hostPID": true}))}});
        let ask = Ask::create("apps", "deployments", "base");
        let warnings = validate(&bench.chain, &ask.review(), &template).await.unwrap();
        assert!(warnings[0].contains("host namespaces (hostPID=true)"));
        let old = pod(json!({"hostPID": true}));
        let mut new = old.clone();
        new["metadata"]["labels"] = json!({"a": "b"});
        let ask = Ask::create("", "pods", "base").update(old);
        assert!(validate(&bench.chain, &ask.review(), &new).await.is_ok());
        new["spec"]["containers"][0]["image"] = "other".into();
        assert!(validate(&bench.chain, &ask.review(), &new).await.is_err());
    }

    #[tokio::test]
    async fn labels_that_say_nonsense_are_refused() {
        let bench = bench().await;
        let ns = |level: &str, version: &str| {
            json!({"metadata": {"name": "x", "labels": {"pod-security.kubernetes.io/enforce": level,
                "pod-security.kubernetes.io/enforce-version": version}}})
        };
        let ask = Ask::create("", "namespaces", "");
        for (level, version, code) in [
            ("baseline", "latest", None),
            ("baseline", "v1.30", None),
            ("strict", "latest", Some(422)),
            ("baseline", "1.30", Some(422)),
        ] {
            let outcome = validate(&bench.chain, &ask.review(), &ns(level, version)).await;
            assert_eq!(outcome.err().map(|r| r.code), code, "{level} {version}");
        }
    }
}
