//! What CNI plugins are told: flannel's `subnet.env`, or a network of our own.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::lease::Lease;
use super::net_conf::NetConf;
use super::{Both, Family};

/// As flannel writes it, for its CNI plugin.
pub(crate) fn subnet_env(conf: &NetConf, own: &Lease, mtu: u32, masquerades: bool) -> String {
    let mut text = String::new();
    for (family, word) in [(Family::V4, "FLANNEL"), (Family::V6, "FLANNEL_IPV6")] {
        let (Some(network), Some(end)) = (conf.networks.get(family), own.ends.get(family)) else { continue };
        let subnet = end.subnet;
        let _ = writeln!(text, "{word}_NETWORK={network}");
        let _ = writeln!(text, "{word}_SUBNET={}/{}", first(subnet), subnet.prefix_len());
    }
    let _ = writeln!(text, "FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ={masquerades}");
    text
}

/// A bridge with the Node's part of the network.
pub fn conflist(subnets: &Both<IpNet>, mtu: u32, masquerades: bool, bridge: &str, leases: &Path) -> String {
    let ranges: Vec<_> = subnets.iter().map(|net| json!([{"subnet": net.to_string()}])).collect();
    let routes: Vec<_> = subnets
        .iter()
        .map(|net| json!({"dst": if net.addr().is_ipv4() { "0.0.0.0/0" } else { "::/0" }}))
        .collect();
    let text = json!({
        "cniVersion": "1.0.0",
        "name": "longshore",
        "plugins": [
            {"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": masquerades,
             "ipMasqBackend": "nftables", "hairpinMode": true, "mtu": mtu,
             "ipam": {"type": "host-local", "dataDir": leases, "ranges": ranges, "routes": routes}},
            {"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}},
        ],
    });
    format!("{text:#}\n")
}

/// Whether a text is one that [`conflist`] wrote for this bridge, or that it would have written before it knew of tunnels:
/// whatever subnets and lengths it was made for.
pub(crate) fn is_conflist(bridge: &str, leases: &Path) -> impl Fn(&str) -> bool {
    move |text| {
        let Ok(mut there) = serde_json::from_str::<Value>(text) else { return false };
        let Ok(mut ours) =
            serde_json::from_str::<Value>(&conflist(&Both::default(), 0, false, bridge, leases))
        else {
            return false;
        };
        for value in [&mut there, &mut ours] {
            let Some(plugin) = value.pointer_mut("/plugins/0").and_then(Value::as_object_mut) else {
                return false;
            };
            plugin.remove("mtu");
            plugin.remove("ipMasq");
            let Some(ipam) = plugin.get_mut("ipam").and_then(Value::as_object_mut) else { return false };
            ipam.remove("ranges");
            ipam.remove("routes");
        }
        there == ours
    }
}

/// The first address of a network that a machine can have.
fn first(net: IpNet) -> IpAddr {
    match net.network() {
        IpAddr::V4(ip) => IpAddr::from((u32::from(ip).wrapping_add(1)).to_be_bytes()),
        IpAddr::V6(ip) => IpAddr::from((u128::from(ip).wrapping_add(1)).to_be_bytes()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::lease::End;
    use super::*;

    #[test]
    fn the_file_is_as_flannel_writes_it() {
        let text = r#"{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10::/48",
                       "Backend": {"Type": "vxlan"}}"#;
        let conf = NetConf::parse(text).unwrap();
        let end = |subnet: &str, public: &str| {
            Some(End { subnet: subnet.parse().unwrap(), public: public.parse().unwrap(), mac: None })
        };
        let ends = Both { v4: end("10.244.3.0/24", "192.0.2.1"), v6: end("fd00:10:0:3::/64", "2001:db8::1") };
        let own = Lease { node: "a".into(), ends };
        let want = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\n\
                    FLANNEL_IPV6_NETWORK=fd00:10::/48\nFLANNEL_IPV6_SUBNET=fd00:10:0:3::1/64\n\
                    FLANNEL_MTU=1430\nFLANNEL_IPMASQ=true\n";
        assert_eq!(subnet_env(&conf, &own, 1430, true), want);
    }

    #[test]
    fn a_network_of_our_own_has_the_node_s_subnets() {
        let subnets = Both {
            v4: Some("10.244.3.0/24".parse().unwrap()),
            v6: Some("fd00:10:0:3::/64".parse().unwrap()),
        };
        let text = conflist(&subnets, 1430, false, "longshore0", Path::new("/run/longshore/cni"));
        let value: Value = serde_json::from_str(&text).unwrap();
        let is_ours = is_conflist("longshore0", Path::new("/run/longshore/cni"));
        assert!(is_ours(&text) && !is_ours(&text.replace("portmap", "tuning")) && !is_ours("{}"));
        assert!(!is_conflist("cni0", Path::new("/run/longshore/cni"))(&text));
        let bridge = &value["plugins"][0];
        assert_eq!((bridge["mtu"].as_u64(), bridge["ipMasq"].as_bool()), (Some(1430), Some(false)));
        assert_eq!(bridge["ipam"]["ranges"][1][0]["subnet"], "fd00:10:0:3::/64");
        assert_eq!(bridge["ipam"]["routes"][1]["dst"], "::/0");
    }
}
