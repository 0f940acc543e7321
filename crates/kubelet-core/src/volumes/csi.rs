//! csi: volumes that a driver of its own mounts.
//!
//! What the driver is asked for, under which names, and where upstream keeps what: another kubelet on the same root
//! directory finds everything in its place.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, CSIVolumeSource, PersistentVolume, Pod, SecretReference, Volume,
};
use k8s_openapi::api::storage::v1::CSIDriver;
use sha2::{Digest, Sha256};

use super::expand::Claimed;
use super::{Context, Source};
use crate::downward::is_dns_subdomain;

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiVolume {
    pub driver: String,
    /// How the driver calls the volume.
    pub handle: String,
    /// How its directory is called: after the PersistentVolume, or as the Pod calls it.
    pub spec_name: String,
    pub lifecycle: Lifecycle,
    /// A device instead of a directory.
    pub block: bool,
    pub fs_type: String,
    pub read_only: bool,
    pub attributes: BTreeMap<String, String>,
    pub mount_options: Vec<String>,
    pub access_modes: Vec<String>,
    pub stage_secret: Option<SecretRef>,
    pub publish_secret: Option<SecretRef>,
    pub expand_secret: Option<SecretRef>,
    /// What the PersistentVolume promises.
    pub capacity: Option<i64>,
    /// By which claim the Pod has it.
    pub claim: Option<ClaimRef>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub sizes: Claimed,
}

/// How long a volume lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifecycle {
    Persistent,
    /// As long as its Pod.
    Ephemeral,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRef {
    pub namespace: String,
    pub name: String,
}

/// Who gives a volume to the Pod's fsGroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    Nobody,
    /// The kubelet, always.
    File,
    /// The kubelet, if the volume has a file system and one node writes to it.
    ReadWriteOnceWithFsType,
}

pub const PLUGIN: &str = "kubernetes.io/csi";
/// The same as the name of a directory.
pub const PLUGIN_DIR: &str = "kubernetes.io~csi";

/// The names inside `vol_data.json`, which tells a later kubelet what is mounted beside it.
pub mod key {
    pub const SPEC_NAME: &str = "specVolID";
    pub const HANDLE: &str = "volumeHandle";
    pub const DRIVER: &str = "driverName";
    pub const NODE: &str = "nodeName";
    pub const ATTACHMENT: &str = "attachmentID";
    pub const LIFECYCLE: &str = "volumeLifecycleMode";
}

pub(super) fn read(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let source = volume.csi.as_ref()?;
    Some(Ok(Source::Csi(Box::new(inline(context.pod, &volume.name, source)))))
}

fn inline(pod: &Pod, name: &str, source: &CSIVolumeSource) -> CsiVolume {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let secret = source.node_publish_secret_ref.as_ref();
    CsiVolume {
        driver: source.driver.clone(),
        handle: inline_handle(pod.metadata.uid.as_deref().unwrap_or_default(), name),
        spec_name: name.to_owned(),
        lifecycle: Lifecycle::Ephemeral,
        block: false,
        fs_type: source.fs_type.clone().unwrap_or_default(),
        read_only: source.read_only == Some(true),
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        mount_options: Vec::new(),
        access_modes: Vec::new(),
        stage_secret: None,
        publish_secret: secret.map(|s| SecretRef { namespace, name: s.name.clone() }),
        expand_secret: None,
        capacity: None,
        claim: None,
    }
}

/// The source of a PersistentVolume, as a directory or as a device.
pub(super) fn persistent(
    volume: &PersistentVolume,
    source: &CSIPersistentVolumeSource,
    read_only: bool,
    block: bool,
) -> Result<Source, String> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    if !is_driver_name(&source.driver) {
        return Err(format!("PersistentVolume {name} names no driver"));
    }
    let spec = volume.spec.clone().unwrap_or_default();
    let capacity = spec.capacity.as_ref().and_then(|c| c.get("storage"));
    let capacity = capacity.and_then(|q| q.0.parse::<base::quantity::Quantity>().ok()).map(|q| q.value());
    Ok(Source::Csi(Box::new(CsiVolume {
        driver: source.driver.clone(),
        handle: source.volume_handle.clone(),
        spec_name: name,
        lifecycle: Lifecycle::Persistent,
        block,
        fs_type: source.fs_type.clone().unwrap_or_default(),
        read_only,
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        mount_options: spec.mount_options.unwrap_or_default(),
        access_modes: spec.access_modes.unwrap_or_default(),
        stage_secret: secret(source.node_stage_secret_ref.as_ref()),
        publish_secret: secret(source.node_publish_secret_ref.as_ref()),
        expand_secret: secret(source.node_expand_secret_ref.as_ref()),
        capacity,
        claim: None,
    })))
}

fn secret(reference: Option<&SecretReference>) -> Option<SecretRef> {
    let reference = reference?;
    Some(SecretRef { namespace: reference.namespace.clone()?, name: reference.name.clone()? })
}

// === impl CsiVolume ===

impl CsiVolume {
    /// The first access mode is the one that counts.
    #[must_use]
    pub fn access_mode(&self) -> &str {
        self.access_modes.first().map_or("ReadWriteOnce", String::as_str)
    }

    /// For one Pod at a time.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        is_exclusive(&self.access_modes)
    }

    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.lifecycle == Lifecycle::Persistent
    }

    /// How attach-detach controllers and `volumesInUse` call it.
    #[must_use]
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// What is written beside the Pod's mount before the driver is asked.
    #[must_use]
    pub fn data(&self, node: &str) -> BTreeMap<String, String> {
        let entries = [
            (key::SPEC_NAME, self.spec_name.clone()),
            (key::HANDLE, self.handle.clone()),
            (key::DRIVER, self.driver.clone()),
            (key::NODE, node.to_owned()),
            (key::LIFECYCLE, self.lifecycle.as_str().to_owned()),
            (key::ATTACHMENT, attachment_name(&self.handle, &self.driver, node)),
        ];
        entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()
    }

    /// What is written beside the staged volume.
    #[must_use]
    pub fn staged_data(&self) -> BTreeMap<String, String> {
        let entries = [(key::HANDLE, &self.handle), (key::DRIVER, &self.driver)];
        entries.into_iter().map(|(k, v)| (k.to_owned(), v.clone())).collect()
    }

    /// Whether the kubelet itself gives the volume to the Pod's group.
    #[must_use]
    pub fn takes_group(&self, policy: GroupPolicy) -> bool {
        if self.read_only || self.block {
            return false;
        }
        match policy {
            GroupPolicy::Nobody => false,
            GroupPolicy::File => true,
            GroupPolicy::ReadWriteOnceWithFsType => {
                let once = |m: &String| m == "ReadWriteOnce" || m == "ReadWriteOncePod";
                let one_node = self.lifecycle == Lifecycle::Ephemeral || self.access_modes.iter().any(once);
                !self.fs_type.is_empty() && one_node
            }
        }
    }
}

// === impl Lifecycle ===

impl Lifecycle {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Lifecycle::Persistent => "Persistent",
            Lifecycle::Ephemeral => "Ephemeral",
        }
    }
}

/// How a volume is called in `volumesAttached` and `volumesInUse`.
#[must_use]
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("{PLUGIN}/{driver}^{handle}")
}

/// The VolumeAttachment that says whether a volume is attached to a node.
#[must_use]
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node]))
}

/// The name of the directory a volume is staged in.
#[must_use]
pub fn staging_name(handle: &str) -> String {
    sha256(&[handle])
}

/// A volume that lives with its Pod is called after it.
#[must_use]
pub fn inline_handle(uid: &str, name: &str) -> String {
    format!("csi-{}", sha256(&[uid, name]))
}

fn sha256(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part.as_bytes()));
    hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What a driver learns of the Pod, if its CSIDriver says `podInfoOnMount`.
#[must_use]
pub fn pod_attributes(pod: &Pod, lifecycle: Lifecycle) -> BTreeMap<String, String> {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|s| s.service_account_name.clone());
    let entries = [
        ("pod.name", text(&meta.name)),
        ("pod.namespace", text(&meta.namespace)),
        ("pod.uid", text(&meta.uid)),
        ("serviceAccount.name", text(&account)),
        ("ephemeral", (lifecycle == Lifecycle::Ephemeral).to_string()),
    ];
    entries.into_iter().map(|(k, v)| (format!("csi.storage.k8s.io/{k}"), v)).collect()
}

/// Where the tokens go that a driver asks for.
pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Whether somebody else has to attach the driver's volumes first. A driver nobody describes needs it.
#[must_use]
pub fn needs_attach(driver: Option<&CSIDriver>) -> bool {
    driver.and_then(|d| d.spec.attach_required).unwrap_or(true)
}

/// Whether the driver serves volumes of this lifecycle; if not, upstream's words for it.
pub fn check_lifecycle(driver: Option<&CSIDriver>, name: &str, lifecycle: Lifecycle) -> Result<(), String> {
    let mode = lifecycle.as_str();
    let Some(driver) = driver else {
        return match lifecycle {
            Lifecycle::Persistent => Ok(()),
            Lifecycle::Ephemeral => {
                Err(format!("volume mode {mode:?} not supported by driver {name} (no CSIDriver object)"))
            }
        };
    };
    let modes = driver.spec.volume_lifecycle_modes.as_deref().unwrap_or_default();
    let is_default = modes.is_empty() && lifecycle == Lifecycle::Persistent;
    match is_default || modes.iter().any(|m| m == mode) {
        true => Ok(()),
        false => Err(format!(
            "volume mode {mode:?} not supported by driver {name} (only supports [{}])",
            modes.iter().map(|m| format!("{m:?}")).collect::<Vec<_>>().join(" ")
        )),
    }
}

/// Who gives the driver's volumes to a group, if the driver cannot do it by itself.
pub fn group_policy(driver: Option<&CSIDriver>) -> Result<GroupPolicy, String> {
    let Some(driver) = driver else { return Ok(GroupPolicy::ReadWriteOnceWithFsType) };
    match driver.spec.fs_group_policy.as_deref() {
        Some("None") => Ok(GroupPolicy::Nobody),
        Some("File") => Ok(GroupPolicy::File),
        Some("ReadWriteOnceWithFSType") => Ok(GroupPolicy::ReadWriteOnceWithFsType),
        _ => Err(format!("{PLUGIN}: expected valid fsGroupPolicy, received nil value or empty string")),
    }
}

/// Whether a driver may be called so: what the API server wants of the names in a CSINode.
#[must_use]
pub fn is_driver_name(name: &str) -> bool {
    name.len() <= 63 && is_dns_subdomain(&name.to_ascii_lowercase())
}

/// The highest version that is not of a generation to come; versions are dotted numbers, with or without a `v`.
pub fn highest_version(versions: &[String]) -> Result<Vec<u64>, String> {
    let parse = |text: &String| {
        let numbers = text.trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
        numbers.split('.').map(|n| n.parse::<u64>().ok()).collect::<Option<Vec<u64>>>()
    };
    let known = versions.iter().filter_map(parse).filter(|v| v.first().is_some_and(|major| *major <= 1));
    known.max().ok_or_else(|| {
        let all = versions.join(" ");
        format!("could not find a highest supported version from versions ([{all}]) reported")
    })
}

/// Whether only one Pod may have a volume at a time. With several modes nobody knows which one a Pod means.
pub(super) fn is_exclusive(modes: &[String]) -> bool {
    modes == ["ReadWriteOncePod"]
}

#[cfg(test)]
#[path = "csi_tests.rs"]
mod tests;
