//! From the configuration to what decides about packets.

use std::time::Duration;

use api::config::gates::Gates;
use api::config::proxy::{self as config, KubeProxyConfiguration};
use proxy_core::objects::{Cidr, parse_ip};
use proxy_core::rules::{LocalTraffic, Mode, NodePortChoice, Settings};

/// The neutral rules' word for a mode.
pub fn mode(mode: config::Mode) -> Mode {
    match mode {
        config::Mode::Nftables => Mode::Nftables,
        config::Mode::Iptables => Mode::Iptables,
        config::Mode::Ipvs => Mode::Ipvs,
    }
}

/// The configuration has passed validation: what does not parse cannot be there.
pub fn settings(config: &KubeProxyConfiguration, chosen: config::Mode) -> Settings {
    let cidrs = |texts: &[&str]| texts.iter().filter_map(|text| Cidr::parse(text)).collect();
    let node_ports: Vec<&str> = config.node_port_addresses.iter().map(String::as_str).collect();
    Settings {
        mode: mode(chosen),
        local_traffic: match config.detect_local_mode.as_str() {
            "NodeCIDR" => LocalTraffic::NodeCidr,
            "BridgeInterface" => LocalTraffic::BridgeInterface(config.detect_local.bridge_interface.clone()),
            "InterfaceNamePrefix" => {
                LocalTraffic::InterfaceNamePrefix(config.detect_local.interface_name_prefix.clone())
            }
            _ => LocalTraffic::ClusterCidr(cidrs(&config.cluster_cidrs())),
        },
        masquerade_all: config.masquerades_all(chosen),
        node_port_addresses: match node_ports.as_slice() {
            [] => NodePortChoice::Unset,
            ["primary"] => NodePortChoice::Primary,
            list => NodePortChoice::Cidrs(cidrs(list)),
        },
        localhost_node_ports: config.iptables.localhost_node_ports,
        bind_address: parse_ip(&config.bind_address).filter(|ip| !ip.is_unspecified()),
        allows_external_ips: Gates::choose(&config.feature_gates).0.enabled("AllowServiceExternalIPs"),
        // No configuration of upstream's has a word for it.
        keeps_sources: false,
    }
}

/// A duration that validation found not to be negative.
pub fn duration(value: base::duration::GoDuration) -> Duration {
    Duration::from_nanos(u64::try_from(value.as_nanos()).unwrap_or(0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_the_configuration_is_heard() {
        let mut config = KubeProxyConfiguration::default();
        let made = settings(&config, config::Mode::Iptables);
        assert_eq!(made, Settings::new(Mode::Iptables));
        config.cluster_cidr = "10.244.0.0/16,fd44::/48".into();
        config.node_port_addresses = vec!["primary".into()];
        config.bind_address = "10.0.0.7".into();
        config.nftables.masquerade_all = true;
        let made = settings(&config, config::Mode::Nftables);
        assert!(matches!(&made.local_traffic, LocalTraffic::ClusterCidr(cidrs) if cidrs.len() == 2));
        assert_eq!(made.node_port_addresses, NodePortChoice::Primary);
        assert_eq!(made.bind_address, Some("10.0.0.7".parse().unwrap()));
        assert!(made.masquerade_all && !settings(&config, config::Mode::Iptables).masquerade_all);
        assert!(made.allows_external_ips);
        config.feature_gates.insert("AllowServiceExternalIPs".into(), false);
        assert!(!settings(&config, config::Mode::Nftables).allows_external_ips);
        config.detect_local_mode = "BridgeInterface".into();
        config.detect_local.bridge_interface = "cni0".into();
        let made = settings(&config, config::Mode::Nftables);
        assert_eq!(made.local_traffic, LocalTraffic::BridgeInterface("cni0".into()));
    }
}
