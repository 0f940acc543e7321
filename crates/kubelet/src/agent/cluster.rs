//! What joins the node to its cluster, one line each.

use std::sync::Arc;

use kubelet_core::dispatch::Known;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cluster::certificates::{self, Upkeep};
use crate::cluster::{Cluster, event_writer, own_node};
use crate::node::{self, ClusterDeps};
use crate::pods::node::Node;
use crate::pods::{mirrors, status_writer};
use crate::start_error::StartError;

/// Starts everything that needs the API server and is not asked for by a Pod.
pub fn join(deps: &mut ClusterDeps<'_>) -> Result<(), StartError> {
    tell_of_pods(deps.cluster, deps.node, &deps.known, deps.tasks, deps.token);
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
    certificates::start(&upkeep, deps.tasks, deps.token);
    Ok(())
}

/// Keeps what the API server knows of Pods in step with what they do.
pub fn tell_of_pods(
    cluster: &Arc<Cluster>,
    node: &Arc<Node>,
    known: &watch::Receiver<Arc<Known>>,
    tasks: &mut JoinSet<()>,
    token: &CancellationToken,
) {
    tasks.spawn(own_node::run(cluster.clone(), node.rng_for("own node"), token.clone()));
    tasks.spawn(status_writer::run(cluster.clone(), node.clone(), token.clone()));
    tasks.spawn(mirrors::run(cluster.clone(), node.clone(), known.clone(), token.clone()));
    if let Some(queue) = cluster.take_events() {
        let (clock, rng) = (node.clock.clone(), node.rng_for("events"));
        tasks.spawn(event_writer::run(cluster.clone(), clock, rng, queue, token.clone()));
    }
}
