//! In-place resize: other resources for containers that run on.
//!
//! Three sets of resources belong to a Pod. *Desired* is what its object asks for. *Allocated* is what the node has
//! granted: the Pod is planned, started and shown by it. *Actuated* is what the cgroups were last told. The dispatcher
//! moves allocated towards desired ([`judge`], [`queue`]), the Pod's task moves actuated towards allocated ([`due`],
//! [`acts`]). Both are written to disk before anybody acts on them ([`checkpoint`]).

mod actuate;
pub mod checkpoint;
mod judge;
mod measure;
pub mod queue;
mod shrink;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;

use api::pod::Amount;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub use actuate::{
    Act, Due, Update, acts, due, is_in_progress, recorded, recorded_at_start, recorded_whole, restarts,
};
pub use judge::{Infeasible, judge};
pub use measure::{Resource, Sizes};
pub use shrink::{Usage, check_shrink};
pub use words::{message, operations};

/// A list of resources, as the API has it.
type List = BTreeMap<String, Quantity>;

/// The resources that can be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// What a Pod and its containers may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodResources {
    /// By name, init containers too.
    pub containers: BTreeMap<String, ResourceRequirements>,
    /// What is stated for all containers together.
    pub pod: Option<ResourceRequirements>,
}

/// Why a resize was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub reason: PendingReason,
    pub message: String,
    /// The version of the Pod that asks.
    pub generation: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingReason {
    /// There is no room now; it is tried again.
    Deferred,
    /// This node will never do it.
    Infeasible,
}

/// A resize that was granted and is not in force yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InProgress {
    /// The version of the Pod whose resources were granted.
    pub generation: Option<i64>,
    /// What went wrong when it was last tried.
    pub error: Option<String>,
}

// === impl Pending ===

impl Pending {
    /// What an earlier life said of the Pod.
    #[must_use]
    pub fn of_status(status: &PodStatus) -> Option<Self> {
        let c = status.conditions.iter().flatten().find(|c| c.type_ == "PodResizePending")?;
        let reason = match c.reason.as_deref() {
            Some("Infeasible") => PendingReason::Infeasible,
            _ => PendingReason::Deferred,
        };
        let message = c.message.clone().unwrap_or_default();
        Some(Self { reason, message, generation: c.observed_generation })
    }
}

// === impl InProgress ===

impl InProgress {
    /// What an earlier life said of the Pod.
    #[must_use]
    pub fn of_status(status: &PodStatus) -> Option<Self> {
        let c = status.conditions.iter().flatten().find(|c| c.type_ == "PodResizeInProgress")?;
        let error = c.message.clone().filter(|_| c.reason.as_deref() == Some("Error"));
        Some(Self { generation: c.observed_generation, error })
    }
}

// === impl PodResources ===

impl PodResources {
    /// What the Pod's object asks for.
    #[must_use]
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.spec else { return Self::default() };
        let of = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        Self { containers: all(spec).map(of).collect(), pod: spec.resources.clone() }
    }

    /// Whether the Pod's object asks for these.
    #[must_use]
    pub fn are_of(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return true };
        let same_container = |c: &Container| {
            self.containers.get(&c.name).is_none_or(|own| same(Some(own), c.resources.as_ref()))
        };
        same(self.pod.as_ref(), spec.resources.as_ref()) && all(spec).all(same_container)
    }

    /// The Pod as if its object asked for these. A container that is not known here keeps what it asks for.
    #[must_use]
    pub fn applied(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if self.are_of(pod) {
            return pod.clone();
        }
        let mut granted = Pod::clone(pod);
        if let Some(spec) = &mut granted.spec {
            if !same(self.pod.as_ref(), spec.resources.as_ref()) {
                spec.resources.clone_from(&self.pod);
            }
            for c in all_mut(spec) {
                if let Some(own) = self.containers.get(&c.name)
                    && !same(Some(own), c.resources.as_ref())
                {
                    c.resources = Some(own.clone());
                }
            }
        }
        Arc::new(granted)
    }

    /// The Pod with the larger of what it asks for and these: what shrinks counts in full until it has shrunk.
    #[must_use]
    pub fn raised(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let larger = |own: &Option<ResourceRequirements>, other: Option<&ResourceRequirements>| {
            let other = other?.requests.as_ref()?;
            let mut list = own.clone().unwrap_or_default();
            let requests = list.requests.get_or_insert_default();
            let mut has_grown = false;
            for (name, amount) in other.iter().filter(|(name, _)| RESIZABLE.contains(&name.as_str())) {
                if amount_of(Some(requests), name) < Amount::parse(&amount.0).unwrap_or_default() {
                    requests.insert(name.clone(), amount.clone());
                    has_grown = true;
                }
            }
            has_grown.then_some(list)
        };
        let Some(spec) = &pod.spec else { return pod.clone() };
        let whole = larger(&spec.resources, self.pod.as_ref());
        let of_containers: BTreeMap<String, ResourceRequirements> = all(spec)
            .filter_map(|c| Some((c.name.clone(), larger(&c.resources, self.containers.get(&c.name))?)))
            .collect();
        if whole.is_none() && of_containers.is_empty() {
            return pod.clone();
        }
        let mut raised = Pod::clone(pod);
        if let Some(spec) = &mut raised.spec {
            if whole.is_some() {
                spec.resources = whole;
            }
            for c in all_mut(spec) {
                if let Some(list) = of_containers.get(&c.name) {
                    c.resources = Some(list.clone());
                }
            }
        }
        Arc::new(raised)
    }
}

/// Whether two specs ask for different resources.
#[must_use]
pub fn is_resize(old: &Pod, new: &Pod) -> bool {
    !PodResources::of(old).are_of(new)
}

/// The same amounts, however they are spelled.
pub(crate) fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    fn parts(r: &ResourceRequirements) -> impl PartialEq + '_ {
        let claims = r.claims.as_deref().unwrap_or_default();
        (amounts(r.requests.as_ref()), amounts(r.limits.as_ref()), claims)
    }
    let none = ResourceRequirements::default();
    parts(a.unwrap_or(&none)) == parts(b.unwrap_or(&none))
}

fn amounts(list: Option<&List>) -> BTreeMap<&str, Result<Amount, &str>> {
    let list = list.into_iter().flatten();
    list.map(|(name, q)| (name.as_str(), Amount::parse(&q.0).map_err(|_| q.0.as_str()))).collect()
}

fn amount_of(list: Option<&List>, name: &str) -> Amount {
    list.and_then(|l| l.get(name)).and_then(|q| Amount::parse(&q.0).ok()).unwrap_or_default()
}

/// Containers whose resources can be resized.
fn all(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

fn all_mut(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    spec.init_containers.iter_mut().flatten().chain(&mut spec.containers)
}

// === impl PendingReason ===

impl PendingReason {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}
