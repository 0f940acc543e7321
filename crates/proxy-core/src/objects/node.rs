//! What matters of this Node.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::address::{Cidr, Family, parse_ip};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The cluster autoscaler's word that this node is about to go.
const TO_BE_DELETED_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    pub zone: Option<Arc<str>>,
    ips: [Option<IpAddr>; 2],
    primary: Option<Family>,
    pod_cidrs: [Option<Cidr>; 2],
    /// Whether load balancers should send new traffic here. A node never seen is not eligible.
    pub is_eligible: bool,
}

// === impl NodeView ===

impl NodeView {
    pub fn read(node: &core::Node) -> Self {
        let spec = node.spec.as_ref();
        let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL));
        let is_tainted =
            spec.and_then(|s| s.taints.as_ref()).into_iter().flatten().any(|t| t.key == TO_BE_DELETED_TAINT);
        Self {
            zone: zone.filter(|zone| !zone.is_empty()).map(|zone| zone.as_str().into()),
            ips: Family::BOTH.map(|family| address(node, |ip| Family::of(ip) == family)),
            primary: address(node, |_| true).map(Family::of),
            pod_cidrs: Family::BOTH.map(|family| pod_cidr(spec?, family)),
            is_eligible: node.metadata.deletion_timestamp.is_none() && !is_tainted,
        }
    }

    /// With the addresses of an earlier view, in families in which it has none itself.
    #[must_use]
    pub(super) fn keeping_addresses_of(mut self, earlier: &Self) -> Self {
        for (ip, known) in self.ips.iter_mut().zip(earlier.ips) {
            *ip = ip.or(known);
        }
        self.primary = self.primary.or(earlier.primary);
        self
    }

    /// The node's first internal address of a family, else its first external one.
    pub fn ip(&self, family: Family) -> Option<IpAddr> {
        self.ips[family as usize]
    }

    /// The family of the node's first internal address, else of its first external one.
    pub fn primary(&self) -> Option<Family> {
        self.primary
    }

    /// The first of the node's Pod ranges in a family; further ones are not looked at.
    pub fn pod_cidr(&self, family: Family) -> Option<Cidr> {
        self.pod_cidrs[family as usize]
    }
}

fn address(node: &core::Node, is_wanted: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let addresses = node.status.as_ref()?.addresses.as_deref()?;
    let first = |kind: &str| {
        let of_kind = addresses.iter().filter(|a| a.type_ == kind);
        of_kind.filter_map(|a| parse_ip(&a.address)).find(|ip| is_wanted(*ip))
    };
    first("InternalIP").or_else(|| first("ExternalIP"))
}

fn pod_cidr(spec: &core::NodeSpec, family: Family) -> Option<Cidr> {
    let many = spec.pod_cidrs.iter().flatten();
    many.chain(&spec.pod_cidr).filter_map(|cidr| Cidr::parse(cidr)).find(|cidr| cidr.family() == family)
}
