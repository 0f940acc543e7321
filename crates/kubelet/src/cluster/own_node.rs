//! This node's object, as the API server has it: its labels and taints decide who may run here, its UID
//! makes it the owner of its mirror Pods.

use std::sync::Arc;

use base::rng::Rng;
use client::{Client, ClientError, Event, Read, Request, Resource, Watcher};
use k8s_openapi::api::core::v1::Node;
use serde_json::value::RawValue;
use tokio::sync::watch;
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

/// The object for those who decide by it, and a way to ask for it when the last word may be an old one.
#[derive(Clone, Debug)]
pub struct OwnNodeView {
    known: watch::Sender<OwnNode>,
    client: Client,
    path: String,
}

/// Watches until cancelled.
pub(crate) async fn run(cluster: Arc<Cluster>, rng: Rng, token: CancellationToken) {
    let resource = Resource {
        field_selector: format!("metadata.name={}", cluster.node_name),
        ..Resource::new("/api/v1/nodes")
    };
    let mut watcher = Watcher::new(cluster.client.clone(), resource, rng);
    while let Some(event) = token.run_until_cancelled(watcher.next()).await {
        let object = match event {
            Event::Listed(all) if all.is_empty() => None,
            Event::Listed(all) => cluster.read_own(&all[0]),
            Event::Applied(raw) => cluster.read_own(&raw),
            Event::Deleted(_) => None,
        };
        learn(&cluster.own_node, object);
    }
}

impl Cluster {
    /// What is known already stays where the new one cannot be read.
    fn read_own(&self, raw: &RawValue) -> Option<Arc<Node>> {
        let known = || self.own_node.borrow().object.clone();
        match self.client.read::<Node>(raw) {
            Read::Whole(node) => Some(Arc::new(node)),
            Read::Part(node) => known().or_else(|| Some(Arc::new(node))),
            Read::Nothing => known(),
        }
    }
}

/// A watch may be behind an answer that somebody asked for: what was known once is not taken back.
fn learn(known: &watch::Sender<OwnNode>, object: Option<Arc<Node>>) {
    known.send_if_modified(|own| {
        if own.object.as_ref().zip(object.as_ref()).is_some_and(|(old, new)| is_older(new, old)) {
            return false;
        }
        *own = OwnNode { asked: true, object };
        true
    });
}

fn is_older(new: &Node, old: &Node) -> bool {
    let revision = |n: &Node| n.metadata.resource_version.as_ref().and_then(|r| r.parse::<u64>().ok());
    let both = revision(new).zip(revision(old));
    new.metadata.uid == old.metadata.uid && both.is_some_and(|(new, old)| new < old)
}

// === impl OwnNodeView ===

impl OwnNodeView {
    pub(super) fn new(known: watch::Sender<OwnNode>, client: Client, name: &str) -> OwnNodeView {
        OwnNodeView { known, client, path: super::node_path(name) }
    }

    /// As it was last seen.
    #[must_use]
    pub fn object(&self) -> Option<Arc<Node>> {
        self.known.borrow().object.clone()
    }

    /// Asks the API server, without waiting for the watch to come round.
    pub async fn ask_again(&self) -> Result<(), ClientError> {
        let node: Node = self.client.ask(Request::get(self.path.clone())).await?;
        learn(&self.known, Some(Arc::new(node)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(revision: &str, uid: &str) -> Option<Arc<Node>> {
        let mut node = Node::default();
        node.metadata.resource_version = Some(revision.to_owned());
        node.metadata.uid = Some(uid.to_owned());
        Some(Arc::new(node))
    }

    #[test]
    fn a_watch_that_lags_takes_nothing_back() {
        let known = watch::channel(OwnNode::default()).0;
        let revision = || known.borrow().object.as_ref().and_then(|n| n.metadata.resource_version.clone());
        for (object, want) in [
            (node("9", "a"), Some("9")),
            (node("10", "a"), Some("10")),
            (node("9", "a"), Some("10")),
            (node("3", "b"), Some("3")),
            (None, None),
            (node("2", "b"), Some("2")),
        ] {
            learn(&known, object);
            assert_eq!(revision().as_deref(), want);
        }
    }
}
