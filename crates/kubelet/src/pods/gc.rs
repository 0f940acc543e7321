//! Collects dead containers, empty sandboxes, log directories without a Pod, links without a log and forgotten shims.
//! What goes is decided in `kubelet_core::gc`; Pods nobody wants are ended by the dispatcher.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::ids::{ContainerId, PodUid};
use kubelet_core::dispatch::Known;
use kubelet_core::gc::{self, GcInput, GcPolicy};
use kubelet_core::observed::{ContainerState, FoundPod};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pods::node::Node;

mod shims;

const PERIOD: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct GcSettings {
    pub policy: GcPolicy,
    pub pod_logs: PathBuf,
    pub container_logs: PathBuf,
    /// Where the runtime listens; shims that it forgot are found by it.
    pub runtime: PathBuf,
}

/// Collects as soon as it is known what to keep, and then every minute, until cancelled.
pub async fn run(
    node: Arc<Node>,
    mut known: watch::Receiver<Arc<Known>>,
    settings: GcSettings,
    token: CancellationToken,
) {
    tokio::select! {
        () = token.cancelled() => return,
        _ = known.wait_for(|k| k.sources_ready) => {}
        () = tokio::time::sleep(PERIOD) => {}
    }
    let mut tick = tokio::time::interval(PERIOD);
    let mut suspects = shims::Suspects::default();
    let work = async {
        loop {
            tick.tick().await;
            match node.observer.survey().await {
                Ok(found) => {
                    collect(&node, &found, &known, &settings).await;
                    suspects.look(&settings.runtime, &found).await;
                }
                Err(error) => tracing::warn!(%error, "nothing collected: the runtime could not be listed"),
            }
        }
    };
    tokio::select! {
        biased;
        () = token.cancelled() => {}
        () = work => {}
    }
}

/// Removes what dead containers there are, also those of Pods that have ended and are still listed. For who needs room.
pub async fn reclaim(
    node: &Node,
    known: &watch::Receiver<Arc<Known>>,
    settings: &GcSettings,
) -> Result<(), String> {
    let (found, in_use, sources_ready) = for_room(node, known).await?;
    remove_dead(node, &input(node, (&found, &in_use, sources_ready), settings)).await;
    Ok(())
}

/// How many containers that would be.
pub async fn reclaimable(
    node: &Node,
    known: &watch::Receiver<Arc<Known>>,
    settings: &GcSettings,
) -> Result<usize, String> {
    let (found, in_use, sources_ready) = for_room(node, known).await?;
    Ok(gc::containers_to_remove(&input(node, (&found, &in_use, sources_ready), settings)).len())
}

/// What there is, and whose things stay when room is needed.
async fn for_room(
    node: &Node,
    known: &watch::Receiver<Arc<Known>>,
) -> Result<(Vec<FoundPod>, BTreeSet<PodUid>, bool), String> {
    let found = node.observer.survey().await.map_err(|e| e.to_string())?;
    let known = known.borrow().clone();
    let has_ended = |uid: &PodUid| node.board.get(uid.as_str()).is_some_and(|e| e.finished);
    let in_use = known.pods.iter().filter(|uid| !has_ended(uid)).cloned().collect();
    Ok((found, in_use, known.sources_ready))
}

fn input<'a>(
    node: &Node,
    (found, known, sources_ready): (&'a [FoundPod], &'a BTreeSet<PodUid>, bool),
    settings: &GcSettings,
) -> GcInput<'a> {
    GcInput { found, known, sources_ready, policy: settings.policy, now: node.now().wall }
}

/// One collection of what belongs to Pods.
async fn collect(
    node: &Node,
    found: &[FoundPod],
    known: &watch::Receiver<Arc<Known>>,
    settings: &GcSettings,
) {
    // Asked after the runtime: a Pod that began while it answered is known, and its things stay.
    let known = known.borrow().clone();
    let input = input(node, (found, &known.pods, known.sources_ready), settings);
    remove_dead(node, &input).await;
    if known.sources_ready {
        collect_logs(&input, settings).await;
    }
}

async fn remove_dead(node: &Node, input: &GcInput<'_>) {
    for removal in gc::containers_to_remove(input) {
        let id = removal.id.as_str();
        if removal.stop_first && node.runtime.stop_container(id, 2).await.is_err() {
            continue;
        }
        if let Err(error) = remove_container(node, &removal.id, false).await {
            tracing::warn!(container = id, error, "dead container not removed");
        }
    }
    for id in gc::sandboxes_to_remove(input) {
        if let Err(error) = node.runtime.remove_pod_sandbox(id.as_str()).await {
            tracing::warn!(sandbox = %id, %error, "dead sandbox not removed");
        }
    }
}

/// Removes a dead container, and before it what it wrote: afterwards nobody can say where that is.
pub async fn remove_container(node: &Node, id: &ContainerId, keep_logs: bool) -> Result<(), String> {
    let id = id.as_str();
    if !keep_logs {
        let status = match node.runtime.container_status(id).await {
            Err(error) if error.is_not_found() => return Ok(()),
            other => other.map_err(|e| e.to_string())?.status,
        };
        if let Some(status) = status {
            node.files.remove_logs(&status).await.map_err(|e| format!("remove its logs: {e}"))?;
        }
    }
    match node.runtime.remove_container(id).await {
        Err(error) if !error.is_not_found() => Err(error.to_string()),
        _ => Ok(()),
    }
}

async fn collect_logs(input: &GcInput<'_>, settings: &GcSettings) {
    let dirs = list(settings.pod_logs.clone()).await;
    let dead: Vec<String> =
        gc::log_directories_to_remove(&dirs, input).into_iter().map(str::to_owned).collect();
    let links = list(settings.container_logs.clone()).await;
    let links = links.into_iter().map(|name| (state_of(&name, input.found), name)).collect();
    let settings = settings.clone();
    let done = tokio::task::spawn_blocking(move || {
        remove_directories(&settings, &dead);
        remove_links(&settings, links);
    });
    if done.await.is_err() {
        tracing::error!("log collection died");
    }
}

fn state_of(link: &str, found: &[FoundPod]) -> Option<ContainerState> {
    let id = gc::container_of_log_link(link)?;
    found.iter().find_map(|p| p.observed.container(&id)).map(|c| c.state)
}

fn remove_directories(settings: &GcSettings, names: &[String]) {
    for name in names {
        let removed = sys::fd::open_dir(&settings.pod_logs)
            .map_err(|e| e.to_string())
            .and_then(|root| sys::tree::remove(root, name.as_ref()).map_err(|e| e.to_string()));
        match removed {
            Ok(()) => tracing::info!(directory = name, "log directory without a Pod removed"),
            Err(error) => tracing::warn!(directory = name, error, "log directory not removed"),
        }
    }
}

fn remove_links(settings: &GcSettings, links: Vec<(Option<ContainerState>, String)>) {
    for (state, name) in links {
        let path = settings.container_logs.join(&name);
        let is_link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        if is_link
            && gc::is_dead_link(path.exists(), state)
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(link = name, %error, "dead log link not removed");
        }
    }
}

/// Names in a directory; none if it is not there.
async fn list(dir: PathBuf) -> Vec<String> {
    let read = move || -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(dir)?;
        Ok(entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect())
    };
    tokio::task::spawn_blocking(read).await.map(Result::unwrap_or_default).unwrap_or_default()
}
