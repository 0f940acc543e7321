//! Pods that the API server bound to this node.
//!
//! Nothing is defaulted or validated here: the API server did. Its first list is the first report; while it
//! is out of reach the last known set stays, and with it everything that runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::static_pod::{SEEN_ANNOTATION, SOURCE_ANNOTATION};
use base::ids::PodUid;
use base::rng::Rng;
use client::{Event, Read, Resource, Watcher};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kubelet_core::pod::news::is_news;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Context, SourceName, SourceSender, SourceUpdate, Unread};
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
        let mut sender = SourceSender::new(SourceName::Api, &context, tx, &token);
        let mut known =
            Known { cluster: &cluster, context: &context, pods: BTreeMap::new(), unread: Unread::default() };
        loop {
            let event = watcher.next().await;
            known.take(event);
            if known.unread.has_nameless {
                watcher.list_again();
            }
            if !sender.emit_with(known.pods.values().cloned().collect(), known.unread.clone()).await {
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
    /// Never read since we began, and not to be ended for it.
    unread: Unread,
}

// === impl Known ===

impl Known<'_> {
    fn take(&mut self, event: Event) {
        let api_pods = &self.cluster.api_pods;
        match event {
            Event::Listed(all) => {
                let all: Vec<Read<Pod>> = all.iter().filter_map(|raw| self.read(raw)).collect();
                let (mut last, mut told) = (std::mem::take(&mut self.pods), Vec::with_capacity(all.len()));
                self.unread = Unread::default();
                for read in all {
                    told.extend(whole_or_part(&read).and_then(ApiPod::of));
                    if let Some(uid) = whole_or_part(&read).and_then(uid_of)
                        && let Some(old) = last.remove(&uid)
                    {
                        self.pods.insert(uid, old);
                    }
                    self.apply(read);
                }
                if self.unread.has_nameless {
                    // Each of them may be the one that cannot be read: nobody is gone.
                    told.extend(last.keys().filter_map(|uid| api_pods.get(uid.as_str())));
                    self.pods.append(&mut last);
                }
                api_pods.replace(told);
            }
            Event::Applied(raw) => {
                let Some(read) = self.read(&raw) else { return };
                whole_or_part(&read).and_then(ApiPod::of).into_iter().for_each(|p| api_pods.apply(p));
                self.apply(read);
            }
            Event::Deleted(raw) => {
                let read = self.cluster.client.read::<Pod>(&raw);
                let Some(uid) = whole_or_part(&read).and_then(uid_of) else { return };
                api_pods.remove(uid.as_str());
                self.pods.remove(&uid);
                self.unread.uids.remove(&uid);
            }
        }
    }

    /// None for a Pod that is not bound to this node: the server was asked for others, and what it says does not make
    /// them ours.
    fn read(&self, raw: &RawValue) -> Option<Read<Pod>> {
        let read = self.cluster.client.read::<Pod>(raw);
        let node = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
        let is_ours = match &read {
            Read::Whole(pod) => *node(pod) == *self.cluster.node_name,
            // That it names no node may be the very thing that could not be read.
            Read::Part(pod) => node(pod).is_empty() || *node(pod) == *self.cluster.node_name,
            Read::Nothing => true,
        };
        if !is_ours {
            let pod = whole_or_part(&read);
            let (name, node) = (pod.and_then(|p| p.metadata.name.clone()), pod.map(node));
            tracing::warn!(pod = name, node, "the API server told of a Pod that is not bound to this node");
        }
        is_ours.then_some(read)
    }

    fn apply(&mut self, read: Read<Pod>) {
        match read {
            Read::Whole(pod) => {
                if let Some(uid) = uid_of(&pod) {
                    self.unread.uids.remove(&uid);
                }
                self.apply_whole(pod);
            }
            Read::Part(pod) => self.apply_part(pod),
            Read::Nothing => self.unread.has_nameless = true,
        }
    }

    /// What cannot be read changes nothing, but that the Pod is to go: then it goes, and what was known of it says how.
    fn apply_part(&mut self, part: Pod) {
        let Some(uid) = uid_of(&part) else { return };
        if ApiPod::of(&part).is_some_and(|p| p.mirrors.is_some()) {
            return;
        }
        let is_deleted = part.metadata.deletion_timestamp.is_some();
        match self.pods.get(&uid).cloned() {
            Some(known) if is_deleted => {
                let mut pod = Pod::clone(&known);
                pod.metadata.deletion_timestamp = part.metadata.deletion_timestamp;
                pod.metadata.deletion_grace_period_seconds = part.metadata.deletion_grace_period_seconds;
                self.apply_whole(pod);
            }
            Some(_) => {}
            None if is_deleted => self.apply_whole(part),
            None => _ = self.unread.uids.insert(uid),
        }
    }

    /// An echo of what we wrote ourselves changes nothing for the Pod.
    fn apply_whole(&mut self, mut pod: Pod) {
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

fn whole_or_part(read: &Read<Pod>) -> Option<&Pod> {
    match read {
        Read::Whole(pod) | Read::Part(pod) => Some(pod),
        Read::Nothing => None,
    }
}
