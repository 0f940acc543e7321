//! What all containers of a Pod need together.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Amount;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Amount>;
/// A resource list as the API spells it.
pub type ResourceList = BTreeMap<String, Quantity>;

/// The requests of all containers at the moment they need most: regular containers and sidecars
/// together, or an init container beside the sidecars started before it.
#[must_use]
pub fn aggregate_requests(spec: &PodSpec) -> Amounts {
    aggregate(spec, |c| c.resources.as_ref().and_then(|r| r.requests.as_ref()))
}

/// The same for limits.
#[must_use]
pub fn aggregate_limits(spec: &PodSpec) -> Amounts {
    aggregate(spec, |c| c.resources.as_ref().and_then(|r| r.limits.as_ref()))
}

/// Whether the resource is a huge page size (`hugepages-2Mi`).
#[must_use]
pub fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// Whether requests may stay below limits: true for the node's own resources except huge pages.
#[must_use]
pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_huge_pages(name)
}

/// Whether the resource belongs to Kubernetes itself and not to a vendor.
#[must_use]
pub fn is_native(name: &str) -> bool {
    !name.contains('/') || name.split('/').next().is_some_and(|p| p.contains("kubernetes.io"))
}

/// Resources a Pod may state for all its containers together.
#[must_use]
pub fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_pages(name)
}

fn aggregate(spec: &PodSpec, list: impl Fn(&Container) -> Option<&ResourceList>) -> Amounts {
    let mut total = Amounts::new();
    spec.containers.iter().for_each(|c| add(&mut total, list(c)));
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for init in spec.init_containers.iter().flatten() {
        let mut now = sidecars.clone();
        add(&mut now, list(init));
        if init.restart_policy.as_deref() == Some("Always") {
            add(&mut total, list(init));
            sidecars.clone_from(&now);
        }
        raise(&mut peak, now);
    }
    raise(&mut total, peak);
    total
}

fn add(to: &mut Amounts, list: Option<&ResourceList>) {
    for (name, quantity) in list.into_iter().flatten() {
        let slot = to.entry(name.clone()).or_default();
        *slot = *slot + Amount::parse(&quantity.0).unwrap_or_default();
    }
}

fn raise(to: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let slot = to.entry(name).or_default();
        *slot = (*slot).max(amount);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn init_containers_count_at_their_peak() {
        let c = |n: &str, cpu: &str, policy: Option<&str>| json!({"name": n, "restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        let spec = |init: serde_json::Value| -> PodSpec {
            serde_json::from_value(
                json!({"containers": [c("a", "1", None), c("b", "500m", None)], "initContainers": init}),
            )
            .unwrap()
        };
        let cpu = |init| aggregate_requests(&spec(init))["cpu"].to_string();
        assert_eq!(cpu(json!([])), "1500m");
        assert_eq!(cpu(json!([c("i", "3", None)])), "3");
        assert_eq!(cpu(json!([c("s", "1", Some("Always"))])), "2500m");
        assert_eq!(cpu(json!([c("s", "1", Some("Always")), c("i", "2", None)])), "3");
    }

    #[test]
    fn kinds_of_resources() {
        assert!(is_overcommit_allowed("cpu") && is_overcommit_allowed("x.kubernetes.io/y"));
        assert!(!is_overcommit_allowed("hugepages-2Mi") && !is_overcommit_allowed("nvidia.com/gpu"));
    }
}
