//! The sets and maps of the table: as many as are named here, however many Services there are.

use nft::{Field, Set, Values};

use crate::objects::Family;

/// Seldom more clients than this have a memory of their endpoint at one time; the others are sent anywhere.
const MOST_AFFINITIES: u32 = 1 << 20;

/// In the order in which they are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SetId {
    ClusterIps,
    NodePortIps,
    /// Every address and port that somebody answers for, and how an endpoint is picked.
    ServiceIps,
    ServiceNodePorts,
    /// The same for clients from outside, where they may only be sent to endpoints of this node.
    LocalServiceIps,
    LocalServiceNodePorts,
    /// Whose clients do not show, because the endpoint may be elsewhere.
    ExternalIps,
    ServiceEndpoints,
    NodePortEndpoints,
    NoEndpointServices,
    NoEndpointNodePorts,
    NoLocalEndpointServices,
    NoLocalEndpointNodePorts,
    HairpinConnections,
    FirewallIps,
    FirewallAllowed,
    ServicePicks,
    NodePortPicks,
    /// Which endpoint each client of a Service port with affinity has: written by packets.
    Affinities,
    /// The endpoints of such Services, by the affinity ids that clients are remembered with.
    AffinityEndpoints,
    NodePortAffinityEndpoints,
    /// The same affinity ids by number, to draw one.
    AffinitySlots,
    NodePortAffinitySlots,
}

/// Elements, set by set.
#[derive(Clone, Debug, Default)]
pub(super) struct Elements(pub(super) [Vec<nft::Element>; SetId::ALL.len()]);

// === impl SetId ===

impl SetId {
    pub(super) const ALL: [SetId; 23] = [
        SetId::ClusterIps,
        SetId::NodePortIps,
        SetId::ServiceIps,
        SetId::ServiceNodePorts,
        SetId::LocalServiceIps,
        SetId::LocalServiceNodePorts,
        SetId::ExternalIps,
        SetId::ServiceEndpoints,
        SetId::NodePortEndpoints,
        SetId::NoEndpointServices,
        SetId::NoEndpointNodePorts,
        SetId::NoLocalEndpointServices,
        SetId::NoLocalEndpointNodePorts,
        SetId::HairpinConnections,
        SetId::FirewallIps,
        SetId::FirewallAllowed,
        SetId::ServicePicks,
        SetId::NodePortPicks,
        SetId::Affinities,
        SetId::AffinityEndpoints,
        SetId::NodePortAffinityEndpoints,
        SetId::AffinitySlots,
        SetId::NodePortAffinitySlots,
    ];

    /// None is a name that upstream's kube-proxy uses in the same table: its first transaction adds its own sets and empties the
    /// chains we share, and would be refused by a set of that name and another type.
    pub(super) fn name(self) -> &'static str {
        match self {
            SetId::ClusterIps => "all-cluster-ips",
            SetId::NodePortIps => "all-nodeport-ips",
            SetId::ServiceIps => "all-service-ips",
            SetId::ServiceNodePorts => "all-service-nodeports",
            SetId::LocalServiceIps => "local-service-ips",
            SetId::LocalServiceNodePorts => "local-service-nodeports",
            SetId::ExternalIps => "external-ips",
            SetId::ServiceEndpoints => "service-endpoints",
            SetId::NodePortEndpoints => "nodeport-endpoints",
            SetId::NoEndpointServices => "rejected-services",
            SetId::NoEndpointNodePorts => "rejected-nodeports",
            SetId::NoLocalEndpointServices => "dropped-services",
            SetId::NoLocalEndpointNodePorts => "dropped-nodeports",
            SetId::HairpinConnections => "hairpins",
            SetId::FirewallIps => "firewalled-ips",
            SetId::FirewallAllowed => "firewall-allowed",
            SetId::ServicePicks => "service-picks",
            SetId::NodePortPicks => "nodeport-picks",
            SetId::Affinities => "affinities",
            SetId::AffinityEndpoints => "sticky-endpoints",
            SetId::NodePortAffinityEndpoints => "sticky-nodeport-endpoints",
            SetId::AffinitySlots => "sticky-slots",
            SetId::NodePortAffinitySlots => "sticky-nodeport-slots",
        }
    }

    pub(super) fn is_written_by_packets(self) -> bool {
        self == SetId::Affinities
    }

    pub(super) fn define(self, family: Family) -> Set {
        let ip = match family {
            Family::V4 => Field::Ipv4,
            Family::V6 => Field::Ipv6,
        };
        let address = || Values::Fields(vec![ip, Field::Port]);
        let pick = || Values::Fields(vec![Field::Priority]);
        let named = [Field::Priority, Field::Mark];
        let service = [ip, Field::Protocol, Field::Port];
        let node_port = [Field::Protocol, Field::Port];
        let key = |parts: &[&[Field]]| parts.concat();
        let (key, values) = match self {
            SetId::ClusterIps | SetId::NodePortIps => (vec![ip], None),
            SetId::ServiceIps | SetId::LocalServiceIps => (service.to_vec(), Some(pick())),
            SetId::ServiceNodePorts | SetId::LocalServiceNodePorts => (node_port.to_vec(), Some(pick())),
            SetId::ExternalIps
            | SetId::NoEndpointServices
            | SetId::NoLocalEndpointServices
            | SetId::FirewallIps => (service.to_vec(), None),
            SetId::NoEndpointNodePorts | SetId::NoLocalEndpointNodePorts => (node_port.to_vec(), None),
            SetId::ServiceEndpoints => (key(&[&service, &[Field::Mark]]), Some(address())),
            SetId::NodePortEndpoints => (key(&[&node_port, &[Field::Mark]]), Some(address())),
            SetId::HairpinConnections => (key(&[&[ip, ip], &node_port]), None),
            SetId::FirewallAllowed => (key(&[&service, &[ip]]), None),
            SetId::ServicePicks | SetId::NodePortPicks => (vec![Field::Priority], Some(Values::Verdict)),
            SetId::Affinities => (vec![Field::Priority, ip], Some(pick())),
            SetId::AffinityEndpoints => (key(&[&service, &named]), Some(address())),
            SetId::NodePortAffinityEndpoints => (key(&[&node_port, &named]), Some(address())),
            SetId::AffinitySlots => (key(&[&service, &[Field::Mark]]), Some(pick())),
            SetId::NodePortAffinitySlots => (key(&[&node_port, &[Field::Mark]]), Some(pick())),
        };
        let is_dynamic = self.is_written_by_packets();
        Set {
            name: self.name().into(),
            key,
            values,
            is_interval: self == SetId::FirewallAllowed,
            is_dynamic,
            size: is_dynamic.then_some(MOST_AFFINITIES),
        }
    }
}

// === impl Elements ===

impl Elements {
    pub(super) fn put(&mut self, set: SetId, element: nft::Element) {
        self.0[set as usize].push(element);
    }

    pub(super) fn of(&self, set: SetId) -> &[nft::Element] {
        &self.0[set as usize]
    }

    /// Hands out all of them, and keeps their place.
    pub(super) fn drain(&mut self, mut take: impl FnMut(SetId, nft::Element)) {
        for (set, elements) in SetId::ALL.into_iter().zip(&mut self.0) {
            elements.drain(..).for_each(|element| take(set, element));
        }
    }

    pub(super) fn sort(&mut self) {
        for elements in &mut self.0 {
            elements.sort_unstable();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_has_its_place_and_fits_the_registers() {
        for (place, set) in SetId::ALL.into_iter().enumerate() {
            assert_eq!(set as usize, place);
            for family in Family::BOTH {
                assert!(Field::len_of(&set.define(family).key) <= 64, "{}", set.name());
            }
        }
    }
}
