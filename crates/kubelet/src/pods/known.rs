//! The Pods that the dispatcher knows, for those who collect what is left over.

use std::collections::BTreeSet;

use base::ids::PodUid;

/// What the rest of the node may know: whose things must not be collected.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pub pods: BTreeSet<PodUid>,
    /// Every source has reported once, and what they do not list is being ended.
    pub sources_ready: bool,
}
