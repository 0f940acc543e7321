//! persistentVolumeClaim: whatever the volume is that the claim is bound to. ephemeral: the claim that was made for the
//! Pod alone.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Pod, Volume};

use super::csi::{ClaimRef, is_exclusive};
use super::{Context, Source, csi, host_path, nfs};
use crate::claims::ephemeral_claim;
use crate::references::Bound;

pub(super) fn read(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let source = volume.persistent_volume_claim.as_ref()?;
    Some(bound(context, volume, &source.claim_name, source.read_only == Some(true)))
}

/// The claim a volume comes from, if it comes from one.
pub(super) fn name(pod: &Pod, volume: &Volume) -> Option<String> {
    let own = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    own.or_else(|| volume.ephemeral.as_ref().map(|_| ephemeral_claim(pod, &volume.name)))
}

/// The group a volume says its users are in. What is no number is nobody's group, as upstream has it.
pub(super) fn gid(bound: &Bound) -> Option<i64> {
    bound.volume.metadata.annotations.as_ref()?.get(GID)?.parse().ok()
}

/// Upstream's default.
const FS_TYPE: &str = "ext4";
const GID: &str = "pv.beta.kubernetes.io/gid";
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// A controller makes the claim and calls it after the Pod and the volume.
pub(super) fn read_ephemeral(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    volume.ephemeral.as_ref()?;
    Some(bound(context, volume, &ephemeral_claim(context.pod, &volume.name), false))
}

fn bound(context: &Context<'_>, own: &Volume, claim: &str, read_only: bool) -> Result<Source, String> {
    let namespace = context.pod.metadata.namespace.as_deref().unwrap_or_default();
    let found = context.references.volume_of(claim);
    let volume = found.map_err(|e| format!("error processing PVC {namespace}/{claim}: {e}"))?;
    let mut source = source(context, &own.name, &volume.volume, read_only)?;
    if let Source::Csi(csi) = &mut source {
        let (namespace, name) = (namespace.to_owned(), claim.to_owned());
        let (uid, sizes) = (volume.claim_uid.clone(), volume.sizes.clone());
        csi.claim = Some(ClaimRef { namespace, name, uid, sizes });
    }
    Ok(source)
}

/// The annotation is older than the field, and counts more.
fn mount_options(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Vec<String> {
    let annotated = volume.metadata.annotations.as_ref().and_then(|a| a.get(MOUNT_OPTIONS));
    let mut options = match annotated {
        Some(text) => text.split(',').map(str::to_owned).collect(),
        None => spec.mount_options.clone().unwrap_or_default(),
    };
    options.retain(|option| !option.is_empty());
    options
}

/// `own` is what the Pod calls the volume.
fn source(
    context: &Context<'_>,
    own: &str,
    volume: &PersistentVolume,
    read_only: bool,
) -> Result<Source, String> {
    let name = volume.metadata.name.clone().unwrap_or_default();
    let Some(spec) = &volume.spec else { return Err(format!("PersistentVolume {name} has no spec")) };
    let block = spec.volume_mode.as_deref() == Some("Block");
    if block && context.usage.is_mounted {
        return Err(format!("volume {own} has volumeMode Block, but is specified in volumeMounts"));
    }
    if let Some(driver) = &spec.csi {
        csi::persistent(volume, driver, read_only, block)
    } else if let Some(local) = &spec.local {
        let path = local.path.clone();
        let fs_type = local.fs_type.clone().unwrap_or_else(|| FS_TYPE.to_owned());
        // It becomes part of the name of a program.
        if fs_type.is_empty() || !fs_type.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(format!("PersistentVolume {name} has an invalid fsType {fs_type:?}"));
        }
        let options = mount_options(volume, spec);
        let exclusive = is_exclusive(spec.access_modes.as_deref().unwrap_or_default());
        Ok(match block {
            true => Source::Device { path, spec_name: name, exclusive },
            false => Source::Local { path, spec_name: name, fs_type, options, exclusive },
        })
    } else if block {
        Err(format!("PersistentVolume {name} is of kind {}, which cannot be a device", kind_of(spec)))
    } else if let Some(host) = &spec.host_path {
        match mount_options(volume, spec).is_empty() {
            true => host_path::source(host),
            false => Err("mount options are not supported for this volume type".to_owned()),
        }
    } else if let Some(share) = &spec.nfs {
        nfs::source(share, &mount_options(volume, spec))
    } else {
        let kind = kind_of(spec);
        Err(format!(
            "PersistentVolume {name} is of kind {kind}, which this node does not know; it knows csi, hostPath, local, nfs"
        ))
    }
}

/// The API's name of the source that is set: the one field that is none of the others.
fn kind_of(spec: &PersistentVolumeSpec) -> String {
    const OTHERS: [&str; 9] = [
        "accessModes",
        "capacity",
        "claimRef",
        "mountOptions",
        "nodeAffinity",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeAttributesClassName",
        "volumeMode",
    ];
    let json = serde_json::to_value(spec).unwrap_or_default();
    let mut fields = json.as_object().into_iter().flat_map(|o| o.keys());
    fields.find(|k| !OTHERS.contains(&k.as_str())).cloned().unwrap_or_else(|| "unknown".into())
}
