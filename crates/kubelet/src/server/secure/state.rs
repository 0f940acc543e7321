//! What the requests to port 10250 work on, and how they find their Pod.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use base::time::Clock;
use base::verbosity::Verbosity;
use http::header::{CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, StatusCode};
use k8s_openapi::api::core::v1::Pod;

use crate::pods::status_board::Entry;
use crate::server::readonly::Views;
use streaming::Streams;

/// Everything the requests work on.
#[derive(Clone)]
pub struct ServerState {
    pub views: Views,
    pub clock: Arc<dyn Clock>,
    pub streams: Streams,
    pub mirrors: Mirrors,
    pub switches: Switches,
    /// podLogsDir.
    pub pod_logs: PathBuf,
    /// The kubelet's root directory, where checkpoints go.
    pub root: PathBuf,
    pub about: Arc<About>,
    /// How much is logged.
    pub verbosity: Verbosity,
}

/// The uid of the static Pod that the mirror Pod of this uid stands for.
pub type Mirrors = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Which endpoints there are.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    /// enableDebuggingHandlers: all that reaches into containers or shows the insides.
    pub debugging: bool,
    pub system_logs: bool,
    pub system_log_query: bool,
    pub profiling: bool,
    pub debug_flags: bool,
    /// ContainerCheckpoint.
    pub checkpoint: bool,
    /// PodLogsQuerySplitStreams.
    pub split_streams: bool,
    /// ComponentFlagz.
    pub flagz: bool,
    /// ComponentStatusz.
    pub statusz: bool,
}

/// What /statusz and /flagz tell.
#[derive(Clone, Debug, Default)]
pub struct About {
    pub version: String,
    /// Seconds since the epoch.
    pub started: i64,
    /// Flags and what they are set to.
    pub flags: BTreeMap<String, String>,
}

/// Seconds until the runtime, which has too many streams waiting to be opened, forgets one: upstream's figure.
const LATER: HeaderValue = HeaderValue::from_static("60");

/// A refusal as upstream words it: plain text.
#[derive(Debug)]
pub(super) struct HttpError(pub(super) StatusCode, pub(super) String);

/// The Pod asked about, with its status.
pub(super) struct Found {
    pub(super) pod: Arc<Pod>,
    pub(super) entry: Entry,
}

// === impl ServerState ===

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerState")
    }
}

impl ServerState {
    /// A Pod by its name. Of two with one name, the newer is meant: the older is on its way out.
    pub(super) fn find(&self, namespace: &str, name: &str) -> Option<Found> {
        let is_it = |entry: &Entry| {
            let meta = &entry.pod.metadata;
            meta.namespace.as_deref() == Some(namespace) && meta.name.as_deref() == Some(name)
        };
        let order = |entry: &Entry| {
            let meta = &entry.pod.metadata;
            let ends = entry.terminating.is_some() || meta.deletion_timestamp.is_some();
            (!ends, meta.creation_timestamp.as_ref().map(|t| t.0))
        };
        let entry = self.views.pods.all().into_iter().filter(is_it).max_by_key(order)?;
        Some(Found { pod: entry.pod.clone(), entry })
    }

    /// The same, where a uid may be told as well. Clients know a static Pod by the uid of its mirror.
    pub(super) fn find_with(&self, target: &Target) -> Result<Found, HttpError> {
        let found = self.find(&target.namespace, &target.pod);
        let found = found.ok_or_else(|| HttpError::not_found("pod does not exist"))?;
        match &target.uid {
            Some(uid) if found.uid() != uid && !self.is_mirrored_as(&found, uid) => {
                Err(HttpError::not_found("pod not found"))
            }
            _ => Ok(found),
        }
    }

    fn is_mirrored_as(&self, found: &Found, uid: &str) -> bool {
        (self.mirrors)(uid).is_some_and(|mirrored| mirrored == found.uid())
    }

    /// The id of the container that runs under this name now, from the runtime's own mouth.
    pub(super) async fn running(&self, found: &Found, container: &str) -> cri::Result<Option<String>> {
        let state = cri::v1::ContainerStateValue { state: cri::v1::ContainerState::ContainerRunning as i32 };
        let label_selector = std::collections::BTreeMap::from([
            ("io.kubernetes.pod.uid".to_owned(), found.uid().to_owned()),
            ("io.kubernetes.container.name".to_owned(), container.to_owned()),
        ]);
        let filter = cri::v1::ContainerFilter { state: Some(state), label_selector, ..Default::default() };
        let all = self.views.runtime.list_containers(Some(filter)).await?;
        let attempt = |c: &cri::v1::Container| c.metadata.as_ref().map_or(0, |m| m.attempt);
        Ok(all.into_iter().max_by_key(attempt).map(|c| c.id))
    }
}

/// The parts of a path that name a container.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Target {
    pub(super) namespace: String,
    pub(super) pod: String,
    #[serde(default)]
    pub(super) uid: Option<String>,
    #[serde(default)]
    pub(super) container: String,
}

// === impl Found ===

impl Found {
    pub(super) fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    pub(super) fn has_container(&self, name: &str) -> bool {
        api::pod::containers(&self.pod).any(|c| c.name() == name)
    }
}

// === impl HttpError ===

impl HttpError {
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self(StatusCode::BAD_REQUEST, text.into())
    }

    pub(super) fn not_found(text: impl Into<String>) -> Self {
        Self(StatusCode::NOT_FOUND, text.into())
    }

    pub(super) fn failed(text: impl Into<String>) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, text.into())
    }

    /// What the runtime refused, in the codes of HTTP.
    pub(super) fn of(error: &cri::Error) -> Self {
        let status = match error.code {
            tonic::Code::NotFound => StatusCode::NOT_FOUND,
            tonic::Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, error.grpc_text())
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
        let later = (self.0 == StatusCode::TOO_MANY_REQUESTS).then_some([(RETRY_AFTER, LATER)]);
        let mut response = (self.0, headers, self.1).into_response();
        response.headers_mut().extend(later.into_iter().flatten());
        response
    }
}
