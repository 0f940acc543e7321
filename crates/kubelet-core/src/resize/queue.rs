//! In which order resizes that wait are looked at.

use std::cmp::{Ordering, Reverse};

use api::pod::{QosClass, qos_class};
use k8s_openapi::api::core::v1::Pod;

use crate::pod_resources::pod_requests;

/// A resize that waits.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// What is asked for.
    pub desired: &'a Pod,
    /// What the Pod has.
    pub allocated: &'a Pod,
    /// When it began to wait, among all others.
    pub since: u64,
}

/// Who is looked at first: whoever gives back, then the higher priority, then Guaranteed Pods, then who waits longest.
#[must_use]
pub fn order(a: &Waiting<'_>, b: &Waiting<'_>) -> Ordering {
    let key = |w: &Waiting<'_>| {
        let priority = w.desired.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        let is_guaranteed = qos_class(w.desired) == QosClass::Guaranteed;
        (is_increase(w), Reverse(priority), Reverse(is_guaranteed), w.since)
    };
    key(a).cmp(&key(b))
}

fn is_increase(w: &Waiting<'_>) -> bool {
    let (new, old) = (pod_requests(w.desired), pod_requests(w.allocated));
    ["cpu", "memory"].into_iter().any(|name| new.get(name).unwrap_or(&0) > old.get(name).unwrap_or(&0))
}
