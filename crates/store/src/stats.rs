//! What the store tells of itself.

use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::metrics::{Family, Histogram, MetricType, Text};

use super::{Store, format};

/// A glance at the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub revision: u64,
    pub compacted: u64,
    /// Writes done since the start, and in how many transactions.
    pub writes: u64,
    pub commits: u64,
    pub bytes_written: u64,
    pub conflicts: u64,
    /// Reads asked for since the start, whether memory or the disk answered.
    pub reads: u64,
    /// How often one key was written far too often.
    pub hot_keys: u64,
    /// Requests that wait.
    pub writes_queued: usize,
    pub reads_queued: usize,
    /// Recent changes in memory.
    pub recent_changes: usize,
    pub recent_bytes: usize,
    /// Sizes on the disk.
    pub file_bytes: u64,
    pub wal_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Counters {
    writes: AtomicU64,
    commits: AtomicU64,
    bytes: AtomicU64,
    conflicts: AtomicU64,
    reads: AtomicU64,
    hot_keys: AtomicU64,
    commit_seconds: Histogram<0>,
}

const BUCKETS: &[f64] = &[0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

// === impl Counters ===

impl Counters {
    pub(super) fn new() -> Counters {
        Counters {
            writes: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            hot_keys: AtomicU64::new(0),
            commit_seconds: Histogram::new(
                "longshore_store_commit_duration_seconds",
                "Time from the start of a transaction until it was on the disk.",
                [],
                BUCKETS,
            ),
        }
    }

    pub(super) fn committed(&self, writes: usize, bytes: u64, took: Duration) {
        self.writes.fetch_add(writes as u64, Ordering::Relaxed);
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.commit_seconds.observe_duration([], took);
    }

    pub(super) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn conflicted(&self) {
        self.conflicts.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn alarmed(&self, keys: usize) {
        self.hot_keys.fetch_add(keys as u64, Ordering::Relaxed);
    }
}

// === impl Store ===

impl Store {
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = self.shared();
        let (revision, (recent_changes, recent_bytes)) = {
            let recent = shared.recent();
            (recent.revision(), recent.size())
        };
        let size = |path| fs::metadata(path).map_or(0, |m| m.len());
        Stats {
            revision,
            compacted: self.compacted(),
            writes: shared.counters.writes.load(Ordering::Relaxed),
            commits: shared.counters.commits.load(Ordering::Relaxed),
            bytes_written: shared.counters.bytes.load(Ordering::Relaxed),
            conflicts: shared.counters.conflicts.load(Ordering::Relaxed),
            reads: shared.counters.reads.load(Ordering::Relaxed),
            hot_keys: shared.counters.hot_keys.load(Ordering::Relaxed),
            writes_queued: shared.writes.len(),
            reads_queued: shared.reads.len(),
            recent_changes,
            recent_bytes,
            file_bytes: size(shared.path.clone()),
            wal_bytes: size(format::wal_file(&shared.path)),
        }
    }

    /// The store's part of `/metrics`.
    pub fn write_metrics(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        let stats = self.stats();
        let mut text = Text::new(out);
        let size = "apiserver_storage_size_bytes";
        text.header(
            size,
            MetricType::Gauge,
            "[STABLE] Size of the storage database file physically allocated in bytes.",
        )?;
        text.sample(
            size,
            &[("storage_cluster_id", "store")],
            (stats.file_bytes + stats.wal_bytes) as f64,
            None,
        )?;
        let rows = [
            ("longshore_store_revision", MetricType::Gauge, "Revision of the last write.", stats.revision),
            (
                "longshore_store_compacted_revision",
                MetricType::Gauge,
                "History starts after it.",
                stats.compacted,
            ),
            ("longshore_store_writes_total", MetricType::Counter, "Writes on the disk.", stats.writes),
            ("longshore_store_commits_total", MetricType::Counter, "Transactions synced.", stats.commits),
            (
                "longshore_store_written_bytes_total",
                MetricType::Counter,
                "Bytes written.",
                stats.bytes_written,
            ),
            ("longshore_store_conflicts_total", MetricType::Counter, "Writes refused.", stats.conflicts),
            ("longshore_store_hot_keys_total", MetricType::Counter, super::hot::HELP, stats.hot_keys),
            (
                "longshore_store_recent_bytes",
                MetricType::Gauge,
                "Changes in memory.",
                stats.recent_bytes as u64,
            ),
        ];
        for (name, kind, help, value) in rows {
            text.header(name, kind, help)?;
            text.sample(name, &[], value as f64, None)?;
        }
        self.shared().counters.commit_seconds.write(out)
    }
}
