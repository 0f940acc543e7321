//! What becomes of a volume.

use std::time::Duration;

use serde_json::json;

use super::bind::{unbind, volume_phase, write};
use super::claim::set_migration;
use super::newest::{Live, Newest};
use super::reclaim::{Recycling, reclaim};
use super::terms::{Doc, PROVISIONED_BY, migrated, wrong_migration};
use crate::plan::{Act, Event, Plan};
use crate::resource::PERSISTENT_VOLUME_CLAIMS;

/// Held by volumes that kube-controller-manager itself made, until it has deleted what is behind them.
const IN_TREE_FINALIZER: &str = "kubernetes.io/pv-controller";

/// One look at a volume.
pub(super) struct VolumeSync<'a> {
    pub(super) newest: Newest<'a>,
    pub(super) recycling: &'a mut Recycling,
    pub(super) volume: Doc,
    /// When to look again at what hangs on something that does not wake it.
    pub(super) period: Duration,
}

// === impl VolumeSync ===

impl VolumeSync<'_> {
    pub(super) fn sync(&mut self) -> Plan {
        if let Some(act) = self.migrate() {
            return write(act);
        }
        let Some(meant) = self.volume.claim_ref().filter(|meant| !meant.uid.is_empty()) else {
            self.recycling.forget(&self.volume.object.meta.name);
            return self.phase("Available");
        };
        let claim = self.newest.get(PERSISTENT_VOLUME_CLAIMS, &meant.namespace, &meant.name);
        let is_it = |claim: &crate::object::Object| *claim.meta.uid == meant.uid;
        // Whoever bound the volume may have known a claim that is not in the cache yet.
        let claim = match claim {
            Some(claim) if is_it(&claim) => Some(claim),
            None if matches!(self.volume.phase(), "Released" | "Failed") => None,
            _ => match self.newest.live(PERSISTENT_VOLUME_CLAIMS, &meant.namespace, &meant.name) {
                Live::Ask(plan) => return plan,
                Live::Gone => None,
                Live::Found(claim) => Some(claim).filter(|claim| is_it(claim)),
            },
        };
        let Some(claim) = claim.map(Doc::new) else { return self.release() };
        match claim.volume_name() {
            "" => self.half_bound(&claim),
            name if name == &*self.volume.object.meta.name => self.phase("Bound"),
            _ if self.is_made_for_it() => self.release(),
            // Two volumes were meant for the claim, and it took the other.
            _ => unbind(&self.volume),
        }
    }

    fn phase(&self, phase: &str) -> Plan {
        volume_phase(&self.volume, phase, "").map(write).unwrap_or_default()
    }

    fn is_made_for_it(&self) -> bool {
        self.volume.annotation(PROVISIONED_BY).is_some()
            && self.volume.value["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    }

    /// Nobody claims it any more. A failure stays to be seen while it is tried again.
    fn release(&mut self) -> Plan {
        if !matches!(self.volume.phase(), "Released" | "Failed") {
            return self.phase("Released");
        }
        let plan = reclaim(self.newest, self.recycling, &self.volume);
        let is_tried_again = self.volume.value["spec"]["persistentVolumeReclaimPolicy"] == "Recycle";
        if is_tried_again { plan.wake(Some(self.period)) } else { plan }
    }

    /// The claim does not name it yet; the change of this volume has woken the claim.
    fn half_bound(&self, claim: &Doc) -> Plan {
        if claim.is_block() == self.volume.is_block() {
            return Plan::nothing().wake(Some(self.period));
        }
        let (volume, claim) = (&self.volume.object, &claim.object);
        let of_volume = format!(
            "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
            claim.meta.name
        );
        let of_claim = format!(
            "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
            volume.meta.name
        );
        Plan::nothing().event(Event::warning(volume, "VolumeMismatch", of_volume)).event(Event::warning(
            claim,
            "VolumeMismatch",
            of_claim,
        ))
    }

    /// What a CSI driver has taken over is said to be its own.
    fn migrate(&self) -> Option<Act> {
        let provisioner = self.volume.annotation(PROVISIONED_BY);
        if let Some(driver) = wrong_migration(&self.volume, provisioner) {
            return Some(set_migration(&self.volume, driver));
        }
        provisioner.and_then(migrated)?;
        let finalizers = self.volume.value["metadata"]["finalizers"].as_array()?;
        finalizers.iter().any(|one| one == IN_TREE_FINALIZER).then(|| {
            let rest: Vec<_> = finalizers.iter().filter(|one| *one != IN_TREE_FINALIZER).cloned().collect();
            Act::update(&self.volume.object, |value| value["metadata"]["finalizers"] = json!(rest))
        })
    }
}
