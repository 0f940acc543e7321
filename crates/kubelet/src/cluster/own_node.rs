//! This node's object, as the API server has it: its labels and taints decide who may run here, its UID
//! makes it the owner of its mirror Pods.

use std::sync::Arc;

use api::json::FromJson;
use base::rng::Rng;
use client::{Event, Resource, Watcher};
use k8s_openapi::api::core::v1::Node;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::Cluster;

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub struct OwnNode {
    /// The API server was asked at least once.
    pub asked: bool,
    /// None before it is registered, and after somebody deleted it.
    pub object: Option<Arc<Node>>,
}

/// Watches until cancelled.
pub(super) async fn run(cluster: Arc<Cluster>, rng: Rng, token: CancellationToken) {
    let resource = Resource {
        field_selector: format!("metadata.name={}", cluster.node_name),
        ..Resource::new("/api/v1/nodes")
    };
    let mut watcher = Watcher::new(cluster.client.clone(), resource, rng);
    while let Some(event) = token.run_until_cancelled(watcher.next()).await {
        let object = match event {
            Event::Listed(all) => all.first().and_then(|raw| decode(raw)),
            Event::Applied(raw) => decode(&raw),
            Event::Deleted(_) => None,
        };
        cluster.own_node.send_replace(OwnNode { asked: true, object });
    }
}

fn decode(raw: &RawValue) -> Option<Arc<Node>> {
    match Node::from_json(raw.get().as_bytes()) {
        Ok(node) => Some(Arc::new(node)),
        Err(error) => {
            tracing::warn!(%error, "this node's object is not understood");
            None
        }
    }
}
