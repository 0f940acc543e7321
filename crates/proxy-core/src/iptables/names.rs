//! What the chains of a Service port are called.

use std::net::SocketAddr;

use sha2::{Digest, Sha256};

use crate::objects::PortKey;

/// Prefixes of chains that belong to one Service port. A chain of such a name is ours, and goes when nobody needs it.
const PREFIXES: [&str; 5] = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];

/// The chains of one port share their hash.
#[derive(Clone, Debug)]
pub(super) struct Names<'a> {
    key: &'a PortKey,
    suffix: String,
}

pub(super) fn is_service_chain(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

// === impl Names ===

impl<'a> Names<'a> {
    pub(super) fn new(key: &'a PortKey) -> Self {
        Self { key, suffix: hash(&format!("{key}{}", key.protocol)) }
    }

    pub(super) fn cluster(&self) -> String {
        format!("KUBE-SVC-{}", self.suffix)
    }

    pub(super) fn local(&self) -> String {
        format!("KUBE-SVL-{}", self.suffix)
    }

    pub(super) fn external(&self) -> String {
        format!("KUBE-EXT-{}", self.suffix)
    }

    pub(super) fn firewall(&self) -> String {
        format!("KUBE-FW-{}", self.suffix)
    }

    pub(super) fn endpoint(&self, endpoint: SocketAddr) -> String {
        format!("KUBE-SEP-{}", hash(&format!("{}{}{endpoint}", self.key, self.key.protocol)))
    }
}

/// The first 16 letters of the hash in base 32, because a chain's name has room for 28.
fn hash(text: &str) -> String {
    const LETTERS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let digest = Sha256::digest(text.as_bytes());
    let bits = digest.iter().take(10).fold(0u128, |bits, byte| bits << 8 | u128::from(*byte));
    (0..16).rev().map(|i| char::from(LETTERS[(bits >> (5 * i)) as usize & 31])).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::objects::{Protocol, ServiceKey};

    /// As seen on nodes of upstream's kube-proxy.
    #[test]
    fn names_are_upstreams() {
        let key =
            PortKey { service: ServiceKey::new("ns1", "svc1"), port: "p80".into(), protocol: Protocol::Tcp };
        let names = Names::new(&key);
        assert_eq!(names.cluster(), "KUBE-SVC-XPGD46QRK7WJZT7O");
        assert_eq!(names.endpoint("10.180.0.1:80".parse().unwrap()), "KUBE-SEP-SXIVWICOYRO3J4NJ");
        let key = PortKey {
            service: ServiceKey::new("default", "kubernetes"),
            port: "https".into(),
            protocol: Protocol::Tcp,
        };
        assert_eq!(Names::new(&key).cluster(), "KUBE-SVC-NPX46M4PTMTKRN6Y");
        assert!(is_service_chain("KUBE-SEP-X") && !is_service_chain("KUBE-SERVICES"));
    }
}
