//! persistentVolumeClaim: whatever the volume is that the claim is bound to.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Volume};

use super::{Context, HostPathKind, Source, host_path, nfs};

pub(super) fn read(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let claim = &volume.persistent_volume_claim.as_ref()?.claim_name;
    let namespace = context.pod.metadata.namespace.as_deref().unwrap_or_default();
    let found = context
        .supplies
        .volume_of(claim)
        .map_err(|e| format!("error processing PVC {namespace}/{claim}: {e}"));
    Some(found.and_then(source))
}

fn source(volume: &PersistentVolume) -> Result<Source, String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(spec) = &volume.spec else { return Err(format!("PersistentVolume {name} has no spec")) };
    if spec.volume_mode.as_deref() == Some("Block") {
        return Err(format!("volume {name} has volumeMode Block, but is specified in volumeMounts"));
    }
    if let Some(host) = &spec.host_path {
        host_path::source(host)
    } else if let Some(local) = &spec.local {
        Ok(Source::HostPath { path: local.path.clone(), kind: HostPathKind::Directory })
    } else if let Some(share) = &spec.nfs {
        nfs::source(share, spec.mount_options.as_deref().unwrap_or_default())
    } else {
        let kind = kind_of(spec);
        Err(format!(
            "PersistentVolume {name} is of kind {kind}, which this node does not know; it knows hostPath, local, nfs"
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
