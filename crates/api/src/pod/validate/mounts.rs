//! `volumeMounts` and `volumeDevices` of a container.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::{Scope, descending};
use crate::field::{FieldErrors, Path};

pub(super) fn mounts(errors: &mut FieldErrors, scope: &Scope<'_>, c: &Container, at: &Path) {
    let at = at.child("volumeMounts");
    let devices = c.volume_devices.as_deref().unwrap_or_default();
    let mut points = BTreeSet::new();
    for (i, mount) in c.volume_mounts.iter().flatten().enumerate() {
        let at = at.index(i);
        if mount.name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !scope.volumes.contains_key(mount.name.as_str()) {
            errors.not_found(&at.child("name"), mount.name.as_str());
        }
        let point = mount.mount_path.as_str();
        if point.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !points.insert(point) {
            errors.invalid(&at.child("mountPath"), point, "must be unique");
        }
        if devices.iter().any(|d| d.name == mount.name) {
            errors.invalid(&at.child("name"), mount.name.as_str(), "must not already exist in volumeDevices");
        }
        if devices.iter().any(|d| d.device_path == point) {
            errors.invalid(
                &at.child("mountPath"),
                point,
                "must not already exist as a path in volumeDevices",
            );
        }
        sub_paths(errors, mount, &at);
        propagation(errors, c, mount, &at.child("mountPropagation"));
        recursive_read_only(errors, mount, &at.child("recursiveReadOnly"));
    }
}

fn sub_paths(errors: &mut FieldErrors, mount: &VolumeMount, at: &Path) {
    let path = mount.sub_path.as_deref().unwrap_or_default();
    let expr = mount.sub_path_expr.as_deref().unwrap_or_default();
    descending(errors, path, &at.child("subPath"));
    descending(errors, expr, &at.child("subPathExpr"));
    if !path.is_empty() && !expr.is_empty() {
        errors.invalid(&at.child("subPathExpr"), expr, "subPathExpr and subPath are mutually exclusive");
    }
}

fn propagation(errors: &mut FieldErrors, c: &Container, mount: &VolumeMount, at: &Path) {
    let Some(mode) = mount.mount_propagation.as_deref() else { return };
    let modes = ["Bidirectional", "HostToContainer", "None"];
    if !modes.contains(&mode) {
        errors.unsupported(at, mode, &modes);
    }
    let privileged = c.security_context.as_ref().and_then(|s| s.privileged) == Some(true);
    if mode == "Bidirectional" && !privileged {
        errors.forbidden(at, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn recursive_read_only(errors: &mut FieldErrors, mount: &VolumeMount, at: &Path) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(at, "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
                errors.forbidden(at, "may only be specified when mountPropagation is None or not specified");
            }
        }
        Some(other) => errors.unsupported(at, other, &["Disabled", "Enabled", "IfPossible"]),
    }
}

pub(super) fn devices(errors: &mut FieldErrors, scope: &Scope<'_>, c: &Container, at: &Path) {
    let at = at.child("volumeDevices");
    let (mut paths, mut names) = (BTreeSet::new(), BTreeSet::new());
    for (i, device) in c.volume_devices.iter().flatten().enumerate() {
        let at = at.index(i);
        if !scope.host_users {
            errors.forbidden(&at, "when `hostUsers` is false");
        }
        match scope.volumes.get(device.name.as_str()) {
            _ if device.name.is_empty() => errors.required(&at.child("name"), ""),
            None => errors.not_found(&at.child("name"), device.name.as_str()),
            Some(v) if v.persistent_volume_claim.is_none() && v.ephemeral.is_none() => {
                let message =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.invalid(&at.child("name"), device.name.as_str(), message);
            }
            Some(_) => {}
        }
        if !device.name.is_empty() && !names.insert(device.name.as_str()) {
            errors.invalid(&at.child("name"), device.name.as_str(), "must be unique");
        }
        let path = device.device_path.as_str();
        if path.is_empty() {
            errors.required(&at.child("devicePath"), "");
        } else if path.split('/').any(|p| p == "..") {
            errors.invalid(&at.child("devicePath"), path, "can not contain backsteps ('..')");
        } else if !paths.insert(path) {
            errors.invalid(&at.child("devicePath"), path, "must be unique");
        }
    }
}
