//! CSIDrivers, VolumeAttachments and the Secrets of volumes; what the node says of volumes in use.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rng::Rng;
use base::time::Clock;
use client::{ClientError, Request};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kubelet_core::references::TokenWant;
use kubelet_core::volumes::csi::{ClaimRef, PLUGIN, SecretRef};
use kubelet_core::volumes::expand::{News, claim_patch};
use tokio_util::sync::CancellationToken;

use super::listed::Listed;
use super::tokens::Tokens;
use crate::cluster::Cluster;
use crate::ports::Storage;

/// How long one attempt waits for others to attach a volume; the Pod tries again.
const ATTACH: Duration = Duration::from_secs(30);

/// Storage objects of the API server.
pub struct ApiStorage {
    cluster: Arc<Cluster>,
    tokens: Arc<Tokens>,
    clock: Arc<dyn Clock>,
    /// Watched from the first question on: a node without such volumes asks for none.
    drivers: Listed<CSIDriver, Arc<CSIDriver>>,
}

// === impl ApiStorage ===

impl ApiStorage {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        tokens: Arc<Tokens>,
        clock: Arc<dyn Clock>,
        rng: Rng,
        token: CancellationToken,
    ) -> Self {
        let path = "/apis/storage.k8s.io/v1/csidrivers";
        let drivers = Listed::new(cluster.client.clone(), path, Arc::new, rng, token);
        Self { cluster, tokens, clock, drivers }
    }
}

#[async_trait]
impl Storage for ApiStorage {
    async fn driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, String> {
        let known = self.drivers.all().await.ok_or("CSIDrivers have not yet been read")?;
        Ok(known.get(name).cloned())
    }

    async fn wait_attached(&self, volume: &str) -> Result<(), String> {
        let mut own = self.cluster.own_node();
        let ready =
            own.wait_for(|own| own.object.as_ref().is_some_and(|node| missing(node, volume).is_none()));
        if matches!(tokio::time::timeout(ATTACH, ready).await, Ok(Ok(_))) {
            return Ok(());
        }
        let node = self.cluster.own_node().borrow().object.clone();
        Err(node.and_then(|n| missing(&n, volume)).unwrap_or("this node's object is not known").to_owned())
    }

    async fn attachment(&self, name: &str) -> Result<VolumeAttachment, String> {
        let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
        self.cluster.client.ask(Request::get(path)).await.map_err(|e| words(&e))
    }

    async fn secret(&self, reference: &SecretRef) -> Result<BTreeMap<String, String>, String> {
        let SecretRef { namespace, name } = reference;
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let found: Result<Secret, _> = self.cluster.client.ask(Request::get(path)).await;
        let secret = found.map_err(|e| {
            let e = words(&e);
            format!("{PLUGIN}: failed to find the secret {name} in the namespace {namespace} with error: {e}")
        })?;
        let text = |v: &[u8]| String::from_utf8_lossy(v).into_owned();
        Ok(secret.data.iter().flatten().map(|(k, v)| (k.clone(), text(&v.0))).collect())
    }

    async fn tokens(&self, pod: &Pod, wants: &[TokenWant]) -> Result<String, String> {
        let mut all = serde_json::Map::new();
        for want in wants {
            let (token, ends) = self.tokens.get_dated(pod, want).await?;
            let status = serde_json::json!({"token": token, "expirationTimestamp": ends});
            all.insert(want.audience.clone(), status);
        }
        Ok(serde_json::Value::Object(all).to_string())
    }

    async fn tell_claim(&self, claim: &ClaimRef, news: &News) -> Result<(), String> {
        let ClaimRef { namespace, name, .. } = claim;
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
        let client = &self.cluster.client;
        let known: PersistentVolumeClaim =
            client.ask(Request::get(path.clone())).await.map_err(|e| words(&e))?;
        let now = jiff::Timestamp::from_second(self.clock.now().wall.secs()).unwrap_or_default();
        let patch = claim_patch(&known, news, &now.to_string()).to_string();
        let request = Request::strategic_patch(format!("{path}/status"), patch);
        client.ask_bytes(request).await.map(drop).map_err(|e| words(&e))
    }

    fn report_in_use(&self, volumes: Vec<String>) {
        self.cluster.volumes_in_use.send_if_modified(|known| {
            let is_new = known.as_ref() != Some(&volumes);
            *known = Some(volumes);
            is_new
        });
    }

    fn node_name(&self) -> &str {
        &self.cluster.node_name
    }
}

impl std::fmt::Debug for ApiStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiStorage").finish_non_exhaustive()
    }
}

/// What the node's object still lacks, in upstream's words.
fn missing(node: &Node, volume: &str) -> Option<&'static str> {
    let status = node.status.as_ref();
    let mut in_use = status.into_iter().flat_map(|s| s.volumes_in_use.iter().flatten());
    if !in_use.any(|v| v == volume) {
        return Some("Volume has not been added to the list of VolumesInUse in the node's volume status");
    }
    let mut attached = status.into_iter().flat_map(|s| s.volumes_attached.iter().flatten());
    (!attached.any(|v| v.name == volume)).then_some("Volume not attached according to node status")
}

fn words(error: &ClientError) -> String {
    match error {
        ClientError::Api { answer, .. } => answer.message.clone(),
        other => other.to_string(),
    }
}
