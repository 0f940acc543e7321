//! Mirror Pods: what the API server shows of static Pods.
//!
//! A static Pod runs whether or not anybody knows. Its mirror has its name and its spec, belongs to the Node, and
//! carries its status; deleting the mirror changes nothing but that a new one is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::json::ToJson;
use api::pod::static_pod::{MIRROR_ANNOTATION, SOURCE_ANNOTATION};
use client::{ClientError, Request};
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kubelet_core::dispatch::Known;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::status_writer::delete_now;
use crate::cluster::Cluster;
use crate::cluster::api_pods::{ApiPod, FullName};
use crate::pods::node::Node;

/// What failed is tried again after this.
const AGAIN: Duration = Duration::from_secs(5);
/// Even if nothing seems to change, both sides are compared this often.
const SWEEP: Duration = Duration::from_secs(30);

/// Runs until cancelled.
pub(crate) async fn run(
    cluster: Arc<Cluster>,
    node: Arc<Node>,
    known: watch::Receiver<Arc<Known>>,
    token: CancellationToken,
) {
    let mut mirrors = Mirrors { cluster, node, known, held: BTreeMap::new() };
    let _ = token.run_until_cancelled(mirrors.keep()).await;
}

struct Mirrors {
    cluster: Arc<Cluster>,
    node: Arc<Node>,
    known: watch::Receiver<Arc<Known>>,
    /// Names that failed, and when they are tried again.
    held: BTreeMap<FullName, Instant>,
}

// === impl Mirrors ===

impl Mirrors {
    async fn keep(&mut self) {
        let cluster = self.cluster.clone();
        let node = self.node.clone();
        let (mut board, mut api) = (node.board.subscribe(), cluster.api_pods.subscribe());
        let mut own = cluster.own_node();
        loop {
            board.borrow_and_update();
            api.borrow_and_update();
            own.borrow_and_update();
            self.known.borrow_and_update();
            if cluster.api_pods.is_listed() {
                self.compare().await;
            }
            let now = Instant::now();
            self.held.retain(|_, until| *until > now);
            let wake = self.held.values().min().copied().unwrap_or(now + SWEEP);
            tokio::select! {
                _ = board.changed() => {}
                _ = api.changed() => {}
                _ = own.changed() => {}
                _ = self.known.changed() => {}
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    async fn compare(&mut self) {
        for entry in self.node.board.all() {
            if is_static(&entry.pod) && !entry.finished && entry.terminating.is_none() {
                self.ensure(&entry.pod).await;
            }
        }
        let mirrors = self.cluster.api_pods.mirrors();
        self.node.metrics.mirror_pods.set([], mirrors.len() as f64);
        let known = self.known.borrow().clone();
        if !known.sources_ready {
            return;
        }
        for mirror in mirrors {
            let hash = mirror.mirrors.as_deref().unwrap_or_default();
            if !known.pods.contains(hash) {
                self.delete(&mirror).await;
            }
        }
    }

    async fn ensure(&mut self, pod: &Pod) {
        let meta = &pod.metadata;
        let name = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
        match self.cluster.api_pods.mirror(&name) {
            Some(mirror) if mirror.mirrors.as_deref() == meta.uid.as_deref() && !mirror.is_deleting => {}
            Some(stale) => self.delete(&stale).await,
            None => self.create(pod, name).await,
        }
    }

    async fn create(&mut self, pod: &Pod, name: FullName) {
        let owner = self.cluster.own_node().borrow().object.clone();
        let Some(owner) = owner else { return };
        if self.held.contains_key(&name) {
            return;
        }
        let body = mirror_of(pod, &owner).to_json();
        let path = format!("/api/v1/namespaces/{}/pods", name.0);
        match self.cluster.client.ask::<Pod>(Request::post(path, body)).await {
            Ok(made) => ApiPod::of(&made).into_iter().for_each(|p| self.cluster.api_pods.apply(p)),
            Err(error) => self.hold(name, &error, "mirror Pod not made"),
        }
    }

    async fn delete(&mut self, mirror: &ApiPod) {
        let name = (mirror.namespace.clone(), mirror.name.clone());
        if self.held.contains_key(&name) {
            return;
        }
        match self.cluster.client.ask_bytes(delete_now(mirror)).await {
            Ok(_) => self.cluster.api_pods.remove(mirror.uid.as_str()),
            Err(e) if e.is_not_found() || e.is_conflict() => {
                self.cluster.api_pods.remove(mirror.uid.as_str());
            }
            Err(error) => self.hold(name, &error, "mirror Pod not deleted"),
        }
    }

    fn hold(&mut self, name: FullName, error: &ClientError, what: &'static str) {
        tracing::warn!(pod = name.1, namespace = name.0, %error, what, "mirror Pods are not as they should be");
        self.held.insert(name, Instant::now() + AGAIN);
    }
}

/// What is given by command has no place in the cluster.
fn is_static(pod: &Pod) -> bool {
    let source = pod.metadata.annotations.as_ref().and_then(|a| a.get(SOURCE_ANNOTATION));
    source.is_some_and(|s| s == "file" || s == "http")
}

/// The object that stands for a static Pod.
fn mirror_of(pod: &Pod, owner: &NodeObject) -> Pod {
    let meta = &pod.metadata;
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.insert(MIRROR_ANNOTATION.to_owned(), meta.uid.clone().unwrap_or_default());
    Pod {
        metadata: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: meta.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Node".to_owned(),
                name: owner.metadata.name.clone().unwrap_or_default(),
                uid: owner.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_mirror_says_whose_it_is() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p-n", "namespace": "s", "uid": "hash", "labels": {"a": "b"},
                         "annotations": {SOURCE_ANNOTATION: "file"}},
            "spec": {"containers": []}, "status": {"phase": "Pending"},
        }))
        .unwrap();
        let node = serde_json::from_value(json!({"metadata": {"name": "n", "uid": "node-uid"}})).unwrap();
        let mirror = serde_json::to_value(mirror_of(&pod, &node)).unwrap();
        assert_eq!(
            mirror["metadata"],
            json!({
                "name": "p-n", "namespace": "s", "labels": {"a": "b"},
                "annotations": {SOURCE_ANNOTATION: "file", MIRROR_ANNOTATION: "hash"},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "node-uid", "controller": true}],
            })
        );
        assert!(mirror.get("status").is_none());
    }

    #[test]
    fn only_manifests_are_mirrored() {
        for (source, want) in [("file", true), ("http", true), ("api", false), ("local", false)] {
            let pod = json!({"metadata": {"annotations": {SOURCE_ANNOTATION: source}}});
            assert_eq!(is_static(&serde_json::from_value(pod).unwrap()), want, "{source}");
        }
    }
}
