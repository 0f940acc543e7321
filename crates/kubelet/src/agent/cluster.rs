//! What joins the node to its cluster, one line each.

use std::sync::Arc;

use kubelet_core::dispatch::Known;
use supervise::Supervisor;
use tokio::sync::{Mutex, watch};

use crate::cluster::certificates::{self, Upkeep};
use crate::cluster::{Cluster, event_writer, own_node};
use crate::node::{self, ClusterDeps};
use crate::pods::node::Node;
use crate::pods::{mirrors, status_writer};
use crate::start_error::StartError;

/// Starts everything that needs the API server and is not asked for by a Pod.
pub fn join(deps: &ClusterDeps<'_>) -> Result<(), StartError> {
    tell_of_pods(deps.cluster, deps.node, &deps.known, deps.tasks);
    let events = node::start(deps)?;
    let upkeep = Upkeep {
        cluster: deps.cluster,
        loaded: deps.loaded,
        version: deps.version,
        clock: &deps.node.clock,
        metrics: &deps.node.metrics,
        rng_for: &|label| deps.node.rng_for(label),
        events: &events,
    };
    certificates::start(&upkeep, deps.tasks);
    Ok(())
}

/// Keeps what the API server knows of Pods in step with what they do.
pub fn tell_of_pods(
    cluster: &Arc<Cluster>,
    node: &Arc<Node>,
    known: &watch::Receiver<Arc<Known>>,
    tasks: &Supervisor,
) {
    let (cluster, node) = (cluster.clone(), node.clone());
    tasks.lasting("own_node", (cluster.clone(), node.rng_for("own node")), |(cluster, rng), end| {
        own_node::run(cluster, rng, end)
    });
    tasks.lasting("status_writer", (cluster.clone(), node.clone()), |(cluster, node), end| {
        status_writer::run(cluster, node, end)
    });
    let of_mirrors = (cluster.clone(), node.clone(), known.clone());
    tasks.lasting("mirror_pods", of_mirrors, |(cluster, node, known), end| {
        mirrors::run(cluster, node, known, end)
    });
    if let Some(queue) = cluster.take_events() {
        let writer = event_writer::Writer {
            clock: node.clock.clone(),
            rng: node.rng_for("events"),
            queue: Arc::new(Mutex::new(queue)),
            cluster,
        };
        tasks.lasting("event_writer", writer, event_writer::Writer::run);
    }
}
