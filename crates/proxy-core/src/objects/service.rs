//! What matters of a Service.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use super::address::{Cidr, Family, parse_ip};
use super::key::{Protocol, ServiceKey};

/// Somebody else serves a Service that carries this label, whatever its value.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

/// The API server's default for `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: u32 = 10_800;

/// A Service that this proxy serves. Both families share it; the methods give one family's view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    cluster_ips: [Option<IpAddr>; 2],
    external_ips: Box<[IpAddr]>,
    load_balancer_vips: Box<[IpAddr]>,
    source_ranges: Box<[Cidr]>,
    pub ports: Box<[ServicePort]>,
    pub is_internal_local: bool,
    pub is_external_local: bool,
    /// Seconds for which a client keeps its endpoint.
    pub affinity: Option<u32>,
    pub health_check_node_port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

// === impl Service ===

impl Service {
    /// `None` for a Service that is not ours to serve: headless, ExternalName, without an address yet, or
    /// given to another proxy.
    pub fn read(service: &core::Service) -> Option<(ServiceKey, Self)> {
        let key = ServiceKey::new(service.metadata.namespace.as_deref()?, service.metadata.name.as_deref()?);
        let is_foreign = service.metadata.labels.iter().flatten().any(|(name, _)| name == PROXY_NAME_LABEL);
        let spec = service.spec.as_ref().filter(|_| !is_foreign)?;
        if spec.type_.as_deref() == Some("ExternalName") {
            return None;
        }
        // "None" (headless) and "" (not allocated yet) are no addresses.
        parse_ip(spec.cluster_ip.as_deref()?)?;
        let (is_external_local, is_health_checked) = external_policy(spec);
        let read = Self {
            cluster_ips: Family::BOTH.map(|family| cluster_ip(spec, family)),
            external_ips: spec.external_ips.iter().flatten().filter_map(|ip| parse_ip(ip)).collect(),
            load_balancer_vips: load_balancer_vips(service),
            // The API server lets blanks around a range pass.
            source_ranges: spec
                .load_balancer_source_ranges
                .iter()
                .flatten()
                .filter_map(|range| Cidr::parse(range.trim()))
                .collect(),
            ports: spec.ports.iter().flatten().filter_map(ServicePort::read).collect(),
            is_internal_local: spec.internal_traffic_policy.as_deref() == Some("Local"),
            is_external_local,
            affinity: affinity(spec),
            health_check_node_port: spec.health_check_node_port.filter(|_| is_health_checked).and_then(port),
        };
        read.cluster_ips.iter().any(Option::is_some).then_some((key, read))
    }

    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.cluster_ips[family as usize]
    }

    pub fn external_ips(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.external_ips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Ingress addresses that this node answers for, because the load balancer delivers packets as they are.
    pub fn load_balancer_vips(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.load_balancer_vips.iter().copied().filter(move |ip| Family::of(*ip) == family)
    }

    /// Who may reach the load balancer's addresses. Empty: everybody.
    pub fn source_ranges(&self, family: Family) -> Vec<Cidr> {
        let ranges: Vec<_> = self.source_ranges.iter().copied().filter(|r| r.family() == family).collect();
        if ranges.iter().any(Cidr::is_everything) { Vec::new() } else { ranges }
    }
}

fn cluster_ip(spec: &core::ServiceSpec, family: Family) -> Option<IpAddr> {
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let text = if families.is_empty() {
        spec.cluster_ip.as_deref()
    } else {
        let index = families.iter().position(|name| name == family.name())?;
        spec.cluster_ips.as_ref()?.get(index).map(String::as_str)
    };
    parse_ip(text?).filter(|ip| Family::of(*ip) == family)
}

/// Whether external traffic stays on its node, and whether a load balancer asks which nodes those are.
fn external_policy(spec: &core::ServiceSpec) -> (bool, bool) {
    let has_external_ips = spec.external_ips.as_ref().is_some_and(|ips| !ips.is_empty());
    let (is_reachable, is_load_balancer) = match spec.type_.as_deref() {
        Some("LoadBalancer") => (true, true),
        Some("NodePort") => (true, false),
        _ => (has_external_ips, false),
    };
    let is_local = is_reachable && spec.external_traffic_policy.as_deref() == Some("Local");
    (is_local, is_local && is_load_balancer)
}

/// An ingress of mode Proxy terminates connections itself: to short-cut it would skip what it does to them.
fn load_balancer_vips(service: &core::Service) -> Box<[IpAddr]> {
    let ingress = service.status.iter().filter_map(|s| s.load_balancer.as_ref()?.ingress.as_ref()).flatten();
    ingress
        .filter(|i| i.ip_mode.as_deref().is_none_or(|mode| mode == "VIP"))
        .filter_map(|i| parse_ip(i.ip.as_deref()?))
        .collect()
}

fn affinity(spec: &core::ServiceSpec) -> Option<u32> {
    (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let config = spec.session_affinity_config.as_ref().and_then(|c| c.client_ip.as_ref());
        config
            .and_then(|c| c.timeout_seconds)
            .and_then(|s| u32::try_from(s).ok())
            .filter(|s| *s > 0)
            .unwrap_or(AFFINITY_SECONDS)
    })
}

fn port(number: i32) -> Option<u16> {
    u16::try_from(number).ok().filter(|n| *n != 0)
}

// === impl ServicePort ===

impl ServicePort {
    fn read(from: &core::ServicePort) -> Option<Self> {
        Some(Self {
            name: from.name.as_deref().unwrap_or_default().into(),
            protocol: Protocol::read(from.protocol.as_deref())?,
            port: port(from.port)?,
            node_port: from.node_port.and_then(port),
        })
    }
}
