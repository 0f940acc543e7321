//! From a claim to the volume it is bound to.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{ClientError, Request};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kubelet_core::admission::any_term_matches;
use kubelet_core::supplies::Bound;
use kubelet_core::volumes::ephemeral_claim;
use kubelet_core::volumes::expand::Claimed;

use crate::cluster::Cluster;

/// The volume, or why the Pod cannot have it, in upstream's words.
pub(super) async fn volume_of(cluster: &Cluster, pod: &Pod, claim: &str) -> Result<Arc<Bound>, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}");
    let fetch = |e: ClientError| format!("failed to fetch PVC from API server: {}", words(&e));
    let claim: PersistentVolumeClaim = cluster.client.ask(Request::get(path)).await.map_err(fetch)?;
    if claim.metadata.deletion_timestamp.is_some() {
        return Err("can't start pod because PVC is being deleted".to_owned());
    }
    if is_ephemeral(pod, &claim) && !is_owned(pod, &claim) {
        let whose = format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default());
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        return Err(format!("PVC {namespace}/{name} was not created for pod {whose} (pod is not owner)"));
    }
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
    let bound = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty());
    let (Some("Bound"), Some(name)) = (phase, bound) else { return Err("PVC is not bound".to_owned()) };
    let fetch = |e: ClientError| format!("failed to fetch PV {name:?} from API server: {}", words(&e));
    let path = format!("/api/v1/persistentvolumes/{name}");
    let volume: PersistentVolume = cluster.client.ask(Request::get(path)).await.map_err(fetch)?;
    let owner = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()).and_then(|r| r.uid.as_deref());
    if owner != claim.metadata.uid.as_deref() {
        return Err(format!("PV {name:?} is bound to another claim"));
    }
    check_node(cluster, &volume)?;
    let (sizes, claim_uid) = (Claimed::of(&claim), claim.metadata.uid.unwrap_or_default());
    Ok(Arc::new(Bound { volume, claim_uid, sizes }))
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
fn check_node(cluster: &Cluster, volume: &PersistentVolume) -> Result<(), String> {
    let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|a| a.required.as_ref()) else { return Ok(()) };
    let node = cluster.own_node().borrow().object.clone();
    let none = BTreeMap::new();
    let labels = node.as_ref().and_then(|n| n.metadata.labels.as_ref()).unwrap_or(&none);
    match any_term_matches(&required.node_selector_terms, &cluster.node_name, labels) {
        true => Ok(()),
        false => Err("MountVolume.NodeAffinity check failed: no matching NodeSelectorTerms".to_owned()),
    }
}

fn words(error: &ClientError) -> String {
    match error {
        ClientError::Api { answer, .. } => answer.message.clone(),
        other => other.to_string(),
    }
}
