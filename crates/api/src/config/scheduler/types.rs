//! `KubeSchedulerConfiguration` v1 as the rest of the program reads it.

use std::collections::BTreeMap;
use std::time::Duration;

use base::duration::GoDuration;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Extender, PluginArgs};
use crate::config::Logging;
use crate::config::serving::Serving;

pub const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
pub const KIND: &str = "KubeSchedulerConfiguration";

/// The effective configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubeSchedulerConfiguration {
    pub parallelism: i32,
    pub leader_election: LeaderElection,
    pub client_connection: ClientConnection,
    pub enable_profiling: bool,
    pub enable_contention_profiling: bool,
    pub percentage_of_nodes_to_score: i32,
    pub pod_initial_backoff_seconds: i64,
    pub pod_max_backoff_seconds: i64,
    pub delay_cache_until_active: bool,
    pub profiles: Vec<Profile>,
    pub extenders: Vec<Extender>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    pub leader_elect: bool,
    pub lease_duration: GoDuration,
    pub renew_deadline: GoDuration,
    pub retry_period: GoDuration,
    pub resource_lock: String,
    pub resource_name: String,
    pub resource_namespace: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientConnection {
    pub kubeconfig: String,
    pub accept_content_types: String,
    pub content_type: String,
    pub qps: f64,
    pub burst: i32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Profile {
    pub scheduler_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percentage_of_nodes_to_score: Option<i32>,
    pub plugins: Plugins,
    pub plugin_config: Vec<PluginConfig>,
    /// What `pluginConfig` comes to.
    #[serde(skip)]
    pub args: PluginArgs,
}

/// Plugins by extension point.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Plugins {
    pub pre_enqueue: PluginSet,
    pub queue_sort: PluginSet,
    pub pre_filter: PluginSet,
    pub filter: PluginSet,
    pub post_filter: PluginSet,
    pub pre_score: PluginSet,
    pub score: PluginSet,
    pub reserve: PluginSet,
    pub permit: PluginSet,
    pub pre_bind: PluginSet,
    pub bind: PluginSet,
    pub post_bind: PluginSet,
    pub multi_point: PluginSet,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginSet {
    pub enabled: Vec<PluginRef>,
    pub disabled: Vec<PluginRef>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PluginRef {
    pub name: String,
    /// 0 means the plugin's own, or 1.
    pub weight: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginConfig {
    pub name: String,
    #[serde(default)]
    pub args: Value,
}

/// Settings that only flags have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SchedulerFlags {
    pub master: String,
    pub write_config_to: String,
    pub bind_address: String,
    pub secure_port: u16,
    /// None: nothing is served.
    pub serving: Option<Serving>,
    pub pod_max_in_unschedulable_pods: GoDuration,
    pub logging: Logging,
    /// As given, for a page for people.
    pub values: BTreeMap<String, String>,
}

// === impl SchedulerFlags ===

impl SchedulerFlags {
    /// How long a Pod stays unschedulable though nothing happens.
    #[must_use]
    pub fn max_unschedulable(&self) -> Duration {
        self.pod_max_in_unschedulable_pods.to_std()
    }
}

impl Default for KubeSchedulerConfiguration {
    fn default() -> Self {
        Self {
            parallelism: 16,
            leader_election: LeaderElection::default(),
            client_connection: ClientConnection::default(),
            enable_profiling: true,
            enable_contention_profiling: true,
            percentage_of_nodes_to_score: 0,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            delay_cache_until_active: false,
            profiles: Vec::new(),
            extenders: Vec::new(),
        }
    }
}

impl Default for LeaderElection {
    fn default() -> Self {
        let seconds = GoDuration::from_secs;
        Self {
            leader_elect: true,
            lease_duration: seconds(15),
            renew_deadline: seconds(10),
            retry_period: seconds(2),
            resource_lock: "leases".to_owned(),
            resource_name: "kube-scheduler".to_owned(),
            resource_namespace: "kube-system".to_owned(),
        }
    }
}

impl Default for ClientConnection {
    fn default() -> Self {
        Self {
            kubeconfig: String::new(),
            accept_content_types: String::new(),
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            qps: 50.0,
            burst: 100,
        }
    }
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            scheduler_name: "default-scheduler".to_owned(),
            percentage_of_nodes_to_score: None,
            plugins: Plugins::default(),
            plugin_config: Vec::new(),
            args: PluginArgs::default(),
        }
    }
}
