//! Resources and host ports.

use k8s_openapi::api::core::v1::Pod;

use super::NodeOffer;
use crate::cri_config::{Protocol, protocol};
use crate::pod_resources::{Amounts, overhead, pod_requests};

/// One resource the node has too little of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Insufficient {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Insufficient {
    pub(super) fn missing(&self) -> i64 {
        self.requested - (self.capacity - self.used)
    }
}

/// What the node cannot give the Pod beside the others. Extended resources the node does not know
/// are not its business.
pub(super) fn insufficient(pod: &Pod, others: &[&Pod], offer: &NodeOffer) -> Vec<Insufficient> {
    let node = &offer.allocatable;
    let mut out = Vec::new();
    let count = i64::try_from(others.len()).unwrap_or(i64::MAX);
    if count + 1 > node.pods {
        out.push(Insufficient { resource: "pods".into(), requested: 1, used: count, capacity: node.pods });
    }
    let wanted = requests(pod);
    let others: Vec<Amounts> = others.iter().map(|p| requests(p)).collect();
    let mut check = |resource: &str, capacity: i64| {
        let requested = wanted.get(resource).copied().unwrap_or(0);
        let used = others.iter().filter_map(|o| o.get(resource)).fold(0i64, |a, b| a.saturating_add(*b));
        if requested > 0 && requested > capacity - used {
            out.push(Insufficient { resource: resource.to_owned(), requested, used, capacity });
        }
    };
    check("cpu", node.milli_cpu);
    check("memory", node.memory);
    check("ephemeral-storage", node.ephemeral_storage);
    for name in wanted.keys().filter(|n| n.starts_with("hugepages-")) {
        check(name, node.hugepages.get(name).copied().unwrap_or(0));
    }
    for (name, capacity) in &offer.extended {
        check(name, *capacity);
    }
    out
}

/// A Pod's requests with its overhead.
pub(super) fn requests(pod: &Pod) -> Amounts {
    let mut sum = pod_requests(pod);
    for (name, more) in overhead(pod) {
        let slot = sum.entry(name).or_default();
        *slot = slot.saturating_add(more);
    }
    sum
}

/// No other Pod holds a host port this one wants.
pub(super) fn ports_are_free(pod: &Pod, others: &[&Pod]) -> bool {
    let taken: Vec<HostPort> = others.iter().flat_map(|p| host_ports(p)).collect();
    !host_ports(pod).iter().any(|p| taken.iter().any(|t| t.clashes(p)))
}

struct HostPort {
    ip: String,
    port: i32,
    protocol: Protocol,
}

impl HostPort {
    fn clashes(&self, other: &HostPort) -> bool {
        let any = |p: &HostPort| matches!(p.ip.as_str(), "" | "0.0.0.0");
        self.port == other.port
            && self.protocol == other.protocol
            && (any(self) || any(other) || self.ip == other.ip)
    }
}

/// Host ports of regular containers and sidecars: those hold them for the Pod's life.
fn host_ports(pod: &Pod) -> Vec<HostPort> {
    api::pod::containers(pod)
        .filter(|c| matches!(c.kind(), api::pod::ContainerType::Regular | api::pod::ContainerType::Sidecar))
        .flat_map(|c| c.ports())
        .filter_map(|p| {
            let port = p.host_port.filter(|p| *p > 0)?;
            let ip = p.host_ip.clone().unwrap_or_default();
            Some(HostPort { ip, port, protocol: protocol(p.protocol.as_deref()) })
        })
        .collect()
}
