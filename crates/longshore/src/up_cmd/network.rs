//! The node's address, and the network of its Pods.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use api::config::up::{Ipv4Network, Up};
use serde_json::json;

use super::layout::Layout;

/// The bridge that Pods hang on, where the network is ours.
pub(crate) const BRIDGE: &str = "longshore0";
/// Where containerds of others look for networks.
const MACHINE_CNI: &str = "/etc/cni/net.d";

/// The address of the Node: the one given, or the one packets to the world leave from, or the first that is nobody else's.
pub(crate) fn node_ip(up: &Up) -> Result<IpAddr, String> {
    if let Some(ip) = up.node_ip {
        return Ok(ip);
    }
    let is_ours = |ip: Ipv4Addr| up.cluster_cidr.contains(ip) || up.service_cidr.contains(ip);
    let fits = |ip: &IpAddr| match ip {
        IpAddr::V4(v4) => !(v4.is_loopback() || v4.is_link_local() || v4.is_unspecified() || is_ours(*v4)),
        IpAddr::V6(_) => false,
    };
    let all = sys::link::Links::open().and_then(|mut links| links.addresses());
    let mut all = all.map_err(|e| format!("read the addresses of this machine: {e}"))?;
    all.sort();
    let found = towards_the_world().filter(fits).or_else(|| all.into_iter().map(|(_, ip)| ip).find(fits));
    found.ok_or_else(|| {
        "this machine has no address that others could reach: name one with --node-ip".to_owned()
    })
}

/// Nothing is sent to find out.
fn towards_the_world() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // TEST-NET-1: an address nobody has.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// Writes the network of Pods into the data directory where there is none yet.
pub(super) fn ensure_config(layout: &Layout, up: &Up) -> Result<PathBuf, String> {
    let dir = layout.cni_config();
    let path = dir.join("10-longshore.conflist");
    if has_network(&dir) {
        return Ok(path);
    }
    let text = conflist(up.cluster_cidr.of_the_node(), &layout.cni_leases());
    fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))?;
    Ok(path)
}

/// Whether a containerd that is not ours will find a network.
pub(super) fn machine_has_network() -> bool {
    has_network(Path::new(MACHINE_CNI))
}

fn has_network(dir: &Path) -> bool {
    let is_network = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let end = Path::new(&name).extension().and_then(|e| e.to_str()).unwrap_or_default().to_owned();
        ["conf", "conflist", "json"].contains(&end.as_str())
    };
    fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(is_network))
}

/// Where the plugins are: those named, or our own, which are this program.
pub(super) fn plugins(given: Option<&Path>, own: &Path) -> Result<PathBuf, String> {
    match given {
        Some(dir) if dir.join("bridge").exists() => Ok(dir.to_owned()),
        Some(dir) => Err(format!("--cni-bin-dir {}: no plugin \"bridge\"", dir.display())),
        None => crate::cni_cmd::install(own).map(|()| own.to_owned()),
    }
}

fn conflist(pods: Ipv4Network, leases: &Path) -> String {
    let text = json!({
        "cniVersion": "1.0.0",
        "name": "longshore",
        "plugins": [
            {"type": "bridge", "bridge": BRIDGE, "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
             "hairpinMode": true,
             "ipam": {"type": "host-local", "dataDir": leases, "ranges": [[{"subnet": pods.to_string()}]],
                      "routes": [{"dst": "0.0.0.0/0"}]}},
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{text:#}\n")
}
