//! How the loop fares: what metrics and health tell.

use proxy_core::objects::Family;
use tokio::time::Instant;

/// How it goes, family by family.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub families: Vec<FamilyReport>,
    pub pending: Pending,
}

/// Changes that matter and that the kernel does not know yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pending {
    pub services: usize,
    pub slices: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FamilyReport {
    pub family: Family,
    /// Since when there is news that the kernel does not know.
    pub pending_since: Option<Instant>,
    pub synced_at: Option<Instant>,
    pub syncs: u64,
    pub failures: u64,
    /// Comparisons that found something wrong after the first.
    pub repairs: u64,
    /// Who changes our rules again each time they are put right, as far as the kernel tells. `None` if nobody does.
    pub contested_by: Option<String>,
}
