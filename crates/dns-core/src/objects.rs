//! What counts of the API's objects here. Everything else is skipped while it is read.

use serde::Deserialize;

/// The label that says whose slice it is.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// When what the slice tells of happened.
pub const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

#[derive(Debug, Default, Deserialize)]
pub struct Metadata {
    pub name: String,
    #[serde(default)]
    pub namespace: Option<String>,
    #[serde(default)]
    pub labels: Option<Labels>,
    #[serde(default)]
    pub annotations: Option<Annotations>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Labels {
    #[serde(default, rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Annotations {
    #[serde(default, rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub trigger_time: Option<String>,
}

/// Any object, by its name.
#[derive(Debug, Deserialize)]
pub struct Named {
    pub metadata: Metadata,
}

#[derive(Debug, Deserialize)]
pub struct Service {
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: ServiceSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceSpec {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    pub ports: Option<Vec<Port>>,
    pub external_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Port {
    pub name: Option<String>,
    pub protocol: Option<String>,
    pub port: Option<i32>,
}

#[derive(Debug, Deserialize)]
pub struct EndpointSlice {
    pub metadata: Metadata,
    #[serde(default)]
    pub endpoints: Option<Vec<Endpoint>>,
    #[serde(default)]
    pub ports: Option<Vec<Port>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Endpoint {
    pub addresses: Option<Vec<String>>,
    pub conditions: Option<Conditions>,
    pub hostname: Option<String>,
    pub target_ref: Option<TargetRef>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conditions {
    pub ready: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TargetRef {
    pub name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Pod {
    pub metadata: Metadata,
    #[serde(default)]
    pub status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    pub phase: Option<String>,
    #[serde(rename = "podIPs")]
    pub pod_ips: Option<Vec<PodIp>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodIp {
    pub ip: String,
}

/// A ConfigMap with its texts.
#[derive(Debug, Deserialize)]
pub struct ConfigMap {
    pub metadata: Metadata,
    #[serde(default)]
    pub data: Option<std::collections::BTreeMap<String, String>>,
}

// === impl Metadata ===

impl Metadata {
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    /// `namespace/name`
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace(), self.name)
    }
}
