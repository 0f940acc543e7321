//! The node defends itself: upstream's eviction manager.
//!
//! Every ten seconds, and when the kernel says that memory runs out, it is looked at what is left. What is short is told in
//! the node's conditions and to admission. Pods over a limit of their own go at once; for a threshold of the node, what
//! nobody uses goes first, and then one Pod at a time. Who goes is decided in `kubelet_core::eviction`.

mod alarm;
mod forecaster;
pub mod image_gc;

use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::KubeletConfiguration;
use base::ids::PodUid;
use kubelet_core::dispatch::{EndOrder, Known};
use kubelet_core::eviction::signal::readings;
use kubelet_core::eviction::{
    Candidate, Eviction, Input, Layout, Met, REASON, Readings, Reclaim, Thresholds, limits, victim,
};
use kubelet_core::node::conditions::Pressures;
use kubelet_core::stats::PodStats;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::events::EventType;
use crate::pods::gc::{self, GcSettings};
use crate::pods::node::Node;
use crate::pods::status_board::Entry;
use crate::stats::{Depth, Sampler, Signals};
use alarm::Alarm;
use image_gc::ImageCollector;

/// How often it is looked, if nothing else happens.
const PERIOD: Duration = Duration::from_secs(10);
/// Figures of disks may be a little younger than a period: the period is never exact.
const DISK_AGE: Duration = Duration::from_secs(9);
/// How long it is waited for a Pod that was ended.
const CLEANUP: Duration = Duration::from_secs(30);
/// The kernel may say it again and again: no look is closer to the last one than this.
const BREATH: Duration = Duration::from_millis(500);

/// What eviction is made of.
#[derive(Clone)]
pub struct EvictionDeps {
    pub node: Arc<Node>,
    pub sampler: Arc<Sampler>,
    pub images: Arc<ImageCollector>,
    pub orders: mpsc::Sender<EndOrder>,
    pub known: watch::Receiver<Arc<Known>>,
    pub collection: GcSettings,
    pub settings: Settings,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub thresholds: Thresholds,
    /// Seconds that a Pod has at most after a soft threshold.
    pub most_grace: i64,
    /// Limits on local storage are enforced.
    pub isolates_storage: bool,
}

struct Evictor {
    deps: EvictionDeps,
    thresholds: Thresholds,
    alarm: Alarm,
}

/// Runs until cancelled.
pub async fn run(deps: EvictionDeps, token: CancellationToken) {
    let thresholds = deps.settings.thresholds.clone();
    if thresholds.is_empty() && !deps.settings.isolates_storage {
        return token.cancelled().await;
    }
    let mut evictor = Evictor { alarm: Alarm::default(), thresholds, deps };
    token.run_until_cancelled(Box::pin(evictor.work())).await;
}

// === impl Settings ===

impl Settings {
    #[must_use]
    pub fn new(config: &KubeletConfiguration) -> Settings {
        Settings {
            thresholds: Thresholds::new(config),
            most_grace: i64::from(config.eviction_max_pod_grace_period),
            isolates_storage: config.local_storage_capacity_isolation,
        }
    }
}

// === impl Evictor ===

impl Evictor {
    async fn work(&mut self) {
        loop {
            let gone = self.turn().await;
            if !gone.is_empty() {
                self.wait_until_gone(&gone).await;
                continue;
            }
            tokio::time::sleep(BREATH).await;
            tokio::select! {
                () = tokio::time::sleep(PERIOD - BREATH) => {}
                () = self.alarm.raised() => tracing::debug!("the kernel says that memory runs out"),
            }
        }
    }

    /// One look, and what has to be done about it; the Pods that were ended.
    async fn turn(&mut self) -> Vec<PodUid> {
        let Some(signals) = self.deps.sampler.signals().await else {
            tracing::warn!("memory and disks not read in time");
            return Vec::new();
        };
        let (now_left, layout) = (of(&signals), Layout::of(&signals.disks));
        let verdict = self.thresholds.look(&now_left, layout, signals.now.mono);
        self.tell(verdict.pressures);
        self.alarm.set(&self.thresholds.memory_limits(&now_left), &signals, &self.deps.sampler).await;
        let active = active(&self.deps.node);
        if self.deps.settings.isolates_storage {
            let gone = self.enforce_limits(&active, layout).await;
            if !gone.is_empty() {
                return gone;
            }
        }
        match verdict.met.is_empty() {
            true => Vec::new(),
            false => self.relieve(&verdict.met, now_left, layout, active).await,
        }
    }

    fn tell(&self, pressures: Pressures) {
        self.deps.node.pressures.send_if_modified(|old| {
            let changed = *old != pressures;
            if changed {
                tracing::info!(was = ?old, is = ?pressures, "what the node is short of has changed");
                *old = pressures;
            }
            changed
        });
    }

    /// Ends every Pod that took more disk than it may.
    async fn enforce_limits(&self, active: &[Entry], layout: Layout) -> Vec<PodUid> {
        let limited: Vec<Entry> = active.iter().filter(|e| limits::has_any(&e.pod)).cloned().collect();
        if limited.is_empty() {
            return Vec::new();
        }
        let Some(stats) = self.measure(&limited).await else { return Vec::new() };
        let over = limits::exceeded(&candidates(&limited, &stats), layout);
        let mut gone = Vec::new();
        for eviction in over {
            gone.extend(self.evict(eviction, &limited).await);
        }
        gone
    }

    /// Frees what nobody uses; if that does not do, ends one Pod.
    async fn relieve(&self, met: &[Met], left: Readings, layout: Layout, active: Vec<Entry>) -> Vec<PodUid> {
        let Some(first) = met.first() else { return Vec::new() };
        let (node, resource) = (&self.deps.node, first.signal.resource().as_str());
        let message = format!("Attempting to reclaim {resource}");
        node.recorder.node(&node.facts.cri_config.name, EventType::Warning, "EvictionThresholdMet", message);
        if self.reclaim(layout.reclaims(first.signal)).await {
            tracing::info!(resource, "enough was freed without evicting a Pod");
            return Vec::new();
        }
        let Some(stats) = self.measure(&active).await else { return Vec::new() };
        let now = node.now().mono;
        for (met, reading) in met.iter().filter_map(|m| Some((m, left.get(&m.signal)?))) {
            let age = now.since(reading.at);
            node.metrics.eviction_stats_age_seconds.observe_duration([met.signal.as_str()], age);
        }
        let candidates = candidates(&active, &stats);
        let most_grace = self.deps.settings.most_grace;
        let input = Input { met, readings: &left, layout, most_grace, candidates: &candidates };
        let Some(eviction) = victim(&input) else {
            tracing::warn!(resource, pods = active.len(), "the node is short, and no Pod may be evicted");
            return Vec::new();
        };
        self.evict(eviction, &active).await.into_iter().collect()
    }

    /// Whether that was enough.
    async fn reclaim(&self, steps: &[Reclaim]) -> bool {
        for step in steps {
            let deps = &self.deps;
            let done = match step {
                Reclaim::DeadContainers => gc::reclaim(&deps.node, &deps.known, &deps.collection).await,
                Reclaim::UnusedImages => deps.images.remove_unused().await.map(drop),
            };
            if let Err(error) = done {
                tracing::warn!(?step, error, "could not free what nobody uses");
            }
        }
        if steps.is_empty() {
            return false;
        }
        let Some(signals) = self.deps.sampler.signals().await else { return false };
        self.thresholds.are_resolved(&of(&signals))
    }

    async fn measure(&self, pods: &[Entry]) -> Option<Vec<PodStats>> {
        let measured = self.deps.sampler.pods(pods, Depth::Whole, DISK_AGE).await;
        measured.inspect_err(|error| tracing::warn!(%error, "nobody is evicted")).ok()
    }

    async fn evict(&self, eviction: Eviction, among: &[Entry]) -> Option<PodUid> {
        let Eviction { uid, message, grace, signal, disrupts, annotations } = eviction;
        let entry = among.iter().find(|e| e.pod.metadata.uid.as_deref() == Some(uid.as_str()))?;
        let node = &self.deps.node;
        let pod = entry.pod.metadata.name.as_deref().unwrap_or_default();
        tracing::warn!(pod, pod_uid = %uid, signal, message, "evicting");
        node.recorder.eviction(&entry.pod, REASON, &message, annotations);
        let order = EndOrder { uid: uid.clone(), reason: REASON, message: message.into(), disrupts, grace };
        self.deps.orders.send(order).await.ok()?;
        node.metrics.evictions.inc([signal]);
        Some(uid)
    }

    /// What it held is free only then; until then nobody else has to go for it.
    async fn wait_until_gone(&self, uids: &[PodUid]) {
        let board = &self.deps.node.board;
        let mut news = board.subscribe();
        let is_gone = |uid: &PodUid| board.get(uid.as_str()).is_none_or(|e| e.finished);
        let gone = async { while !uids.iter().all(is_gone) && news.changed().await.is_ok() {} };
        if tokio::time::timeout(CLEANUP, gone).await.is_err() {
            tracing::warn!(?uids, "evicted Pods are not gone yet");
        }
    }
}

impl std::fmt::Debug for EvictionDeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EvictionDeps").field("settings", &self.settings).finish_non_exhaustive()
    }
}

fn of(signals: &Signals) -> Readings {
    readings(&signals.machine, &signals.disks, signals.pods.as_ref(), signals.now.mono)
}

/// Pods that run, or are about to, with the resources they were granted.
fn active(node: &Node) -> Vec<Entry> {
    let has_ended = |e: &Entry| matches!(e.status.phase.as_deref(), Some("Failed" | "Succeeded"));
    let mut all = node.board.all();
    all.retain(|e| !e.finished && e.terminating.is_none() && !has_ended(e));
    let allocated = node.records.allocated();
    for entry in &mut all {
        let uid = entry.pod.metadata.uid.as_deref().unwrap_or_default();
        if let Some(granted) = allocated.get(uid) {
            entry.pod = granted.applied(&entry.pod);
        }
    }
    all
}

fn candidates<'a>(pods: &'a [Entry], stats: &'a [PodStats]) -> Vec<Candidate<'a>> {
    let of = |e: &Entry| stats.iter().find(|s| Some(s.uid.as_str()) == e.pod.metadata.uid.as_deref());
    // One of which the runtime knows no container was not measured.
    let measured = |e: &Entry| of(e).filter(|s| s.memory.is_some() || s.ephemeral.is_some());
    pods.iter().map(|e| Candidate { pod: &e.pod, stats: measured(e) }).collect()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
