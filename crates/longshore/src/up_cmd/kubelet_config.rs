//! What of a kubelet's configuration is the machine's, wherever the control plane is.

use std::path::Path;

use serde_json::{Value, json};

use super::choice::Chosen;
use super::documents;
use super::layout::Layout;

/// Paths, sockets, and what this machine cannot do.
pub(super) fn of_the_machine(chosen: &Chosen, layout: &Layout, socket: &Path) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": documents::KUBELET,
        "staticPodPath": layout.manifests(),
        "podLogsDir": layout.pod_logs(),
        "containerRuntimeEndpoint": format!("unix://{}", socket.display()),
        "cgroupDriver": chosen.cgroup_driver(),
        "authentication": {"x509": {"clientCAFile": layout.ca()}},
    });
    // A Pod cannot reach systemd-resolved on the node's loopback address.
    let resolved = Path::new("/run/systemd/resolve/resolv.conf");
    if resolved.exists() {
        config["resolvConf"] = json!(resolved);
    }
    // One command has to be enough on the machines people have; the kubelet says what is old about them.
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        config["failCgroupV1"] = json!(false);
    }
    config
}

/// What all nodes of a cluster that `up` has made have in common.
pub(super) fn of_the_cluster(cluster_domain: &str, dns: Option<std::net::IpAddr>) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": documents::KUBELET,
        "clusterDomain": cluster_domain,
        "failSwapOn": false,
        // A share of the disk of a machine that people use for other things too is more than a node may keep for itself.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "5%", "nodefs.inodesFree": "5%",
            "imagefs.available": "5%", "imagefs.inodesFree": "5%",
        },
    });
    if let Some(ip) = dns {
        config["clusterDNS"] = json!([ip]);
    }
    config
}
