//! What matters of EndpointSlices, and how the slices of one Service become one list per port.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use k8s_openapi::api::discovery::v1 as discovery;

use super::address::{Family, parse_ip};
use super::key::{Protocol, ServiceKey};

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    pub family: Family,
    pub ports: Box<[SlicePort]>,
    pub endpoints: Box<[SliceEndpoint]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub number: u16,
}

/// The order of the fields is the order of preference between two endpoints of the same address: the
/// greater one stays.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceEndpoint {
    pub is_staying: bool,
    pub is_ready: bool,
    pub is_serving: bool,
    pub is_local: bool,
    pub node_hint: NodeHint,
    pub zone_hints: Box<[Arc<str>]>,
    pub ip: IpAddr,
}

/// Whether an endpoint is meant for certain nodes, and for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeHint {
    Absent,
    Elsewhere,
    Here,
}

/// One target of one Service port, whichever slices it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedEndpoint {
    pub address: SocketAddr,
    pub state: SliceEndpoint,
}

/// One list per port name and protocol, sorted by address. A port number is the slice's: the same named
/// port may be another number on another Pod. Of two endpoints with the same address and port, the one that
/// is not terminating stays; a Pod that moves between slices is in both for a moment.
pub fn merge<'a>(
    slices: impl Iterator<Item = &'a Slice>,
    family: Family,
) -> BTreeMap<(Arc<str>, Protocol), Vec<MergedEndpoint>> {
    let mut merged: BTreeMap<(Arc<str>, Protocol), BTreeMap<SocketAddr, &SliceEndpoint>> = BTreeMap::new();
    for slice in slices.filter(|slice| slice.family == family) {
        for port in &slice.ports {
            let list = merged.entry((port.name.clone(), port.protocol)).or_default();
            for endpoint in &slice.endpoints {
                let kept = list.entry(SocketAddr::new(endpoint.ip, port.number)).or_insert(endpoint);
                *kept = endpoint.max(*kept);
            }
        }
    }
    let own = |(address, state): (_, &SliceEndpoint)| MergedEndpoint { address, state: state.clone() };
    merged.into_iter().map(|(port, list)| (port, list.into_iter().map(own).collect())).collect()
}

// === impl Slice ===

impl Slice {
    /// `None` for a slice that belongs to no Service of ours: without the label, of a headless Service, or
    /// of names instead of addresses.
    pub fn read(slice: &discovery::EndpointSlice, node: &str) -> Option<(ServiceKey, Self)> {
        let labels = slice.metadata.labels.as_ref()?;
        let service = labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
        if labels.contains_key(HEADLESS_LABEL) {
            return None;
        }
        let family = Family::BOTH.into_iter().find(|family| family.name() == slice.address_type)?;
        let endpoints = slice.endpoints.iter().flatten();
        let read = Self {
            family,
            ports: slice.ports.iter().flatten().filter_map(SlicePort::read).collect(),
            endpoints: endpoints.filter_map(|e| SliceEndpoint::read(e, family, node)).collect(),
        };
        Some((ServiceKey::new(slice.metadata.namespace.as_deref()?, service), read))
    }
}

// === impl SlicePort ===

impl SlicePort {
    /// A port without a name is not the port named "", and a port without a number is no target.
    fn read(port: &discovery::EndpointPort) -> Option<Self> {
        Some(Self {
            name: port.name.as_deref()?.into(),
            protocol: Protocol::read(port.protocol.as_deref())?,
            number: u16::try_from(port.port?).ok().filter(|n| *n != 0)?,
        })
    }
}

// === impl SliceEndpoint ===

impl SliceEndpoint {
    fn read(endpoint: &discovery::Endpoint, family: Family, node: &str) -> Option<Self> {
        // The API allows more addresses but gives them no meaning.
        let ip = parse_ip(endpoint.addresses.first()?).filter(|ip| Family::of(*ip) == family)?;
        let conditions = endpoint.conditions.as_ref();
        let hints = endpoint.hints.as_ref();
        let for_nodes = hints.and_then(|h| h.for_nodes.as_deref()).unwrap_or_default();
        let node_hint = match for_nodes.iter().any(|hint| hint.name == node) {
            true => NodeHint::Here,
            false if for_nodes.is_empty() => NodeHint::Absent,
            false => NodeHint::Elsewhere,
        };
        let for_zones = hints.and_then(|h| h.for_zones.as_deref()).unwrap_or_default();
        Some(Self {
            is_staying: !conditions.and_then(|c| c.terminating).unwrap_or(false),
            is_ready: conditions.and_then(|c| c.ready).unwrap_or(true),
            is_serving: conditions.and_then(|c| c.serving).unwrap_or(true),
            is_local: endpoint.node_name.as_deref() == Some(node),
            node_hint,
            zone_hints: for_zones.iter().map(|hint| hint.name.as_str().into()).collect(),
            ip,
        })
    }
}
