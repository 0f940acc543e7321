//! What a Pod needs this version of the node for.

use k8s_openapi::api::core::v1::Pod;

use super::{NodeOffer, Rejection, reject};

pub(super) fn check(pod: &Pod, node: &NodeOffer) -> Result<(), Rejection> {
    let spec = pod.spec.as_ref();
    let resources = spec.and_then(|s| s.resources.as_ref());
    let is_set = resources.is_some_and(|r| r.requests.is_some() || r.limits.is_some());
    if node.no_pod_resources && is_set {
        return Err(reject("PodLevelResourcesNotSupported", "PodLevelResources feature gate is disabled"));
    }
    let Some(declared) = &node.declared else { return Ok(()) };
    let missing: Vec<&str> = needed(pod).into_iter().filter(|f| !declared.iter().any(|d| d == f)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let what = "Pod requires node features that are not available";
    Err(reject("PodFeatureUnsupported", format!("{what}: {}", missing.join(", "))))
}

fn needed(pod: &Pod) -> Vec<&'static str> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut rules = containers.flat_map(|c| c.restart_policy_rules.iter().flatten());
    let mut needed = Vec::new();
    if rules.any(|rule| rule.action == "RestartAllContainers") {
        needed.push("RestartAllContainersOnContainerExits");
    }
    if spec.host_network == Some(true) && spec.host_users == Some(false) {
        needed.push("UserNamespacesHostNetworkSupport");
    }
    needed
}
