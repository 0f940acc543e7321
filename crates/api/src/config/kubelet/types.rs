//! The kubelet's configuration as the rest of the program reads it.

use std::collections::BTreeMap;

use base::duration::GoDuration;
use base::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::FIELDS;
use crate::config::doc;
use crate::config::logging::{Logging, VModule};

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub const KIND: &str = "KubeletConfiguration";

/// The effective configuration: every field present, defaults applied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfiguration {
    pub enable_server: bool,
    pub address: String,
    pub port: i32,
    pub read_only_port: i32,
    pub healthz_port: i32,
    pub healthz_bind_address: String,
    pub enable_debugging_handlers: bool,
    pub enable_system_log_handler: bool,
    pub enable_system_log_query: bool,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
    pub enable_contention_profiling: bool,
    pub streaming_connection_idle_timeout: GoDuration,
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_min_version: String,
    pub tls_curve_preferences: Vec<i32>,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    pub static_pod_path: String,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    pub pod_logs_dir: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: i32,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    pub event_burst: i32,
    pub content_type: String,
    pub config_map_and_secret_change_detection_strategy: String,
    pub register_node: bool,
    pub register_with_taints: Vec<Taint>,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    pub node_status_max_images: i32,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    pub runtime_request_timeout: GoDuration,
    pub cgroup_driver: String,
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    pub kubelet_cgroups: String,
    pub system_cgroups: String,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    pub serialize_image_pulls: bool,
    pub max_parallel_image_pulls: Option<i32>,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub resolv_conf: String,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub hairpin_mode: String,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: bool,
    pub iptables_masquerade_bit: i32,
    pub iptables_drop_bit: i32,
    pub max_pods: i32,
    pub pods_per_core: i32,
    pub pod_pids_limit: i64,
    pub max_open_files: i64,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    pub oom_score_adj: i32,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub kube_reserved: BTreeMap<String, String>,
    pub system_reserved: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub kube_reserved_cgroup: String,
    pub system_reserved_cgroup: String,
    pub enforce_node_allocatable: Vec<String>,
    pub qos_reserved: BTreeMap<String, String>,
    pub eviction_hard: BTreeMap<String, String>,
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: GoDuration,
    pub eviction_max_pod_grace_period: i32,
    pub merge_default_eviction_settings: bool,
    pub kernel_memcg_notification: bool,
    pub cpu_manager_policy: String,
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: GoDuration,
    pub memory_manager_policy: String,
    pub reserved_memory: Vec<MemoryReservation>,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    pub topology_manager_policy_options: BTreeMap<String, String>,
    pub fail_swap_on: bool,
    pub memory_swap: MemorySwap,
    pub memory_throttling_factor: f64,
    pub memory_reservation_policy: String,
    pub fail_cgroup_v1: bool,
    pub container_log_max_size: String,
    pub container_log_max_files: i32,
    pub container_log_max_workers: i32,
    pub container_log_monitor_interval: GoDuration,
    pub logging: Logging,
    pub volume_plugin_dir: String,
    pub volume_stats_agg_period: GoDuration,
    pub enable_controller_attach_detach: bool,
    pub local_storage_capacity_isolation: bool,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    pub seccomp_default: bool,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub protect_kernel_defaults: bool,
    pub user_namespaces: UserNamespaces,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub feature_gates: BTreeMap<String, bool>,
    pub show_hidden_metrics_for_version: String,
    pub tracing: Tracing,
    pub run_once: bool,
}

/// Who the caller is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Authentication {
    pub x509: X509Authentication,
    pub webhook: WebhookAuthentication,
    pub anonymous: AnonymousAuthentication,
}

/// What the caller may do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Authorization {
    pub mode: String,
    pub webhook: WebhookAuthorization,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemorySwap {
    pub swap_behavior: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserNamespaces {
    pub ids_per_pod: Option<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracing {
    pub endpoint: Option<String>,
    pub sampling_rate_per_million: Option<i32>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct X509Authentication {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookAuthentication {
    pub enabled: bool,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AnonymousAuthentication {
    pub enabled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// A taint the node registers with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    pub effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// Memory kept back on one NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryReservation {
    #[serde(default)]
    pub numa_node: i32,
    #[serde(default)]
    pub limits: BTreeMap<String, Quantity>,
}

/// The shutdown time of Pods at or above a priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownGracePeriodByPodPriority {
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub shutdown_grace_period_seconds: i64,
}

// === impl KubeletConfiguration ===

impl Default for KubeletConfiguration {
    /// What a configuration file that sets nothing gives: the secure defaults.
    fn default() -> Self {
        let mut doc = serde_json::Map::new();
        super::defaults::fill(&mut doc);
        match Self::from_doc(doc) {
            Ok(config) => config,
            // A test keeps the field table and the type equal, so this cannot be met at run time.
            Err(e) => panic!("the field table and the configuration type disagree: {e}"),
        }
    }
}

impl KubeletConfiguration {
    /// Decodes a checked and defaulted document.
    pub(super) fn from_doc(mut doc: serde_json::Map<String, Value>) -> Result<Self, serde_json::Error> {
        doc::fill_zeros(FIELDS, &mut doc);
        serde_json::from_value(Value::Object(doc))
    }

    /// The effective values as upstream writes them: the body of `/configz`.
    pub fn to_v1beta1(&self) -> Value {
        let Ok(Value::Object(mut doc)) = serde_json::to_value(self) else {
            return Value::Null;
        };
        doc::omit_zeros(FIELDS, &mut doc);
        for section in ["tracing", "userNamespaces"] {
            if doc.get(section).and_then(Value::as_object).is_some_and(|o| o.is_empty()) {
                doc.remove(section);
            }
        }
        doc.insert("kind".into(), KIND.into());
        doc.insert("apiVersion".into(), API_VERSION.into());
        Value::Object(doc)
    }

    /// Where images are pulled through: the runtime's endpoint unless another is named.
    pub fn image_endpoint(&self) -> &str {
        if self.image_service_endpoint.is_empty() {
            &self.container_runtime_endpoint
        } else {
            &self.image_service_endpoint
        }
    }
}

/// Whether an item of a list of objects decodes, the reason if not; and which of its fields nobody knows.
pub(super) fn check_object(path: &str, item: &Value) -> Result<Vec<String>, String> {
    fn decode<T: serde::de::DeserializeOwned>(item: &Value, fields: &[&str]) -> Result<Vec<String>, String> {
        T::deserialize(item).map_err(|e| e.to_string())?;
        let keys = item.as_object().into_iter().flat_map(|o| o.keys());
        Ok(keys.filter(|k| !fields.contains(&k.as_str())).cloned().collect())
    }
    match path {
        "registerWithTaints" => decode::<Taint>(item, &["key", "value", "effect", "timeAdded"]),
        "reservedMemory" => decode::<MemoryReservation>(item, &["numaNode", "limits"]),
        "logging.vmodule" => decode::<VModule>(item, &["filePattern", "verbosity"]),
        "shutdownGracePeriodByPodPriority" => {
            let fields = ["priority", "shutdownGracePeriodSeconds"];
            decode::<ShutdownGracePeriodByPodPriority>(item, &fields)
        }
        _ => Err("this list has no reader".into()),
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
            match child {
                Value::Object(map) if !map.is_empty() => leaves(child, &format!("{path}."), out),
                _ => {
                    out.insert(path);
                }
            }
        }
    }

    #[test]
    fn the_table_and_the_type_name_the_same_fields() {
        let mut in_type = BTreeSet::new();
        let value = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        leaves(&value, "", &mut in_type);
        let in_table: BTreeSet<String> = FIELDS.iter().map(|f| f.path.to_owned()).collect();
        assert_eq!(in_type, in_table);
        assert_eq!(in_table.len(), FIELDS.len());
    }

    #[test]
    fn the_effective_configuration_reads_back() {
        let config = KubeletConfiguration::default();
        let Value::Object(mut doc) = config.to_v1beta1() else {
            panic!("not an object");
        };
        assert_eq!(doc.remove("kind").unwrap(), KIND);
        assert_eq!(doc.remove("apiVersion").unwrap(), API_VERSION);
        assert_eq!(doc.get("readOnlyPort"), None, "a plain zero is omitted");
        assert_eq!(doc["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(doc["shutdownGracePeriod"], "0s");
        assert_eq!(KubeletConfiguration::from_doc(doc).unwrap(), config);
    }
}
