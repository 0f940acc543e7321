//! The status board as the local API shows it.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;

use super::PodView;
use crate::events::{Event, Recorder};
use crate::pods::status_board::{Entry, StatusBoard};

/// The board as the local API shows it.
#[derive(Debug)]
pub struct BoardView {
    pub board: Arc<StatusBoard>,
    pub recorder: Recorder,
    pub log_root: PathBuf,
}

impl PodView for BoardView {
    fn list(&self) -> Vec<Pod> {
        let shown = |entry: &Entry| {
            let mut pod = entry.to_pod();
            // No API server writes it for Pods of a manifest, and people look for `Terminating`.
            if let Some(since) = entry.terminating.and_then(|t| jiff::Timestamp::from_second(t.secs()).ok()) {
                pod.metadata.deletion_timestamp.get_or_insert(Time(since));
            }
            pod
        };
        self.board.all().iter().map(shown).collect()
    }

    fn events(&self, uid: &str) -> Vec<Event> {
        self.recorder.of(uid)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.board.subscribe()
    }

    fn log_root(&self) -> PathBuf {
        self.log_root.clone()
    }
}
