//! What the probes say about each container instance.

use std::collections::BTreeMap;

use base::ids::ContainerId;

/// The latest word of a container's probes.
///
/// `None` means that this kind of probe is not configured or has not spoken yet; the reader applies
/// the start value of the facts (liveness good, readiness bad, startup unknown) if it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub liveness: Option<bool>,
    pub readiness: Option<bool>,
    pub startup: Option<bool>,
}

/// Verdicts by container instance: a new instance starts with a clean slate.
pub type Verdicts = BTreeMap<ContainerId, Verdict>;
