//! Settings that are allowed and may not be meant: told in the log at the start, in upstream's words, because people look
//! for them.

use std::net::{IpAddr, SocketAddr};

use api::config::proxy::{KubeProxyConfiguration, Mode};
use proxy_core::objects::{Cidr, Family, NodeView, parse_ip};

use crate::error::Error;

/// What the settings are seen against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) config: &'a KubeProxyConfiguration,
    pub(crate) chosen: Mode,
    pub(crate) node: Option<&'a NodeView>,
    /// The families that can be served here.
    pub(crate) families: &'a [Family],
}

/// The family of the cluster's first addresses, as far as this node can tell: of the address that somebody gave us, else of
/// the Node's first.
pub(crate) fn primary_family(config: &KubeProxyConfiguration, node: Option<&NodeView>) -> Family {
    let given = parse_ip(&config.bind_address).filter(|ip| !ip.is_unspecified());
    given.map(Family::of).or_else(|| node?.primary()).unwrap_or(Family::V4)
}

impl Scene<'_> {
    /// What may be wrong, or what cannot be right.
    pub(crate) fn warnings(&self) -> Result<Vec<String>, Error> {
        let primary = primary_family(self.config, self.node);
        if !self.families.contains(&primary) {
            return Err(Error::NoPrimaryFamily(primary.name()));
        }
        let mut warnings: Vec<String> = self.node_ports(primary).into_iter().collect();
        let (others, is_fatal) = self.families_that_do_not_fit(primary);
        match is_fatal {
            true => return Err(Error::Incorrect(list(&others))),
            false if others.is_empty() => {}
            false => warnings.push(list(&others)),
        }
        Ok(warnings)
    }

    fn node_ports(&self, primary: Family) -> Option<String> {
        let other = other_than(primary);
        let families = self.node_port_families();
        let of_primary = families.iter().filter(|family| **family == primary).count();
        match (families.is_empty(), of_primary) {
            (true, _) => Some(
                "nodePortAddresses is unset; NodePort connections will be accepted on all local IPs. Consider using \
                 `--nodeport-addresses primary`"
                    .to_owned(),
            ),
            (false, 0) => Some(format!(
                "cluster appears to be {0}-primary but nodePortAddresses contains only {1} addresses; NodePort \
                 connections will be accepted on all local {0} IPs",
                primary.name(),
                other.name()
            )),
            (false, all) if all == families.len() && self.looks_dual() => Some(format!(
                "cluster appears to be dual-stack but nodePortAddresses contains only {} addresses; NodePort \
                 connections will be accepted on all local {} IPs",
                primary.name(),
                other.name()
            )),
            _ => None,
        }
    }

    /// The family of each address that serves node ports.
    fn node_port_families(&self) -> Vec<Family> {
        let said = self.config.in_force(self.chosen).node_port_addresses;
        match said.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["primary"] => Family::BOTH.into_iter().filter(|family| self.has_address(*family)).collect(),
            texts => families(texts),
        }
    }

    fn has_address(&self, family: Family) -> bool {
        let given = parse_ip(&self.config.bind_address).filter(|ip| !ip.is_unspecified());
        let of_node = self.node.and_then(|node| node.ip(family));
        let address = given.filter(|ip| Family::of(*ip) == family).or(of_node);
        address.is_some_and(|ip: IpAddr| !ip.is_loopback())
    }

    /// Whether any list has prefixes of both families.
    fn looks_dual(&self) -> bool {
        let excluded: Vec<&str> = self.config.ipvs.exclude_cidrs.iter().map(String::as_str).collect();
        let lists = [
            families(&self.config.cluster_cidrs()),
            self.node_port_families(),
            families(&excluded),
            self.pod_families(),
        ];
        lists.iter().any(|list| Family::BOTH.iter().all(|family| list.contains(family)))
    }

    fn pod_families(&self) -> Vec<Family> {
        let has = |family: &Family| self.node.is_some_and(|node| node.pod_cidr(*family).is_some());
        Family::BOTH.into_iter().filter(has).collect()
    }

    /// Settings of the other family alone, and whether one of them leaves Services without what they need.
    fn families_that_do_not_fit(&self, primary: Family) -> (Vec<String>, bool) {
        let (config, other, is_dual) = (self.config, other_than(primary), self.families.len() > 1);
        let cluster = format!("cluster is {}-{}", primary.name(), if is_dual { "primary" } else { "only" });
        let other_name = other.name();
        let (mut found, mut is_fatal) = (Vec::new(), false);
        let is_only = |list: &[Family]| !list.is_empty() && list.iter().all(|family| *family == other);
        if is_only(&families(&config.cluster_cidrs())) {
            found.push(format!("{cluster} but clusterCIDRs contains only {other_name} addresses"));
            is_fatal |= !is_dual && config.detect_local_mode == "ClusterCIDR";
        }
        if is_only(&self.pod_families()) {
            found.push(format!("{cluster} but node.spec.podCIDRs contains only {other_name} addresses"));
            is_fatal |= config.detect_local_mode == "NodeCIDR";
        }
        if is_dual {
            return (found, is_fatal);
        }
        let excluded: Vec<&str> = config.ipvs.exclude_cidrs.iter().map(String::as_str).collect();
        if is_only(&families(&excluded)) {
            found.push(format!("{cluster} but ipvs.excludeCIDRs contains only {other_name} addresses"));
        }
        let servers = [
            ("healthzBindAddress", &config.healthz_bind_address),
            ("metricsBindAddress", &config.metrics_bind_address),
        ];
        for (name, address) in servers {
            let ip = address.parse::<SocketAddr>().map(|address| address.ip()).ok();
            if ip.is_some_and(|ip| !ip.is_unspecified() && Family::of(ip) == other) {
                found.push(format!("{cluster} but {name} is {other_name}"));
            }
        }
        (found, is_fatal)
    }
}

fn other_than(family: Family) -> Family {
    match family {
        Family::V4 => Family::V6,
        Family::V6 => Family::V4,
    }
}

fn families(cidrs: &[&str]) -> Vec<Family> {
    cidrs.iter().filter_map(|text| Cidr::parse(text)).map(|cidr| cidr.family()).collect()
}

/// Several as Go writes them.
fn list(found: &[String]) -> String {
    match found {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    /// A node of these addresses and Pod prefixes.
    fn node(addresses: &[&str], pods: &[&str]) -> NodeView {
        let addresses: Vec<_> =
            addresses.iter().map(|ip| json!({"type": "InternalIP", "address": ip})).collect();
        let node = json!({
            "metadata": {"name": "n1"}, "spec": {"podCIDRs": pods}, "status": {"addresses": addresses},
        });
        NodeView::read(&serde_json::from_value::<Node>(node).unwrap())
    }

    fn told(chosen: Mode, change: impl Fn(&mut KubeProxyConfiguration), families: &[Family]) -> String {
        let node_port_addresses = vec!["primary".into()];
        let mut config = KubeProxyConfiguration { node_port_addresses, ..KubeProxyConfiguration::default() };
        change(&mut config);
        let node = node(&["10.0.0.1", "fd00::1"], &["10.244.0.0/24"]);
        let scene = Scene { config: &config, chosen, node: Some(&node), families };
        match scene.warnings() {
            Ok(warnings) => warnings.join("; "),
            Err(error) => format!("fatal: {error}"),
        }
    }

    #[test]
    fn doubtful_settings_are_told_in_upstreams_words() {
        let v4 = [Family::V4];
        let both = Family::BOTH;
        let quiet = |chosen| told(chosen, |_| {}, &both);
        assert_eq!((quiet(Mode::Iptables), quiet(Mode::Nftables)), (String::new(), String::new()));
        let unset = |c: &mut KubeProxyConfiguration| c.node_port_addresses.clear();
        assert!(told(Mode::Iptables, unset, &both).starts_with("nodePortAddresses is unset; NodePort"));
        assert_eq!(told(Mode::Nftables, unset, &both), "", "they are the primary ones there");
        let wrong = |c: &mut KubeProxyConfiguration| c.node_port_addresses = vec!["fd00::/8".into()];
        assert!(
            told(Mode::Iptables, wrong, &both)
                .contains("IPv4-primary but nodePortAddresses contains only IPv6")
        );
        let half = |c: &mut KubeProxyConfiguration| {
            c.node_port_addresses = vec!["10.0.0.0/8".into()];
            c.cluster_cidr = "10.244.0.0/16,fd44::/48".into();
        };
        assert!(
            told(Mode::Iptables, half, &both).contains("dual-stack but nodePortAddresses contains only IPv4")
        );
        let foreign = |c: &mut KubeProxyConfiguration| c.cluster_cidr = "fd44::/48".into();
        let text = "cluster is IPv4-primary but clusterCIDRs contains only IPv6 addresses";
        assert_eq!(told(Mode::Iptables, foreign, &both), text);
        let text = "fatal: kube-proxy configuration is incorrect: cluster is IPv4-only but clusterCIDRs contains only \
             IPv6 addresses";
        assert_eq!(told(Mode::Iptables, foreign, &v4), text);
        let pods = |c: &mut KubeProxyConfiguration| {
            c.detect_local_mode = "NodeCIDR".into();
            c.bind_address = "fd00::1".into();
        };
        assert!(
            told(Mode::Nftables, pods, &both).starts_with("fatal: kube-proxy configuration is incorrect")
        );
        let server = |c: &mut KubeProxyConfiguration| c.metrics_bind_address = "[fd00::1]:10249".into();
        assert_eq!(told(Mode::Nftables, server, &v4), "cluster is IPv4-only but metricsBindAddress is IPv6");
        assert_eq!(told(Mode::Nftables, server, &both), "");
    }

    #[test]
    fn without_the_first_family_there_is_no_proxy() {
        let six = |c: &mut KubeProxyConfiguration| c.bind_address = "fd00::1".into();
        let text = "fatal: no support for primary IP family \"IPv6\"";
        assert_eq!(told(Mode::Iptables, six, &[Family::V4]), text);
        assert_eq!(told(Mode::Iptables, |_| {}, &[Family::V6]), text.replace("IPv6", "IPv4"));
        let config = KubeProxyConfiguration::default();
        let rows: [(&[&str], Family); 3] = [
            (&["fd00::1", "10.0.0.1"], Family::V6),
            (&["10.0.0.1", "fd00::1"], Family::V4),
            (&[], Family::V4),
        ];
        for (addresses, wanted) in rows {
            assert_eq!(primary_family(&config, Some(&node(addresses, &[]))), wanted, "{addresses:?}");
        }
        assert_eq!(primary_family(&config, None), Family::V4);
    }
}
