//! A volume that was ready once stays ready: one that cannot be brought up to date keeps no container from starting.

use kubelet_core::volumes::{Desired, Source};

use crate::ports::{Mounted, MountedVolume, VolumeError};

/// One volume of a Pod.
pub(super) struct Ask {
    /// What it shall be, or why that is not known.
    pub(super) shall: Result<Desired, VolumeError>,
    /// What it was when it last was ready, as far as anybody knows.
    pub(super) was: Option<Desired>,
}

/// A volume that containers may use.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) volume: Desired,
    pub(super) place: MountedVolume,
    /// Why it is only as it was.
    pub(super) stale: Option<VolumeError>,
}

/// A volume, or why it cannot be had.
pub(super) type Outcome = Result<Ready, VolumeError>;

// === impl Ask ===

impl Ask {
    pub(super) fn name(&self) -> &str {
        match &self.shall {
            Ok(volume) => &volume.name,
            Err(error) => &error.volume,
        }
    }

    pub(super) fn is_driven(&self) -> bool {
        let is_csi = |volume: &Desired| matches!(volume.source, Source::Csi(_));
        self.shall.as_ref().ok().or(self.was.as_ref()).is_some_and(is_csi)
    }

    /// Whether just this was ready before.
    pub(super) fn is_known(&self) -> bool {
        match (&self.shall, &self.was) {
            (Ok(shall), Some(was)) => shall.source == was.source,
            (Err(_), was) => was.is_some(),
            (Ok(_), None) => false,
        }
    }

    /// What to look for, and what is in the way of making it anew. An error if nobody knows even that.
    pub(super) fn split(self) -> Result<(Desired, Option<VolumeError>), VolumeError> {
        match (self.shall, self.was) {
            (Ok(volume), _) => Ok((volume, None)),
            (Err(error), Some(was)) => Ok((was, Some(error))),
            (Err(error), None) => Err(error),
        }
    }
}

// === impl Ready ===

impl Ready {
    /// What was made, or what stands in its place.
    pub(super) fn of(
        volume: Desired,
        made: Result<MountedVolume, VolumeError>,
        standing: impl FnOnce() -> Option<MountedVolume>,
    ) -> Outcome {
        match made {
            Ok(place) => Ok(Ready { volume, place, stale: None }),
            Err(error) => match standing() {
                Some(place) => Ok(Ready { volume, place, stale: Some(error) }),
                None => Err(error),
            },
        }
    }
}

pub(super) fn mounted(all: Vec<Ready>) -> Mounted {
    let mut mounted = Mounted::default();
    for Ready { volume, place, stale } in all {
        mounted.groups.extend(volume.gid.filter(|gid| !mounted.groups.contains(gid)));
        mounted.places.insert(volume.name, place);
        mounted.stale.extend(stale);
    }
    mounted
}
