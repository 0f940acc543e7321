//! PersistentVolume binder: claims get volumes, and volumes that nobody claims any more are reclaimed.
//!
//! A binding is two references that point at each other: first the volume's at the claim, then the claim's at the volume. It
//! is made by four writes, and every one of them may be the last before a crash, so each look begins with what is there.
//! Scheduler, provisioners and users write the same references; whoever was first wins by the revision of the volume.

mod bind;
mod claim;
mod find;
mod newest;
mod reclaim;
mod terms;
#[cfg(test)]
mod tests;
mod users;
mod volume;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::config::controllers::Tuning;
use base::time::Now;

use self::claim::ClaimSync;
use self::newest::Newest;
use self::reclaim::Recycling;
pub(super) use self::terms::migrated;
use self::terms::{Doc, Offers, claim_ref};
use self::volume::VolumeSync;
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Event, Outcome, Plan};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STORAGE_CLASSES};
use crate::view::View;

pub(crate) const BINDER_OF_CLAIMS: Row = Row {
    name: "persistentvolume-binder-controller",
    aliases: &["persistentvolume-binder"],
    identity: "persistent-volume-binder",
    event_source: "persistentvolume-controller",
    queue: "claims",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[
        Watch::itself(PERSISTENT_VOLUME_CLAIMS),
        Watch { resource: PERSISTENT_VOLUMES, keys: claims_of_volume },
        Watch { resource: STORAGE_CLASSES, keys: |_, _, wakes| wakes.add(Key::all()) },
    ],
    reads: &[PODS],
    is_single: false,
    make: |tuning| Box::new(Claims::new(tuning)),
};

pub(crate) const BINDER_OF_VOLUMES: Row = Row {
    queue: "volumes",
    watches: &[
        Watch::itself(PERSISTENT_VOLUMES),
        Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: volume_of_claim },
        Watch { resource: PODS, keys: volume_of_recycler },
    ],
    reads: &[],
    make: |tuning| Box::new(Volumes::new(tuning)),
    ..BINDER_OF_CLAIMS
};

#[derive(Debug)]
struct Claims {
    period: Duration,
    may_provision: bool,
    offers: Offers,
    /// Who waits for a volume or a class.
    pending: BTreeSet<Key>,
}

#[derive(Debug)]
struct Volumes {
    period: Duration,
    recycling: Recycling,
}

// === impl Claims ===

impl Claims {
    fn new(tuning: &Tuning) -> Claims {
        Claims {
            period: tuning.pvclaimbinder_sync_period,
            may_provision: tuning.enable_dynamic_provisioning,
            offers: Offers::default(),
            pending: BTreeSet::new(),
        }
    }

    fn sync(&mut self, newest: Newest<'_>, key: &Key) -> Plan {
        let Some(claim) = newest.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &key.name) else {
            self.pending.remove(key);
            return Plan::nothing();
        };
        let claim = Doc::new(claim);
        let is_pending = !matches!(claim.phase(), "Bound" | "Lost");
        let may_provision = self.may_provision;
        let plan = ClaimSync { newest, offers: &mut self.offers, claim, may_provision }.sync();
        if is_pending {
            self.pending.insert(key.clone());
            return plan.wake(Some(self.period));
        }
        self.pending.remove(key);
        plan
    }
}

impl Controller for Claims {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        if *key == Key::all() {
            return Plan { others: self.pending.iter().cloned().collect(), ..Plan::nothing() };
        }
        self.sync(Newest { view, done: None }, key)
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        match done.last().last() {
            Some((act, outcome)) if outcome.is_done() || is_question(act) => {
                self.sync(Newest { view, done: Some(done) }, key)
            }
            Some((act, Outcome::Failed(refusal))) if is_provisioning(act) => {
                let Some(claim) = view.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &key.name) else {
                    return Plan::nothing();
                };
                let message = format!("Error saving claim: {refusal}");
                Plan::nothing().event(Event::warning(&claim, "ProvisioningFailed", message))
            }
            _ => Plan::nothing(),
        }
    }

    fn observe(&mut self, change: &Change, _now: Now) {
        if let Some(gone) = change.old.as_ref().filter(|_| change.is_deletion()) {
            self.offers.forget(&gone.meta.name);
        }
    }
}

// === impl Volumes ===

impl Volumes {
    fn new(tuning: &Tuning) -> Volumes {
        let recycling = Recycling::new(tuning.recycler);
        Volumes { period: tuning.pvclaimbinder_sync_period, recycling }
    }

    fn sync(&mut self, newest: Newest<'_>, key: &Key) -> Plan {
        let Some(volume) = newest.get(PERSISTENT_VOLUMES, "", &key.name) else {
            self.recycling.forget(&key.name);
            return Plan::nothing();
        };
        let volume = Doc::new(volume);
        VolumeSync { newest, recycling: &mut self.recycling, volume, period: self.period }.sync()
    }
}

impl Controller for Volumes {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        self.sync(Newest { view, done: None }, key)
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let Some((act, outcome)) = done.last().last() else { return Plan::nothing() };
        if let Act::Create { .. } = act {
            self.recycling.made(&key.name, outcome.object(PODS).as_ref());
            return Plan::nothing();
        }
        if !outcome.is_done() && !is_question(act) {
            return Plan::nothing();
        }
        self.sync(Newest { view, done: Some(done) }, key)
    }
}

fn is_question(act: &Act) -> bool {
    matches!(act, Act::Get { .. })
}

fn is_provisioning(act: &Act) -> bool {
    let annotations = &act.body()["metadata"]["annotations"];
    matches!(act, Act::Update { target, .. } if target.subresource.is_empty())
        && annotations[terms::PROVISIONER].is_string()
        && annotations[terms::BIND_COMPLETED].is_null()
}

/// The claim that a volume is meant for; and whoever waits, when a volume is free.
fn claims_of_volume(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let phase = |volume: &Arc<Object>| volume.value()["status"]["phase"] == "Available";
    for volume in change.old.iter().chain(&change.new) {
        if let Some(claim) = claim_ref(&volume.value()["spec"]["claimRef"]) {
            wakes.add(Key::new(&claim.namespace, &claim.name));
        }
    }
    let is_free = change.new.as_ref().is_some_and(phase);
    if is_free && !change.old.as_ref().is_some_and(phase) {
        wakes.add(Key::all());
    }
}

fn volume_of_claim(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    for claim in change.old.iter().chain(&change.new) {
        if let Some(volume) = claim.value()["spec"]["volumeName"].as_str().filter(|name| !name.is_empty()) {
            wakes.add(Key::new("", volume));
        }
    }
}

fn volume_of_recycler(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let volume = change.object().and_then(|pod| reclaim::volume_of(pod).map(|volume| Key::new("", volume)));
    wakes.extend(volume);
}
