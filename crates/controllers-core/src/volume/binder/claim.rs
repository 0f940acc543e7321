//! What becomes of a claim.

use std::sync::Arc;

use base::time::Wall;
use serde_json::json;

use super::bind::{bind, claim_status, write};
use super::find;
use super::newest::{Live, Newest};
use super::terms::{
    BETA_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, Doc, MIGRATED_TO, Offers, PROVISIONER,
    SELECTED_NODE, annotate, is_default, migrated, wrong_migration,
};
use super::users;
use crate::object::Object;
use crate::plan::{Act, Event, Plan};
use crate::resource::{PERSISTENT_VOLUMES, STORAGE_CLASSES};
use crate::volume::set;

/// One look at a claim.
pub(super) struct ClaimSync<'a> {
    pub(super) newest: Newest<'a>,
    pub(super) offers: &'a mut Offers,
    pub(super) claim: Doc,
    pub(super) may_provision: bool,
}

// === impl ClaimSync ===

impl ClaimSync<'_> {
    pub(super) fn sync(&mut self) -> Plan {
        let claim = &self.claim;
        let provisioner = claim.annotation(PROVISIONER).or_else(|| claim.annotation(BETA_PROVISIONER));
        if let Some(driver) = wrong_migration(claim, provisioner) {
            return write(set_migration(claim, driver));
        }
        let volume = self.newest.get(PERSISTENT_VOLUMES, "", claim.volume_name()).map(Doc::new);
        match (claim.annotation(BIND_COMPLETED).is_some(), claim.volume_name()) {
            (false, "") => self.unbound(),
            (false, _) => self.asked_for(volume),
            (true, "") => self.lost(
                "ClaimLost",
                "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!",
            ),
            (true, _) => self.bound(volume),
        }
    }

    /// Any volume will do.
    fn unbound(&mut self) -> Plan {
        let class = match self.claim.class() {
            "" => None,
            name => self.newest.get(STORAGE_CLASSES, "", name).map(Doc::new),
        };
        let mode = class.as_ref().map(|class| class.value["volumeBindingMode"].as_str().unwrap_or_default());
        if mode == Some("") {
            let name = self.claim.class();
            return Plan::failed(format!("VolumeBindingMode not set for StorageClass {name:?}"));
        }
        let waits = mode == Some("WaitForFirstConsumer");
        if let Some(volume) = find::volume(self.newest, self.offers, &self.claim, waits) {
            return bind(&Doc::new(volume), &self.claim);
        }
        if !self.claim.says_class()
            && let Some(class) = self.default_class()
        {
            let name = class.meta.name.clone();
            return write(Act::update(&self.claim.object, |value| {
                set(value, &["spec", "storageClassName"], json!(name));
            }));
        }
        if waits && self.claim.annotation(SELECTED_NODE).is_none() {
            return self.pending(Some(self.waiting()));
        }
        if self.claim.class().is_empty() {
            let message = "no persistent volumes available for this claim and no storage class is set";
            return self.pending(Some(Event::normal(&self.claim.object, "FailedBinding", message)));
        }
        if self.may_provision { self.provision(class) } else { Plan::nothing() }
    }

    /// The claim names its volume.
    fn asked_for(&self, volume: Option<Doc>) -> Plan {
        let Some(volume) = volume else { return self.pending(None) };
        let name = &volume.object.meta.name;
        match volume.claim_ref() {
            None => match find::misfit(&volume, &self.claim) {
                None => bind(&volume, &self.claim),
                Some(why) => {
                    let message = format!("Cannot bind to requested volume {name:?}: {why}");
                    self.pending(Some(Event::warning(&self.claim.object, "VolumeMismatch", message)))
                }
            },
            Some(meant) if meant.is(&self.claim.object) => bind(&volume, &self.claim),
            Some(other) => {
                let message = format!("volume {name:?} already bound to a different claim.");
                let event = Event::warning(&self.claim.object, "FailedBinding", message);
                if self.claim.annotation(BOUND_BY_CONTROLLER).is_none() {
                    return self.pending(Some(event));
                }
                let why = format!(
                    "invalid binding of claim {:?} to volume {name:?}: volume already claimed by \"{}/{}\"",
                    self.claim.name(),
                    other.namespace,
                    other.name
                );
                Plan::failed(why).event(event)
            }
        }
    }

    /// The claim was bound before. That it has lost its volume is final, so no cache has the last word on it.
    fn bound(&self, volume: Option<Doc>) -> Plan {
        let volume = match volume {
            Some(volume) if self.may_have(&volume) => return bind(&volume, &self.claim),
            _ => match self.newest.live(PERSISTENT_VOLUMES, "", self.claim.volume_name()) {
                Live::Ask(plan) => return plan,
                Live::Gone => None,
                Live::Found(volume) => Some(Doc::new(volume)),
            },
        };
        match volume {
            None => self
                .lost("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
            // The cache will show it in a moment.
            Some(volume) if self.may_have(&volume) => Plan::failed("the cache of volumes is behind"),
            Some(_) => self.lost(
                "ClaimMisbound",
                "Two claims are bound to the same volume, this one is bound incorrectly",
            ),
        }
    }

    fn may_have(&self, volume: &Doc) -> bool {
        volume.claim_ref().is_none_or(|claim| claim.uid == *self.claim.object.meta.uid)
    }

    fn lost(&self, reason: &str, message: &str) -> Plan {
        if self.claim.phase() == "Lost" {
            let told = Event::warning(&self.claim.object, reason, message);
            let is_new = self.newest.just_wrote(&self.claim.object, "status");
            return if is_new { Plan::nothing().event(told) } else { Plan::nothing() };
        }
        self.status("Lost")
    }

    /// Told once the claim says that it is Pending.
    fn pending(&self, event: Option<Event>) -> Plan {
        let plan = self.status("Pending");
        match event {
            Some(event) if !plan.has_acts() => plan.event(event),
            _ => plan,
        }
    }

    fn status(&self, phase: &str) -> Plan {
        match claim_status(&self.claim, phase, None) {
            Ok(act) => act.map(write).unwrap_or_default(),
            Err(why) => Plan::failed(why),
        }
    }

    fn waiting(&self) -> Event {
        let pods = users::waiting(self.newest.view, &self.claim.object);
        let (reason, message) = match pods.as_slice() {
            [] => {
                ("WaitForFirstConsumer", "waiting for first consumer to be created before binding".to_owned())
            }
            [one] => ("WaitForPodScheduled", format!("waiting for pod {one} to be scheduled")),
            all => ("WaitForPodScheduled", format!("waiting for pods {} to be scheduled", all.join(","))),
        };
        Event::normal(&self.claim.object, reason, message)
    }

    /// The newest of the default classes; of those of one moment the first by name.
    fn default_class(&self) -> Option<Arc<Object>> {
        let mut all = self.newest.view.list(STORAGE_CLASSES, "");
        all.retain(|class| is_default(&class.value()));
        all.sort_by_key(|class| std::cmp::Reverse(class.meta.created.unwrap_or(Wall(i64::MIN))));
        all.into_iter().next()
    }

    /// Leaves it to who is named by the class; none of the provisioners is ours.
    fn provision(&self, class: Option<Doc>) -> Plan {
        let failed = |message: String| {
            Plan::nothing().event(Event::warning(&self.claim.object, "ProvisioningFailed", message))
        };
        let Some(class) = class else {
            return failed(format!("storageclass.storage.k8s.io {:?} not found", self.claim.class()));
        };
        let said = class.value["provisioner"].as_str().unwrap_or_default();
        let provisioner = match migrated(said) {
            Some(driver) => driver,
            None if said == "kubernetes.io/host-path" => {
                return failed(
                    "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is \
                     disabled"
                        .to_owned(),
                );
            }
            None if said.starts_with("kubernetes.io/") => {
                return failed(format!("no volume plugin matched name: {said}"));
            }
            None => said,
        };
        if self.claim.annotation(PROVISIONER) != Some(provisioner) {
            return write(Act::update(&self.claim.object, |value| {
                annotate(value, BETA_PROVISIONER, provisioner);
                annotate(value, PROVISIONER, provisioner);
            }));
        }
        let message = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        Plan::nothing().event(Event::normal(&self.claim.object, "ExternalProvisioning", message))
    }
}

/// Says which CSI driver has taken over, or that none has.
pub(super) fn set_migration(doc: &Doc, driver: Option<&str>) -> Act {
    Act::update(&doc.object, |value| match (driver, value["metadata"]["annotations"].as_object_mut()) {
        (None, Some(annotations)) => _ = annotations.remove(MIGRATED_TO),
        (driver, _) => annotate(value, MIGRATED_TO, driver.unwrap_or_default()),
    })
}
