//! PodSecurity: reads the namespace, and its Pods where its labels change, for `apiserver_core::admission::pod_security`.

use apiserver_core::admission::pod_security::{self, pod_of};
use apiserver_core::admission::{Review, Warnings};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;
use serde_json::Value;

use super::Chain;
use crate::objects::places;

pub(super) async fn validate(
    chain: &Chain,
    review: &Review<'_>,
    object: &Value,
) -> Result<Warnings, ApiStatus> {
    if review.is_on("", "namespaces") {
        return namespace(chain, review, object).await;
    }
    if pod_of(review, object).is_none() {
        return Ok(Warnings::new());
    }
    match chain.objects.find(places::NAMESPACES, "", review.namespace()).await? {
        Some(found) => pod_security::validate(&found.object["metadata"]["labels"], review, object),
        None => Ok(Warnings::new()),
    }
}

async fn namespace(chain: &Chain, review: &Review<'_>, object: &Value) -> Result<Warnings, ApiStatus> {
    let Some(standard) = pod_security::validate_namespace(review, object)? else {
        return Ok(Warnings::new());
    };
    let name = doc::text(object, "metadata.name");
    let pods = chain.objects.list(places::PODS, name).await?;
    Ok(pod_security::warnings_about(&standard, name, pods.iter().map(|pod| &*pod.object)))
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
        let api_status = validate(&bench.chain, &ask("base").review(), &host).await.unwrap_err();
        assert_eq!(
            api_status.message,
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
