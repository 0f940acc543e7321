//! How full the volumes are, as their drivers tell it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use csi::v1::volume_usage::Unit;
use csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse};
use futures_util::future::join_all;
use kubelet_core::volumes::csi::ClaimRef;
use tokio_util::sync::CancellationToken;

use super::CsiVolumes;
use crate::metrics::Metrics;

/// A driver that takes longer is asked again the next time.
const PATIENCE: Duration = Duration::from_secs(30);

/// A volume that a Pod has by a claim.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub(super) driver: String,
    pub(super) handle: String,
    pub(super) claim: ClaimRef,
    pub(super) path: PathBuf,
}

impl CsiVolumes {
    /// Feeds `kubelet_volume_stats_*` until cancelled.
    pub(in crate::volumes) async fn measure_until(
        self: Arc<Self>,
        every: Duration,
        token: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(every) => self.measure().await,
            }
        }
    }

    async fn measure(&self) {
        let all: Vec<Published> = self.lock().published.values().cloned().collect();
        let told = join_all(all.iter().map(|volume| self.ask(volume))).await;
        let metrics = &self.parts.measured.metrics;
        let mut seen = BTreeSet::new();
        for (volume, stats) in all.iter().zip(told) {
            let Some(stats) = stats else { continue };
            feed(metrics, &volume.claim, &stats);
            seen.insert((volume.claim.namespace.clone(), volume.claim.name.clone()));
        }
        let keep = |[namespace, name]: [&str; 2]| seen.contains(&(namespace.to_owned(), name.to_owned()));
        for gauge in gauges(metrics) {
            gauge.retain(keep);
        }
    }

    /// None if the driver does not count, or does not answer.
    async fn ask(&self, volume: &Published) -> Option<NodeGetVolumeStatsResponse> {
        let Published { driver: name, handle, path, .. } = volume;
        let asked = async {
            let session = self.session(name).await.ok().filter(|s| s.offers.stats)?;
            let request = NodeGetVolumeStatsRequest {
                volume_id: handle.clone(),
                volume_path: path.to_string_lossy().into_owned(),
                staging_target_path: String::new(),
            };
            let call = session.driver.stats(request);
            let answer = self.parts.measured.call(name, "NodeGetVolumeStats", call).await;
            answer.map_err(|error| tracing::debug!(%error, volume = handle, "volume not measured")).ok()
        };
        tokio::time::timeout(PATIENCE, asked).await.ok().flatten()
    }
}

fn feed(metrics: &Metrics, claim: &ClaimRef, stats: &NodeGetVolumeStatsResponse) {
    let labels = [claim.namespace.as_str(), claim.name.as_str()];
    // Whole numbers up to 2^53 are exact, and no volume is larger.
    #[allow(clippy::cast_precision_loss)]
    let number = |n: i64| n as f64;
    for usage in &stats.usage {
        let [total, free, used] = match usage.unit() {
            Unit::Bytes => [
                &metrics.volume_stats_capacity_bytes,
                &metrics.volume_stats_available_bytes,
                &metrics.volume_stats_used_bytes,
            ],
            Unit::Inodes => [
                &metrics.volume_stats_inodes,
                &metrics.volume_stats_inodes_free,
                &metrics.volume_stats_inodes_used,
            ],
            Unit::Unknown => continue,
        };
        total.set(labels, number(usage.total));
        free.set(labels, number(usage.available));
        used.set(labels, number(usage.used));
    }
}

fn gauges(metrics: &Metrics) -> [&base::metrics::Gauge<2>; 6] {
    [
        &metrics.volume_stats_capacity_bytes,
        &metrics.volume_stats_available_bytes,
        &metrics.volume_stats_used_bytes,
        &metrics.volume_stats_inodes,
        &metrics.volume_stats_inodes_free,
        &metrics.volume_stats_inodes_used,
    ]
}
