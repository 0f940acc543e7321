//! What eviction would do now, for `longshore doctor eviction`: everything is looked at, and nothing is done.

use kubelet_core::eviction::Layout;
use kubelet_core::eviction::forecast::{Collectable, Forecast, forecast};

use super::{DISK_AGE, EvictionDeps, active, candidates, of};
use crate::pods::gc;
use crate::stats::Depth;

impl EvictionDeps {
    /// Says what stands in the way where it cannot be told.
    pub async fn forecast(&self) -> Result<Forecast, String> {
        let signals = self.sampler.signals().await.ok_or("memory and disks could not be read in time")?;
        let (left, layout) = (of(&signals), Layout::of(&signals.disks));
        let pods = active(&self.node);
        let measured = self.sampler.pods(&pods, Depth::Whole, DISK_AGE).await;
        let stats = measured.map_err(|e| e.to_string())?;
        let states = self.settings.thresholds.states(&left, layout);
        let told = candidates(&pods, &stats);
        let mut found = forecast(&states, &left, layout, &told, self.collectable().await);
        if !self.settings.isolates_storage {
            // Limits on local storage are not enforced here.
            found.over_limit.clear();
        }
        Ok(found)
    }

    async fn collectable(&self) -> Collectable {
        let mut found = Collectable::default();
        match gc::reclaimable(&self.node, &self.known, &self.collection).await {
            Ok(dead) => found.dead_containers = dead,
            Err(error) => found.unknown.push(format!("dead containers: {error}")),
        }
        match self.images.unused().await {
            Ok(images) => {
                found.unused_images = images.len();
                found.image_bytes = images.iter().map(|i| i.bytes).sum();
            }
            Err(error) => found.unknown.push(format!("unused images: {error}")),
        }
        found
    }
}
