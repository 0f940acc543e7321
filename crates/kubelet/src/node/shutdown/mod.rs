//! When the machine goes down, Pods end first: those of low priority before those of high, each in its time, and the API
//! server hears of it while there is still a network.
//!
//! The login manager is asked to wait for us. When it says that the machine is about to go, nobody is let in any more and
//! the node is not ready; then Pods are ended group by group; then it need not wait any longer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::ids::PodUid;
use kubelet_core::shutdown::{self, Period};
use serde::{Deserialize, Serialize};
use systemd::Places;
use systemd::logind::Logind;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::Cluster;
use crate::events::EventType;
use crate::host::files::write_whole;
use crate::pods::dispatcher::EndOrder;
use crate::pods::node::Node;
use crate::pods::status_board::Entry;

/// Before the login manager is looked for again.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// How long it is waited for the API server's word that it knows, if the Pods left so much of their time.
const TELLING: Duration = Duration::from_secs(10);
/// Upstream's, with its shape.
const STATE: &str = "graceful_node_shutdown_state";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// What the login manager shows of who delays it, in upstream's words.
const WHY: &str = "Kubelet needs time to handle node shutdown";
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Watches over the end of the machine.
#[derive(Clone)]
pub struct Shutdown {
    pub node: Arc<Node>,
    /// None on a standalone node.
    pub cluster: Option<Arc<Cluster>>,
    pub orders: mpsc::Sender<EndOrder>,
    /// In which order; not empty.
    pub periods: Vec<Period>,
    pub places: Places,
    /// The kubelet's root directory.
    pub root: PathBuf,
}

/// When the last one began and ended.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    start_time: String,
    end_time: String,
}

// === impl Shutdown ===

impl std::fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shutdown").field("periods", &self.periods).finish_non_exhaustive()
    }
}

impl Shutdown {
    /// Runs until cancelled.
    pub async fn run(self, token: CancellationToken) {
        self.remember();
        let watch = async {
            let mut pause = AGAIN;
            loop {
                let begun = Instant::now();
                if let Err(error) = self.watch().await {
                    tracing::warn!(%error, "the login manager does not tell when the machine goes down");
                }
                pause = if begun.elapsed() > AGAIN_MAX { AGAIN } else { (pause * 2).min(AGAIN_MAX) };
                tokio::time::sleep(pause).await;
            }
        };
        token.run_until_cancelled(Box::pin(watch)).await;
    }

    async fn watch(&self) -> std::io::Result<()> {
        let mut logind = Logind::open(&self.places, shutdown::total(&self.periods)).await?;
        let mut delay = Some(logind.delay("kubelet", WHY).await?);
        tracing::info!(periods = ?self.periods, "Pods will be ended before the machine goes down");
        loop {
            let goes_down = logind.news().await?;
            let what = if goes_down { "shutdown event" } else { "shutdown cancellation" };
            tracing::info!(goes_down, "the login manager has news");
            self.tell_of_node(&format!("Shutdown manager detected {what}"));
            // Admission closes before anybody is ended, and the node says that it is not ready.
            self.node.shutting_down.send_replace(goes_down);
            if goes_down {
                self.end_pods().await;
                delay = None;
            } else if delay.is_none() {
                delay = Some(logind.delay("kubelet", WHY).await?);
            }
        }
    }

    fn tell_of_node(&self, message: &str) {
        let name = &self.node.facts.cri_config.name;
        self.node.recorder.node(name, EventType::Normal, "Shutdown", message);
    }

    async fn end_pods(&self) {
        let began = self.node.now().wall.secs();
        self.store(began, None);
        for (at, period) in self.periods.iter().enumerate() {
            let is_in = |e: &Entry| !e.finished && shutdown::period_of(&self.periods, &e.pod) == at;
            let group: Vec<Entry> = self.node.board.all().into_iter().filter(is_in).collect();
            if !group.is_empty() {
                self.end_group(*period, group).await;
            }
        }
        self.store(began, Some(self.node.now().wall.secs()));
        tracing::info!("Pods have ended as far as there was time; the machine may go down");
    }

    async fn end_group(&self, period: Period, group: Vec<Entry>) {
        let seconds = u64::try_from(period.seconds).unwrap_or(0);
        let end = Instant::now() + Duration::from_secs(seconds);
        let uids: Vec<PodUid> =
            group.iter().filter_map(|e| e.pod.metadata.uid.as_deref()).map(PodUid::from).collect();
        tracing::info!(priority = period.priority, seconds, pods = uids.len(), "ending Pods");
        for (uid, entry) in uids.iter().zip(&group) {
            let grace = shutdown::grace(period, &entry.pod);
            let (reason, message) = ("Terminated", MESSAGE.into());
            let order = EndOrder { uid: uid.clone(), reason, message, disrupts: true, grace };
            if self.orders.send(order).await.is_err() {
                return;
            }
        }
        let mut board = self.node.board.subscribe();
        let has_ended = |uid: &PodUid| self.node.board.get(uid.as_str()).is_none_or(|e| e.finished);
        let ended = async { while !uids.iter().all(has_ended) && board.changed().await.is_ok() {} };
        if tokio::time::timeout_at(end, ended).await.is_err() {
            let left = uids.iter().filter(|uid| !has_ended(uid)).count();
            tracing::warn!(priority = period.priority, left, "not all Pods ended in their time");
        }
        self.wait_until_told(&uids, end.min(Instant::now() + TELLING)).await;
    }

    /// The inhibitor is held until the API server knows what became of them, if it answers at all.
    async fn wait_until_told(&self, uids: &[PodUid], end: Instant) {
        let Some(cluster) = &self.cluster else { return };
        let mut news = cluster.api_pods.subscribe();
        let is_known = |uid: &PodUid| {
            let phase =
                cluster.api_pods.get(uid.as_str()).map(|p| p.status.phase.clone().unwrap_or_default());
            phase.is_none_or(|phase| matches!(phase.as_str(), "Failed" | "Succeeded"))
        };
        let told = async { while !uids.iter().all(is_known) && news.changed().await.is_ok() {} };
        if tokio::time::timeout_at(end, told).await.is_err() {
            tracing::warn!("the API server could not be told of all of them");
        }
    }

    fn path(&self) -> PathBuf {
        self.root.join(STATE)
    }

    /// Shows when the last one was.
    fn remember(&self) {
        let Some(state) = read(&self.path()) else { return };
        let seconds = |text: &str| text.parse::<jiff::Timestamp>().map(|t| t.as_second()).ok();
        self.show(seconds(&state.start_time), seconds(&state.end_time));
    }

    fn store(&self, began: i64, ended: Option<i64>) {
        let text = |at: i64| jiff::Timestamp::from_second(at).unwrap_or_default().to_string();
        let end_time = ended.map_or_else(|| NEVER.to_owned(), text);
        let state = State { start_time: text(began), end_time };
        let bytes = serde_json::to_vec(&state).unwrap_or_default();
        if let Err(error) = write_whole(&self.path(), &bytes, 0o644) {
            tracing::warn!(%error, "the time of the shutdown is not written down");
        }
        self.show(Some(began), ended);
    }

    fn show(&self, began: Option<i64>, ended: Option<i64>) {
        let number = |at: Option<i64>| at.filter(|at| *at > 0).unwrap_or(0) as f64;
        self.node.metrics.graceful_shutdown_start_time_seconds.set([], number(began));
        self.node.metrics.graceful_shutdown_end_time_seconds.set([], number(ended));
    }
}

/// What the file says; a broken one says nothing, and is named.
fn read(path: &Path) -> Option<State> {
    let bytes = std::fs::read(path).ok()?;
    let read = serde_json::from_slice(&bytes);
    read.inspect_err(|error| tracing::warn!(path = %path.display(), %error, "not understood")).ok()
}

#[cfg(test)]
mod tests;
