//! `spec.volumes`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, ProjectedVolumeSource, Volume};

use super::env::{field_ref, resource_field_ref};
use super::{descending, no_back_steps, not_reserved, one_of};
use crate::field::{FieldErrors, Path};
use crate::names;
use crate::pod::Amount;

const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
/// What a downwardAPI volume may show of its Pod.
const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Checks every volume and returns the good ones by name.
pub(super) fn all<'a>(
    errors: &mut FieldErrors,
    volumes: &'a [Volume],
    at: &Path,
) -> BTreeMap<&'a str, &'a Volume> {
    let mut good = BTreeMap::new();
    for (i, volume) in volumes.iter().enumerate() {
        let at = at.index(i);
        let mut mine = FieldErrors::default();
        one(&mut mine, volume, &at);
        let name = at.child("name");
        if volume.name.is_empty() {
            mine.required(&name, "");
        } else {
            mine.each(&name, &volume.name, names::dns_label(&volume.name));
        }
        if good.contains_key(volume.name.as_str()) {
            mine.duplicate(&name, volume.name.as_str());
        }
        if mine.is_empty() {
            good.insert(volume.name.as_str(), volume);
        }
        errors.extend(mine);
    }
    good
}

fn one(errors: &mut FieldErrors, volume: &Volume, at: &Path) {
    let kinds = kinds(volume);
    match &*kinds {
        [] => errors.required(at, "must specify a volume type"),
        [_] => {}
        [_, more @ ..] => {
            for kind in more {
                errors.forbidden(&at.child(kind), "may not specify more than 1 volume type");
            }
        }
    }
    if let Some(size) = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref())
        && !Amount::parse(&size.0).is_ok_and(|a| !a.is_negative())
    {
        errors.forbidden(
            &at.child("emptyDir").child("sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        );
    }
    if let Some(host) = &volume.host_path {
        let at = at.child("hostPath");
        if host.path.is_empty() {
            errors.required(&at.child("path"), "");
        } else {
            no_back_steps(errors, &host.path, &at.child("path"));
            let kind = host.type_.as_deref().unwrap_or_default();
            if !HOST_PATH_TYPES.contains(&kind) {
                errors.unsupported(&at.child("type"), kind, &HOST_PATH_TYPES);
            }
        }
    }
    if let Some(image) = &volume.image {
        let at = at.child("image");
        if image.reference.as_deref().unwrap_or_default().is_empty() {
            errors.required(&at.child("reference"), "");
        }
        let policies = ["Always", "IfNotPresent", "Never"];
        one_of(errors, image.pull_policy.as_deref(), &policies, &at.child("pullPolicy"));
    }
    if let Some(api) = &volume.downward_api {
        let at = at.child("downwardAPI");
        mode(errors, api.default_mode, &at.child("defaultMode"));
        for (i, file) in api.items.iter().flatten().enumerate() {
            downward_file(errors, file, &at.child("items").index(i));
        }
    }
    if let Some(projected) = &volume.projected {
        projection(errors, projected, &at.child("projected"));
    }
    references(errors, volume, at);
}

/// Sources that name another API object; static Pods may not use them, but their shape is checked.
fn references(errors: &mut FieldErrors, volume: &Volume, at: &Path) {
    if let Some(secret) = &volume.secret {
        let at = at.child("secret");
        if secret.secret_name.as_deref().unwrap_or_default().is_empty() {
            errors.required(&at.child("secretName"), "");
        }
        mode(errors, secret.default_mode, &at.child("defaultMode"));
        keys(errors, secret.items.as_deref(), &at.child("items"));
    }
    if let Some(map) = &volume.config_map {
        let at = at.child("configMap");
        if map.name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        mode(errors, map.default_mode, &at.child("defaultMode"));
        keys(errors, map.items.as_deref(), &at.child("items"));
    }
    if let Some(claim) = &volume.persistent_volume_claim
        && claim.claim_name.is_empty()
    {
        errors.required(&at.child("persistentVolumeClaim").child("claimName"), "");
    }
    if let Some(csi) = &volume.csi
        && csi.driver.is_empty()
    {
        errors.required(&at.child("csi").child("driver"), "");
    }
    if let Some(ephemeral) = &volume.ephemeral
        && ephemeral.volume_claim_template.is_none()
    {
        errors.required(&at.child("ephemeral").child("volumeClaimTemplate"), "");
    }
    if let Some(nfs) = &volume.nfs {
        let at = at.child("nfs");
        if nfs.server.is_empty() {
            errors.required(&at.child("server"), "");
        }
        if nfs.path.is_empty() {
            errors.required(&at.child("path"), "");
        } else if !nfs.path.starts_with('/') {
            errors.invalid(&at.child("path"), nfs.path.as_str(), "must be an absolute path");
        }
    }
    if let Some(git) = &volume.git_repo {
        let at = at.child("gitRepo");
        if git.repository.is_empty() {
            errors.required(&at.child("repository"), "");
        }
        descending(errors, git.directory.as_deref().unwrap_or_default(), &at.child("directory"));
    }
}

fn projection(errors: &mut FieldErrors, projected: &ProjectedVolumeSource, at: &Path) {
    mode(errors, projected.default_mode, &at.child("defaultMode"));
    let mut paths = BTreeSet::new();
    for (i, source) in projected.sources.iter().flatten().enumerate() {
        let at = at.child("sources").index(i);
        let set = [
            source.downward_api.is_some(),
            source.secret.is_some(),
            source.config_map.is_some(),
            source.service_account_token.is_some(),
            source.cluster_trust_bundle.is_some(),
            source.pod_certificate.is_some(),
        ];
        if set.iter().filter(|s| **s).count() > 1 {
            errors.forbidden(&at, "may not specify more than 1 volume type per source");
        }
        let mut found: Vec<String> = Vec::new();
        for (j, file) in source.downward_api.iter().filter_map(|d| d.items.as_ref()).flatten().enumerate() {
            downward_file(errors, file, &at.child("downwardAPI").child("items").index(j));
            found.push(file.path.clone());
        }
        if let Some(secret) = &source.secret {
            let at = at.child("secret");
            if secret.name.is_empty() {
                errors.required(&at.child("name"), "");
            }
            keys(errors, secret.items.as_deref(), &at.child("items"));
            found.extend(secret.items.iter().flatten().map(|k| k.path.clone()));
        }
        if let Some(map) = &source.config_map {
            let at = at.child("configMap");
            if map.name.is_empty() {
                errors.required(&at.child("name"), "");
            }
            keys(errors, map.items.as_deref(), &at.child("items"));
            found.extend(map.items.iter().flatten().map(|k| k.path.clone()));
        }
        if let Some(token) = &source.service_account_token {
            let at = at.child("serviceAccountToken");
            if token.path.is_empty() {
                errors.required(&at.child("path"), "");
            }
            not_reserved(errors, &token.path, &at.child("path"));
            if token.expiration_seconds.is_some_and(|s| s < 600) {
                let message = "may not specify a duration less than 10 minutes";
                errors.invalid(&at.child("expirationSeconds"), token.expiration_seconds, message);
            }
            found.push(token.path.clone());
        }
        for path in found.into_iter().filter(|p| !p.is_empty()) {
            if paths.contains(&path) {
                errors.invalid(&at, path, "conflicting duplicate paths");
            } else {
                paths.insert(path);
            }
        }
    }
}

fn downward_file(errors: &mut FieldErrors, file: &DownwardAPIVolumeFile, at: &Path) {
    if file.path.is_empty() {
        errors.required(&at.child("path"), "");
    }
    not_reserved(errors, &file.path, &at.child("path"));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), other) => {
            field_ref(errors, field, &VOLUME_FIELDS, &at.child("fieldRef"));
            if other.is_some() {
                let message = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.invalid(at, "resource", message);
            }
        }
        (None, Some(resource)) => resource_field_ref(errors, resource, true, &at.child("resourceFieldRef")),
        (None, None) => errors.required(at, "one of fieldRef and resourceFieldRef is required"),
    }
    mode(errors, file.mode, &at.child("mode"));
}

fn keys(errors: &mut FieldErrors, items: Option<&[KeyToPath]>, at: &Path) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let at = at.index(i);
        if item.key.is_empty() {
            errors.required(&at.child("key"), "");
        }
        if item.path.is_empty() {
            errors.required(&at.child("path"), "");
        }
        not_reserved(errors, &item.path, &at.child("path"));
        mode(errors, item.mode, &at.child("mode"));
    }
}

fn mode(errors: &mut FieldErrors, mode: Option<i32>, at: &Path) {
    if let Some(mode) = mode.filter(|m| !(0..=0o777).contains(m)) {
        errors.invalid(at, mode, FILE_MODE);
    }
}

/// The kinds of source that are set, in the API's order.
fn kinds(v: &Volume) -> Vec<&'static str> {
    [
        ("emptyDir", v.empty_dir.is_some()),
        ("hostPath", v.host_path.is_some()),
        ("gitRepo", v.git_repo.is_some()),
        ("gcePersistentDisk", v.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", v.aws_elastic_block_store.is_some()),
        ("secret", v.secret.is_some()),
        ("nfs", v.nfs.is_some()),
        ("iscsi", v.iscsi.is_some()),
        ("glusterfs", v.glusterfs.is_some()),
        ("flocker", v.flocker.is_some()),
        ("persistentVolumeClaim", v.persistent_volume_claim.is_some()),
        ("rbd", v.rbd.is_some()),
        ("cinder", v.cinder.is_some()),
        ("cephfs", v.cephfs.is_some()),
        ("quobyte", v.quobyte.is_some()),
        ("downwardAPI", v.downward_api.is_some()),
        ("fc", v.fc.is_some()),
        ("flexVolume", v.flex_volume.is_some()),
        ("configMap", v.config_map.is_some()),
        ("azureFile", v.azure_file.is_some()),
        ("vsphereVolume", v.vsphere_volume.is_some()),
        ("photonPersistentDisk", v.photon_persistent_disk.is_some()),
        ("portworxVolume", v.portworx_volume.is_some()),
        ("azureDisk", v.azure_disk.is_some()),
        ("storageos", v.storageos.is_some()),
        ("projected", v.projected.is_some()),
        ("scaleIO", v.scale_io.is_some()),
        ("csi", v.csi.is_some()),
        ("ephemeral", v.ephemeral.is_some()),
        ("image", v.image.is_some()),
    ]
    .into_iter()
    .filter_map(|(name, set)| set.then_some(name))
    .collect()
}
