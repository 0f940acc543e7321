//! PersistentVolumeClaims: the name that one has, and what it says of its size.

use base::quantity::Quantity;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};

pub(crate) const NOT_ON_NODES: &str = "volume.kubernetes.io/node-expansion-not-required";

/// What a claim says of its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// What it has.
    pub capacity: Option<i64>,
    /// What its owner asks for.
    pub requested: Option<i64>,
    /// What the controller is about to give it.
    pub allocated: Option<i64>,
    /// How far that is; empty if nothing is under way.
    pub state: String,
    /// The controller keeps books.
    pub is_tracked: bool,
    /// Every node that has the volume expands it for itself.
    pub on_every_node: bool,
}

/// The claim of an ephemeral volume.
#[must_use]
pub fn ephemeral_claim(pod: &Pod, volume: &str) -> String {
    format!("{}-{volume}", pod.metadata.name.as_deref().unwrap_or_default())
}

// === impl Claimed ===

impl Claimed {
    #[must_use]
    pub fn of(claim: &PersistentVolumeClaim) -> Self {
        let status = claim.status.clone().unwrap_or_default();
        let spec = claim.spec.clone().unwrap_or_default();
        let bytes = |text: &str| text.parse::<Quantity>().ok().map(|q| q.value());
        let storage = |map: Option<&std::collections::BTreeMap<String, _>>| {
            map.and_then(|m| m.get("storage"))
                .and_then(|q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| bytes(&q.0))
        };
        let state =
            status.allocated_resource_statuses.unwrap_or_default().remove("storage").unwrap_or_default();
        let annotations = claim.metadata.annotations.as_ref();
        let shared = spec.access_modes.iter().flatten().any(|m| m == "ReadWriteMany");
        Self {
            capacity: storage(status.capacity.as_ref()),
            requested: storage(spec.resources.as_ref().and_then(|r| r.requests.as_ref())),
            allocated: storage(status.allocated_resources.as_ref()),
            is_tracked: status.allocated_resources.is_some() || !state.is_empty(),
            on_every_node: shared && !annotations.is_some_and(|a| a.contains_key(NOT_ON_NODES)),
            state,
        }
    }
}
