//! kube-proxy's configuration as the rest of the program reads it.

use std::collections::BTreeMap;

use base::duration::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::FIELDS;
use crate::config::Logging;
use crate::config::doc::{self, Field};
use crate::config::file::Doc;

pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
pub const KIND: &str = "KubeProxyConfiguration";

/// The effective configuration: every field present, defaults applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeProxyConfiguration {
    pub feature_gates: BTreeMap<String, bool>,
    pub client_connection: ClientConnection,
    pub config_sync_period: GoDuration,
    pub logging: Logging,
    pub hostname_override: String,
    pub bind_address: String,
    pub healthz_bind_address: String,
    pub metrics_bind_address: String,
    pub bind_address_hard_fail: bool,
    pub enable_profiling: bool,
    pub show_hidden_metrics_for_version: String,
    pub mode: String,
    pub iptables: Iptables,
    pub ipvs: Ipvs,
    pub nftables: Nftables,
    pub winkernel: Winkernel,
    pub detect_local_mode: String,
    pub detect_local: DetectLocal,
    #[serde(rename = "clusterCIDR")]
    pub cluster_cidr: String,
    pub node_port_addresses: Vec<String>,
    pub oom_score_adj: i32,
    pub conntrack: Conntrack,
    pub port_range: String,
    pub windows_run_as_service: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f64,
    pub burst: i32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Iptables {
    pub masquerade_bit: i32,
    pub masquerade_all: bool,
    pub localhost_node_ports: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ipvs {
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
    pub scheduler: String,
    #[serde(rename = "excludeCIDRs")]
    pub exclude_cidrs: Vec<String>,
    #[serde(rename = "strictARP")]
    pub strict_arp: bool,
    pub tcp_timeout: GoDuration,
    pub tcp_fin_timeout: GoDuration,
    pub udp_timeout: GoDuration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nftables {
    pub masquerade_bit: i32,
    pub masquerade_all: bool,
    pub sync_period: GoDuration,
    pub min_sync_period: GoDuration,
}

/// Settings of another operating system, kept so that a file is shown as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Winkernel {
    pub network_name: String,
    pub source_vip: String,
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    pub root_hns_endpoint_name: String,
    pub forward_health_check_vip: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DetectLocal {
    pub bridge_interface: String,
    pub interface_name_prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Conntrack {
    pub max_per_core: i32,
    pub min: i32,
    pub tcp_established_timeout: GoDuration,
    pub tcp_close_wait_timeout: GoDuration,
    pub tcp_be_liberal: bool,
    pub udp_timeout: GoDuration,
    pub udp_stream_timeout: GoDuration,
}

/// The ways to bring rules to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
    Ipvs,
}

/// Settings that only flags have, decoded from the parsed flags by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct ProxyFlags {
    pub config: String,
    pub write_config_to: String,
    pub cleanup: bool,
    pub init_only: bool,
    pub master: String,
    pub healthz_port: Option<i32>,
    pub metrics_port: Option<i32>,
}

// === impl KubeProxyConfiguration ===

impl KubeProxyConfiguration {
    /// Decodes a checked and defaulted document.
    pub(super) fn from_doc(mut doc: Doc) -> Result<Self, serde_json::Error> {
        doc::fill_zeros(FIELDS, &mut doc);
        serde_json::from_value(Value::Object(doc))
    }

    /// The effective values as upstream writes them: the body of `/configz`. Almost nothing of this kind is left out
    /// when it is empty, and an empty list is null.
    pub fn to_v1alpha1(&self) -> Value {
        let Ok(Value::Object(mut doc)) = serde_json::to_value(self) else {
            return Value::Null;
        };
        let omitted = |f: &&Field| {
            f.path.starts_with("logging.") || matches!(f.path, "featureGates" | "windowsRunAsService")
        };
        let omitted: Vec<Field> = FIELDS.iter().filter(omitted).copied().collect();
        doc::omit_zeros(&omitted, &mut doc);
        for path in ["nodePortAddresses", "ipvs.excludeCIDRs"] {
            if doc::get(&doc, path).and_then(Value::as_array).is_some_and(Vec::is_empty) {
                doc::set(&mut doc, path, Value::Null);
            }
        }
        // Go writes whole numbers without a point.
        if let Some(whole) = doc::get(&doc, "clientConnection.qps").and_then(Value::as_f64).and_then(whole) {
            doc::set(&mut doc, "clientConnection.qps", whole.into());
        }
        doc.insert("kind".into(), KIND.into());
        doc.insert("apiVersion".into(), API_VERSION.into());
        Value::Object(doc)
    }

    /// What holds once the mode is chosen: as upstream shows it, with what depends on the mode, and without the periods
    /// of the others.
    pub fn in_force(&self, mode: Mode) -> Self {
        let mut config = Self { mode: mode.name().to_owned(), ..self.clone() };
        if mode == Mode::Nftables && config.node_port_addresses.is_empty() {
            config.node_port_addresses = vec!["primary".to_owned()];
        }
        let (iptables, ipvs, nftables) = (&mut config.iptables, &mut config.ipvs, &mut config.nftables);
        let periods = [
            (Mode::Iptables, &mut iptables.sync_period, &mut iptables.min_sync_period),
            (Mode::Ipvs, &mut ipvs.sync_period, &mut ipvs.min_sync_period),
            (Mode::Nftables, &mut nftables.sync_period, &mut nftables.min_sync_period),
        ];
        for (_, full, least) in periods.into_iter().filter(|(of, ..)| *of != mode) {
            (*full, *least) = (GoDuration::ZERO, GoDuration::ZERO);
        }
        config
    }

    /// The mode asked for; `None` leaves it to us.
    pub fn mode(&self) -> Option<Mode> {
        match self.mode.as_str() {
            "nftables" => Some(Mode::Nftables),
            "iptables" => Some(Mode::Iptables),
            "ipvs" => Some(Mode::Ipvs),
            _ => None,
        }
    }

    pub fn masquerades_all(&self, mode: Mode) -> bool {
        match mode {
            Mode::Nftables => self.nftables.masquerade_all,
            Mode::Iptables | Mode::Ipvs => self.iptables.masquerade_all,
        }
    }

    /// The packet mark that asks for masquerading.
    pub fn masquerade_mark(&self, mode: Mode) -> u32 {
        let bit = match mode {
            Mode::Nftables => self.nftables.masquerade_bit,
            Mode::Iptables | Mode::Ipvs => self.iptables.masquerade_bit,
        };
        1u32.checked_shl(bit.unsigned_abs()).unwrap_or(0)
    }

    /// How often everything is looked at, and the least time between two changes.
    pub fn periods(&self, mode: Mode) -> (GoDuration, GoDuration) {
        match mode {
            Mode::Nftables => (self.nftables.sync_period, self.nftables.min_sync_period),
            Mode::Iptables => (self.iptables.sync_period, self.iptables.min_sync_period),
            Mode::Ipvs => (self.ipvs.sync_period, self.ipvs.min_sync_period),
        }
    }

    /// The prefixes of `clusterCIDR`, as written.
    pub fn cluster_cidrs(&self) -> Vec<&str> {
        self.cluster_cidr.split(',').map(str::trim).filter(|c| !c.is_empty()).collect()
    }

    /// The Node's name: the override if any, else the machine's; trimmed and in lower case.
    pub fn node_name(&self, hostname: &str) -> String {
        let name = match self.hostname_override.trim() {
            "" => hostname.trim(),
            name => name,
        };
        name.to_lowercase()
    }
}

fn whole(number: f64) -> Option<i64> {
    (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
}

// === impl Mode ===

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Nftables, Mode::Iptables, Mode::Ipvs];

    /// As the configuration and `/proxyMode` spell it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn leaves(value: &Value, prefix: &str, out: &mut BTreeSet<String>) {
        for (key, child) in value.as_object().unwrap() {
            let path = format!("{prefix}{key}");
            match FIELDS.iter().any(|f| f.path == path) {
                true => {
                    out.insert(path);
                }
                false => leaves(child, &format!("{path}."), out),
            }
        }
    }

    #[test]
    fn the_type_and_the_table_have_the_same_leaves() {
        let mut found = BTreeSet::new();
        leaves(&serde_json::to_value(KubeProxyConfiguration::default()).unwrap(), "", &mut found);
        let table: BTreeSet<String> = FIELDS.iter().map(|f| f.path.to_owned()).collect();
        assert_eq!(found, table);
    }

    #[test]
    fn configz_shows_what_upstream_shows() {
        let shown = KubeProxyConfiguration::default().to_v1alpha1();
        assert_eq!(shown["kind"], KIND);
        assert_eq!(shown["nodePortAddresses"], Value::Null);
        assert!(shown.as_object().unwrap().contains_key("nodePortAddresses"));
        assert_eq!((&shown["mode"], &shown["detectLocalMode"]), (&"".into(), &"ClusterCIDR".into()));
        assert_eq!(shown["clientConnection"]["qps"].to_string(), "5");
        assert_eq!(shown["ipvs"]["minSyncPeriod"], "0s");
        assert_eq!(shown["conntrack"]["tcpEstablishedTimeout"], "24h0m0s");
        assert!(shown.get("featureGates").is_none() && shown.get("windowsRunAsService").is_none());
    }

    #[test]
    fn what_is_in_force_is_of_one_mode() {
        let config = KubeProxyConfiguration::default();
        for mode in Mode::ALL {
            let shown = config.in_force(mode).to_v1alpha1();
            assert_eq!(shown["mode"], mode.name());
            for other in Mode::ALL {
                let full = if other == mode { "30s" } else { "0s" };
                assert_eq!(shown[other.name()]["syncPeriod"], full, "{mode:?} {other:?}");
            }
            let primary = serde_json::json!(["primary"]);
            assert_eq!(shown["nodePortAddresses"] == primary, mode == Mode::Nftables, "{mode:?}");
        }
    }
}
