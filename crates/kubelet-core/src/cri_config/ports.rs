//! Ports of containers that the runtime maps to the host.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::types::{PortMapping, Protocol};

/// Every declared port of the regular containers. A port named (or, unnamed, described) twice in one
/// container counts once.
pub(super) fn mappings(pod: &Pod) -> Vec<PortMapping> {
    pod.spec.iter().flat_map(|s| &s.containers).flat_map(of_container).collect()
}

fn of_container(container: &Container) -> Vec<PortMapping> {
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for p in container.ports.iter().flatten() {
        let protocol = protocol(p.protocol.as_deref());
        let host_ip = p.host_ip.clone().unwrap_or_default();
        let host_port = p.host_port.unwrap_or(0);
        let name = p.name.clone().filter(|n| !n.is_empty()).unwrap_or_else(|| {
            let family = match host_ip.as_str() {
                "" => "any",
                ip if ip.parse::<Ipv6Addr>().is_ok() => "v6",
                _ => "v4",
            };
            format!("{family}-{protocol:?}-{host_ip}:{}:{host_port}", p.container_port)
        });
        if seen.insert(name) {
            out.push(PortMapping { protocol, container_port: p.container_port, host_port, host_ip });
        }
    }
    out
}

/// TCP unless it says otherwise.
#[must_use]
pub fn protocol(text: Option<&str>) -> Protocol {
    match text {
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        _ => Protocol::Tcp,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::pod;
    use super::*;

    #[test]
    fn ports() {
        let p = pod("containers:
  - {name: a, ports: [{containerPort: 80}, {containerPort: 80}, {containerPort: 80, hostPort: 8080, hostIP: '::1'},
      {name: x, containerPort: 53, protocol: UDP}, {name: x, containerPort: 54}]}
  - {name: b, ports: [{containerPort: 80, protocol: SCTP}]}");
        let got: Vec<String> = mappings(&p)
            .iter()
            .map(|m| format!("{:?} {} {} {}", m.protocol, m.container_port, m.host_port, m.host_ip))
            .collect();
        assert_eq!(got, ["Tcp 80 0 ", "Tcp 80 8080 ::1", "Udp 53 0 ", "Sctp 80 0 "]);
    }
}
