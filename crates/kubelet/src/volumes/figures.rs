//! How full volumes are, as far as somebody counted: written by those who measure, read by `/stats/summary`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::ids::PodUid;
use base::time::Wall;

/// What was last counted on one volume of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Namespace and name of the claim by which the Pod has it.
    pub claim: Option<(String, String)>,
    pub at: Wall,
    pub bytes: Option<Amount>,
    pub inodes: Option<Amount>,
}

/// So much of it there is, and so much of that is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

/// The figures of all volumes, by Pod and by the Pod's name for the volume.
#[derive(Debug, Default)]
pub struct VolumeFigures {
    known: Mutex<BTreeMap<PodUid, BTreeMap<String, Figures>>>,
}

// === impl VolumeFigures ===

impl VolumeFigures {
    #[must_use]
    pub fn of(&self, pod: &PodUid) -> BTreeMap<String, Figures> {
        self.lock().get(pod).cloned().unwrap_or_default()
    }

    /// The claims of volumes that could be measured.
    pub(super) fn claims(&self) -> BTreeSet<(String, String)> {
        self.lock().values().flatten().filter_map(|(_, figures)| figures.claim.clone()).collect()
    }

    /// What was counted last; none if nobody could.
    pub(super) fn set(&self, pod: &PodUid, volume: &str, figures: Option<Figures>) {
        let mut known = self.lock();
        match figures {
            Some(figures) => _ = known.entry(pod.clone()).or_default().insert(volume.to_owned(), figures),
            None => _ = known.get_mut(pod).and_then(|volumes| volumes.remove(volume)),
        }
    }

    pub(super) fn forget(&self, pod: &PodUid) {
        self.lock().remove(pod);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, BTreeMap<String, Figures>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
