//! Rotates the logs of running containers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Wall};
use cri::v1;
use flate2::{Compression, write::GzEncoder};
use futures_util::StreamExt;
use kubelet_core::log_rotation::{COMPRESSED, Rotation, TEMPORARY, rotate};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::{LogDir, LogPath};
use crate::metrics::Metrics;
use crate::ports::Runtime;

/// When a log is rotated and what is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The directory of all Pods' logs. Logs elsewhere are not ours.
    pub root: PathBuf,
    /// A log of this size is rotated; a negative one turns rotation off.
    pub max_size: i64,
    /// Files kept for each container, the current one included.
    pub max_files: usize,
    /// Logs rotated at the same time.
    pub workers: usize,
    pub interval: Duration,
}

/// The loop that keeps logs small.
#[derive(Clone)]
pub struct Rotator {
    policy: Policy,
    runtime: Arc<dyn Runtime>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    /// Where each running container logs to; asked once, because it never changes.
    paths: BTreeMap<String, Option<Log>>,
}

/// A running container's log.
#[derive(Clone, Debug)]
struct Log {
    id: String,
    path: LogPath,
    /// uid, namespace, pod, container.
    labels: [String; 4],
}

/// What a look at a log found.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Small,
    Large,
    Missing,
}

// === impl Rotator ===

impl Rotator {
    #[must_use]
    pub fn new(
        policy: Policy,
        runtime: Arc<dyn Runtime>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { policy, runtime, clock, metrics, paths: BTreeMap::new() }
    }

    /// Looks at every log each interval, until cancelled.
    pub async fn run(mut self, token: CancellationToken) {
        loop {
            if let Err(error) = self.pass().await {
                tracing::warn!(%error, "logs not looked at");
            }
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(self.policy.interval) => {}
            }
        }
    }

    /// One look at every running container's log.
    pub async fn pass(&mut self) -> cri::Result<()> {
        self.find_logs().await?;
        let logs: Vec<Log> = self.paths.values().flatten().cloned().collect();
        self.forget_metrics(&logs);
        let this = &*self;
        futures_util::stream::iter(logs)
            .for_each_concurrent(self.policy.workers.max(1), |log| async move {
                if let Err(error) = this.tend(&log).await {
                    let [uid, _, pod, container] = &log.labels;
                    tracing::warn!(pod, pod_uid = uid, container, %error, "log not rotated");
                }
            })
            .await;
        Ok(())
    }

    async fn find_logs(&mut self) -> cri::Result<()> {
        let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
        let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
        let containers = self.runtime.list_containers(Some(filter)).await?;
        let ids: BTreeSet<&str> = containers.iter().map(|c| c.id.as_str()).collect();
        self.paths.retain(|id, _| ids.contains(id.as_str()));
        for container in &containers {
            if self.paths.contains_key(&container.id) {
                continue;
            }
            // Gone since the listing, or the runtime is busy: the next pass asks again.
            let Ok(answer) = self.runtime.container_status(&container.id).await else { continue };
            let path = answer.status.map(|s| PathBuf::from(s.log_path)).unwrap_or_default();
            let log = LogPath::below(&self.policy.root, &path).map(|path| Log {
                id: container.id.clone(),
                path,
                labels: ["pod.uid", "pod.namespace", "pod.name", "container.name"].map(|l| {
                    container.labels.get(&format!("io.kubernetes.{l}")).cloned().unwrap_or_default()
                }),
            });
            self.paths.insert(container.id.clone(), log);
        }
        Ok(())
    }

    fn forget_metrics(&self, logs: &[Log]) {
        let known =
            |labels: [&str; 4]| logs.iter().any(|l| l.labels.each_ref().map(String::as_str) == labels);
        self.metrics.container_log_filesystem_used_bytes.retain(known);
    }

    async fn tend(&self, log: &Log) -> io::Result<()> {
        let (mut found, used) = self.look(log).await?;
        if found == Found::Missing {
            // Somebody removed it; the runtime still writes to the unlinked file.
            self.reopen(log).await?;
            (found, _) = self.look(log).await?;
        }
        let labels = log.labels.each_ref().map(String::as_str);
        self.metrics.container_log_filesystem_used_bytes.set(labels, used as f64);
        if found == Found::Large {
            self.rotate(log).await?;
        }
        Ok(())
    }

    async fn look(&self, log: &Log) -> io::Result<(Found, u64)> {
        let (path, max) = (log.path.clone(), self.policy.max_size);
        blocking(move || {
            let dir = path.open_dir()?;
            let used = used_bytes(&dir, &path.file)?;
            let found = match dir.stat(&path.file) {
                Ok(stat) if max >= 0 && stat.st_size >= max => Found::Large,
                Ok(_) => Found::Small,
                Err(e) if e.kind() == io::ErrorKind::NotFound && max >= 0 => Found::Missing,
                Err(e) if e.kind() == io::ErrorKind::NotFound => Found::Small,
                Err(e) => return Err(e),
            };
            Ok((found, used))
        })
        .await
    }

    async fn rotate(&self, log: &Log) -> io::Result<()> {
        let (path, now, max_files) = (log.path.clone(), self.clock.now().wall, self.policy.max_files);
        let (dir, plan) = blocking(move || make_room(&path, max_files, now)).await?;
        // From here to the reopening nothing slow: the runtime still writes to the old file.
        dir.rename(&log.path.file, &plan.rename_to)?;
        if let Err(error) = self.reopen(log).await {
            // The runtime may have made the new file although it says otherwise; that one must live.
            if let Err(e) = dir.rename_back(&plan.rename_to, &log.path.file) {
                tracing::warn!(container = log.labels[3], error = %e, "rotated log not renamed back");
            }
            return Err(error);
        }
        Ok(())
    }

    async fn reopen(&self, log: &Log) -> io::Result<()> {
        self.runtime.reopen_container_log(&log.id).await.map_err(io::Error::other)
    }
}

impl std::fmt::Debug for Rotator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rotator").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Removes and packs what the plan says.
fn make_room(path: &LogPath, max_files: usize, now: Wall) -> io::Result<(LogDir, Rotation)> {
    let dir = path.open_dir()?;
    let plan = rotate(&path.file, &dir.names(&path.file)?, max_files, now);
    for name in &plan.remove {
        dir.remove(name)?;
    }
    for name in &plan.compress {
        compress(&dir, name)?;
    }
    Ok((dir, plan))
}

/// Packs a log. It appears under its new name only when it is whole, and the plain one goes last: a
/// reader always finds one of the two.
fn compress(dir: &LogDir, name: &str) -> io::Result<()> {
    let temporary = format!("{name}{TEMPORARY}");
    let packed = || -> io::Result<()> {
        let mut plain = dir.open(name)?;
        let file = dir.create(&temporary, dir.stat(name)?.st_mode & 0o777)?;
        let mut encoder = GzEncoder::new(io::BufWriter::new(file), Compression::default());
        io::copy(&mut plain, &mut encoder)?;
        encoder.finish()?.flush()?;
        dir.rename(&temporary, &format!("{name}{COMPRESSED}"))
    };
    if let Err(error) = packed() {
        // What is left of it would only be in the way of the next try.
        let _ = dir.remove(&temporary);
        return Err(error);
    }
    dir.remove(name)
}

/// What the log and its rotations occupy on disk.
fn used_bytes(dir: &LogDir, log: &str) -> io::Result<u64> {
    let names = dir.names(log)?;
    let blocks = names.iter().filter_map(|name| dir.stat(name).ok()).map(|s| s.st_blocks);
    Ok(blocks.map(|b| u64::try_from(b).unwrap_or_default() * 512).sum())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
#[path = "rotate_tests.rs"]
mod tests;
