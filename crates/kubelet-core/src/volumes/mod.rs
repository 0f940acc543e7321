//! Volumes: what a Pod's `spec.volumes` mean on this node.
//!
//! [`desired`] turns the spec into what the agent has to provide, with every number and every byte
//! already decided. [`atomic`] plans how the files of a volume are replaced under a running container.
//!
//! A new kind of volume is a file here and a line in [`KINDS`].

pub mod atomic;
mod claim;
mod config;
pub mod csi;
mod empty_dir;
pub mod expand;
mod files;
mod host_path;
mod image;
mod nested;
mod nfs;
mod payload;
mod trust_bundle;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume, VolumeMount};

pub use crate::claims::ephemeral_claim;
use crate::downward::Allocatable;
use crate::references::ReferencedObjects;
pub use atomic::{File, Payload};
pub use csi::CsiVolume;
pub use empty_dir::Medium;
pub use host_path::HostPathKind;
pub use payload::FilesKind;

/// One volume that a container of the Pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    pub name: String,
    pub source: Source,
    /// The group that shall own it, for kinds that belong to the Pod.
    pub fs_group: Option<FsGroup>,
    /// Containers may only read it, whatever their volumeMount says.
    pub read_only: bool,
    /// A group that the containers of the Pod are in because of it.
    pub gid: Option<i64>,
    /// Why this node is the wrong one for it. One that is set up already stays.
    pub misplaced: Option<String>,
}

/// Where a volume's content comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    EmptyDir(Medium),
    HostPath {
        path: String,
        kind: HostPathKind,
    },
    /// Files written by the kubelet, on a tmpfs of at most `size` bytes.
    Files {
        kind: FilesKind,
        payload: Payload,
        size: Option<u64>,
        /// Directories in it where containers have other volumes.
        nested: Vec<String>,
    },
    /// A directory of this node, or a device with a file system, that belongs to a PersistentVolume.
    Local {
        path: String,
        /// The name of the PersistentVolume.
        spec_name: String,
        /// What a device is formatted with that holds nothing.
        fs_type: String,
        options: Vec<String>,
        /// For one Pod at a time.
        exclusive: bool,
    },
    /// A device of this node.
    Device {
        path: String,
        spec_name: String,
        exclusive: bool,
    },
    /// What a CSI driver mounts.
    Csi(Box<CsiVolume>),
    /// A directory of a file server.
    Nfs {
        /// `server:/path`
        share: String,
        options: Vec<String>,
    },
    /// An OCI image; the runtime mounts it.
    Image {
        reference: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGroup {
    pub gid: u32,
    pub policy: ChangePolicy,
}

/// When a volume whose root is right already is walked nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangePolicy {
    Always,
    OnRootMismatch,
}

/// Why a Pod does not get a volume that is for one Pod at a time; upstream's words.
pub const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// A volume that cannot be had on this node, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("volume {volume:?}: {message}")]
pub struct Refused {
    pub volume: String,
    pub message: String,
    /// It is a claim's, and what that is bound to is not known or not fit.
    pub of_claim: bool,
}

/// Every volume that some container of the Pod mounts, in the order of the spec. Volumes nobody
/// mounts are not set up at all.
///
/// Each by itself: that one cannot be had is no reason to keep the others from the Pod, or from their updates.
#[must_use]
pub fn desired(
    pod: &Pod,
    node: &Allocatable,
    references: &ReferencedObjects,
) -> Vec<Result<Desired, Refused>> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mounted: BTreeSet<&str> = mounts(pod).flatten().map(|m| m.name.as_str()).collect();
    let devices = devices(spec);
    let is_used = |v: &&Volume| mounted.contains(v.name.as_str()) || devices.contains(v.name.as_str());
    let volumes = spec.volumes.iter().flatten().filter(is_used);
    let one = |volume: &Volume| {
        let name = volume.name.as_str();
        let usage = Usage { is_mounted: mounted.contains(name), is_device: devices.contains(name) };
        one(&Context { pod, node, references, usage }, volume)
    };
    volumes.map(one).collect()
}

/// What a kind may look at.
struct Context<'a> {
    pod: &'a Pod,
    node: &'a Allocatable,
    references: &'a ReferencedObjects,
    usage: Usage,
}

/// How the Pod's containers use a volume.
#[derive(Clone, Copy)]
struct Usage {
    is_mounted: bool,
    is_device: bool,
}

/// One row per kind: how it is called in the API, and how it is read. `None`: not this kind.
type Kind = (&'static str, fn(&Context<'_>, &Volume) -> Option<Result<Source, String>>);

/// Kinds whose content comes from the API server.
const SERVED: &[Kind] = &[
    ("configMap", config::read_config_map),
    ("secret", config::read_secret),
    ("persistentVolumeClaim", claim::read),
    ("ephemeral", claim::read_ephemeral),
    ("csi", csi::read),
];

const KINDS: &[Kind] = &[
    ("emptyDir", empty_dir::read),
    ("hostPath", host_path::read),
    ("downwardAPI", files::read_downward),
    ("projected", files::read_projected),
    ("image", image::read),
    ("nfs", nfs::read),
];

fn one(context: &Context<'_>, volume: &Volume) -> Result<Desired, Refused> {
    let claim = claim::name(context.pod, volume);
    let of_claim = claim.is_some();
    let refused = |message: String| Refused { volume: volume.name.clone(), message, of_claim };
    if !is_file_name(&volume.name) {
        return Err(refused("not a name a directory can have".into()));
    }
    let served = if context.references.has_server { SERVED } else { &[] };
    let mut kinds = KINDS.iter().chain(served);
    let source = kinds.find_map(|(_, read)| read(context, volume)).unwrap_or_else(|| {
        let supported: Vec<&str> = KINDS.iter().chain(served).map(|(name, _)| *name).collect();
        let (kind, supported) = (kind_name(volume), supported.join(", "));
        Err(match context.references.has_server {
            true => format!("volumes of kind {kind} are not supported on this node; there are {supported}"),
            false => format!(
                "volumes of kind {kind} need an API server, and this node has none; without one there are {supported}"
            ),
        })
    });
    let source = source.map_err(refused)?;
    let is_block = match &source {
        Source::Device { .. } => true,
        Source::Csi(volume) => volume.block,
        _ => false,
    };
    if context.usage.is_device && !is_block {
        let name = &volume.name;
        let message = format!("volume {name} has volumeMode Filesystem, but is specified in volumeDevices");
        return Err(refused(message));
    }
    let bound = claim.and_then(|claim| context.references.volume_of(&claim).ok());
    Ok(Desired {
        name: volume.name.clone(),
        fs_group: fs_group(context.pod, &source),
        read_only: matches!(source, Source::Files { .. } | Source::Image { .. }) || is_read_only(volume),
        source,
        gid: bound.and_then(claim::gid),
        misplaced: bound.and_then(|b| b.misplaced.clone()),
    })
}

/// A volume whose files the kubelet writes, as far as the spec alone tells: where it is, not what is in it.
#[must_use]
pub fn written(pod: &Pod, name: &str) -> Option<Desired> {
    let volume = pod.spec.as_ref()?.volumes.iter().flatten().find(|v| v.name == name)?;
    let kind = files::kind(volume).filter(|_| is_file_name(name))?;
    let nested = nested::nested(pod, name).unwrap_or_default();
    let source = Source::Files { kind, payload: Payload::new(), size: None, nested };
    let (name, fs_group) = (name.to_owned(), fs_group(pod, &source));
    Some(Desired { name, source, fs_group, read_only: true, gid: None, misplaced: None })
}

/// A hostPath belongs to the host and an image to its maker; the rest may be the Pod's. For volumes that live and die
/// with it the Pod's fsGroupChangePolicy has no meaning, as upstream documents.
fn fs_group(pod: &Pod, source: &Source) -> Option<FsGroup> {
    let security = pod.spec.as_ref()?.security_context.as_ref()?;
    let policy = match source {
        Source::EmptyDir(_) | Source::Files { .. } => ChangePolicy::Always,
        Source::Local { .. } | Source::Csi(_) => match security.fs_group_change_policy.as_deref() {
            Some("OnRootMismatch") => ChangePolicy::OnRootMismatch,
            _ => ChangePolicy::Always,
        },
        Source::HostPath { .. } | Source::Nfs { .. } | Source::Image { .. } | Source::Device { .. } => {
            return None;
        }
    };
    Some(FsGroup { gid: u32::try_from(security.fs_group?).ok()?, policy })
}

/// The volume itself says so, whoever mounts it.
fn is_read_only(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only);
    let csi = volume.csi.as_ref().and_then(|c| c.read_only);
    claim.or(csi).or(volume.nfs.as_ref().and_then(|n| n.read_only)) == Some(true)
}

/// What containers of every kind mount, by container.
pub fn mounts(pod: &Pod) -> impl Iterator<Item = &[VolumeMount]> {
    pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        let own = init.chain(&spec.containers).map(|c| c.volume_mounts.as_deref());
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|c| c.volume_mounts.as_deref());
        own.chain(ephemeral).flatten()
    })
}

fn devices(spec: &PodSpec) -> BTreeSet<&str> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let of_containers = containers.flat_map(|c| c.volume_devices.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let of_ephemeral = ephemeral.flat_map(|c| c.volume_devices.iter().flatten());
    of_containers.chain(of_ephemeral).map(|d| d.name.as_str()).collect()
}

/// The API's name of the source that is set.
fn kind_name(volume: &Volume) -> String {
    let json = serde_json::to_value(volume).unwrap_or_default();
    let kinds = json.as_object().into_iter().flat_map(|o| o.keys());
    kinds.into_iter().find(|k| *k != "name").cloned().unwrap_or_else(|| "unknown".into())
}

/// One component of a path, and an honest one.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && name.len() <= 255 && !name.contains(['/', '\0'])
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
