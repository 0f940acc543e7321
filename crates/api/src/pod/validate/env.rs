//! Environment variables and the downward API.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector,
};

use super::{Scope, no_back_steps};
use crate::field::{FieldErrors, Path};
use crate::names;
use crate::pod::Amount;

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields an environment variable may name besides; a volume shows them as files.
const KNOWN_FIELDS: [&str; 11] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCE_FIELDS: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub(super) fn vars(errors: &mut FieldErrors, scope: &Scope<'_>, vars: Option<&[EnvVar]>, at: &Path) {
    for (i, var) in vars.into_iter().flatten().enumerate() {
        let at = at.index(i);
        if var.name.is_empty() {
            errors.required(&at.child("name"), "");
        } else {
            errors.each(&at.child("name"), &var.name, names::env_name(&var.name));
        }
        if let Some(source) = &var.value_from {
            value_from(errors, scope, source, !var.value.as_deref().unwrap_or_default().is_empty(), &at);
        }
    }
}

pub(super) fn from(errors: &mut FieldErrors, sources: Option<&[EnvFromSource]>, at: &Path) {
    for (i, source) in sources.into_iter().flatten().enumerate() {
        let at = at.index(i);
        let prefix = source.prefix.as_deref().unwrap_or_default();
        errors.each(&at.child("prefix"), prefix, names::env_name(prefix));
        let refs = [
            ("configMapRef", source.config_map_ref.as_ref().map(|r| &r.name)),
            ("secretRef", source.secret_ref.as_ref().map(|r| &r.name)),
        ];
        for (field, name) in refs.iter().filter_map(|(field, name)| name.map(|n| (field, n))) {
            let at = at.child(field).child("name");
            if name.is_empty() {
                errors.required(&at, "");
            } else {
                errors.each(&at, name, names::dns_subdomain(name));
            }
        }
        match refs.iter().filter(|(_, name)| name.is_some()).count() {
            0 => errors.invalid(&at, "", "must specify one of: `configMapRef` or `secretRef`"),
            1 => {}
            _ => errors.invalid(&at, "", "may not have more than one field specified at a time"),
        }
    }
}

fn value_from(
    errors: &mut FieldErrors,
    scope: &Scope<'_>,
    source: &EnvVarSource,
    has_value: bool,
    at: &Path,
) {
    let at = at.child("valueFrom");
    let mut count = 0;
    if let Some(field) = &source.field_ref {
        count += 1;
        field_ref(errors, field, &ENV_FIELDS, &at.child("fieldRef"));
    }
    if let Some(resource) = &source.resource_field_ref {
        count += 1;
        resource_field_ref(errors, resource, false, &at.child("resourceFieldRef"));
    }
    if let Some(key) = &source.config_map_key_ref {
        count += 1;
        key_ref(errors, &key.name, &key.key, &at.child("configMapKeyRef"));
    }
    if let Some(key) = &source.secret_key_ref {
        count += 1;
        key_ref(errors, &key.name, &key.key, &at.child("secretKeyRef"));
    }
    if let Some(key) = &source.file_key_ref {
        count += 1;
        file_key_ref(errors, scope, key, &at.child("fileKeyRef"));
    }
    if count == 0 {
        let message = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`";
        errors.invalid(&at, "", message);
    } else if has_value {
        errors.invalid(&at, "", "may not be specified when `value` is not empty");
    } else if count > 1 {
        errors.invalid(&at, "", "may not have more than one field specified at a time");
    }
}

pub(super) fn field_ref(errors: &mut FieldErrors, field: &ObjectFieldSelector, allowed: &[&str], at: &Path) {
    match field.api_version.as_deref().unwrap_or_default() {
        "" => return errors.required(&at.child("apiVersion"), ""),
        "v1" => {}
        version => {
            let message = format!("error converting fieldPath: unsupported pod version: {version}");
            return errors.invalid(&at.child("fieldPath"), field.field_path.as_str(), message);
        }
    }
    let path = field.field_path.as_str();
    if path.is_empty() {
        return errors.required(&at.child("fieldPath"), "");
    }
    if let Some((base, key)) = subscripted(path) {
        match base {
            "metadata.annotations" => errors.each(at, key, names::qualified_name(&key.to_lowercase())),
            "metadata.labels" => errors.each(at, key, names::qualified_name(key)),
            _ => errors.invalid(at, base, "does not support subscript"),
        }
    } else if !KNOWN_FIELDS.contains(&path) {
        let message = format!("error converting fieldPath: field label not supported: {path}");
        errors.invalid(&at.child("fieldPath"), path, message);
    } else if !allowed.contains(&path) {
        errors.unsupported(&at.child("fieldPath"), path, allowed);
    }
}

/// `metadata.labels['key']` as its two parts.
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (base, rest) = path.strip_suffix("']")?.split_once("['")?;
    (!base.is_empty()).then_some((base, rest))
}

pub(super) fn resource_field_ref(
    errors: &mut FieldErrors,
    field: &ResourceFieldSelector,
    volume: bool,
    at: &Path,
) {
    let resource = field.resource.as_str();
    let huge = resource.starts_with("limits.hugepages-") || resource.starts_with("requests.hugepages-");
    if volume && field.container_name.as_deref().unwrap_or_default().is_empty() {
        errors.required(&at.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&at.child("resource"), "");
    } else if !huge && !RESOURCE_FIELDS.contains(&resource) {
        errors.unsupported(&at.child("resource"), resource, &RESOURCE_FIELDS);
    }
    let Some(divisor) = field.divisor.as_ref().map(|d| d.0.as_str()).filter(|d| !d.is_empty()) else {
        return;
    };
    let at = at.child("divisor");
    let Ok(amount) = Amount::parse(divisor) else {
        return errors.invalid(&at, divisor, crate::pod::NotAQuantity.to_string());
    };
    let listed = |list: &[&str]| list.iter().any(|d| Amount::parse(d) == Ok(amount));
    if amount.is_zero() {
        return;
    }
    if resource.ends_with(".cpu") {
        if !listed(&["1m", "1"]) {
            errors.invalid(
                &at,
                resource,
                "only divisor's values 1m and 1 are supported with the cpu resource",
            );
        }
    } else if !listed(&BYTE_DIVISORS) {
        let kind = match resource {
            r if r.ends_with(".memory") => "memory",
            r if r.ends_with(".ephemeral-storage") => "local ephemeral storage",
            _ => "hugepages",
        };
        let list = BYTE_DIVISORS.join(", ");
        let message = format!("only divisor's values {list} are supported with the {kind} resource");
        errors.invalid(&at, resource, message);
    }
}

fn key_ref(errors: &mut FieldErrors, name: &str, key: &str, at: &Path) {
    errors.each(&at.child("name"), name, names::dns_subdomain(name));
    if key.is_empty() {
        errors.required(&at.child("key"), "");
    } else {
        errors.each(&at.child("key"), key, names::config_key(key));
    }
}

fn file_key_ref(errors: &mut FieldErrors, scope: &Scope<'_>, file: &FileKeySelector, at: &Path) {
    if file.key.is_empty() {
        errors.required(&at.child("key"), "");
    } else {
        errors.each(&at.child("key"), &file.key, names::env_name(&file.key));
    }
    if file.path.is_empty() {
        errors.required(&at.child("path"), "");
    } else {
        no_back_steps(errors, &file.path, &at.child("path"));
    }
    let volume = at.child("volumeName");
    if file.volume_name.is_empty() {
        return errors.required(&volume, "");
    }
    match scope.volumes.get(file.volume_name.as_str()) {
        None => errors.not_found(&volume, file.volume_name.as_str()),
        Some(v) if v.empty_dir.is_none() => {
            errors.invalid(&volume, file.volume_name.as_str(), "referenced volume must be of type emptyDir");
        }
        Some(_) => {}
    }
}
