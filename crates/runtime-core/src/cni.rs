//! The CNI contract, as data: which plugins a network has, what each is told, and what they answer.

use std::net::IpAddr;

use serde::Deserialize;
use serde_json::{Map, Value, json};

/// When a plugin answers without an error of its own.
const UNKNOWN: u64 = 999;

/// A network: plugins, called one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    pub name: String,
    pub version: String,
    pub is_check_disabled: bool,
    pub is_gc_disabled: bool,
    plugins: Vec<Plugin>,
}

#[derive(Clone, Debug, PartialEq)]
struct Plugin {
    /// The program's name.
    kind: String,
    capabilities: Vec<String>,
    /// What its author wrote.
    config: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Add,
    Check,
    Del,
    /// Of the whole network, as the ones after it: whether one more could be attached.
    Status,
    /// To forget all but the attachments that live.
    Gc,
}

/// What is attached to a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attachment {
    pub container: String,
    /// None once it is gone: a deletion must succeed without.
    pub namespace: Option<String>,
    pub interface: String,
    pub arguments: Vec<(String, String)>,
    /// By capability.
    pub capabilities: Map<String, Value>,
}

/// One call of a plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub program: String,
    pub environment: Vec<(&'static str, String)>,
    pub input: String,
}

/// What the last plugin answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Attached {
    /// Handed to the next plugin and kept for the deletion.
    pub result: Value,
    /// Of the container's own interfaces, version 4 first.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum CniError {
    #[error("the network configuration is not understood: {0}")]
    Json(serde_json::Error),
    #[error("the network configuration: {0}")]
    Config(String),
    #[error("network plugin {plugin}: {message}{}", details.as_deref().map(|d| format!("; {d}")).unwrap_or_default())]
    Plugin { plugin: String, code: u64, message: String, details: Option<String> },
    #[error("the answer of network plugin {0} is not understood: {1}")]
    Answer(String, String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListFile {
    #[serde(default)]
    cni_version: String,
    #[serde(default)]
    cni_versions: Vec<String>,
    name: Option<String>,
    #[serde(default)]
    disable_check: bool,
    #[serde(default, rename = "disableGC")]
    disable_gc: bool,
    #[serde(default)]
    load_only_inlined_plugins: bool,
    #[serde(default)]
    plugins: Vec<Map<String, Value>>,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// Reads a list (`*.conflist`), or a file of one plugin (`*.conf`, `*.json`).
pub fn network(text: &str) -> Result<Network, CniError> {
    network_with(text, &|_| vec![])
}

/// The same for a list whose plugins may have files of their own: `more` are those of the directory of a name.
pub fn network_with(text: &str, more: &dyn Fn(&str) -> Vec<String>) -> Result<Network, CniError> {
    let value: Value = serde_json::from_str(text).map_err(CniError::Json)?;
    if !value.is_object() {
        return Err(CniError::Config("it is not an object".into()));
    }
    let is_list = value.get("plugins").is_some() || value.get("type").is_none();
    let file: ListFile = if is_list {
        serde_json::from_value(value).map_err(CniError::Json)?
    } else {
        let only = value.as_object().cloned().unwrap_or_default();
        let word = |key: &str| only.get(key).and_then(Value::as_str).map(str::to_owned);
        let (name, version) = (word("name"), word("cniVersion").unwrap_or_default());
        ListFile {
            cni_version: version,
            cni_versions: vec![],
            name,
            disable_check: false,
            disable_gc: false,
            load_only_inlined_plugins: true,
            plugins: vec![only],
        }
    };
    let name = file.name.filter(|name| is_word(name));
    let name = name.ok_or_else(|| CniError::Config("it has no name, or one that is no file name".into()))?;
    let mut all = file.plugins;
    if !file.load_only_inlined_plugins {
        for text in more(&name) {
            all.push(serde_json::from_str(&text).map_err(CniError::Json)?);
        }
    }
    let plugins = all.into_iter().map(plugin).collect::<Result<Vec<_>, _>>()?;
    if plugins.is_empty() {
        return Err(CniError::Config("it has no plugins".into()));
    }
    Ok(Network {
        name,
        version: newest(file.cni_version, file.cni_versions),
        is_check_disabled: file.disable_check,
        is_gc_disabled: file.disable_gc,
        plugins,
    })
}

fn plugin(mut config: Map<String, Value>) -> Result<Plugin, CniError> {
    let kind = config.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    // It becomes the name of a program that runs as root.
    if !is_word(&kind) {
        return Err(CniError::Config(format!("{kind:?} is not the name of a plugin")));
    }
    let declared = config.remove("capabilities");
    let declared = declared.as_ref().and_then(Value::as_object).into_iter().flatten();
    let capabilities = declared.filter(|(_, is)| **is == json!(true)).map(|(name, _)| name.clone()).collect();
    Ok(Plugin { kind, capabilities, config })
}

fn is_word(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text.chars().all(is_plain) && text.chars().any(|c| c != '.')
}

/// The newest that both sides know; the plugins' authors list theirs in either key.
fn newest(one: String, many: Vec<String>) -> String {
    const OURS: [&str; 6] = ["1.1.0", "1.0.0", "0.4.0", "0.3.1", "0.3.0", "0.2.0"];
    let known = OURS.iter().find(|ours| many.iter().any(|v| v == *ours));
    match known {
        Some(known) => (*known).to_owned(),
        None if one.is_empty() => "0.2.0".to_owned(),
        None => one,
    }
}

// === impl Network ===

impl Network {
    /// In which order the plugins are called.
    #[must_use]
    pub fn order(&self, verb: Verb) -> Vec<usize> {
        let forward = 0..self.plugins.len();
        if verb == Verb::Del { forward.rev().collect() } else { forward.collect() }
    }

    #[must_use]
    pub fn program(&self, at: usize) -> &str {
        &self.plugins[at].kind
    }

    /// `path` is where plugins look for those that they delegate to.
    #[must_use]
    pub fn call(&self, at: usize, verb: Verb, to: &Attachment, before: Option<&Value>, path: &str) -> Call {
        let plugin = &self.plugins[at];
        let mut input = plugin.config.clone();
        input.insert("name".into(), json!(self.name));
        input.insert("cniVersion".into(), json!(self.version));
        let wanted = to.capabilities.iter().filter(|(name, _)| plugin.capabilities.contains(name));
        let runtime: Map<String, Value> = wanted.map(|(k, v)| (k.clone(), v.clone())).collect();
        if !runtime.is_empty() {
            input.insert("runtimeConfig".into(), Value::Object(runtime));
        }
        if let Some(before) = before {
            input.insert("prevResult".into(), before.clone());
        }
        let arguments: Vec<String> = to.arguments.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let environment = vec![
            ("CNI_COMMAND", verb.word().to_owned()),
            ("CNI_CONTAINERID", to.container.clone()),
            ("CNI_NETNS", to.namespace.clone().unwrap_or_default()),
            ("CNI_IFNAME", to.interface.clone()),
            ("CNI_ARGS", arguments.join(";")),
            ("CNI_PATH", path.to_owned()),
        ];
        Call { program: plugin.kind.clone(), environment, input: Value::Object(input).to_string() }
    }

    /// Whether the contract of this network has STATUS and GC.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.version == "1.1.0"
    }

    /// One call that is about no attachment; `valid` are the containers and interfaces that live, for a garbage collection.
    #[must_use]
    pub fn ask(&self, at: usize, verb: Verb, valid: &[(String, String)], path: &str) -> Call {
        let plugin = &self.plugins[at];
        let mut input = plugin.config.clone();
        input.insert("name".into(), json!(self.name));
        input.insert("cniVersion".into(), json!(self.version));
        if verb == Verb::Gc {
            let each = valid.iter().map(|(id, interface)| json!({"containerID": id, "ifname": interface}));
            input.insert("cni.dev/valid-attachments".into(), each.collect());
        }
        let environment = vec![("CNI_COMMAND", verb.word().to_owned()), ("CNI_PATH", path.to_owned())];
        Call { program: plugin.kind.clone(), environment, input: Value::Object(input).to_string() }
    }
}

// === impl Verb ===

impl Verb {
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Check => "CHECK",
            Verb::Del => "DEL",
            Verb::Status => "STATUS",
            Verb::Gc => "GC",
        }
    }
}

/// What a plugin printed: a result, or the error that it ended with.
pub fn answer(
    plugin: &str,
    is_success: bool,
    output: &[u8],
    errors: &[u8],
) -> Result<Option<Value>, CniError> {
    let text = String::from_utf8_lossy(output);
    if !is_success {
        let error: ErrorAnswer = serde_json::from_str(&text).unwrap_or_else(|_| ErrorAnswer {
            code: UNKNOWN,
            msg: "it failed without saying why".into(),
            details: String::from_utf8_lossy(errors).trim().to_owned(),
        });
        let details = Some(error.details).filter(|details| !details.is_empty());
        return Err(CniError::Plugin {
            plugin: plugin.into(),
            code: error.code,
            message: error.msg,
            details,
        });
    }
    if text.trim().is_empty() {
        return Ok(None);
    }
    let value = serde_json::from_str(&text).map_err(|e| CniError::Answer(plugin.into(), e.to_string()))?;
    Ok(Some(value))
}

/// The addresses of the result of the last plugin.
pub fn attached(plugin: &str, result: Value) -> Result<Attached, CniError> {
    let bad = |why: &str| CniError::Answer(plugin.into(), why.to_owned());
    let interfaces = result.get("interfaces").and_then(Value::as_array);
    // Without a sandbox it is the machine's side of the cable.
    let is_inside = |ip: &Value| {
        let at = ip.get("interface").and_then(Value::as_u64).and_then(|at| usize::try_from(at).ok());
        let interface = at.and_then(|at| interfaces?.get(at));
        interface.is_none_or(|i| i.get("sandbox").and_then(Value::as_str).is_some_and(|s| !s.is_empty()))
    };
    let mut addresses = Vec::new();
    for ip in result.get("ips").and_then(Value::as_array).into_iter().flatten().filter(|ip| is_inside(ip)) {
        let text = ip.get("address").and_then(Value::as_str).ok_or_else(|| bad("an address is missing"))?;
        let address = text.split('/').next().unwrap_or_default();
        addresses.push(address.parse::<IpAddr>().map_err(|_| bad(&format!("{text:?} is not an address")))?);
    }
    addresses.sort_by_key(IpAddr::is_ipv6);
    Ok(Attached { result, addresses })
}

/// What every plugin is told of a Pod.
#[must_use]
pub fn pod_arguments(namespace: &str, name: &str, uid: &str, sandbox: &str) -> Vec<(String, String)> {
    let all = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", namespace),
        ("K8S_POD_NAME", name),
        ("K8S_POD_INFRA_CONTAINER_ID", sandbox),
        ("K8S_POD_UID", uid),
    ];
    // One would end its value and begin another.
    let clean = |value: &str| value.replace(';', "");
    all.into_iter().map(|(key, value)| (key.to_owned(), clean(value))).collect()
}

#[cfg(test)]
mod tests;
