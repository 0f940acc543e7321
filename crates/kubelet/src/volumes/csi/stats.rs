//! How full the volumes are, as their drivers tell it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::ids::PodUid;
use base::time::Wall;
use csi::v1::volume_usage::Unit;
use csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse};
use futures_util::future::join_all;
use kubelet_core::volumes::csi::ClaimRef;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::CsiVolumes;
use crate::metrics::Metrics;
use crate::volumes::{Amount, Figures};

/// A Pod and its name for a volume.
type Key = (PodUid, String);

/// A driver that takes longer is asked again the next time.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A volume that a Pod has, and the claim by which it has it.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub(super) driver: String,
    pub(super) handle: String,
    pub(super) claim: Option<ClaimRef>,
    pub(super) path: PathBuf,
}

impl CsiVolumes {
    /// Counts what is on each volume when it is new and from time to time, until cancelled.
    pub(in crate::volumes) async fn measure_until(
        self: Arc<Self>,
        every: Duration,
        token: CancellationToken,
    ) {
        let mut measured = BTreeSet::new();
        let mut round = tokio::time::interval_at(Instant::now() + every, every);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = token.cancelled() => return,
                _ = round.tick() => measured.clear(),
                () = self.unmeasured.notified() => {}
            }
            self.measure(&mut measured).await;
        }
    }

    /// Measures all but these, and adds them.
    async fn measure(&self, measured: &mut BTreeSet<Key>) {
        let mut left = self.lock().published.clone();
        left.retain(|key, _| !measured.contains(key));
        join_all(left.iter().map(|(key, volume)| self.measure_one(key, volume))).await;
        measured.extend(left.into_keys());
        let claims = self.deps.figures.claims();
        for gauge in gauges(&self.deps.measured.metrics) {
            gauge.retain(|[namespace, name]: [&str; 2]| {
                claims.contains(&(namespace.to_owned(), name.to_owned()))
            });
        }
    }

    async fn measure_one(&self, key: &Key, volume: &Published) {
        let answer = self.ask(volume).await;
        // It may have gone while its driver was asked.
        let answer = answer.filter(|_| self.lock().published.contains_key(key));
        let at = self.deps.measured.clock.now().wall;
        let seen = answer.map(|stats| read(&stats, volume.claim.as_ref(), at));
        if let (Some(claim), Some(seen)) = (&volume.claim, &seen) {
            set_gauges(&self.deps.measured.metrics, claim, seen);
        }
        self.deps.figures.set(&key.0, &key.1, seen);
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
            let answer = self.deps.measured.call(name, "NodeGetVolumeStats", call).await;
            answer.map_err(|error| tracing::debug!(%error, volume = handle, "volume not measured")).ok()
        };
        tokio::time::timeout(TIMEOUT, asked).await.ok().flatten()
    }
}

/// What the driver told, as far as it makes sense: no volume has less than nothing of anything.
fn read(stats: &NodeGetVolumeStatsResponse, claim: Option<&ClaimRef>, at: Wall) -> Figures {
    let mut figures =
        Figures { claim: claim.map(|c| (c.namespace.clone(), c.name.clone())), at, ..Figures::default() };
    for usage in &stats.usage {
        let [total, free, used] =
            [usage.total, usage.available, usage.used].map(|n| u64::try_from(n).unwrap_or_default());
        let amount = Some(Amount { total, free, used });
        match usage.unit() {
            Unit::Bytes => figures.bytes = amount,
            Unit::Inodes => figures.inodes = amount,
            Unit::Unknown => {}
        }
    }
    figures
}

fn set_gauges(metrics: &Metrics, claim: &ClaimRef, figures: &Figures) {
    let labels = [claim.namespace.as_str(), claim.name.as_str()];
    let [capacity, available, used, inodes, inodes_free, inodes_used] = gauges(metrics);
    let counted =
        [(figures.bytes, [capacity, available, used]), (figures.inodes, [inodes, inodes_free, inodes_used])];
    for (amount, [total, free, used]) in counted {
        let Some(amount) = amount else { continue };
        // Whole numbers up to 2^53 are exact, and no volume is larger.
        #[allow(clippy::cast_precision_loss)]
        let number = |n: u64| n as f64;
        total.set(labels, number(amount.total));
        free.set(labels, number(amount.free));
        used.set(labels, number(amount.used));
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
