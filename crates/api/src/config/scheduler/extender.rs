//! Extenders: programs of others that are asked over HTTP.

use std::collections::BTreeSet;

use base::duration::GoDuration;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::config::FieldError;
use crate::names;

/// One extender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    pub url_prefix: String,
    /// What is put after the prefix for each kind of question; empty where it is not asked that.
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub bind_verb: String,
    /// Of its scores.
    pub weight: i64,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<ExtenderTls>,
    pub http_timeout: GoDuration,
    /// It knows the nodes: their names are enough.
    pub node_cache_capable: bool,
    /// Only Pods that ask for one of these concern it; none: all do.
    pub managed_resources: Vec<ManagedResource>,
    /// Scheduling goes on without it where it fails.
    pub ignorable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ManagedResource {
    pub name: String,
    /// Nodes are not asked whether they have it.
    #[serde(default)]
    pub ignored_by_scheduler: bool,
}

/// How its certificate is judged, and which one it is shown. What is inline wins over files.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderTls {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    /// Base64 of PEM, as are the next two.
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

impl Default for Extender {
    fn default() -> Self {
        Extender {
            url_prefix: String::new(),
            filter_verb: String::new(),
            preempt_verb: String::new(),
            prioritize_verb: String::new(),
            bind_verb: String::new(),
            weight: 0,
            enable_https: false,
            tls_config: None,
            http_timeout: GoDuration::from_secs(5),
            node_cache_capable: false,
            managed_resources: Vec::new(),
            ignorable: false,
        }
    }
}

/// A key may be in it.
impl std::fmt::Debug for ExtenderTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExtenderTls")
            .field("insecure", &self.insecure)
            .field("server_name", &self.server_name)
            .field("cert_file", &self.cert_file)
            .field("ca_file", &self.ca_file)
            .finish_non_exhaustive()
    }
}

impl ExtenderTls {
    /// What is inline, decoded.
    pub fn decode(text: &str) -> Result<Option<Vec<u8>>, String> {
        match text.is_empty() {
            true => Ok(None),
            false => STANDARD.decode(text).map(Some).map_err(|e| format!("is not base64: {e}")),
        }
    }
}

/// All that is wrong with the extenders.
pub(super) fn check(extenders: &[Extender]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut fail = |path: String, why: String| errors.push(FieldError::new(path, why));
    let mut seen = BTreeSet::new();
    for (i, extender) in extenders.iter().enumerate() {
        let path = format!("extenders[{i}]");
        let prefix = &extender.url_prefix;
        if !["http://", "https://"]
            .iter()
            .any(|scheme| prefix.len() > scheme.len() && prefix.starts_with(scheme))
        {
            fail(format!("{path}.urlPrefix"), format!("{prefix:?} must begin with http:// or https://"));
        }
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            fail(format!("{path}.weight"), "must have a positive weight applied to it".into());
        }
        if extender.http_timeout.to_std().is_zero() {
            fail(format!("{path}.httpTimeout"), "must be greater than 0".into());
        }
        for (j, resource) in extender.managed_resources.iter().enumerate() {
            let path = format!("{path}.managedResources[{j}].name");
            if let Some(why) = names::qualified_name(&resource.name).into_iter().next() {
                fail(path.clone(), why);
            } else if !is_extended(&resource.name) {
                fail(path.clone(), "is an invalid extended resource name".into());
            }
            if !seen.insert(&resource.name) {
                fail(path, "duplicate extender managed resource name".into());
            }
        }
        let tls = extender.tls_config.clone().unwrap_or_default();
        for (name, data) in
            [("certData", &tls.cert_data), ("keyData", &tls.key_data), ("caData", &tls.ca_data)]
        {
            if let Err(why) = ExtenderTls::decode(data) {
                fail(format!("{path}.tlsConfig.{name}"), why);
            }
        }
    }
    let binders = extenders.iter().filter(|e| !e.bind_verb.is_empty()).count();
    if binders > 1 {
        fail(
            "extenders".into(),
            format!("found {binders} extenders implementing bind: only one extender can implement bind"),
        );
    }
    errors
}

fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
