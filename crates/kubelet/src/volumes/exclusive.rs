//! Volumes of this node that are for one Pod at a time (ReadWriteOncePod). The scheduler looks after it too, but not
//! everybody asks it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::ids::PodUid;

/// Who has which volume, by the name of the PersistentVolume. Nothing of it is on the disk: whoever is first after a
/// restart is the one that ran before.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<BTreeMap<String, PodUid>>);

impl Holders {
    /// Whether the volume is the Pod's from now on, or was already.
    pub(super) fn take(&self, volume: &str, uid: &PodUid) -> bool {
        self.lock().entry(volume.to_owned()).or_insert_with(|| uid.clone()) == uid
    }

    /// Nothing came of it.
    pub(super) fn give_back(&self, volume: &str, uid: &PodUid) {
        self.lock().retain(|name, holder| name != volume || holder != uid);
    }

    /// The Pod has no volumes any more.
    pub(super) fn forget(&self, uid: &PodUid) {
        self.lock().retain(|_, holder| holder != uid);
    }

    /// Held for map operations only.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PodUid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
