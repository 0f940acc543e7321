//! From a claim to the volume it is bound to.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{ClientError, Request};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kubelet_core::admission::any_term_matches;
use kubelet_core::references::Bound;
use kubelet_core::volumes::ephemeral_claim;
use kubelet_core::volumes::expand::Claimed;

use crate::cluster::Cluster;

/// The volume, or why the Pod cannot have it, in upstream's words.
pub(super) async fn volume_of(cluster: &Cluster, pod: &Pod, claim: &str) -> Result<Arc<Bound>, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}");
    let fetch = |e: ClientError| format!("failed to fetch PVC from API server: {}", words(&e));
    let claim: PersistentVolumeClaim = cluster.client.ask(Request::get(path)).await.map_err(fetch)?;
    if is_ephemeral(pod, &claim) && !is_owned(pod, &claim) {
        let whose = format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default());
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        return Err(format!("PVC {namespace}/{name} was not created for pod {whose} (pod is not owner)"));
    }
    let name = name_of_volume(&claim)?;
    let fetch = |e: ClientError| format!("failed to fetch PV {name} from API server: {}", words(&e));
    let path = format!("/api/v1/persistentvolumes/{name}");
    let volume: PersistentVolume = cluster.client.ask(Request::get(path)).await.map_err(fetch)?;
    check_claim(name, &volume, claim.metadata.uid.as_deref().unwrap_or_default())?;
    let misplaced = misplaced(cluster, &volume);
    let (sizes, claim_uid) = (Claimed::of(&claim), claim.metadata.uid.unwrap_or_default());
    Ok(Arc::new(Bound { volume, claim_uid, sizes, misplaced }))
}

/// What keeps a claim that is used from going: it only ends after the last Pod that has it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The volume that the claim is bound to, unless the claim is about to go.
fn name_of_volume(claim: &PersistentVolumeClaim) -> Result<&str, String> {
    let meta = &claim.metadata;
    let is_protected = meta.finalizers.iter().flatten().any(|f| f == PROTECTION);
    if meta.deletion_timestamp.is_some() && !is_protected {
        return Err("PVC is being deleted".to_owned());
    }
    if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Bound") {
        return Err("PVC is not bound".to_owned());
    }
    let name = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
    name.ok_or_else(|| "PVC has empty pvc.Spec.VolumeName".to_owned())
}

/// Both have to say so: the volume may have been given to another claim of that name.
fn check_claim(name: &str, volume: &PersistentVolume, claim: &str) -> Result<(), String> {
    let Some(owner) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let owner = owner.uid.as_deref().unwrap_or_default();
    match owner == claim {
        true => Ok(()),
        false => Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {owner} does not point to claim.UID {claim}"
        )),
    }
}

/// The Pod has it by an ephemeral volume, not by its name.
fn is_ephemeral(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.any(|v| v.ephemeral.is_some() && ephemeral_claim(pod, &v.name) == name)
}

fn is_owned(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|o| o.controller == Some(true) && Some(&o.uid) == pod.metadata.uid.as_ref())
}

/// A volume may be on one node only.
fn misplaced(cluster: &Cluster, volume: &PersistentVolume) -> Option<String> {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required.as_ref())?;
    let node = cluster.own_node().borrow().object.clone();
    let none = BTreeMap::new();
    let labels = node.as_ref().and_then(|n| n.metadata.labels.as_ref()).unwrap_or(&none);
    let fits = any_term_matches(&required.node_selector_terms, &cluster.node_name, labels);
    (!fits).then(|| "no matching NodeSelectorTerms".to_owned())
}

fn words(error: &ClientError) -> String {
    match error {
        ClientError::Api { answer, .. } => answer.message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_claim_that_is_used_is_good_until_its_end() {
        let deleted = "2026-01-01T00:00:00Z";
        let bound = json!({"phase": "Bound"});
        for (meta, volume, status, want) in [
            (json!({}), json!("pv"), &bound, Ok("pv")),
            (
                json!({"deletionTimestamp": deleted, "finalizers": [PROTECTION]}),
                json!("pv"),
                &bound,
                Ok("pv"),
            ),
            (json!({"deletionTimestamp": deleted}), json!("pv"), &bound, Err("PVC is being deleted")),
            (
                json!({"deletionTimestamp": deleted, "finalizers": ["a.b/c"]}),
                json!("pv"),
                &bound,
                Err("PVC is being deleted"),
            ),
            (json!({}), json!("pv"), &json!({"phase": "Lost"}), Err("PVC is not bound")),
            (json!({}), json!("pv"), &json!({}), Err("PVC is not bound")),
            (json!({}), Value::Null, &bound, Err("PVC has empty pvc.Spec.VolumeName")),
        ] {
            let text = json!({"metadata": meta, "spec": {"volumeName": volume}, "status": status});
            let claim: PersistentVolumeClaim = serde_json::from_value(text).unwrap();
            assert_eq!(name_of_volume(&claim), want.map_err(str::to_owned), "{meta}");
        }
    }

    #[test]
    fn the_volume_has_to_be_the_claims() {
        let check = |reference: Value| {
            let volume = serde_json::from_value(json!({"spec": {"claimRef": reference}})).unwrap();
            check_claim("pv", &volume, "u-1")
        };
        assert_eq!(check(json!({"uid": "u-1"})), Ok(()));
        let other = check(json!({"uid": "u-2"})).unwrap_err();
        assert_eq!(
            other,
            "found PV object pv but its pv.Spec.ClaimRef.UID u-2 does not point to claim.UID u-1"
        );
        assert!(check(Value::Null).unwrap_err().contains("nil pv.Spec.ClaimRef"));
    }
}
