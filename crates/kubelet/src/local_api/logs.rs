//! Which log file a request means.

use std::path::PathBuf;

use futures_util::Stream;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kubelet_core::log_line::Wanted;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{ApiError, LocalApi};
use crate::log_reader::{self, Options};
use crate::logs::LogPath;
use crate::sources::names;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LogQuery {
    pub(super) container: Option<String>,
    follow: bool,
    tail_lines: Option<u64>,
    previous: bool,
    timestamps: bool,
    limit_bytes: Option<u64>,
}

impl LocalApi {
    pub(super) fn log(
        &self,
        pod: &Pod,
        query: &LogQuery,
    ) -> Result<impl Stream<Item = std::io::Result<bytes::Bytes>> + use<>, ApiError> {
        let (namespace, name) = names(pod);
        let container = container_name(pod, query.container.as_deref())?;
        let restart = instance(pod, &container, query.previous)?;
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let path = LogPath {
            root: self.view.log_root(),
            directory: PathBuf::from(format!("{namespace}_{name}_{uid}")).join(&container),
            file: format!("{restart}.log"),
        };
        let options = Options {
            follow: query.follow,
            tail: query.tail_lines,
            limit_bytes: query.limit_bytes,
            wanted: Wanted { since: None, timestamps: query.timestamps },
        };
        let ended = CancellationToken::new();
        if query.follow {
            self.watch_end(uid, container, restart, ended.clone());
        }
        let receiver = log_reader::read(path, options, ended.clone());
        // The guard ends the watching when the reader goes away first.
        let state = (receiver, ended.drop_guard());
        Ok(futures_util::stream::unfold(state, |(mut receiver, guard)| async move {
            let item = receiver.recv().await?;
            Some((item, (receiver, guard)))
        }))
    }

    /// Cancels `ended` when this instance of the container no longer runs.
    fn watch_end(&self, uid: String, container: String, restart: i32, ended: CancellationToken) {
        let (view, mut changed) = (self.view.clone(), self.view.changed());
        tokio::spawn(async move {
            loop {
                let pod = view.list().into_iter().find(|p| p.metadata.uid.as_ref() == Some(&uid));
                let running = pod.as_ref().and_then(|p| status(p, &container)).is_some_and(|s| {
                    s.restart_count == restart && s.state.as_ref().is_some_and(|s| s.running.is_some())
                });
                if !running {
                    return ended.cancel();
                }
                tokio::select! {
                    () = ended.cancelled() => return,
                    news = changed.changed() => if news.is_err() { return ended.cancel() },
                }
            }
        });
    }
}

/// The container meant: the one named, the annotated default, else the first.
pub(super) fn container_name(pod: &Pod, wanted: Option<&str>) -> Result<String, ApiError> {
    let all: Vec<&str> = api::pod::containers(pod).map(|c| c.name()).collect();
    let annotated = pod.metadata.annotations.as_ref();
    let annotated = annotated.and_then(|a| a.get("kubectl.kubernetes.io/default-container"));
    let first = pod.spec.as_ref().and_then(|s| s.containers.first()).map(|c| c.name.as_str());
    let name =
        wanted.filter(|w| !w.is_empty()).or(annotated.map(String::as_str)).or(first).unwrap_or_default();
    if all.contains(&name) {
        return Ok(name.to_owned());
    }
    let pod = names(pod).1;
    Err(ApiError::Bad(format!("container {name} is not valid for pod {pod}; it has {}", all.join(", "))))
}

pub(super) fn status<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|s| s.name == container)
}

/// The restart count in the name of the log file.
fn instance(pod: &Pod, container: &str, previous: bool) -> Result<i32, ApiError> {
    let name = names(pod).1;
    let waiting = |reason: &str| {
        let reason = if reason.is_empty() { "ContainerCreating" } else { reason };
        ApiError::Bad(format!("container {container:?} in pod {name:?} is waiting to start: {reason}"))
    };
    let Some(status) = status(pod, container) else { return Err(waiting("")) };
    let state = status.state.clone().unwrap_or_default();
    let has_last = status.last_state.as_ref().is_some_and(|s| s.terminated.is_some());
    let started = state.running.is_some() || state.terminated.is_some();
    match (previous, started) {
        (true, _) if !has_last => {
            let message = format!("previous terminated container {container:?} in pod {name:?} not found");
            Err(ApiError::Bad(message))
        }
        (true, true) => Ok((status.restart_count - 1).max(0)),
        (_, false) if !has_last => {
            Err(waiting(state.waiting.and_then(|w| w.reason).as_deref().unwrap_or_default()))
        }
        // Between two instances the last one is both the current and the previous.
        _ => Ok(status.restart_count),
    }
}
