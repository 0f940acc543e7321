//! What is done for a Pod that has a node: its volumes are bound, then the Pod is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{Client, ClientError, Request};
use jiff::Timestamp;
use scheduler_core::objects::{BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE};
use scheduler_core::plugins::default_binder;
use scheduler_core::plugins::volume_binding::VolumePlan;
use scheduler_core::pod::Pod;
use scheduler_core::queue::History;
use scheduler_core::{Key, Name};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::extenders::Extenders;
use crate::status::{self, Nomination};

const LOOK_AGAIN: Duration = Duration::from_secs(1);
const PREEMPTED: &str = "preempted by DefaultPreemption";

/// A Pod with its node, and what is to be done for it.
#[derive(Clone, Debug)]
pub(crate) struct Binding {
    pub(crate) pod: Arc<Pod>,
    pub(crate) node: Name,
    pub(crate) volumes: VolumePlan,
    /// None where there is nothing to do before the Pod is bound.
    pub(crate) pre_bind: Option<Arc<PreBind>>,
    pub(crate) timeout: Duration,
    pub(crate) history: History,
}

/// The time before a Pod is bound. It ends once: by us, or by one who needs the room.
#[derive(Debug, Default)]
pub(crate) struct PreBind {
    has_ended: AtomicBool,
    token: CancellationToken,
}

/// How it went: told to the loop.
#[derive(Debug)]
pub(crate) enum Outcome {
    Bound {
        binding: Binding,
        took: Duration,
    },
    Failed {
        binding: Binding,
        error: String,
    },
    /// Others were told to make way for this Pod, or could not be.
    Preempted {
        uid: Name,
        failed: bool,
    },
}

// === impl PreBind ===

impl PreBind {
    /// Ends the binding before the Pod is on its node; false if it is too late for that.
    pub(crate) fn cancel(&self) -> bool {
        let is_first = self.end();
        if is_first {
            self.token.cancel();
        }
        is_first
    }

    fn end(&self) -> bool {
        !self.has_ended.swap(true, Ordering::AcqRel)
    }
}

/// Others learn at once where the Pod will be, though its volumes take their time.
async fn nominate(client: &Client, binding: &Binding) {
    let nomination = Nomination::Set(binding.node.clone());
    let Some(patch) = status::patch(&binding.pod, None, &nomination, Timestamp::now()) else { return };
    if let Err(error) = status::send(client, &binding.pod, &patch).await {
        tracing::warn!(pod = %binding.pod.key, %error, "the nominated node is not written");
    }
}

/// Binds volumes and Pod.
pub(crate) async fn bind(client: &Client, extenders: &Extenders, binding: &Binding) -> Result<(), String> {
    if let Some(pre_bind) = &binding.pre_bind {
        let failed = |error: String| format!("running PreBind plugin \"VolumeBinding\": {error}");
        nominate(client, binding).await;
        let bound = pre_bind.token.run_until_cancelled(bind_volumes(client, binding)).await;
        bound.unwrap_or_else(|| Err(PREEMPTED.to_owned())).map_err(failed)?;
        if !pre_bind.end() {
            return Err(PREEMPTED.to_owned());
        }
    }
    let Binding { pod, node, .. } = binding;
    if extenders.bind(pod, node).await? {
        return Ok(());
    }
    let (namespace, name) = (&pod.key.namespace, &pod.key.name);
    let object = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": &**namespace, "name": &**name, "uid": &*pod.uid},
        "target": {"kind": "Node", "name": &**node},
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
    let answer = client.ask_bytes(Request::post(path, object.to_string()).once()).await;
    answer.map(|_| ()).map_err(|error| default_binder::failure(&said(&error)))
}

/// The server's own words, where it has some.
fn said(error: &ClientError) -> String {
    match error {
        ClientError::Api { answer, .. } => answer.to_string(),
        other => other.to_string(),
    }
}

async fn bind_volumes(client: &Client, binding: &Binding) -> Result<(), String> {
    for (volume, claim) in &binding.volumes.bindings {
        let failed = |e: ClientError| said(&e);
        let claim: Value = client.ask(Request::get(claim_path(claim))).await.map_err(failed)?;
        let path = format!("/api/v1/persistentvolumes/{volume}");
        let mut object: Value = client.ask(Request::get(path.clone())).await.map_err(failed)?;
        if !set_claim(&mut object, &claim)? {
            continue;
        }
        client.ask_bytes(Request::put(path, object.to_string())).await.map_err(failed)?;
    }
    for claim in &binding.volumes.provisions {
        let patch = json!({"metadata": {"annotations": {SELECTED_NODE: &*binding.node}}});
        let request = Request::strategic_patch(claim_path(claim), patch.to_string());
        client.ask_bytes(request).await.map_err(|e| said(&e))?;
    }
    wait_for_volumes(client, binding).await.map_err(|e| format!("binding volumes: {e}"))
}

fn claim_path(key: &Key) -> String {
    format!("/api/v1/namespaces/{}/persistentvolumeclaims/{}", key.namespace, key.name)
}

/// Promises a volume to a claim; false where it is already.
fn set_claim(volume: &mut Value, claim: &Value) -> Result<bool, String> {
    let meta = &claim["metadata"];
    let known = &volume["spec"]["claimRef"];
    if known.is_object() {
        let is_same = known["name"] == meta["name"] && known["namespace"] == meta["namespace"];
        if !is_same || known["uid"].as_str().is_some_and(|uid| !uid.is_empty() && meta["uid"] != uid) {
            return Err(format!("volume {} is bound to another claim", volume["metadata"]["name"]));
        }
        if known["uid"] == meta["uid"] {
            return Ok(false);
        }
    } else {
        volume["metadata"]["annotations"][BOUND_BY_CONTROLLER] = json!("yes");
    }
    volume["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta["namespace"], "name": meta["name"],
        "uid": meta["uid"], "resourceVersion": meta["resourceVersion"],
    });
    Ok(true)
}

async fn wait_for_volumes(client: &Client, binding: &Binding) -> Result<(), String> {
    let deadline = Instant::now() + binding.timeout;
    loop {
        tokio::time::sleep(LOOK_AGAIN).await;
        if are_bound(client, binding).await? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err("context deadline exceeded".to_owned());
        }
    }
}

/// Whether all are; an error where they never will be on that node.
async fn are_bound(client: &Client, binding: &Binding) -> Result<bool, String> {
    let mut all = true;
    let get = async |key: &Key| client.ask::<Value>(Request::get(claim_path(key))).await;
    let is_bound = |claim: &Value| {
        claim["spec"]["volumeName"].as_str().is_some_and(|v| !v.is_empty())
            && claim["metadata"]["annotations"].get(BIND_COMPLETED).is_some()
    };
    for (volume, key) in &binding.volumes.bindings {
        let path = format!("/api/v1/persistentvolumes/{volume}");
        let object: Value = client
            .ask(Request::get(path))
            .await
            .map_err(|e| format!("failed to check binding: {}", said(&e)))?;
        if object["spec"]["claimRef"]["uid"].as_str().is_none_or(str::is_empty) {
            return Err(format!("ClaimRef got reset for pv \"{volume}\""));
        }
        let claim = get(key).await.map_err(|e| format!("failed to check binding: {}", said(&e)))?;
        all &= is_bound(&claim);
    }
    for key in &binding.volumes.provisions {
        let claim = get(key).await.map_err(|e| format!("failed to check provisioning pvc: {}", said(&e)))?;
        let selected = &claim["metadata"]["annotations"][SELECTED_NODE];
        match selected.as_str() {
            None => return Err(format!("selectedNode annotation reset for PVC \"{}\"", key.name)),
            Some(node) if *node != *binding.node => {
                return Err(format!("provisioning failed for PVC \"{}\"", key.name));
            }
            Some(_) => all &= is_bound(&claim),
        }
    }
    if !all {
        let pod = format!("/api/v1/namespaces/{}/pods/{}", binding.pod.key.namespace, binding.pod.key.name);
        let pod: Value = client
            .ask(Request::get(pod))
            .await
            .map_err(|e| format!("pod does not exist any more: {}", said(&e)))?;
        if pod["metadata"]["uid"] != *binding.pod.uid {
            return Err("pod does not exist any more".to_owned());
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_bound_or_its_binding_is_ended_never_both() {
        let ended = PreBind::default();
        assert!(ended.cancel() && ended.token.is_cancelled());
        assert!(!ended.end(), "it must not be bound any more");
        let bound = PreBind::default();
        assert!(bound.end());
        assert!(!bound.cancel() && !bound.token.is_cancelled(), "it is too late");
    }

    #[test]
    fn a_volume_is_promised_once_and_to_one_claim() {
        let claim = |uid: &str| json!({"metadata": {"namespace": "n", "name": "c", "uid": uid, "resourceVersion": "7"}});
        let mut volume = json!({"metadata": {"name": "v"}, "spec": {}});
        assert_eq!(set_claim(&mut volume, &claim("u")), Ok(true));
        assert_eq!(volume["metadata"]["annotations"][BOUND_BY_CONTROLLER], "yes");
        assert_eq!(volume["spec"]["claimRef"]["uid"], "u");
        assert_eq!(set_claim(&mut volume, &claim("u")), Ok(false));
        assert!(set_claim(&mut volume, &claim("w")).is_err());
        let mut by_hand =
            json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "n", "name": "c"}}});
        assert_eq!(set_claim(&mut by_hand, &claim("u")), Ok(true));
        assert!(by_hand["metadata"].get("annotations").is_none(), "a user bound it");
    }
}
