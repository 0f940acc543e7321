//! What a whole Pod asks for: the sum of its containers, or the peak while it initialises.

use std::collections::{BTreeMap, BTreeSet};

use api::pod::resources::is_pod_level as is_pod_level_resource;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::downward::count;

/// Amounts by resource name: millicores for cpu, whole units for all else.
pub type Amounts = BTreeMap<String, i64>;

type List = BTreeMap<String, Quantity>;

/// Requests of the Pod, without its overhead. Pod-level requests replace the sums.
#[must_use]
pub fn pod_requests(pod: &Pod) -> Amounts {
    total(pod, |r| r.requests.as_ref())
}

/// Limits of the Pod, without its overhead. Pod-level limits replace the sums.
#[must_use]
pub fn pod_limits(pod: &Pod) -> Amounts {
    total(pod, |r| r.limits.as_ref())
}

/// Requests of the containers alone.
#[must_use]
pub fn container_requests(pod: &Pod) -> Amounts {
    aggregate(pod, |r| r.requests.as_ref())
}

/// What running the Pod costs beyond its containers.
#[must_use]
pub fn overhead(pod: &Pod) -> Amounts {
    amounts(pod.spec.as_ref().and_then(|s| s.overhead.as_ref()))
}

/// True if the Pod states cpu, memory or huge pages for all its containers together.
#[must_use]
pub fn is_pod_level(pod: &Pod) -> bool {
    let lists = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    lists.is_some_and(|r| {
        r.requests.iter().chain(&r.limits).flat_map(|l| l.keys()).any(|n| is_pod_level_resource(n))
    })
}

fn total(pod: &Pod, side: impl Fn(&ResourceRequirements) -> Option<&List>) -> Amounts {
    let mut sum = aggregate(pod, &side);
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).and_then(&side);
    sum.extend(amounts(of_pod).into_iter().filter(|(name, _)| is_pod_level_resource(name)));
    sum
}

/// Regular containers and sidecars run together; an init container runs beside the sidecars declared
/// before it. The larger of the two counts, resource by resource.
fn aggregate(pod: &Pod, side: impl Fn(&ResourceRequirements) -> Option<&List>) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |c: &Container| amounts(c.resources.as_ref().and_then(&side));
    let mut running = Amounts::new();
    for c in &spec.containers {
        add(&mut running, &of(c));
    }
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for c in spec.init_containers.iter().flatten() {
        let mut now = of(c);
        if c.restart_policy.as_deref() == Some("Always") {
            add(&mut running, &now);
            add(&mut sidecars, &now);
            now = sidecars.clone();
        } else {
            add(&mut now, &sidecars);
        }
        raise(&mut peak, &now);
    }
    raise(&mut running, &peak);
    running
}

fn amounts(list: Option<&List>) -> Amounts {
    list.into_iter().flatten().filter_map(|(n, q)| Some((n.clone(), count(q, n)?))).collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, v) in more {
        let slot = sum.entry(name.clone()).or_default();
        *slot = slot.saturating_add(*v);
    }
}

fn raise(top: &mut Amounts, other: &Amounts) {
    let names: BTreeSet<_> = other.keys().cloned().collect();
    for name in names {
        let v = other[&name];
        let slot = top.entry(name).or_insert(v);
        *slot = (*slot).max(v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    fn cpu(spec: &str) -> (Option<i64>, Option<i64>) {
        let p = pod(spec);
        (pod_requests(&p).get("cpu").copied(), pod_limits(&p).get("cpu").copied())
    }

    #[test]
    fn sums_and_peaks() {
        let c = |name: &str, cpu: &str, more: &str| {
            format!(
                "{{name: {name}, {more} resources: {{requests: {{cpu: {cpu}}}, limits: {{cpu: {cpu}}}}}}}"
            )
        };
        let side = "restartPolicy: Always,";
        for (init, regular, want) in [
            (vec![], vec![c("a", "1", ""), c("b", "500m", "")], 1500),
            (vec![c("i", "3", "")], vec![c("a", "1", "")], 3000),
            (vec![c("s", "1", side)], vec![c("a", "1", "")], 2000),
            (vec![c("s", "1", side), c("i", "3", "")], vec![c("a", "1", "")], 4000),
            (vec![c("i", "3", ""), c("s", "1", side)], vec![c("a", "1", "")], 3000),
        ] {
            let spec =
                format!("{{initContainers: [{}], containers: [{}]}}", init.join(","), regular.join(","));
            assert_eq!(cpu(&spec), (Some(want), Some(want)), "{spec}");
        }
        assert_eq!(cpu("containers: [{name: a}]"), (None, None));
        let pod_level = "{resources: {requests: {cpu: 2}}, containers: [{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 4}}}]}";
        assert_eq!(cpu(pod_level), (Some(2000), Some(4000)));
    }
}
