//! What the node and its containers use: `/stats/summary`, `/metrics/resource`, `/metrics/cadvisor`.
//!
//! Containers are measured by the runtime, the machine by /proc. What nobody measured is left out, never written as zero.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base::metrics::CONTENT_TYPE;
use base::time::{Clock, Wall};
use cri::v1;
use http::{StatusCode, header};

use crate::pods::status_board::StatusBoard;
use crate::ports::Runtime;
use crate::volumes::VolumeFigures;

mod cadvisor;
mod machine;
mod resource;
mod summary;

pub use machine::Meter;

/// Where the figures come from.
#[derive(Clone)]
pub struct Sources {
    pub runtime: Arc<dyn Runtime>,
    pub pods: Arc<StatusBoard>,
    pub clock: Arc<dyn Clock>,
    pub node_name: Arc<str>,
    /// The kubelet's root directory: its filesystem is the node's.
    pub root: PathBuf,
    pub meter: Arc<Meter>,
    pub volumes: Arc<VolumeFigures>,
}

/// One container's figures, and whose it is.
#[derive(Clone, Debug, Default)]
struct Measured {
    id: String,
    container: String,
    pod: String,
    namespace: String,
    uid: String,
    image: String,
    started: Option<i64>,
    cpu: Option<v1::CpuUsage>,
    memory: Option<v1::MemoryUsage>,
    layer: Option<v1::FilesystemUsage>,
    swap: Option<v1::SwapUsage>,
}

/// All that could be measured now.
#[derive(Clone, Debug, Default)]
struct Look {
    now: Wall,
    machine: machine::Machine,
    containers: Vec<Measured>,
    images: Option<v1::FilesystemUsage>,
    /// The runtime did not answer.
    blind: bool,
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
    let look = sources.look().await;
    if look.blind {
        let text = "the container runtime does not answer\n";
        return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
    }
    axum::Json(summary::summary(&sources, &look, brief)).into_response()
}

async fn show_resource(State(sources): State<Sources>) -> Response {
    let look = sources.look().await;
    text(|out| resource::write(out, &look))
}

async fn show_cadvisor(State(sources): State<Sources>) -> Response {
    let look = sources.look().await;
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

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sources")
    }
}

impl Sources {
    async fn look(&self) -> Look {
        let (meter, root, now) = (self.meter.clone(), self.root.clone(), self.clock.now());
        let machine = tokio::task::spawn_blocking(move || meter.read(&root, now.mono));
        let (machine, stats, images) =
            tokio::join!(machine, self.runtime.list_container_stats(), self.runtime.image_fs_info());
        let blind =
            stats.as_ref().inspect_err(|error| tracing::warn!(%error, "containers not measured")).is_err();
        let mut containers: Vec<_> =
            stats.unwrap_or_default().into_iter().filter_map(|s| self.of(s)).collect();
        containers
            .sort_by(|a, b| (&a.namespace, &a.pod, &a.container).cmp(&(&b.namespace, &b.pod, &b.container)));
        let images = images.ok().and_then(|i| i.image_filesystems.into_iter().next());
        Look { now: now.wall, machine: machine.unwrap_or_default(), containers, images, blind }
    }

    /// A running container of a Pod that we know; others are nobody's.
    fn of(&self, stats: v1::ContainerStats) -> Option<Measured> {
        let about = stats.attributes?;
        let label = |name: &str| about.labels.get(name).cloned();
        let uid = label("io.kubernetes.pod.uid")?;
        let container = label("io.kubernetes.container.name")?;
        let entry = self.pods.get(&uid)?;
        let status = kubelet_core::log_choice::find(&entry.status, &container)?;
        let ours = status.container_id.as_deref().is_some_and(|id| id.ends_with(&about.id));
        let running = status.state.as_ref().and_then(|s| s.running.as_ref()).filter(|_| ours)?;
        Some(Measured {
            pod: label("io.kubernetes.pod.name")?,
            namespace: label("io.kubernetes.pod.namespace")?,
            image: status.image.clone(),
            started: running.started_at.as_ref().map(|t| t.0.as_second()),
            id: about.id,
            uid,
            container,
            cpu: stats.cpu,
            memory: stats.memory,
            layer: stats.writable_layer,
            swap: stats.swap,
        })
    }
}

// === impl Measured ===

impl Measured {
    fn cpu_nanos(&self) -> Option<u64> {
        value(self.cpu.as_ref()?.usage_core_nano_seconds.as_ref())
    }

    fn cpu_seconds(&self) -> Option<f64> {
        self.cpu_nanos().map(|n| n as f64 / 1e9)
    }

    fn working_set(&self) -> Option<u64> {
        value(self.memory.as_ref()?.working_set_bytes.as_ref())
    }

    fn swap_used(&self) -> Option<u64> {
        value(self.swap.as_ref()?.swap_usage_bytes.as_ref())
    }
}

impl Look {
    /// Containers by Pod, in order.
    fn pods(&self) -> impl Iterator<Item = &[Measured]> {
        self.containers.chunk_by(|a, b| a.uid == b.uid)
    }
}

fn value(value: Option<&v1::UInt64Value>) -> Option<u64> {
    value.map(|v| v.value)
}

#[cfg(test)]
pub(super) mod tests;
