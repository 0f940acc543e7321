//! Which log file a request means.

use std::path::PathBuf;

use cri::log::Wanted;
use futures_util::Stream;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kubelet_core::log_choice;
use serde::Deserialize;

use super::{ApiError, LocalApi};
use crate::logs::LogPath;
use crate::logs::reader::{self, Options};
use crate::pods::sources::names;

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
    pub(super) async fn log(
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
            wanted: Wanted { timestamps: query.timestamps, ..Wanted::default() },
        };
        let (view, changed) = (self.view.clone(), self.view.changed());
        let failed = format!("read the log of container {container:?} in pod {name:?}");
        let writes = move || {
            let pod = view.list().into_iter().find(|p| p.metadata.uid.as_ref() == Some(&uid));
            pod.as_ref().and_then(|p| status(p, &container)).is_some_and(|s| {
                s.restart_count == restart && s.state.as_ref().is_some_and(|s| s.running.is_some())
            })
        };
        let text = reader::stream(path, options, Box::new(writes), changed).await;
        text.map_err(|e| ApiError::Failed(format!("{failed}: {e}")))
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
    log_choice::find(pod.status.as_ref()?, container)
}

/// The restart count in the name of the log file.
fn instance(pod: &Pod, container: &str, previous: bool) -> Result<i32, ApiError> {
    let name = names(pod).1;
    match &pod.status {
        Some(status) if previous || log_choice::find(status, container).is_some() => {
            log_choice::choose(name, status, container, previous).map_err(ApiError::Bad)
        }
        // Just given: its task has not said a word about it.
        _ => {
            let begin = format!("container {container:?} in pod {name:?}");
            Err(ApiError::Bad(format!("{begin} is waiting to start: ContainerCreating")))
        }
    }
}
