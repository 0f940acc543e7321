//! A certificate of somebody who signs no others.

use base::time::Wall;

use crate::names::{AlternativeNames, Subject};

/// What a certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Usage {
    DigitalSignature,
    KeyEncipherment,
    ClientAuth,
    ServerAuth,
}

/// A certificate to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    pub subject: Subject,
    /// DER of the SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
    pub names: AlternativeNames,
    pub usages: Vec<Usage>,
    pub not_before: Wall,
    pub not_after: Wall,
}

/// Clocks of other machines may be a little behind ours.
#[must_use]
pub fn backdated(now: Wall) -> Wall {
    Wall::from_secs(now.secs() - 300)
}
