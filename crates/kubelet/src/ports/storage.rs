//! What the API server knows of volumes that others attach and drivers mount.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kubelet_core::references::TokenWant;
use kubelet_core::volumes::csi::{ClaimRef, SecretRef};
use kubelet_core::volumes::expand::News;

/// Storage objects, as the node uses them.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// The object that describes a driver, if there is one.
    async fn driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, String>;
    /// Returns when the node's object lists the volume as attached and as in use, which is what a controller needs to
    /// see before the volume may be touched and before it may be taken away. Otherwise says what it still waits for.
    async fn wait_attached(&self, volume: &str) -> Result<(), String>;
    async fn attachment(&self, name: &str) -> Result<VolumeAttachment, String>;
    /// What a Secret holds.
    async fn secret(&self, reference: &SecretRef) -> Result<BTreeMap<String, String>, String>;
    /// Tokens of the Pod's service account by audience, as the JSON that drivers are given.
    async fn tokens(&self, pod: &Pod, wants: &[TokenWant]) -> Result<String, String>;
    /// Writes what became of the claim's size into its status.
    async fn tell_claim(&self, claim: &ClaimRef, news: &News) -> Result<(), String>;
    /// The volumes that the node's object shall list as in use.
    fn report_in_use(&self, volumes: Vec<String>);
    /// How this node is called.
    fn node_name(&self) -> &str;
}

/// A node without an API server has no such volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoStorage;

#[async_trait]
impl Storage for NoStorage {
    async fn driver(&self, _: &str) -> Result<Option<Arc<CSIDriver>>, String> {
        Ok(None)
    }

    async fn wait_attached(&self, _: &str) -> Result<(), String> {
        Err(NONE.to_owned())
    }

    async fn attachment(&self, _: &str) -> Result<VolumeAttachment, String> {
        Err(NONE.to_owned())
    }

    async fn secret(&self, _: &SecretRef) -> Result<BTreeMap<String, String>, String> {
        Err(NONE.to_owned())
    }

    async fn tokens(&self, _: &Pod, _: &[TokenWant]) -> Result<String, String> {
        Err(NONE.to_owned())
    }

    async fn tell_claim(&self, _: &ClaimRef, _: &News) -> Result<(), String> {
        Err(NONE.to_owned())
    }

    fn report_in_use(&self, _: Vec<String>) {}

    fn node_name(&self) -> &str {
        ""
    }
}

const NONE: &str = "this node has no API server";
