//! Pods that the API server bound to this node.
//!
//! Nothing is defaulted or validated here: the API server did. Its first list is the first report; while it
//! is out of reach the last known set stays, and with it everything that runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::json::FromJson;
use api::pod::static_pod::{SEEN_ANNOTATION, SOURCE_ANNOTATION};
use base::ids::PodUid;
use base::rng::Rng;
use client::{Event, Resource, Watcher};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kubelet_core::pod::news::is_news;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Context, Outlet, SourceName, SourceUpdate};
use crate::cluster::Cluster;
use crate::cluster::api_pods::ApiPod;

/// Watches until cancelled. Admission goes by the node's own labels and taints, so the node is heard of first.
pub async fn run(
    cluster: Arc<Cluster>,
    context: Context,
    rng: Rng,
    tx: mpsc::Sender<SourceUpdate>,
    token: CancellationToken,
) {
    let watching = async {
        // Fails only when the cluster is gone, and then so are we.
        let _ = cluster.own_node().wait_for(|node| node.asked).await;
        let resource = Resource {
            field_selector: format!("spec.nodeName={}", cluster.node_name),
            ..Resource::new("/api/v1/pods")
        };
        let mut watcher = Watcher::new(cluster.client.clone(), resource, rng);
        let mut outlet = Outlet::new(SourceName::Api, &context, tx, &token);
        let mut known = Known { cluster: &cluster, context: &context, pods: BTreeMap::new() };
        loop {
            let event = watcher.next().await;
            known.take(event);
            if !outlet.emit(known.pods.values().cloned().collect()).await {
                break;
            }
        }
    };
    let _ = token.run_until_cancelled(watching).await;
}

/// Every Pod as its task knows it.
struct Known<'a> {
    cluster: &'a Cluster,
    context: &'a Context,
    pods: BTreeMap<PodUid, Arc<Pod>>,
}

// === impl Known ===

impl Known<'_> {
    fn take(&mut self, event: Event) {
        let api_pods = &self.cluster.api_pods;
        match event {
            Event::Listed(all) => {
                let all: Vec<Pod> = all.iter().filter_map(|raw| decode(raw)).collect();
                api_pods.replace(all.iter().filter_map(ApiPod::of));
                let mut last = std::mem::take(&mut self.pods);
                for pod in all {
                    if let Some(uid) = uid_of(&pod)
                        && let Some(old) = last.remove(&uid)
                    {
                        self.pods.insert(uid, old);
                    }
                    self.apply(pod);
                }
            }
            Event::Applied(raw) => {
                let Some(pod) = decode(&raw) else { return };
                ApiPod::of(&pod).into_iter().for_each(|p| api_pods.apply(p));
                self.apply(pod);
            }
            Event::Deleted(raw) => {
                let Some(uid) = decode(&raw).as_ref().and_then(uid_of) else { return };
                api_pods.remove(uid.as_str());
                self.pods.remove(&uid);
            }
        }
    }

    /// An echo of what we wrote ourselves changes nothing for the Pod.
    fn apply(&mut self, mut pod: Pod) {
        let Some(uid) = uid_of(&pod) else { return };
        if ApiPod::of(&pod).is_some_and(|p| p.mirrors.is_some()) {
            // It runs already, as the static Pod it mirrors.
            return;
        }
        let old = self.pods.get(&uid);
        if old.is_some_and(|old| !is_news(old, &pod)) {
            return;
        }
        let known_since = old.and_then(|p| p.metadata.annotations.as_ref()?.get(SEEN_ANNOTATION).cloned());
        let known_since = known_since.unwrap_or_else(|| self.now());
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(SOURCE_ANNOTATION.to_owned(), SourceName::Api.as_str().to_owned());
        annotations.insert(SEEN_ANNOTATION.to_owned(), known_since);
        self.pods.insert(uid, Arc::new(pod));
    }

    fn now(&self) -> String {
        let now = self.context.clock.now().wall;
        Timestamp::from_nanosecond(i128::from(now.0)).map(|t| t.to_string()).unwrap_or_default()
    }
}

fn uid_of(pod: &Pod) -> Option<PodUid> {
    pod.metadata.uid.as_deref().map(PodUid::from)
}

/// A Pod that cannot be read is named and passed over: the others must not suffer.
fn decode(raw: &RawValue) -> Option<Pod> {
    match Pod::from_json(raw.get().as_bytes()) {
        Ok(mut pod) => {
            // Often larger than all the rest, and nobody here looks at it.
            pod.metadata.managed_fields = None;
            Some(pod)
        }
        Err(error) => {
            let start: String = raw.get().chars().take(200).collect();
            tracing::error!(%error, start, "a Pod from the API server is not understood");
            None
        }
    }
}
