//! Addresses, networks that are in use already, ports that are taken, firewalls.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use api::config::up::{Ipv4Network, Up};
use base::finding::Finding;

use super::{good, note, read, wrong};
use crate::node_here::NodeHere;
use crate::up_cmd;

/// A route of the machine: where to, and over which device.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    to: Ipv4Addr,
    mask: u32,
    device: String,
}

pub(super) fn address(up: &Up) -> Vec<Finding> {
    vec![match up_cmd::node_ip(up) {
        Ok(ip) => good(format!("the node's address is {ip}")),
        Err(error) => wrong(error, "Name an address that others reach with --node-ip"),
    }]
}

pub(super) fn overlaps(up: &Up) -> Vec<Finding> {
    let routes = routes(&read("/proc/net/route"));
    let networks = [("--cluster-cidr", up.cluster_cidr), ("--service-cluster-ip-range", up.service_cidr)];
    let met: Vec<Finding> =
        networks.into_iter().filter_map(|(flag, network)| overlap(flag, network, &routes)).collect();
    if met.is_empty() {
        let text = format!("networks {} and {} are free", up.cluster_cidr, up.service_cidr);
        return vec![good(text)];
    }
    met
}

fn overlap(flag: &str, network: Ipv4Network, routes: &[Route]) -> Option<Finding> {
    let meets = |route: &&Route| {
        let is_default = route.mask == 0;
        let is_ours = up_cmd::BRIDGE == route.device;
        let covers = u32::from(network.address) & route.mask == u32::from(route.to);
        !is_default && !is_ours && (covers || network.contains(route.to))
    };
    let route = routes.iter().find(meets)?;
    let theirs = format!("{}/{}", route.to, route.mask.count_ones());
    Some(wrong(
        format!("the machine reaches {theirs} over {}, and {network} overlaps it", route.device),
        format!("Choose another network with {flag}"),
    ))
}

/// As the kernel writes them: hexadecimal, in the machine's order of bytes.
fn routes(text: &str) -> Vec<Route> {
    let read = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok().map(u32::from_be);
        Some(Route { to: number(1)?.into(), mask: number(7)?, device: (*words.first()?).to_owned() })
    };
    text.lines().skip(1).filter_map(read).collect()
}

pub(super) fn ports(up: &Up) -> Vec<Finding> {
    if let Ok(node) = NodeHere::find(Some(&up.state_dir)) {
        return vec![note(format!("a node runs here already, as process {}", node.pid), "It has the ports")];
    }
    let Ok(node) = up_cmd::node_ip(up) else { return Vec::new() };
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let is_on = |part: &str| !up.disabled.contains(part);
    let wanted = [
        (up.bind.ip(), up.bind.port(), "the API server", "Choose another with --secure-port", true),
        (any, 10250, "the kubelet", "Another kubelet may run: stop it", is_on("kubelet")),
        (any, 10256, "kube-proxy", "Another kube-proxy may run: stop it", is_on("kube-proxy")),
        (
            node,
            53,
            "DNS",
            "Another resolver has it: stop it, or leave ours out with --disable=dns",
            is_on("dns"),
        ),
    ];
    let page = up.node_page.filter(|_| is_on("kubelet"));
    let page = page.map(|at| (at.ip(), at.port(), "the node page", "Choose another with --node-page", true));
    let mut found = Vec::new();
    for (ip, port, who, advice, _) in wanted.into_iter().chain(page).filter(|row| row.4) {
        let address = SocketAddr::new(ip, port);
        let udp = if port == 53 { UdpSocket::bind(address).map(drop) } else { Ok(()) };
        match TcpListener::bind(address).map(drop).and(udp) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                found.push(wrong(format!("port {port} at {ip}, which {who} needs, is taken"), advice));
            }
            // Who is not root has been told so.
            _ => {}
        }
    }
    if found.is_empty() { vec![good("every port that is needed is free")] } else { found }
}

pub(super) fn firewall(up: &Up) -> Vec<Finding> {
    let has_ufw = read("/etc/ufw/ufw.conf").lines().any(|line| line.trim() == "ENABLED=yes");
    let has_firewalld = std::path::Path::new("/run/firewalld").is_dir()
        || std::path::Path::new("/run/firewalld.pid").exists();
    let (pods, services) = (up.cluster_cidr, up.service_cidr);
    let mut found = Vec::new();
    if has_ufw {
        found.push(note(
            "ufw filters packets, and drops those of Pods unless it is told to let them pass",
            format!(
                "ufw allow {}/tcp; ufw allow from {pods}; ufw allow to {services}; ufw route allow from {pods}",
                up.bind.port()
            ),
        ));
    }
    if has_firewalld {
        found.push(note(
            "firewalld filters packets, and drops those of Pods unless it is told to let them pass",
            format!(
                "firewall-cmd --permanent --zone=trusted --add-source={pods} --add-source={services}; \
                 firewall-cmd --permanent --add-port={}/tcp; firewall-cmd --reload",
                up.bind.port()
            ),
        ));
    }
    if found.is_empty() { vec![good("no firewall of the host was found")] } else { found }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// On a machine that writes the lowest byte first.
    #[cfg(target_endian = "little")]
    #[test]
    fn a_network_in_use_is_found_and_ours_is_not() {
        let text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    longshore0\t00002A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
                    tun0\t00002B0A\t00000000\t0001\t0\t0\t0\t0080FFFF\t0\t0\t0\n";
        let routes = routes(text);
        assert_eq!(
            routes[2],
            Route { to: "10.43.0.0".parse().unwrap(), mask: 0xffff_8000, device: "tun0".into() }
        );
        let network = |text: &str| {
            let args = [std::ffi::OsString::from(format!("--cluster-cidr={text}"))];
            Up::read(&base::flags::parse(api::config::up::FLAGS, args).unwrap().values).unwrap().cluster_cidr
        };
        assert_eq!(overlap("--x", network("10.42.0.0/16"), &routes), None);
        // The other way round: theirs is the larger one, or the smaller one.
        for ours in ["10.43.1.0/24", "10.40.0.0/14"] {
            let args = format!("--cluster-cidr={ours}");
            let parsed = base::flags::parse(
                api::config::up::FLAGS,
                [args.into(), "--service-cluster-ip-range=10.99.0.0/16".into()],
            );
            let ours = Up::read(&parsed.unwrap().values).unwrap().cluster_cidr;
            let found = overlap("--x", ours, &routes).unwrap();
            assert!(found.text.contains("10.43.0.0/17 over tun0"), "{found:?}");
        }
    }
}
