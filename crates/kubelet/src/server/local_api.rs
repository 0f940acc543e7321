//! The local API: Pods given, shown and ended by command, over a unix socket that only root may use.
//!
//! | request | what it does |
//! |---|---|
//! | `GET /v1/pods[?watch=true]` | every Pod of the node with its status; with watch, one list per line as it changes |
//! | `POST /v1/pods` | applies a manifest (Pod or PodList) |
//! | `GET /v1/pods/NS/NAME` | one Pod |
//! | `DELETE /v1/pods/NS/NAME[?gracePeriodSeconds=N]` | ends a Pod that was given by command |
//! | `GET /v1/pods/NS/NAME/events` | what happened to it |
//! | `GET /v1/pods/NS/NAME/log[?container&follow&tailLines&previous&timestamps]` | its log |
//! | `POST /v1/pods/NS/NAME/exec[?container]` | runs a command; the answer is a stream of [`frames`] |
//! | `GET /v1/pods/NS/NAME/exec?command&stdin&tty[&container]` | the same with input or a terminal, over a WebSocket |
//! | `GET /v1/problems` | what is wrong with the sources |
//! | `GET /v1/eviction` | who would be evicted next, and why |

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use base::class::{Class, Classify};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::events::{Event, EventType};
use crate::pods::sources::local::{LocalPods, Outcome};
use crate::pods::sources::{Context, names};
use crate::ports::Runtime;
use streaming::Streams;

mod board_view;
mod exec;
pub mod frames;
mod logs;
mod routes;
mod socket;

pub use board_view::BoardView;
pub use kubelet_core::eviction::forecast::Forecast;
pub use socket::SocketError;

/// Where the kubelet listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/longshore/pods.sock";

/// What the API shows of the node's Pods.
pub trait PodView: Send + Sync + 'static {
    /// Every Pod with its latest status, those that are ending included.
    fn list(&self) -> Vec<Pod>;
    fn get(&self, namespace: &str, name: &str) -> Option<Pod> {
        self.list().into_iter().find(|p| names(p) == (namespace, name))
    }
    /// The Pod's events, oldest first.
    fn events(&self, uid: &str) -> Vec<Event>;
    /// Ticks whenever any Pod or status changes.
    fn changed(&self) -> watch::Receiver<u64>;
    /// The directory of all Pods' logs (podLogsDir).
    fn log_root(&self) -> PathBuf;
}

/// Tells who would be evicted next.
pub trait Forecasts: Send + Sync + 'static {
    fn forecast(&self) -> BoxFuture<'_, Result<Forecast, String>>;
}

/// Everything the API works on.
#[derive(Clone)]
pub struct LocalApi {
    /// Empty until eviction has been set up.
    pub forecasts: Arc<OnceLock<Arc<dyn Forecasts>>>,
    pub local: Arc<LocalPods>,
    pub view: Arc<dyn PodView>,
    pub runtime: Arc<dyn Runtime>,
    pub context: Context,
    pub streams: Streams,
}

/// One Pod of an apply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub outcome: Outcome,
}

/// An event as the API tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventLine {
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
    pub field_path: String,
    pub count: u32,
    pub first_seconds: i64,
    pub last_seconds: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemLine {
    pub source: String,
    pub place: String,
    pub message: String,
}

api::from_json!(Applied, EventLine, ProblemLine);

/// The body of every refusal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    pub message: String,
}

/// The body of an exec request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExecRequest {
    pub command: Vec<String>,
}

/// A socket that is listening but not answering yet.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    path: PathBuf,
}

/// Makes the socket, so that a second kubelet is found out at start.
pub fn bind(path: &Path) -> Result<Bound, SocketError> {
    let listener = socket::bind(path)?;
    tracing::info!(path = %path.display(), "the local API is listening");
    Ok(Bound { listener, path: path.to_owned() })
}

impl Bound {
    /// Answers until the token is cancelled.
    pub async fn serve(self, api: LocalApi, connections: serve::Connections, token: CancellationToken) {
        socket::serve(self.listener, routes::router(api), connections, token).await;
        socket::remove(&self.path);
    }
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
enum ApiError {
    #[error("{0}")]
    Bad(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Failed(String),
}

impl Classify for ApiError {
    fn class(&self) -> Class {
        match self {
            ApiError::Failed(_) => Class::Retry,
            _ => Class::Reject,
        }
    }
}

// === impl LocalApi ===

impl std::fmt::Debug for LocalApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LocalApi")
    }
}

impl LocalApi {
    /// Every Pod; one just accepted is there even before its task has said a word about it.
    async fn pods(&self) -> Vec<Pod> {
        let mut pods = self.view.list();
        for given in self.local.list().await {
            if !pods.iter().any(|p| p.metadata.uid == given.metadata.uid) {
                pods.push((*given).clone());
            }
        }
        pods.sort_by(|a, b| names(a).cmp(&names(b)));
        pods
    }

    /// A Pod by its name, or by the name in its manifest, to which the node's is added.
    async fn pod(&self, namespace: &str, name: &str) -> Result<Pod, ApiError> {
        let longer = format!("{name}-{}", self.context.node.to_lowercase());
        let mut pods = self.pods().await;
        // Of two with one name, the newer is meant: the older is on its way out.
        let newest = |wanted: &str, pods: &[Pod]| {
            let same = |(_, p): &(usize, &Pod)| names(p) == (namespace, wanted);
            let order = |(_, p): &(usize, &Pod)| {
                (p.metadata.deletion_timestamp.is_none(), p.metadata.creation_timestamp.clone())
            };
            pods.iter().enumerate().filter(same).max_by_key(order).map(|(i, _)| i)
        };
        match newest(name, &pods).or_else(|| newest(&longer, &pods)) {
            Some(i) => Ok(pods.swap_remove(i)),
            None => Err(ApiError::NotFound(format!("pods {name:?} not found in namespace {namespace:?}"))),
        }
    }
}

// === impl EventLine ===

impl From<Event> for EventLine {
    fn from(e: Event) -> Self {
        let kind = match e.kind {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        Self {
            kind: kind.to_owned(),
            reason: e.reason,
            message: e.message,
            field_path: e.field_path,
            count: e.count,
            first_seconds: e.first.secs(),
            last_seconds: e.last.secs(),
        }
    }
}

#[cfg(test)]
mod tests;
