//! ServiceAccount: every Pod runs as one, and gets its token unless somebody says no.

use apiserver_core::admission::{Operation, Review, is_mirror};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::Chain;
use crate::auth::service_account::PROJECTED_SECONDS;
use crate::objects::places;
use crate::random::new_uid;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::node::references::of_pod;
use apiserver_core::doc;

const DEFAULT: &str = "default";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME: &str = "kube-api-access-";
const ENFORCE_MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";
/// The default account of a new namespace is made a moment after it: as often, and as long, we look again.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(100);

pub(super) async fn mutate(chain: &Chain, review: &Review<'_>, pod: &mut Value) -> Result<(), ApiStatus> {
    // The kubelet would not know its own mirror Pod again if we changed it.
    if !review.is_on("", "pods") || review.operation != Operation::Create || is_mirror(pod) {
        return Ok(());
    }
    if doc::text(pod, "spec.serviceAccountName").is_empty() {
        doc::set(pod, "spec.serviceAccountName", DEFAULT);
    }
    // The old name of the field follows the new one.
    let name = doc::text(pod, "spec.serviceAccountName").to_owned();
    doc::set(pod, "spec.serviceAccount", name.as_str());
    let account = look_up(chain, review, pod).await?;
    let wanted = |object: &Value| object["automountServiceAccountToken"].as_bool();
    if wanted(&pod["spec"]).or_else(|| wanted(&account)).unwrap_or(true) {
        mount_token(pod);
    }
    if doc::list(pod, "spec.imagePullSecrets").is_empty() {
        let secrets: Vec<Value> =
            doc::list(&account, "imagePullSecrets").iter().map(|s| json!({"name": s["name"]})).collect();
        if !secrets.is_empty() {
            doc::set(pod, "spec.imagePullSecrets", secrets);
        }
    }
    Ok(())
}

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, pod: &Value) -> Result<(), ApiStatus> {
    let ephemeral = review.subresource() == "ephemeralcontainers" && review.operation == Operation::Update;
    let create = review.is_on("", "pods") && review.operation == Operation::Create;
    if !review.is_at("", "pods") || !(create || ephemeral) {
        return Ok(());
    }
    if is_mirror(pod) {
        return refuse_references(pod).map_err(|why| review.forbid(pod, why));
    }
    let account = look_up(chain, review, pod).await?;
    let annotation = account["metadata"]["annotations"][ENFORCE_MOUNTABLE].as_str();
    if annotation.is_some_and(|a| matches!(a, "1" | "t" | "T" | "true" | "TRUE" | "True")) {
        limit_secrets(&account, pod).map_err(|why| review.forbid(pod, &why))?;
    }
    Ok(())
}

async fn look_up(chain: &Chain, review: &Review<'_>, pod: &Value) -> Result<Arc<Value>, ApiStatus> {
    let namespace = review.namespace();
    let name = doc::text(pod, "spec.serviceAccountName");
    if name.is_empty() {
        let pod_name = doc::text(pod, "metadata.name");
        return Err(
            review.forbid(pod, &format!("no service account specified for pod {namespace}/{pod_name}"))
        );
    }
    let tries = if name == DEFAULT { TRIES } else { 1 };
    for attempt in 0..tries {
        if attempt > 0 {
            tokio::time::sleep(BETWEEN).await;
        }
        if let Some(found) = chain.objects.find(places::SERVICE_ACCOUNTS, namespace, name).await? {
            return Ok(found.object);
        }
    }
    let why =
        format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
    Err(review.forbid(pod, &why))
}

fn mount_token(pod: &mut Value) {
    let existing = doc::list(pod, "spec.volumes").iter().map(|v| doc::text(v, "name"));
    let existing = existing.into_iter().find(|name| name.starts_with(VOLUME)).map(str::to_owned);
    let volume = existing.clone().unwrap_or_else(|| format!("{VOLUME}{}", &new_uid()[..5]));
    let mount = json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH});
    let mut needed = false;
    for containers in ["spec.initContainers", "spec.containers"] {
        for container in doc::list_mut(pod, containers) {
            let taken = doc::list(container, "volumeMounts").iter().any(|m| m["mountPath"] == MOUNT_PATH);
            if !taken {
                push(container, "volumeMounts", mount.clone());
                needed = true;
            }
        }
    }
    if needed && existing.is_none() {
        push(&mut pod["spec"], "volumes", token_volume(&volume));
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": PROJECTED_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}})
}

fn push(object: &mut Value, field: &str, item: Value) {
    match object[field].as_array_mut() {
        Some(list) => list.push(item),
        None => object[field] = json!([item]),
    }
}

/// A node makes mirror Pods itself: they must give it no rights.
fn refuse_references(pod: &Value) -> Result<(), &'static str> {
    let references = of_pod(pod);
    if !references.service_account.is_empty() {
        return Err("a mirror pod may not reference service accounts");
    }
    if !references.secrets.is_empty() {
        return Err("a mirror pod may not reference secrets");
    }
    let mut sources = doc::list(pod, "spec.volumes").iter().flat_map(|v| doc::list(v, "projected.sources"));
    if sources.any(|s| s["serviceAccountToken"].is_object()) {
        return Err("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

fn limit_secrets(account: &Value, pod: &Value) -> Result<(), String> {
    let account_name = doc::text(account, "metadata.name");
    let names = |field: &str| -> Vec<&str> {
        doc::list(account, field).iter().map(|s| doc::text(s, "name")).collect()
    };
    let mountable = names("secrets");
    let refuse = |what: String| {
        Err(format!(
            "{what} is not allowed because service account {account_name} does not reference that secret"
        ))
    };
    for volume in doc::list(pod, "spec.volumes") {
        let secret = doc::text(volume, "secret.secretName");
        if !secret.is_empty() && !mountable.contains(&secret) {
            return refuse(format!("volume with secret.secretName=\"{secret}\""));
        }
    }
    for (field, what) in [
        ("spec.initContainers", "init container"),
        ("spec.containers", "container"),
        ("spec.ephemeralContainers", "ephemeral container"),
    ] {
        for container in doc::list(pod, field) {
            let name = doc::text(container, "name");
            for env in doc::list(container, "env") {
                let secret = doc::text(env, "valueFrom.secretKeyRef.name");
                if !secret.is_empty() && !mountable.contains(&secret) {
                    let var = doc::text(env, "name");
                    return refuse(format!(
                        "{what} {name} with envVar {var} referencing secret.secretName=\"{secret}\""
                    ));
                }
            }
            for source in doc::list(container, "envFrom") {
                let secret = doc::text(source, "secretRef.name");
                if !secret.is_empty() && !mountable.contains(&secret) {
                    return refuse(format!(
                        "{what} {name} with envFrom referencing secret.secretName=\"{secret}\""
                    ));
                }
            }
        }
    }
    let pull = names("imagePullSecrets");
    for (i, secret) in doc::list(pod, "spec.imagePullSecrets").iter().enumerate() {
        let secret = doc::text(secret, "name");
        if !pull.contains(&secret) {
            return Err(format!(
                "imagePullSecrets[{i}].name=\"{secret}\" is not allowed because service account {account_name} does \
                 not reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;

    async fn bench() -> Bench {
        Bench::with(&[
            (places::SERVICE_ACCOUNTS, json!({"metadata": {"name": "default", "namespace": "web"}})),
            (
                places::SERVICE_ACCOUNTS,
                json!({"metadata": {"name": "quiet", "namespace": "web", "annotations": {ENFORCE_MOUNTABLE: "true"}},
                    "automountServiceAccountToken": false, "imagePullSecrets": [{"name": "pull"}]}),
            ),
        ])
        .await
    }

    fn ask() -> Ask {
        Ask::create("", "pods", "web")
    }

    #[tokio::test]
    async fn a_pod_gets_the_default_account_and_its_token() {
        let bench = bench().await;
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "a"}, {"name": "b", "volumeMounts": [{"name": "x", "mountPath": MOUNT_PATH}]}]}});
        mutate(&bench.chain, &ask().review(), &mut pod).await.unwrap();
        assert_eq!(pod["spec"]["serviceAccountName"], "default");
        let volume = pod["spec"]["volumes"][0]["name"].as_str().unwrap();
        assert!(volume.starts_with(VOLUME) && volume.len() == VOLUME.len() + 5);
        assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][0]["name"], volume);
        assert_eq!(pod["spec"]["containers"][1]["volumeMounts"].as_array().unwrap().len(), 1);
        let sources = &pod["spec"]["volumes"][0]["projected"]["sources"];
        assert_eq!(sources[0]["serviceAccountToken"]["expirationSeconds"], 3607);
        validate(&bench.chain, &ask().review(), &pod).await.unwrap();
    }

    #[tokio::test]
    async fn an_account_may_keep_its_token_and_limit_secrets() {
        let bench = bench().await;
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "quiet",
            "containers": [{"name": "a", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}]}});
        mutate(&bench.chain, &ask().review(), &mut pod).await.unwrap();
        assert!(pod["spec"]["volumes"].is_null());
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
        let api_status = validate(&bench.chain, &ask().review(), &pod).await.unwrap_err();
        assert_eq!(
            api_status.message,
            "pods \"p\" is forbidden: container a with envVar E referencing secret.secretName=\"s\" is not allowed \
             because service account quiet does not reference that secret"
        );
    }

    #[tokio::test]
    async fn no_account_no_pod_and_no_account_in_a_mirror_pod() {
        let bench = bench().await;
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "lost"}});
        let api_status = mutate(&bench.chain, &ask().review(), &mut pod).await.unwrap_err();
        assert_eq!(
            api_status.message,
            "pods \"p\" is forbidden: error looking up service account web/lost: serviceaccount \"lost\" not found"
        );
        pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "h"});
        mutate(&bench.chain, &ask().review(), &mut pod).await.unwrap();
        let api_status = validate(&bench.chain, &ask().review(), &pod).await.unwrap_err();
        assert!(api_status.message.ends_with("a mirror pod may not reference service accounts"));
    }
}
