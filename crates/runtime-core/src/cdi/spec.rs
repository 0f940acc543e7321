//! A file of the Container Device Interface, as its specification has it up to version 1.0.

use serde::Deserialize;
use serde_json::Value;

use super::{Device, Edits, Mount};

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    cdi_version: String,
    kind: String,
    #[serde(default, rename = "annotations")]
    _annotations: Value,
    #[serde(default)]
    pub(super) devices: Vec<Named>,
    #[serde(default, rename = "containerEdits")]
    pub(super) edits: Changes,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Named {
    name: String,
    #[serde(default, rename = "annotations")]
    _annotations: Value,
    #[serde(default, rename = "containerEdits")]
    pub(super) edits: Changes,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Changes {
    env: Vec<String>,
    device_nodes: Vec<Node>,
    mounts: Vec<Bind>,
    additional_gids: Vec<u32>,
    hooks: Vec<Hook>,
    net_devices: Vec<Value>,
    intel_rdt: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Node {
    path: String,
    host_path: String,
    r#type: String,
    // Given or not, the numbers are those of the machine's node.
    #[serde(rename = "major")]
    _major: i64,
    #[serde(rename = "minor")]
    _minor: i64,
    file_mode: Option<u32>,
    permissions: String,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Bind {
    host_path: String,
    container_path: String,
    options: Vec<String>,
    r#type: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Hook {
    hook_name: String,
    path: String,
}

// === impl Spec ===

impl Spec {
    pub(super) fn decode(text: &str) -> Result<Spec, String> {
        let spec: Spec = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if !is_kind(&spec.kind) {
            return Err(format!("kind {:?} is not of the form vendor/class", spec.kind));
        }
        if !is_known(&spec.cdi_version) {
            return Err(format!("cdiVersion {:?} is not supported", spec.cdi_version));
        }
        match spec.devices.iter().find(|device| !is_name(&device.name)) {
            Some(bad) => Err(format!("{:?} is not the name of a device", bad.name)),
            None => Ok(spec),
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.devices.iter().map(|device| format!("{}={}", self.kind, device.name))
    }
}

/// 0.3 to 1.x.
fn is_known(version: &str) -> bool {
    let mut parts = version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Ok(0)), Some(Ok(minor)), Some(Ok(_))) => minor >= 3,
        (Some(Ok(1)), Some(Ok(_)), Some(Ok(_))) => true,
        _ => false,
    }
}

pub(super) fn is_kind(kind: &str) -> bool {
    let is_word = |word: &str, also: &[char]| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.ends_with(|c: char| c.is_ascii_alphanumeric())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(&c))
    };
    kind.split_once('/')
        .is_some_and(|(vendor, class)| is_word(vendor, &['_', '-', '.']) && is_word(class, &['_', '-', '.']))
}

pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c))
}

// === impl Changes ===

impl Changes {
    pub(super) fn add_to(&self, edits: &mut Edits) -> Result<(), String> {
        if let Some(hook) = self.hooks.first() {
            return Err(format!("hook {} of {} is not supported", hook.hook_name, hook.path));
        }
        if !self.net_devices.is_empty() {
            return Err("netDevices are not supported".to_owned());
        }
        if self.intel_rdt.is_some() {
            return Err("intelRdt is not supported".to_owned());
        }
        for text in &self.env {
            let (name, value) = text
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| format!("env {text:?} is not NAME=VALUE"))?;
            edits.env.push((name.to_owned(), value.to_owned()));
        }
        for node in &self.device_nodes {
            edits.devices.push(node.device().map_err(|why| format!("device {}: {why}", node.path))?);
        }
        for bind in &self.mounts {
            edits.mounts.push(bind.mount().map_err(|why| format!("mount {}: {why}", bind.container_path))?);
        }
        edits.groups.extend(&self.additional_gids);
        Ok(())
    }
}

impl Node {
    fn device(&self) -> Result<Device, String> {
        absolute(&self.path)?;
        // "b", "c" and what is the same as "c".
        if !["", "b", "c", "u"].contains(&self.r#type.as_str()) {
            return Err(format!("type {:?} is not supported", self.r#type));
        }
        if !self.permissions.chars().all(|c| "rwm".contains(c)) {
            return Err(format!("{:?} are no permissions", self.permissions));
        }
        let or = |text: &String, other: &str| if text.is_empty() { other.to_owned() } else { text.clone() };
        let host_path = or(&self.host_path, &self.path);
        absolute(&host_path)?;
        Ok(Device {
            path: self.path.clone(),
            host_path,
            permissions: or(&self.permissions, "rwm"),
            mode: self.file_mode,
            uid: self.uid,
            gid: self.gid,
        })
    }
}

impl Bind {
    fn mount(&self) -> Result<Mount, String> {
        absolute(&self.host_path)?;
        absolute(&self.container_path)?;
        if !["", "bind", "none"].contains(&self.r#type.as_str()) {
            return Err(format!("type {:?} is not supported", self.r#type));
        }
        let mut mount = Mount {
            host_path: self.host_path.clone(),
            container_path: self.container_path.clone(),
            ..Mount::default()
        };
        for option in &self.options {
            match option.as_str() {
                "ro" => mount.is_read_only = true,
                "nosuid" => mount.flags |= crate::container::NO_SUID,
                "nodev" => mount.flags |= crate::container::NO_DEV,
                "noexec" => mount.flags |= crate::container::NO_EXEC,
                "rw" | "bind" | "rbind" | "private" | "rprivate" => {}
                other => return Err(format!("option {other:?} is not supported")),
            }
        }
        Ok(mount)
    }
}

fn absolute(path: &str) -> Result<(), String> {
    let is_good = path.starts_with('/') && !path.contains('\0') && !path.split('/').any(|part| part == "..");
    if is_good { Ok(()) } else { Err(format!("{path:?} is not an absolute path")) }
}
