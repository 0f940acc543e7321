//! Secrets that hold logins for registries.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kubelet_core::images::{read_config_json, read_dockercfg};
use kubelet_core::references::{Referenced, ReferencedObjects, pull_secrets as names};

use crate::images::PullSecret;

/// The logins of the Pod's imagePullSecrets, and the names of those that cannot be had.
#[must_use]
pub fn pull_secrets(pod: &Pod, references: &ReferencedObjects) -> (Vec<PullSecret>, Vec<String>) {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in pod.spec.iter().flat_map(names) {
        match references.secrets.get(name) {
            Some(Referenced::Found(secret)) => found.extend(read(secret)),
            _ => missing.push(name.to_owned()),
        }
    }
    (found, missing)
}

/// None for a Secret of another type, or one that holds nothing. What holds something that cannot be read is kept as
/// such: a pull that goes on without it would fail for a reason that is none.
fn read(secret: &Secret) -> Option<PullSecret> {
    let value = |key: &str| secret.data.as_ref()?.get(key).map(|v| v.0.as_slice()).filter(|v| !v.is_empty());
    let logins = match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => value(".dockerconfigjson").map(read_config_json),
        Some("kubernetes.io/dockercfg") => value(".dockercfg").map(read_dockercfg),
        _ => None,
    };
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    let meta = &secret.metadata;
    Some(PullSecret {
        uid: text(&meta.uid),
        namespace: text(&meta.namespace),
        name: text(&meta.name),
        logins: logins?,
    })
}
