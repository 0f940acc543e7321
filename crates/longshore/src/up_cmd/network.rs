//! The node's address, and the network of its Pods.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};

use api::config::up::Up;
use overlay::{Both, Cni, Family, Keys, NetConf, Settings};

use super::layout::{Layout, MACHINE_CNI};

/// The bridge that Pods hang on, where the network is ours.
pub(crate) const BRIDGE: &str = "longshore0";
const CONFIG: &str = "10-longshore.conflist";
/// What a tunnel takes of a packet.
const VXLAN: u32 = 50;

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

/// Writes the network of Pods into the data directory where there is none yet. The overlay writes it again once the Node has
/// its subnet.
pub(super) fn ensure_config(layout: &Layout, up: &Up, node_ip: IpAddr) -> Result<PathBuf, String> {
    let path = config_path(layout);
    if has_network(&layout.cni_config()) {
        return Ok(path);
    }
    let has_overlay = !up.disabled.contains("overlay");
    let pods = up.cluster_cidr.of_the_node().to_string();
    let subnets = Both { v4: pods.parse().ok(), v6: None };
    let mtu = device_mtu(node_ip) - if has_overlay { VXLAN } else { 0 };
    let text = overlay::conflist(&subnets, mtu, !has_overlay, BRIDGE, &layout.cni_leases());
    fs::write(&path, text).map_err(|e| format!("write {}: {e}", path.display()))?;
    Ok(path)
}

fn config_path(layout: &Layout) -> PathBuf {
    layout.cni_config().join(CONFIG)
}

/// Of the device that has the node's address.
fn device_mtu(node_ip: IpAddr) -> u32 {
    let find = || {
        let mut routing = sys::route::Routing::open()?;
        let own = routing.addresses(None)?.into_iter().find(|address| address.ip == node_ip);
        let link = own.map(|own| routing.link_by_index(own.device)).transpose()?.flatten();
        Ok::<_, sys::route::Error>(link.map(|link| link.mtu))
    };
    // A tunnel has to fit, and IPv6 through it.
    find().ok().flatten().filter(|mtu| *mtu >= 1280 + VXLAN).unwrap_or(1500)
}

/// The ways to the Pods of other Nodes, for a network that is ours as long as nobody has put another one beside it.
pub(super) fn overlay_settings(layout: &Layout, node: &str, node_ip: IpAddr, conf: NetConf) -> Settings {
    let is_ours = networks(&layout.cni_config()).iter().all(|name| name == CONFIG);
    let cni = Cni { path: config_path(layout), bridge: BRIDGE.to_owned(), leases: layout.cni_leases() };
    let mut public = Both::default();
    public.set(if node_ip.is_ipv4() { Family::V4 } else { Family::V6 }, Some(node_ip));
    Settings {
        node: node.to_owned(),
        conf,
        keys: Keys::default(),
        devices: vec![node_ip.to_string()],
        public,
        masquerades: true,
        subnet_file: None,
        cni: is_ours.then_some(cni),
        tells_network: true,
        seed: crate::agent_cmd::seed(),
    }
}

/// Whether a containerd that is not ours will find a network.
pub(super) fn machine_has_network() -> bool {
    has_network(Path::new(MACHINE_CNI))
}

fn has_network(dir: &Path) -> bool {
    !networks(dir).is_empty()
}

/// The files of a directory that a runtime takes for networks.
fn networks(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names
        .filter(|name| {
            let end = Path::new(name).extension().and_then(|end| end.to_str()).unwrap_or_default();
            ["conf", "conflist", "json"].contains(&end)
        })
        .collect()
}

/// Where the plugins are: those named, or our own, which are this program.
pub(super) fn plugins(given: Option<&Path>, own: &Path) -> Result<PathBuf, String> {
    match given {
        Some(dir) if dir.join("bridge").exists() => Ok(dir.to_owned()),
        Some(dir) => Err(format!("--cni-bin-dir {}: no plugin \"bridge\"", dir.display())),
        None => crate::cni_cmd::install(own).map(|()| own.to_owned()),
    }
}
