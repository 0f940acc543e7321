//! Which endpoints take traffic: readiness, topology hints, and what is left when all are on their way out.

use std::sync::Arc;

use crate::objects::{MergedEndpoint, NodeHint, Service, ServicePort, SliceEndpoint};

use super::Endpoint;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) cluster: Arc<[Endpoint]>,
    pub(super) local: Arc<[Endpoint]>,
    /// Whether any endpoint in the cluster could take traffic, even if none of the above may.
    pub(super) is_served: bool,
}

/// Which lists a port needs at all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    pub(super) cluster: bool,
    pub(super) local: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameNode,
    SameZone,
}

pub(super) fn choose(endpoints: &[MergedEndpoint], needs: Needs, zone: Option<&str>) -> Choice {
    let is_usable = |e: &SliceEndpoint| e.is_ready || is_lingering(e);
    Choice {
        cluster: if needs.cluster { cluster_list(endpoints, zone) } else { Arc::default() },
        local: if needs.local { local_list(endpoints) } else { Arc::default() },
        is_served: endpoints.iter().any(|e| is_usable(&e.state)),
    }
}

/// Ready ones near enough; else, those that still serve while they terminate, wherever they are.
fn cluster_list(endpoints: &[MergedEndpoint], zone: Option<&str>) -> Arc<[Endpoint]> {
    let topology = topology(endpoints, zone);
    let ready = keep(endpoints, |e| e.is_ready && is_near(e, topology, zone));
    if ready.is_empty() { keep(endpoints, is_lingering) } else { ready }
}

/// The same on this node alone, decided on its own: hints say nothing about traffic that stays anyway.
fn local_list(endpoints: &[MergedEndpoint]) -> Arc<[Endpoint]> {
    let ready = keep(endpoints, |e| e.is_local && e.is_ready);
    if ready.is_empty() { keep(endpoints, |e| e.is_local && is_lingering(e)) } else { ready }
}

fn is_lingering(endpoint: &SliceEndpoint) -> bool {
    endpoint.is_serving && !endpoint.is_staying
}

/// Hints count only when every ready endpoint has one, and one of them means us: half-written hints would
/// send all traffic to the half that has them.
fn topology(endpoints: &[MergedEndpoint], zone: Option<&str>) -> Topology {
    let mut ready = endpoints.iter().map(|e| &e.state).filter(|e| e.is_ready).peekable();
    if ready.peek().is_none() {
        return Topology::Anywhere;
    }
    let (mut all_for_nodes, mut all_for_zones, mut one_here, mut one_in_zone) = (true, true, false, false);
    for endpoint in ready {
        all_for_nodes &= endpoint.node_hint != NodeHint::Absent;
        all_for_zones &= !endpoint.zone_hints.is_empty();
        one_here |= endpoint.node_hint == NodeHint::Here;
        one_in_zone |= is_for_zone(endpoint, zone);
    }
    match () {
        () if all_for_nodes && one_here => Topology::SameNode,
        () if all_for_zones && one_in_zone => Topology::SameZone,
        () => Topology::Anywhere,
    }
}

fn is_near(endpoint: &SliceEndpoint, topology: Topology, zone: Option<&str>) -> bool {
    match topology {
        Topology::Anywhere => true,
        Topology::SameNode => endpoint.node_hint == NodeHint::Here,
        Topology::SameZone => is_for_zone(endpoint, zone),
    }
}

fn is_for_zone(endpoint: &SliceEndpoint, zone: Option<&str>) -> bool {
    zone.is_some_and(|zone| endpoint.zone_hints.iter().any(|hint| **hint == *zone))
}

fn keep(endpoints: &[MergedEndpoint], wanted: impl Fn(&SliceEndpoint) -> bool) -> Arc<[Endpoint]> {
    let kept = endpoints.iter().filter(|e| wanted(&e.state));
    kept.map(|e| Endpoint { address: e.address, is_local: e.state.is_local }).collect()
}

// === impl Needs ===

impl Needs {
    /// External traffic needs the cluster list even where it stays on the node, for the node's own clients.
    pub(super) fn of(service: &Service, is_external: bool, external_stays: bool) -> Self {
        Self {
            cluster: !service.is_internal_local || is_external,
            local: service.is_internal_local || (external_stays && is_external),
        }
    }

    pub(super) fn is_external(port: &ServicePort, other_addresses: usize) -> bool {
        port.node_port.is_some() || other_addresses > 0
    }
}
