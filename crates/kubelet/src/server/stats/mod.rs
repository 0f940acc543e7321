//! What the node and its containers use: `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`.
//!
//! All figures come from the one [`Sampler`], and each page asks it for no more than it shows. What nobody measured is left
//! out, never written as zero.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base::metrics::CONTENT_TYPE;
use base::time::Wall;
use cri::v1;
use http::{StatusCode, header};
use kubelet_core::stats::{ContainerStats, PodStats};

use crate::host::identity::MachineIdentity;
use crate::stats::{Depth, Device, Processors, Sampler, Signals, System};
use crate::volumes::VolumeFigures;

mod cadvisor;
mod families;
mod figures;
mod resource;
mod rows;
mod summary;

/// What Pods have on disks is not counted anew for everybody who looks.
const DISK_AGE: Duration = Duration::from_secs(60);

/// Where the figures come from.
#[derive(Clone, Debug)]
pub struct Sources {
    pub sampler: Arc<Sampler>,
    pub node_name: Arc<str>,
    pub volumes: Arc<VolumeFigures>,
}

/// All that could be measured now.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    pub(super) now: Wall,
    pub(super) signals: Signals,
    pub(super) identity: MachineIdentity,
    pub(super) processors: Processors,
    system: System,
    devices: BTreeMap<(u32, u32), Device>,
    /// Those with a container that runs, by namespace and name.
    pub(super) pods: Vec<PodStats>,
    images: Option<v1::FilesystemUsage>,
    /// The runtime did not answer.
    pub(super) blind: bool,
}

pub(super) fn router(sources: Sources) -> Router {
    Router::new()
        .route("/stats/summary", get(show_summary).post(show_summary))
        .route("/stats/summary/", get(show_summary).post(show_summary))
        .route("/metrics/resource", get(show_resource))
        .route("/metrics/cadvisor", get(show_cadvisor))
        .with_state(sources)
}

async fn show_summary(State(sources): State<Sources>, RawQuery(query): RawQuery) -> Response {
    let brief = query.is_some_and(|q| q.split('&').any(|p| p == "only_cpu_and_memory=true"));
    // The network of a Pod is seen from its sandbox; that much is asked for by the brief one, too.
    let look = sources.look(if brief { Depth::Whole } else { Depth::Full }).await;
    if look.blind {
        let text = "the container runtime does not answer\n";
        return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
    }
    axum::Json(summary::summary(&sources, &look, brief)).into_response()
}

async fn show_resource(State(sources): State<Sources>) -> Response {
    let look = sources.look(Depth::Brief).await;
    text(|out| resource::write(out, &look))
}

async fn show_cadvisor(State(sources): State<Sources>) -> Response {
    let look = sources.look(Depth::Descriptors).await;
    text(|out| cadvisor::write(out, &look))
}

fn text(write: impl FnOnce(&mut String) -> std::fmt::Result) -> Response {
    let mut out = String::with_capacity(32 * 1024);
    match write(&mut out) {
        Ok(()) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], out).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

// === impl Sources ===

impl Sources {
    pub(super) async fn look(&self, depth: Depth) -> Look {
        let sampler = &self.sampler;
        let entries = sampler.board().all();
        let (signals, pods, images, (identity, processors)) = tokio::join!(
            sampler.signals(),
            sampler.pods(&entries, depth, DISK_AGE),
            sampler.image_fs(),
            sampler.machine()
        );
        let signals = signals.unwrap_or_default();
        let system = match depth {
            Depth::Brief => System::default(),
            _ => sampler.system(depth, &signals.machine).await,
        };
        let devices = if depth == Depth::Descriptors { sampler.devices().await } else { BTreeMap::new() };
        let blind =
            pods.as_ref().inspect_err(|error| tracing::warn!(%error, "containers not measured")).is_err();
        let mut pods = pods.unwrap_or_default();
        pods.retain(|pod| !pod.containers.is_empty());
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let images = images.and_then(|i| i.image_filesystems.into_iter().next());
        let now = sampler.now().wall;
        Look { now, signals, identity, processors, system, devices, pods, images, blind }
    }
}

// === impl Look ===

impl Look {
    fn containers(&self) -> impl Iterator<Item = (&PodStats, &ContainerStats)> {
        self.pods.iter().flat_map(|pod| pod.containers.iter().map(move |container| (pod, container)))
    }
}

fn cpu_seconds(c: &ContainerStats) -> Option<f64> {
    c.cpu?.nanos.map(|n| n as f64 / 1e9)
}

fn working_set(c: &ContainerStats) -> Option<f64> {
    c.memory?.working_set.map(|n| n as f64)
}

fn swap_used(c: &ContainerStats) -> Option<f64> {
    c.swap?.used.map(|n| n as f64)
}

fn started(c: &ContainerStats) -> Option<f64> {
    c.started.map(|s| s as f64)
}

#[cfg(test)]
pub(super) mod tests;
