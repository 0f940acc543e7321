//! What a configuration may not say. Every mistake is reported, each with its field's path.

use std::net::IpAddr;

use base::duration::GoDuration;

use super::flags;
use super::types::{KubeProxyConfiguration, Mode};
use crate::config::FieldError;
use crate::config::check::Check;
use crate::config::gates::Gates;
use crate::config::logging;

pub(super) fn validate(c: &KubeProxyConfiguration, gates: &Gates) -> Vec<FieldError> {
    let mut check = Check::new(flags::for_field);
    mode(c, &mut check);
    periods(c, &mut check);
    servers(c, &mut check);
    local_traffic(c, &mut check);
    addresses(c, &mut check);
    machine(c, &mut check);
    check.at_least("clientConnection.burst", c.client_connection.burst, 0);
    check.hidden_metrics(&c.show_hidden_metrics_for_version);
    logging::check(&c.logging, gates, &mut check);
    check.into_errors()
}

fn mode(c: &KubeProxyConfiguration, check: &mut Check) {
    check.one_of("mode", &c.mode, &["", "iptables", "ipvs", "nftables"]);
    check.range("iptables.masqueradeBit", c.iptables.masquerade_bit, 0, 31);
    check.range("nftables.masqueradeBit", c.nftables.masquerade_bit, 0, 31);
    if c.mode() != Some(Mode::Ipvs) {
        return;
    }
    not_negative("ipvs.tcpTimeout", c.ipvs.tcp_timeout, check);
    not_negative("ipvs.tcpFinTimeout", c.ipvs.tcp_fin_timeout, check);
    not_negative("ipvs.udpTimeout", c.ipvs.udp_timeout, check);
    for (i, cidr) in c.ipvs.exclude_cidrs.iter().enumerate() {
        prefix(&format!("ipvs.excludeCIDRs[{i}]"), cidr, check);
    }
}

/// Upstream looks at the periods of the mode in force only.
fn periods(c: &KubeProxyConfiguration, check: &mut Check) {
    positive("configSyncPeriod", c.config_sync_period, check);
    let modes = match c.mode() {
        Some(mode) => vec![mode],
        None => vec![Mode::Iptables, Mode::Nftables],
    };
    for mode in modes {
        let (full, least) = c.periods(mode);
        let block = mode.name();
        positive(&format!("{block}.syncPeriod"), full, check);
        not_negative(&format!("{block}.minSyncPeriod"), least, check);
        if least > full {
            let text = format!("{full} must be at least {block}.minSyncPeriod {least}");
            check.fail(&format!("{block}.syncPeriod"), text);
        }
    }
}

fn servers(c: &KubeProxyConfiguration, check: &mut Check) {
    if !is_address(&c.bind_address) {
        check.fail("bindAddress", format!("{:?} is not an IP address", c.bind_address));
    }
    if !c.healthz_bind_address.is_empty() {
        host_and_port("healthzBindAddress", &c.healthz_bind_address, check);
    }
    host_and_port("metricsBindAddress", &c.metrics_bind_address, check);
}

fn local_traffic(c: &KubeProxyConfiguration, check: &mut Check) {
    let modes = ["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix", ""];
    check.one_of("detectLocalMode", &c.detect_local_mode, &modes);
    match c.detect_local_mode.as_str() {
        "BridgeInterface" if c.detect_local.bridge_interface.is_empty() => {
            check.fail(
                "detectLocal.bridgeInterface",
                "must not be empty with detectLocalMode BridgeInterface",
            );
        }
        "InterfaceNamePrefix" if c.detect_local.interface_name_prefix.is_empty() => {
            let text = "must not be empty with detectLocalMode InterfaceNamePrefix";
            check.fail("detectLocal.interfaceNamePrefix", text);
        }
        _ => {}
    }
    if matches!(c.detect_local_mode.as_str(), "" | "ClusterCIDR") && !c.cluster_cidr.is_empty() {
        cluster_cidr(c, check);
    }
}

fn cluster_cidr(c: &KubeProxyConfiguration, check: &mut Check) {
    let cidrs = c.cluster_cidrs();
    let families: Vec<bool> = cidrs.iter().map(|cidr| cidr.contains(':')).collect();
    if cidrs.len() > 2 || (cidrs.len() == 2 && families[0] == families[1]) {
        let text = format!("{:?} must be one CIDR, or one of each family", c.cluster_cidr);
        check.fail("clusterCIDR", text);
    }
    for cidr in cidrs {
        prefix("clusterCIDR", cidr, check);
    }
}

fn addresses(c: &KubeProxyConfiguration, check: &mut Check) {
    let path = |i: usize| format!("nodePortAddresses[{i}]");
    for (i, text) in c.node_port_addresses.iter().enumerate() {
        match text.as_str() {
            "primary" if c.node_port_addresses.len() > 1 => {
                check.fail(&path(i), "\"primary\" must stand alone");
            }
            "primary" => {}
            cidr => prefix(&path(i), cidr, check),
        }
    }
}

fn machine(c: &KubeProxyConfiguration, check: &mut Check) {
    check.range("oomScoreAdj", c.oom_score_adj, -1000, 1000);
    check.at_least("conntrack.maxPerCore", c.conntrack.max_per_core, 0);
    check.at_least("conntrack.min", c.conntrack.min, 0);
    not_negative("conntrack.tcpEstablishedTimeout", c.conntrack.tcp_established_timeout, check);
    not_negative("conntrack.tcpCloseWaitTimeout", c.conntrack.tcp_close_wait_timeout, check);
    not_negative("conntrack.udpTimeout", c.conntrack.udp_timeout, check);
    not_negative("conntrack.udpStreamTimeout", c.conntrack.udp_stream_timeout, check);
}

fn positive(path: &str, value: GoDuration, check: &mut Check) {
    if value <= GoDuration::ZERO {
        check.fail(path, format!("{value} must be greater than 0"));
    }
}

fn not_negative(path: &str, value: GoDuration, check: &mut Check) {
    check.at_least(path, value, GoDuration::ZERO);
}

fn prefix(path: &str, text: &str, check: &mut Check) {
    let is_prefix = text.split_once('/').is_some_and(|(ip, length)| {
        let most = if ip.contains(':') { 128 } else { 32 };
        is_address(ip) && length.parse::<u8>().is_ok_and(|l| l <= most)
    });
    if !is_prefix {
        check.fail(path, format!("{text:?} is not a CIDR such as 10.100.0.0/16 or fde4:8dba:82e1::/48"));
    }
}

fn host_and_port(path: &str, text: &str, check: &mut Check) {
    let Some((host, port)) = text.rsplit_once(':') else {
        check.fail(path, format!("{text:?} must be IP:port"));
        return;
    };
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let is_host = match bare {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.contains(':') && is_address(host),
    };
    if !is_host {
        check.fail(path, format!("{host:?} must be an IP address"));
    }
    if !port.parse::<u16>().is_ok_and(|p| p > 0) {
        check.fail(path, format!("{port:?} must be a port between 1 and 65535"));
    }
}

/// With leading zeros too, as the API has always taken them.
fn is_address(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let octets: Vec<&str> = text.split('.').collect();
    let is_octet = |o: &&str| o.bytes().all(|b| b.is_ascii_digit()) && o.parse::<u8>().is_ok();
    octets.len() == 4 && octets.iter().all(is_octet)
}
