//! What matters of a Node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node as ApiNode;

use super::{Both, Family};

/// How the names of annotations end that say where a Node is.
pub(crate) const MANAGED: &str = "kube-subnet-manager";
pub(crate) const TYPE: &str = "backend-type";
pub(crate) const DATA: &str = "backend-data";
pub(crate) const DATA_V6: &str = "backend-v6-data";
pub(crate) const PUBLIC: &str = "public-ip";
pub(crate) const PUBLIC_V6: &str = "public-ipv6";
pub(crate) const OVERWRITE: &str = "public-ip-overwrite";
pub(crate) const OVERWRITE_V6: &str = "public-ipv6-overwrite";

const ALL: [&str; 8] = [MANAGED, TYPE, DATA, DATA_V6, PUBLIC, PUBLIC_V6, OVERWRITE, OVERWRITE_V6];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// What it has of the networks; one that makes no sense is none.
    pub(crate) subnets: Both<IpNet>,
    /// Where others in the cluster reach it.
    pub(crate) addresses: Vec<IpAddr>,
    /// Those that end like ours, whatever they begin with.
    pub(crate) annotations: BTreeMap<String, String>,
    /// Whether its network was said to be there.
    pub(crate) is_network_told: bool,
}

/// The names of annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

// === impl Node ===

impl Node {
    pub(crate) fn of(node: ApiNode) -> Node {
        let spec = node.spec.unwrap_or_default();
        let status = node.status.unwrap_or_default();
        let cidrs = match spec.pod_cidrs {
            Some(all) if !all.is_empty() => all,
            _ => spec.pod_cidr.into_iter().collect(),
        };
        let mut subnets = Both::default();
        for net in cidrs.iter().filter_map(|text| text.parse::<IpNet>().ok()) {
            subnets.set(Family::of_net(net), Some(net.trunc()));
        }
        let addresses = status.addresses.unwrap_or_default();
        let inside = addresses.iter().filter(|address| address.type_ == "InternalIP");
        let annotations = node.metadata.annotations.unwrap_or_default();
        let is_ours = |key: &str| {
            let name = key.rsplit('/').next().unwrap_or_default();
            ALL.iter().any(|end| name.ends_with(end))
        };
        let mut conditions = status.conditions.iter().flatten();
        Node {
            name: node.metadata.name.unwrap_or_default(),
            uid: node.metadata.uid.unwrap_or_default(),
            subnets,
            addresses: inside.filter_map(|address| address.address.parse().ok()).collect(),
            annotations: annotations.into_iter().filter(|(key, _)| is_ours(key)).collect(),
            is_network_told: conditions.any(|c| c.type_ == "NetworkUnavailable" && c.status == "False"),
        }
    }

    pub(crate) fn annotation(&self, keys: &Keys, end: &str) -> Option<&str> {
        self.annotations.get(&keys.name(end)).map(String::as_str).filter(|text| !text.is_empty())
    }
}

// === impl Keys ===

impl Default for Keys {
    /// Flannel's own.
    fn default() -> Keys {
        Keys { prefix: "flannel.alpha.coreos.com/".to_owned() }
    }
}

impl Keys {
    /// Of a prefix as flannel takes it: `flannel.alpha.coreos.com`, or with one slash and the beginning of a name.
    pub fn new(prefix: &str) -> Result<Keys, String> {
        let mut prefix = prefix.to_owned();
        if !prefix.contains('/') {
            prefix.push('/');
        }
        if !prefix.ends_with(['/', '-']) {
            prefix.push('-');
        }
        let is_word = |text: &str| {
            !text.is_empty()
                && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
        };
        let is_good = prefix.split_once('/').is_some_and(|(domain, begin)| {
            let labels: Vec<&str> = domain.split('.').collect();
            labels.len() > 1 && labels.into_iter().all(is_word) && (begin.is_empty() || is_word(begin))
        });
        match is_good {
            true => Ok(Keys { prefix }),
            false => Err(format!("{prefix:?} is no beginning of annotations: write it as example.com/word")),
        }
    }

    pub(crate) fn name(&self, end: &str) -> String {
        format!("{}{end}", self.prefix)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_taken_as_flannel_takes_them() {
        for (prefix, want) in [
            ("flannel.alpha.coreos.com", "flannel.alpha.coreos.com/public-ip"),
            ("flannel.alpha.coreos.com/", "flannel.alpha.coreos.com/public-ip"),
            ("example.com/blue", "example.com/blue-public-ip"),
            ("example.com/blue-", "example.com/blue-public-ip"),
        ] {
            assert_eq!(Keys::new(prefix).unwrap().name(PUBLIC), want);
        }
        for prefix in ["", "a/b/c", "nodomain", "Example.com", "example.com/ blue"] {
            assert!(Keys::new(prefix).is_err(), "{prefix}");
        }
    }

    #[test]
    fn a_node_without_a_subnet_has_none() {
        assert_eq!(Node::of(ApiNode::default()), Node::default());
        let text = r#"{"metadata": {"name": "a", "annotations": {"x": "y", "e.com/public-ip": "1.2.3.4"}},
                       "spec": {"podCIDR": "10.1.2.0/24"},
                       "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"},
                                                {"type": "Hostname", "address": "a"}]}}"#;
        let node = Node::of(serde_json::from_str(text).unwrap());
        assert_eq!(node.subnets.v4.unwrap().to_string(), "10.1.2.0/24");
        assert_eq!(node.addresses.len() + node.annotations.len(), 2);
        assert_eq!(node.annotation(&Keys::new("e.com").unwrap(), PUBLIC), Some("1.2.3.4"));
    }
}
