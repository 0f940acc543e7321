//! Security contexts of the Pod and of its containers.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{AppArmorProfile, PodSpec, SeccompProfile, SecurityContext};

use super::{descending, one_of};
use crate::field::{FieldErrors, Path};
use crate::names;

const SYSCTL: &str = "must have at most 253 characters and match regex \
                      ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

pub(super) fn of_pod(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    let Some(context) = &spec.security_context else { return };
    let at = at.child("securityContext");
    ids(
        errors,
        &at,
        &[
            ("fsGroup", context.fs_group),
            ("runAsUser", context.run_as_user),
            ("runAsGroup", context.run_as_group),
        ],
    );
    for (i, group) in context.supplemental_groups.iter().flatten().enumerate() {
        for message in names::user_or_group_id(*group) {
            errors.invalid(&at.child("supplementalGroups").index(i), *group, message);
        }
    }
    sysctls(errors, spec, &at.child("sysctls"));
    // MountOption would need the feature gate SELinuxMount.
    let policies: [(&str, &Option<String>, &[&str]); 3] = [
        ("fsGroupChangePolicy", &context.fs_group_change_policy, &["Always", "OnRootMismatch"]),
        ("supplementalGroupsPolicy", &context.supplemental_groups_policy, &["Merge", "Strict"]),
        ("seLinuxChangePolicy", &context.se_linux_change_policy, &["Recursive"]),
    ];
    for (name, value, words) in policies {
        if let Some(value) = value.as_deref().filter(|v| !words.contains(v)) {
            errors.unsupported(&at.child(name), value, words);
        }
    }
    seccomp(errors, context.seccomp_profile.as_ref(), &at.child("seccompProfile"));
    app_armor(errors, context.app_armor_profile.as_ref(), &at.child("appArmorProfile"));
    if context.windows_options.is_some() && spec.os.as_ref().is_some_and(|os| os.name == "linux") {
        errors.forbidden(&at.child("windowsOptions"), "windows options cannot be set for a linux pod");
    }
}

pub(super) fn of_container(errors: &mut FieldErrors, context: &SecurityContext, host_users: bool, at: &Path) {
    ids(errors, at, &[("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)]);
    if let Some(mount) = context.proc_mount.as_deref() {
        let at = at.child("procMount");
        one_of(errors, Some(mount), &["Default", "Unmasked"], &at);
        if mount == "Unmasked" && host_users {
            errors.invalid(&at, mount, "`hostUsers` must be false to use `Unmasked`");
        }
    }
    if context.allow_privilege_escalation == Some(false) {
        let shown = serde_json::to_value(context).unwrap_or_default();
        if context.privileged == Some(true) {
            let message = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.invalid(at, shown.clone(), message);
        }
        let added = context.capabilities.as_ref().and_then(|c| c.add.as_ref()).into_iter().flatten();
        if added.into_iter().any(|c| c == "CAP_SYS_ADMIN") {
            let message =
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.invalid(at, shown, message);
        }
    }
    seccomp(errors, context.seccomp_profile.as_ref(), &at.child("seccompProfile"));
    app_armor(errors, context.app_armor_profile.as_ref(), &at.child("appArmorProfile"));
}

/// The annotations that carried AppArmor profiles before there was a field.
pub(super) fn annotation(errors: &mut FieldErrors, at: &Path, key: &str, value: &str, spec: &PodSpec) {
    let Some(container) = key.strip_prefix(APP_ARMOR) else { return };
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if !all.any(|c| c.name == container) {
        errors.invalid(&at.key(key), container, "container not found");
    }
    let known = matches!(value, "" | "runtime/default" | "unconfined")
        || value.strip_prefix("localhost/").is_some_and(|p| !p.is_empty());
    if !known {
        errors.invalid(&at.key(key), value, format!("invalid AppArmor profile name: {value:?}"));
    }
}

fn ids(errors: &mut FieldErrors, at: &Path, fields: &[(&str, Option<i64>)]) {
    for (name, id) in fields.iter().filter_map(|(name, id)| id.map(|id| (name, id))) {
        for message in names::user_or_group_id(id) {
            errors.invalid(&at.child(name), id, message);
        }
    }
}

fn sysctls(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    let list = spec.security_context.iter().filter_map(|c| c.sysctls.as_ref()).flatten();
    let mut seen = BTreeSet::new();
    for (i, sysctl) in list.enumerate() {
        let at = at.index(i).child("name");
        let name = sysctl.name.replace('/', ".");
        if name.is_empty() {
            errors.required(&at, "");
        } else if !names::is_sysctl(&sysctl.name) {
            errors.invalid(&at, sysctl.name.as_str(), SYSCTL);
        } else if !seen.insert(sysctl.name.as_str()) {
            errors.duplicate(&at, sysctl.name.as_str());
        }
        let ipc = ["kernel.sem", "fs.mqueue."].iter().any(|p| name.starts_with(p))
            || name.starts_with("kernel.shm")
            || name.starts_with("kernel.msg");
        if name.starts_with("net.") && spec.host_network == Some(true) {
            errors.invalid(&at, sysctl.name.as_str(), "may not be specified when 'hostNetwork' is true");
        } else if ipc && spec.host_ipc == Some(true) {
            errors.invalid(&at, sysctl.name.as_str(), "may not be specified when 'hostIPC' is true");
        }
    }
}

fn seccomp(errors: &mut FieldErrors, profile: Option<&SeccompProfile>, at: &Path) {
    let Some(profile) = profile else { return };
    let file = at.child("localhostProfile");
    profile_type(errors, &profile.type_, "seccompProfile", at);
    match (&*profile.type_, &profile.localhost_profile) {
        ("Localhost", None) => errors.required(&file, "must be set when seccomp type is Localhost"),
        ("Localhost", Some(path)) => descending(errors, path, &file),
        (_, Some(path)) => {
            errors.invalid(&file, path.as_str(), "can only be set when seccomp type is Localhost");
        }
        (_, None) => {}
    }
}

fn app_armor(errors: &mut FieldErrors, profile: Option<&AppArmorProfile>, at: &Path) {
    let Some(profile) = profile else { return };
    let name = at.child("localhostProfile");
    profile_type(errors, &profile.type_, "appArmorProfile", at);
    match (&*profile.type_, profile.localhost_profile.as_deref()) {
        ("Localhost", None) => errors.required(&name, "must be set when AppArmor type is Localhost"),
        ("Localhost", Some(text)) => {
            let trimmed = text.trim();
            if trimmed != text {
                errors.invalid(&name, text, "must not be padded with whitespace");
            } else if trimmed.is_empty() {
                errors.required(&name, "must be set when AppArmor type is Localhost");
            }
            if text.len() > 4095 {
                errors.too_long(&name, 4095);
            }
        }
        (_, Some(text)) => errors.invalid(&name, text, "can only be set when AppArmor type is Localhost"),
        (_, None) => {}
    }
}

fn profile_type(errors: &mut FieldErrors, kind: &str, field: &str, at: &Path) {
    match kind {
        "" => errors.required(&at.child("type"), &format!("type is required when {field} is set")),
        kind if PROFILE_TYPES.contains(&kind) => {}
        kind => errors.unsupported(&at.child("type"), kind, &PROFILE_TYPES),
    }
}
