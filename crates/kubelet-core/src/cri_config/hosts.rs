//! The content of a Pod's /etc/hosts.

use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::hostname::hostname_and_domain;
use super::types::CriConfigError;

/// Where it is mounted.
pub const HOSTS_PATH: &str = "/etc/hosts";

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOCAL: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// The file for a Pod; `node_hosts` is the node's own file, used by hostNetwork Pods.
pub(super) fn content(
    pod: &Pod,
    pod_ips: &[IpAddr],
    cluster_domain: &str,
    node_hosts: &str,
) -> Result<String, CriConfigError> {
    let mut out = String::new();
    if is_host_network(pod) {
        out.push_str(HEADER_HOST_NETWORK);
        out.push_str(node_hosts);
    } else {
        let (hostname, domain) = hostname_and_domain(pod, cluster_domain)?;
        out.push_str(HEADER);
        out.push_str(LOCAL);
        for ip in pod_ips {
            let _ = match domain.as_str() {
                "" => writeln!(out, "{ip}\t{hostname}"),
                domain => writeln!(out, "{ip}\t{hostname}.{domain}\t{hostname}"),
            };
        }
    }
    let aliases = pod.spec.as_ref().and_then(|s| s.host_aliases.as_deref()).unwrap_or_default();
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(out, "{}\t{names}", alias.ip);
    }
    Ok(out)
}

/// A container gets the file unless it mounts something there itself, or the Pod has no address yet.
pub(super) fn wanted(pod: &Pod, container: &Container, pod_ips: &[IpAddr]) -> bool {
    let taken = container.volume_mounts.iter().flatten().any(|m| m.mount_path == HOSTS_PATH);
    !taken && (!pod_ips.is_empty() || is_host_network(pod))
}

fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network) == Some(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::pod;
    use super::*;

    #[test]
    fn files() {
        let ips: Vec<IpAddr> = vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let plain = content(&pod("containers: []"), &ips, "c.l", "").unwrap();
        assert_eq!(plain, format!("{HEADER}{LOCAL}10.1.0.5\tweb\nfd00::5\tweb\n"));
        let rich = pod(
            "{containers: [], subdomain: s, hostAliases: [{ip: 1.2.3.4, hostnames: [a, b]}, {ip: 1.2.3.5, hostnames: [c]}]}",
        );
        assert_eq!(
            content(&rich, &ips[..1], "c.l", "").unwrap(),
            format!(
                "{HEADER}{LOCAL}10.1.0.5\tweb.s.shop.svc.c.l\tweb\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n1.2.3.5\tc\n"
            )
        );
        let host = pod("{containers: [], hostNetwork: true, hostAliases: [{ip: 1.2.3.4, hostnames: [a]}]}");
        assert_eq!(
            content(&host, &[], "c.l", "127.0.0.1 node\n").unwrap(),
            format!("{HEADER_HOST_NETWORK}127.0.0.1 node\n\n# Entries added by HostAliases.\n1.2.3.4\ta\n")
        );
    }

    #[test]
    fn who_gets_one() {
        let ip = ["10.0.0.1".parse().unwrap()];
        let p = pod("containers: [{name: a}, {name: b, volumeMounts: [{name: v, mountPath: /etc/hosts}]}]");
        let c = &p.spec.as_ref().unwrap().containers;
        assert_eq!(
            (wanted(&p, &c[0], &ip), wanted(&p, &c[1], &ip), wanted(&p, &c[0], &[])),
            (true, false, false)
        );
        let h = pod("{hostNetwork: true, containers: []}");
        assert!(wanted(&h, &c[0], &[]));
    }
}
