//! Settings that only flags have, and the flag syntaxes that become lists of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use base::duration::GoDuration;
use base::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::FieldError;
use crate::config::logging::read_vmodule;
use crate::config::page::page_address;

/// The flag-only settings, decoded from the parsed flags by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct KubeletFlags {
    pub config: String,
    pub config_dir: String,
    pub kubeconfig: String,
    pub bootstrap_kubeconfig: String,
    pub hostname_override: String,
    pub node_ip: String,
    pub root_dir: String,
    pub cert_dir: String,
    pub cloud_provider: String,
    pub node_labels: BTreeMap<String, String>,
    pub seccomp_default: bool,
    pub image_credential_provider_config: String,
    pub image_credential_provider_bin_dir: String,
    pub runtime_cgroups: String,
    pub lock_file: String,
    pub exit_on_lock_contention: bool,
    pub housekeeping_interval: GoDuration,
    pub minimum_container_ttl_duration: GoDuration,
    pub maximum_dead_containers_per_container: i32,
    pub maximum_dead_containers: i32,
    pub experimental_allocatable_ignore_eviction: bool,
    pub experimental_mounter_path: String,
    pub node_page: String,
}

// === impl KubeletFlags ===

impl Default for KubeletFlags {
    fn default() -> Self {
        Self {
            config: String::new(),
            config_dir: String::new(),
            kubeconfig: String::new(),
            bootstrap_kubeconfig: String::new(),
            hostname_override: String::new(),
            node_ip: String::new(),
            root_dir: "/var/lib/kubelet".into(),
            cert_dir: "/var/lib/kubelet/pki".into(),
            cloud_provider: String::new(),
            node_labels: BTreeMap::new(),
            seccomp_default: false,
            image_credential_provider_config: String::new(),
            image_credential_provider_bin_dir: String::new(),
            runtime_cgroups: String::new(),
            lock_file: String::new(),
            exit_on_lock_contention: false,
            housekeeping_interval: GoDuration::from_secs(10),
            minimum_container_ttl_duration: GoDuration::ZERO,
            maximum_dead_containers_per_container: 1,
            maximum_dead_containers: -1,
            experimental_allocatable_ignore_eviction: false,
            experimental_mounter_path: String::new(),
            node_page: String::new(),
        }
    }
}

impl KubeletFlags {
    /// The node's name: the override if any, else the machine's; trimmed and in lower case.
    pub fn node_name(&self, hostname: &str) -> String {
        let name = match self.hostname_override.trim() {
            "" => hostname.trim(),
            name => name,
        };
        name.to_lowercase()
    }

    /// The addresses of `--node-ip`; what does not parse is passed over, as upstream does.
    pub fn node_ips(&self) -> Vec<IpAddr> {
        let texts = self.node_ip.split(',');
        texts.filter_map(|t| t.trim().parse().ok()).collect()
    }

    /// Whether the kubelet has no API server.
    pub fn is_standalone(&self) -> bool {
        self.kubeconfig.is_empty() && self.bootstrap_kubeconfig.is_empty()
    }

    pub(super) fn validate(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (key, value) in &self.node_labels {
            let path = format!("--node-labels[{key}]");
            if is_kubernetes_label(key) && !may_label_itself(key) {
                let text = "a node may not set this label in the kubernetes.io or k8s.io namespace";
                errors.push(FieldError::new(&path, text));
            }
            if let Err(why) = check_label_key(key) {
                errors.push(FieldError::new(&path, why));
            }
            if let Err(why) = check_label_value(value) {
                errors.push(FieldError::new(&path, why));
            }
        }
        if !matches!(self.cloud_provider.as_str(), "" | "external") {
            let text = format!("{:?} must be empty or \"external\"", self.cloud_provider);
            errors.push(FieldError::new("--cloud-provider", text));
        }
        if self.exit_on_lock_contention && self.lock_file.is_empty() {
            let text = "needs --lock-file";
            errors.push(FieldError::new("--exit-on-lock-contention", text));
        }
        if let Err(text) = page_address(&self.node_page) {
            errors.push(FieldError::new("--node-page", text));
        }
        let ips = self.node_ips();
        if ips.len() > 2 || (ips.len() == 2 && ips[0].is_ipv4() == ips[1].is_ipv4()) {
            let text = "must be one address, or two of different families";
            errors.push(FieldError::new("--node-ip", text));
        }
        errors
    }
}

fn namespace(key: &str) -> &str {
    key.split_once('/').map_or("", |(namespace, _)| namespace)
}

fn within(namespace: &str, domain: &str) -> bool {
    namespace == domain || namespace.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

fn is_kubernetes_label(key: &str) -> bool {
    let namespace = namespace(key);
    within(namespace, "kubernetes.io") || within(namespace, "k8s.io")
}

fn may_label_itself(key: &str) -> bool {
    const KEYS: [&str; 11] = [
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    ];
    let namespace = namespace(key);
    KEYS.contains(&key)
        || within(namespace, "kubelet.kubernetes.io")
        || within(namespace, "node.kubernetes.io")
}

/// A qualified name: an optional DNS subdomain, a slash, and a name.
pub(super) fn check_label_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|p| !is_subdomain(p)) {
        return Err("the prefix of a label key must be a DNS subdomain".into());
    }
    if name.is_empty() || name.len() > 63 || !is_word(name) {
        return Err("the name of a label key must be 1 to 63 letters, digits, '-', '_' or '.', starting and ending with a letter or digit".into());
    }
    Ok(())
}

pub(super) fn check_label_value(value: &str) -> Result<(), String> {
    if value.is_empty() || (value.len() <= 63 && is_word(value)) {
        return Ok(());
    }
    Err(format!(
        "label value {value:?} must be empty or up to 63 letters, digits, '-', '_' or '.', starting and ending with a letter or digit"
    ))
}

fn is_word(s: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(s.chars().next())
        && edge(s.chars().last())
        && s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_subdomain(s: &str) -> bool {
    let label = |l: &str| {
        let inner = l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !l.is_empty() && inner && !l.starts_with('-') && !l.ends_with('-')
    };
    s.len() <= 253 && s.split('.').all(label)
}

// --- flag syntaxes ---

/// Turns the raw texts of a flag into the JSON of the field it sets.
pub(super) fn expand_raw(flag: &str, texts: &[Value]) -> Result<Value, String> {
    let texts = texts.iter().filter_map(Value::as_str);
    match flag {
        "register-with-taints" => read_taints(texts),
        "reserved-memory" => read_reserved_memory(texts),
        "vmodule" => read_vmodule(texts),
        other => Err(format!("flag --{other} has no reader")),
    }
}

/// `key=value:effect`, `key:effect`, comma separated.
fn read_taints<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Value, String> {
    let mut taints = Vec::new();
    let mut seen = BTreeSet::new();
    // The last occurrence replaces the earlier ones.
    let specs = texts.last().unwrap_or_default();
    for spec in specs.split(',').filter(|s| !s.is_empty()) {
        let malformed = || format!("malformed taint {spec:?}, expected key=value:effect");
        let (pair, effect) = spec.rsplit_once(':').ok_or_else(malformed)?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        check_label_key(key)?;
        check_label_value(value)?;
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            return Err(format!("invalid taint effect {effect:?} in {spec:?}"));
        }
        if !seen.insert((key, effect)) {
            return Err(format!("duplicate taint {key}:{effect}"));
        }
        taints.push(json!({"key": key, "value": value, "effect": effect}));
    }
    Ok(Value::Array(taints))
}

/// `numa:resource=quantity,…`, once per NUMA node.
fn read_reserved_memory<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Value, String> {
    let mut nodes: BTreeMap<i32, BTreeMap<String, Quantity>> = BTreeMap::new();
    for text in texts.filter(|t| !t.is_empty()) {
        let malformed = || format!("malformed reservation {text:?}, expected numa:resource=quantity");
        let (node, limits) = text.split_once(':').ok_or_else(malformed)?;
        let node: i32 = node.trim().parse().map_err(|_| malformed())?;
        if node < 0 {
            return Err(format!("NUMA node {node} must not be negative"));
        }
        for pair in limits.split(',') {
            let (name, quantity) = pair.split_once('=').ok_or_else(malformed)?;
            let quantity: Quantity = quantity.trim().parse().map_err(|e| format!("{e}"))?;
            let node = nodes.entry(node).or_default();
            if node.insert(name.trim().to_owned(), quantity).is_some() {
                return Err(format!("{name} is reserved twice on one NUMA node"));
            }
        }
    }
    let list = nodes.into_iter().map(|(node, limits)| json!({"numaNode": node, "limits": limits}));
    Ok(list.collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_only_set_some_labels() {
        let rows = [
            ("team", "a", true),
            ("example.com/team", "a", true),
            ("node.kubernetes.io/x", "a", true),
            ("sub.kubelet.kubernetes.io/x", "", true),
            ("kubernetes.io/os", "linux", true),
            ("node-role.kubernetes.io/control-plane", "", false),
            ("kubernetes.io/x", "", false),
            ("a.k8s.io/x", "", false),
            ("xkubernetes.io/x", "", true),
            ("-bad", "", false),
            ("ok", "bad value", false),
            ("UPPER.case/x", "", false),
            ("a/b/c", "", false),
        ];
        for (key, value, ok) in rows {
            let flags = KubeletFlags {
                node_labels: [(key.to_owned(), value.to_owned())].into(),
                ..KubeletFlags::default()
            };
            assert_eq!(flags.validate().is_empty(), ok, "{key}={value}: {:?}", flags.validate());
        }
    }

    #[test]
    fn names_and_addresses() {
        let flags = KubeletFlags {
            hostname_override: " Node-A ".into(),
            node_ip: "10.0.0.1, nonsense,::1".into(),
            ..KubeletFlags::default()
        };
        assert_eq!(flags.node_name("host"), "node-a");
        assert_eq!(KubeletFlags::default().node_name("HOST\n"), "host");
        assert_eq!(flags.node_ips().len(), 2);
        assert!(flags.validate().is_empty());
        let same = KubeletFlags { node_ip: "10.0.0.1,10.0.0.2".into(), ..KubeletFlags::default() };
        assert_eq!(same.validate().len(), 1);
    }

    #[test]
    fn object_lists_from_flags() {
        let raw = |flag: &str, texts: &[&str]| {
            let texts: Vec<Value> = texts.iter().map(|t| json!(t)).collect();
            expand_raw(flag, &texts)
        };
        assert_eq!(
            raw("register-with-taints", &["a=b:NoSchedule,c:NoExecute"]),
            Ok(json!([
                {"key": "a", "value": "b", "effect": "NoSchedule"},
                {"key": "c", "value": "", "effect": "NoExecute"}
            ]))
        );
        for bad in ["a", "a=b", "a=b:Never", "=b:NoSchedule", "a:NoExecute,a=1:NoExecute"] {
            assert!(raw("register-with-taints", &[bad]).is_err(), "{bad}");
        }
        assert_eq!(
            raw("reserved-memory", &["0:memory=1Gi,hugepages-2Mi=1024Ki", "1:memory=2Gi"]),
            Ok(json!([
                {"numaNode": 0, "limits": {"hugepages-2Mi": "1Mi", "memory": "1Gi"}},
                {"numaNode": 1, "limits": {"memory": "2Gi"}}
            ]))
        );
        for bad in ["memory=1Gi", "x:memory=1Gi", "0:memory", "-1:memory=1", "0:memory=1,memory=2"] {
            assert!(raw("reserved-memory", &[bad]).is_err(), "{bad}");
        }
        assert_eq!(
            raw("vmodule", &["a*=1,b=2"]),
            Ok(json!([{"filePattern": "a*", "verbosity": 1}, {"filePattern": "b", "verbosity": 2}]))
        );
        assert!(raw("vmodule", &["a"]).is_err());
    }
}
