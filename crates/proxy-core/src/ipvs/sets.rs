//! The ipsets: how they are called, and what is in them.

use crate::objects::{Family, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetId {
    /// Endpoints of this node that may meet themselves.
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    LoadBalancerLocal,
    LoadBalancerFirewall,
    LoadBalancerSourceIp,
    LoadBalancerSourceCidr,
    NodePortTcp,
    NodePortLocalTcp,
    NodePortUdp,
    NodePortLocalUdp,
    NodePortSctp,
    NodePortLocalSctp,
    HealthCheckNodePort,
    /// The addresses of the device.
    IpvsIps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetKind {
    Ip,
    IpPort,
    IpPortIp,
    IpPortNet,
    Port,
}

/// The kernel's limit for names of sets.
const LONGEST: usize = 31;

// === impl SetId ===

impl SetId {
    pub const ALL: [SetId; 17] = [
        SetId::LoopBack,
        SetId::ClusterIp,
        SetId::ExternalIp,
        SetId::ExternalIpLocal,
        SetId::LoadBalancer,
        SetId::LoadBalancerLocal,
        SetId::LoadBalancerFirewall,
        SetId::LoadBalancerSourceIp,
        SetId::LoadBalancerSourceCidr,
        SetId::NodePortTcp,
        SetId::NodePortLocalTcp,
        SetId::NodePortUdp,
        SetId::NodePortLocalUdp,
        SetId::NodePortSctp,
        SetId::NodePortLocalSctp,
        SetId::HealthCheckNodePort,
        SetId::IpvsIps,
    ];

    /// Both families live beside each other, so one of them has a longer prefix, and a name may be cut.
    pub fn name(self, family: Family) -> String {
        let prefix = match family {
            Family::V4 => "KUBE-",
            Family::V6 => "KUBE-6-",
        };
        let mut name = format!("{prefix}{}", self.stem());
        name.truncate(LONGEST);
        name
    }

    fn stem(self) -> &'static str {
        match self {
            SetId::LoopBack => "LOOP-BACK",
            SetId::ClusterIp => "CLUSTER-IP",
            SetId::ExternalIp => "EXTERNAL-IP",
            SetId::ExternalIpLocal => "EXTERNAL-IP-LOCAL",
            SetId::LoadBalancer => "LOAD-BALANCER",
            SetId::LoadBalancerLocal => "LOAD-BALANCER-LOCAL",
            SetId::LoadBalancerFirewall => "LOAD-BALANCER-FW",
            SetId::LoadBalancerSourceIp => "LOAD-BALANCER-SOURCE-IP",
            SetId::LoadBalancerSourceCidr => "LOAD-BALANCER-SOURCE-CIDR",
            SetId::NodePortTcp => "NODE-PORT-TCP",
            SetId::NodePortLocalTcp => "NODE-PORT-LOCAL-TCP",
            SetId::NodePortUdp => "NODE-PORT-UDP",
            SetId::NodePortLocalUdp => "NODE-PORT-LOCAL-UDP",
            SetId::NodePortSctp => "NODE-PORT-SCTP-HASH",
            SetId::NodePortLocalSctp => "NODE-PORT-LOCAL-SCTP-HASH",
            SetId::HealthCheckNodePort => "HEALTH-CHECK-NODE-PORT",
            SetId::IpvsIps => "IPVS-IPS",
        }
    }

    pub fn kind(self) -> SetKind {
        match self {
            SetId::LoopBack | SetId::LoadBalancerSourceIp => SetKind::IpPortIp,
            SetId::LoadBalancerSourceCidr => SetKind::IpPortNet,
            SetId::NodePortTcp
            | SetId::NodePortLocalTcp
            | SetId::NodePortUdp
            | SetId::NodePortLocalUdp
            | SetId::HealthCheckNodePort => SetKind::Port,
            SetId::IpvsIps => SetKind::Ip,
            SetId::ClusterIp
            | SetId::ExternalIp
            | SetId::ExternalIpLocal
            | SetId::LoadBalancer
            | SetId::LoadBalancerLocal
            | SetId::LoadBalancerFirewall
            | SetId::NodePortSctp
            | SetId::NodePortLocalSctp => SetKind::IpPort,
        }
    }

    /// The sets of a protocol's node ports: of all of them, and of those that keep their clients' addresses.
    pub(super) fn node_ports(protocol: Protocol) -> [SetId; 2] {
        match protocol {
            Protocol::Tcp => [SetId::NodePortTcp, SetId::NodePortLocalTcp],
            Protocol::Udp => [SetId::NodePortUdp, SetId::NodePortLocalUdp],
            Protocol::Sctp => [SetId::NodePortSctp, SetId::NodePortLocalSctp],
        }
    }

    /// Why there is such a set, as rules tell those who list them.
    pub(super) fn comment(self) -> &'static str {
        match self {
            SetId::LoopBack => "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            SetId::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            SetId::ExternalIp => "Kubernetes service external ip + port for masquerade and filter purpose",
            SetId::ExternalIpLocal => {
                "Kubernetes service external ip + port with externalTrafficPolicy=local"
            }
            SetId::LoadBalancer => "Kubernetes service lb portal",
            SetId::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            SetId::LoadBalancerFirewall => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            SetId::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            SetId::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            SetId::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            SetId::NodePortLocalTcp => "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
            SetId::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
            SetId::NodePortLocalUdp => "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
            SetId::NodePortSctp => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            SetId::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            SetId::HealthCheckNodePort => "Kubernetes health check node port",
            SetId::IpvsIps => "Addresses on the ipvs interface",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_upstreams_and_differ() {
        assert_eq!(SetId::LoadBalancerSourceCidr.name(Family::V4), "KUBE-LOAD-BALANCER-SOURCE-CIDR");
        assert_eq!(SetId::LoadBalancerSourceCidr.name(Family::V6), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        let names: BTreeSet<String> =
            SetId::ALL.iter().flat_map(|set| Family::BOTH.map(|family| set.name(family))).collect();
        assert_eq!(names.len(), 2 * SetId::ALL.len());
        assert!(names.iter().all(|name| name.len() <= LONGEST));
    }
}
