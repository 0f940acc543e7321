//! When the node takes Pods off itself, and which: upstream's eviction manager.
//!
//! * [`signal`]: what is measured: memory, file systems, process ids.
//! * [`thresholds`]: how much of each must be left, and since when it is not.
//! * [`layout`]: which file systems there are, and what can be freed on each before a Pod has to go.
//! * [`limits`]: Pods that took more disk than they may; no threshold is asked about them.
//! * [`rank`]: who goes first.
//! * [`forecast`]: who would go next, for people who ask.
//!
//! A threshold costs one Pod at a time, and only after what nobody uses was cleared away.

pub mod forecast;
pub mod layout;
pub mod limits;
mod message;
pub mod rank;
pub mod signal;
pub mod thresholds;

use std::collections::BTreeMap;

use api::pod::static_pod::{MIRROR_ANNOTATION, SOURCE_ANNOTATION};
use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

use crate::stats::PodStats;
pub use layout::{Layout, Reclaim};
pub use signal::{Reading, Readings, Resource, Signal};
pub use thresholds::{Met, Thresholds};

/// The reason in the Pod's status and in its event.
pub const REASON: &str = "Evicted";
/// Seconds that a Pod has when the node cannot wait.
const AT_ONCE: i64 = 1;
/// From here on priorities are Kubernetes' own.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// A Pod that may have to go, and what it uses; none where nobody measured it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    pub pod: &'a Pod,
    pub stats: Option<&'a PodStats>,
}

/// A Pod that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub uid: PodUid,
    pub message: String,
    /// Seconds.
    pub grace: i64,
    /// The label of `kubelet_evictions`.
    pub signal: &'static str,
    /// The node had to have room: others may make a new one at once. One that broke its own limit is not excused.
    pub disrupts: bool,
    /// Told with the event.
    pub annotations: BTreeMap<String, String>,
}

/// What [`victim`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Every threshold to act on now, the one to be relieved first.
    pub met: &'a [Met],
    pub readings: &'a Readings,
    pub layout: Layout,
    /// Seconds that a Pod has at most after a soft threshold.
    pub most_grace: i64,
    pub candidates: &'a [Candidate<'a>],
}

/// The one Pod that goes so that the first threshold is relieved; none if nobody may be taken.
#[must_use]
pub fn victim(input: &Input<'_>) -> Option<Eviction> {
    let first = input.met.first()?;
    let order = rank::rank(first.signal, input.layout, input.candidates);
    let chosen = order.into_iter().map(|at| input.candidates[at]).find(|c| !is_protected(c.pod))?;
    let grace = match first.is_hard() {
        true => AT_ONCE,
        false => {
            let own = chosen.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
            own.map_or(input.most_grace, |own| own.min(input.most_grace))
        }
    };
    let (message, annotations) = message::starved(first.signal.resource(), chosen, input.met, input.readings);
    Some(Eviction {
        uid: uid(chosen.pod),
        message,
        grace,
        signal: first.signal.as_str(),
        disrupts: true,
        annotations,
    })
}

/// Pods that the node never takes: those of manifests, which nobody would start again elsewhere, and those that the
/// cluster cannot do without. A Pod that was given by command is like any other: it can be given again.
#[must_use]
pub fn is_protected(pod: &Pod) -> bool {
    let annotation = |key: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(key));
    annotation(SOURCE_ANNOTATION).is_some_and(|source| matches!(source.as_str(), "file" | "http"))
        || annotation(MIRROR_ANNOTATION).is_some()
        || priority(pod) >= SYSTEM_CRITICAL
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

fn uid(pod: &Pod) -> PodUid {
    PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests;
