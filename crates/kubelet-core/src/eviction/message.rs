//! What a Pod that made room is told, in upstream's words.

use std::collections::BTreeMap;

use base::quantity::Quantity;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{Candidate, Met, Readings, Resource};
use crate::pod_resources::is_pod_level;
use crate::stats::ContainerStats;

/// The message, and the annotations of the event.
pub(super) fn starved(
    resource: Resource,
    candidate: Candidate<'_>,
    met: &[Met],
    readings: &Readings,
) -> (String, BTreeMap<String, String>) {
    let name = resource.as_str();
    let mut message = format!("The node was low on resource: {name}. ");
    let of_resource = met.iter().filter(|m| m.signal.resource() == resource);
    if let Some((met, reading)) = of_resource.filter_map(|m| Some((m, readings.get(&m.signal)?))).next() {
        let available = met.signal.quantity(reading.available);
        message += &format!("Threshold quantity: {}, available: {available}. ", met.limit(*reading));
    }
    let mut annotations = BTreeMap::new();
    let Candidate { pod, stats: Some(stats) } = candidate else { return (message, annotations) };
    let mut note = |key: &str, value: String| _ = annotations.insert(key.to_owned(), value);
    if let Some((used, asked)) = pod_level(resource, candidate) {
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        message += &format!(
            "Pod {pod_name} was using {used}, request is {asked}, has larger consumption of {name}. "
        );
        note("offending_pod", pod_name.to_owned());
        note("offending_pod_usage", used.to_string());
    }
    let (mut names, mut amounts) = (Vec::new(), Vec::new());
    for container in &stats.containers {
        let Some(spec) = find(pod, &container.name) else { continue };
        let asked = asked(spec, name);
        let Some(used) = used(resource, container).filter(|used| *used > asked) else { continue };
        message += &format!(
            "Container {} was using {used}, request is {asked}, has larger consumption of {name}. ",
            container.name
        );
        names.push(container.name.clone());
        amounts.push(used.to_string());
    }
    note("offending_containers", names.join(","));
    note("offending_containers_usage", amounts.join(","));
    note("starved_resource", name.to_owned());
    (message, annotations)
}

/// What the whole Pod uses and asks for, where it asks as a whole.
fn pod_level(resource: Resource, candidate: Candidate<'_>) -> Option<(Quantity, Quantity)> {
    let Candidate { pod, stats } = candidate;
    if resource != Resource::Memory || !is_pod_level(pod) {
        return None;
    }
    let asked = pod.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("memory")?;
    let used = stats?.memory?.working_set.unwrap_or(0);
    Some((bytes(used), asked.0.parse().ok()?))
}

/// Ephemeral containers cannot ask for anything and are not blamed.
fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

fn asked(container: &Container, name: &str) -> Quantity {
    let requests = container.resources.as_ref().and_then(|r| r.requests.as_ref());
    requests.and_then(|r| r.get(name)?.0.parse().ok()).unwrap_or_default()
}

fn used(resource: Resource, container: &ContainerStats) -> Option<Quantity> {
    match resource {
        Resource::EphemeralStorage => {
            let (layer, logs) = (container.rootfs?.1, container.logs?);
            Some(bytes(layer.bytes.saturating_add(logs.bytes)))
        }
        Resource::Memory => container.memory?.working_set.map(bytes),
        Resource::Inodes | Resource::Pids => None,
    }
}

fn bytes(n: u64) -> Quantity {
    Quantity::from_bytes(i64::try_from(n).unwrap_or(i64::MAX))
}
