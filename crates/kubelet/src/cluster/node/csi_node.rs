//! Keeps the node's CSINode, without which it is not ready: a scheduler that does not find it would place Pods
//! whose volumes cannot be mounted.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use client::{ClientError, Request};
use k8s_openapi::api::storage::v1::CSINode;
use kubelet_core::node::csi_node::{Step, step};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;

const ALL: &str = "/apis/storage.k8s.io/v1/csinodes";
const PAUSE_MIN: Duration = Duration::from_millis(30);
const PAUSE_MAX: Duration = Duration::from_secs(30);

pub(super) struct Task {
    cluster: Arc<Cluster>,
    rng: Rng,
    trouble: watch::Sender<Option<String>>,
}

/// The task, and what keeps the node from being ready until it is done.
pub(super) fn task(cluster: Arc<Cluster>, rng: Rng) -> (Task, watch::Receiver<Option<String>>) {
    let (trouble, receiver) = watch::channel(Some("CSINode is not yet initialized".to_owned()));
    (Task { cluster, rng, trouble }, receiver)
}

// === impl Task ===

impl Task {
    /// Done once; somebody who deletes it later gets a new one at the next start, as upstream has it.
    pub(super) async fn run(mut self, token: CancellationToken) {
        if token.run_until_cancelled(self.initialize()).await.is_some() {
            // The reporter listens for as long as the node runs.
            token.cancelled().await;
        }
    }

    async fn initialize(&mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let uid = self.node_uid().await;
            match self.advance(&uid).await {
                Ok(true) => {
                    self.trouble.send_replace(None);
                    return;
                }
                Ok(false) => pause = PAUSE_MIN,
                Err(error) => {
                    // The server being away says nothing about storage.
                    if error.code().is_some() {
                        self.trouble.send_replace(Some(format!("failed to initialize CSINode: {error}")));
                    }
                    tracing::debug!(%error, "CSINode not initialized yet");
                }
            }
            sleep(pause + self.rng.up_to(pause / 10)).await;
            pause = (pause * 4).min(PAUSE_MAX);
        }
    }

    /// Waits until the node is registered.
    async fn node_uid(&self) -> String {
        let mut own = self.cluster.own_node();
        loop {
            let uid = own.borrow_and_update().object.as_ref().and_then(|n| n.metadata.uid.clone());
            match uid {
                Some(uid) => return uid,
                None if own.changed().await.is_err() => std::future::pending::<()>().await,
                None => {}
            }
        }
    }

    /// One step; true when there is none left.
    async fn advance(&self, uid: &str) -> Result<bool, ClientError> {
        let (client, name) = (&self.cluster.client, &self.cluster.node_name);
        let path = format!("{ALL}/{name}");
        let existing: Option<CSINode> = match client.ask(Request::get(path.clone())).await {
            Ok(found) => Some(found),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        match step(existing.as_ref(), name, uid) {
            Step::Nothing => return Ok(true),
            Step::Create(object) => drop(client.ask_bytes(Request::post(ALL, json(&object))).await?),
            Step::Update(object) => drop(client.ask_bytes(Request::put(path, json(&object))).await?),
            Step::Delete => {
                drop(client.ask_bytes(Request::delete(path, "{}")).await?);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn json(object: &CSINode) -> String {
    serde_json::to_string(object).unwrap_or_default()
}
