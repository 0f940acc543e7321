//! What this node will never do for a Pod that runs.

use api::pod::{QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{PodResources, Resource, Sizes, all};
use crate::admission::NodeOffer;
use crate::cri_config::is_critical;

/// A resize that is refused for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    pub message: String,
    /// The label of `pod_infeasible_resizes_total`.
    pub detail: &'static str,
}

/// Whether the node can ever give the Pod what it asks for in the place of what it was granted. Whether there is room is
/// another question.
pub fn judge(pod: &Pod, allocated: &PodResources, node: &NodeOffer) -> Result<(), Infeasible> {
    if node.limited_swap && moves_swap(pod, allocated) {
        let message = "In-place resize of containers with swap is not supported.".to_owned();
        return Err(Infeasible { message, detail: "swap_limitation" });
    }
    if node.no_pod_resize
        && !super::same(pod.spec.as_ref().and_then(|s| s.resources.as_ref()), allocated.pod.as_ref())
    {
        let message = "InPlacePodLevelResourcesVerticalScaling is disabled".to_owned();
        return Err(Infeasible { message, detail: "plr_feature_gate_off" });
    }
    if qos_class(pod) != QosClass::Guaranteed {
        return Ok(());
    }
    let pinned = [
        (node.static_cpus, Resource::Cpu, "CPU Manager policy \"static\"", CPU),
        (node.static_memory, Resource::Memory, "Memory Manager policy \"Static\"", MEMORY),
    ];
    for (is_static, resource, whose, detail) in pinned {
        if is_static && asks_for_other(pod, allocated, resource) {
            let message = format!("Resize is infeasible for Guaranteed Pods alongside {whose}");
            return Err(Infeasible { message, detail });
        }
    }
    Ok(())
}

const CPU: &str = "guaranteed_pod_cpu_manager_static_policy";
const MEMORY: &str = "guaranteed_pod_memory_manager_static_policy";

/// Swap is dealt out by what a container asks for; who has some and cannot start again would keep the wrong share.
fn moves_swap(pod: &Pod, allocated: &PodResources) -> bool {
    let Some(spec) = &pod.spec else { return false };
    all(spec).any(|c| {
        let Some(granted) = allocated.containers.get(&c.name) else { return false };
        let (wants, has) = (Sizes::of(c.resources.as_ref()), Sizes::of(Some(granted)));
        wants.memory_request != has.memory_request
            && !restarts_for_memory(c)
            && (swaps(pod, wants) || swaps(pod, has))
    })
}

fn restarts_for_memory(c: &Container) -> bool {
    let mut policies = c.resize_policy.iter().flatten();
    policies.find(|p| p.resource_name == "memory").is_some_and(|p| p.restart_policy == "RestartContainer")
}

fn swaps(pod: &Pod, sizes: Sizes) -> bool {
    !is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        && (sizes.memory_request, sizes.memory_limit) != (0, 0)
        && sizes.memory_request != sizes.memory_limit
}

fn asks_for_other(pod: &Pod, allocated: &PodResources, resource: Resource) -> bool {
    let Some(spec) = &pod.spec else { return false };
    all(spec).any(|c| {
        let granted = Sizes::of(allocated.containers.get(&c.name));
        Sizes::of(c.resources.as_ref()).request(resource) != granted.request(resource)
    })
}
