//! PodTopologyLabels: a Pod gets the zone and region of its node as labels, when it is bound or made with a node.

use serde_json::Value;

use super::Chain;
use crate::objects::places;
use apiserver_core::admission::{Operation, Review};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub(super) async fn mutate(chain: &Chain, review: &Review<'_>, pod: &mut Value) -> Result<(), ApiStatus> {
    if !review.is_on("", "pods") || review.operation != Operation::Create {
        return Ok(());
    }
    let node = doc::text(pod, "spec.nodeName").to_owned();
    copy(chain, &node, pod).await
}

/// The labels of a Binding become the Pod's.
pub(super) async fn mutate_binding(
    chain: &Chain,
    review: &Review<'_>,
    binding: &mut Value,
) -> Result<(), ApiStatus> {
    if !review.is_at("", "pods") || doc::text(binding, "target.kind") != "Node" {
        return Ok(());
    }
    let node = doc::text(binding, "target.name").to_owned();
    copy(chain, &node, binding).await
}

/// A node that is not there has none, and is nobody's fault here.
async fn copy(chain: &Chain, node: &str, to: &mut Value) -> Result<(), ApiStatus> {
    if node.is_empty() {
        return Ok(());
    }
    let Some(node) = chain.objects.find(places::NODES, "", node).await? else { return Ok(()) };
    for label in LABELS {
        if let Some(value) = node.object["metadata"]["labels"][label].as_str() {
            to["metadata"]["labels"][label] = value.into();
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::testing::{Ask, Bench};
    use super::*;

    #[tokio::test]
    async fn a_pod_learns_the_zone_of_its_node() {
        let labels =
            json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r", "other": "o"});
        let node = json!({"metadata": {"name": "n", "labels": labels}});
        let bench = Bench::with(&[(places::NODES, node)]).await;
        let wanted = json!({"topology.kubernetes.io/zone": "z", "topology.kubernetes.io/region": "r"});
        let ask = Ask::create("", "pods/binding", "ns");
        let mut binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        bench.chain.bind(&ask.review(), &mut binding).await.unwrap_err();
        mutate_binding(&bench.chain, &ask.review(), &mut binding).await.unwrap();
        assert_eq!(binding["metadata"]["labels"], wanted);
        let ask = Ask::create("", "pods", "ns");
        let mut pod = json!({"metadata": {"name": "p", "labels": {"topology.kubernetes.io/zone": "old"}},
            "spec": {"nodeName": "n"}});
        mutate(&bench.chain, &ask.review(), &mut pod).await.unwrap();
        assert_eq!(pod["metadata"]["labels"], wanted);
        for spec in [json!({}), json!({"nodeName": "gone"})] {
            let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
            mutate(&bench.chain, &ask.review(), &mut pod).await.unwrap();
            assert_eq!(pod["metadata"], json!({"name": "p"}));
        }
    }

    #[tokio::test]
    async fn nobody_binds_in_a_namespace_that_ends_nor_as_a_node() {
        let ending = json!({"metadata": {"name": "ns", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Terminating"}});
        let alive = json!({"metadata": {"name": "other"}, "status": {"phase": "Active"}});
        let bench = Bench::with(&[(places::NAMESPACES, ending), (places::NAMESPACES, alive)]).await;
        let mut binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        let ask = |namespace| Ask::create("", "pods/binding", namespace);
        let refused = bench.chain.bind(&ask("ns").review(), &mut binding).await.unwrap_err();
        assert!(refused.message.contains("being terminated"), "{}", refused.message);
        bench.chain.bind(&ask("other").review(), &mut binding).await.unwrap();
        let node = apiserver_core::request::User::new("system:node:n", &["system:nodes"]);
        bench.chain.bind(&ask("other").by(node).review(), &mut binding).await.unwrap_err();
    }
}
