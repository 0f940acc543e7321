//! What the API server would refuse when a Pod is created, every mistake at once.
//!
//! A Pod is validated after [`super::set_defaults`]. Field paths carry the index of every list
//! element, also where upstream's omit it, so that the message leads to the line.

mod container;
mod env;
mod handlers;
mod mounts;
mod requirements;
mod scheduling;
mod security;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodDNSConfig, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::field::{FieldErrors, Path};
use crate::names;

/// Annotations of one object, keys and values together.
const ANNOTATIONS_MAX: usize = 256 * 1024;

/// Every mistake in a defaulted Pod; none means that it may run.
#[must_use]
pub fn validate(pod: &Pod) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let Some(spec) = &pod.spec else {
        errors.required(&Path::new("spec"), "");
        return errors;
    };
    metadata(&mut errors, &pod.metadata);
    errors.extend(validate_spec(&pod.metadata, spec, &Path::new(""), Stage::Create));
    errors
}

/// When a spec is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// A new Pod.
    Create,
    /// A Pod that is there; only now it may have ephemeral containers.
    Update,
    /// The template of a controller.
    Template,
}

/// Every mistake in a defaulted spec and in the annotations that belong to it. `at` is where the Pod or the template is:
/// empty, or `spec.template`.
#[must_use]
pub fn validate_spec(meta: &ObjectMeta, spec: &PodSpec, at: &Path, stage: Stage) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let annotations = match stage {
        // Upstream leaves the metadata of templates out of the path.
        Stage::Template => at.child("annotations"),
        Stage::Create | Stage::Update => at.child("metadata").child("annotations"),
    };
    for (key, value) in meta.annotations.iter().flatten() {
        security::annotation(&mut errors, &annotations, key, value, spec);
    }
    let at = at.child("spec");
    let scope = Scope::new(spec, &mut errors, &at);
    container::all(&mut errors, &scope, &at, stage);
    requirements::of_pod(&mut errors, spec, &at);
    names_and_numbers(&mut errors, spec, &at);
    policies(&mut errors, spec, &at);
    host_namespaces(&mut errors, spec, &at);
    dns(&mut errors, spec, &at.child("dnsConfig"));
    host_aliases(&mut errors, spec, &at.child("hostAliases"));
    security::of_pod(&mut errors, spec, &at);
    scheduling::all(&mut errors, spec, &at);
    errors
}

/// What the checks of a container need to know of its Pod.
pub(super) struct Scope<'a> {
    spec: &'a PodSpec,
    host_users: bool,
    /// Volumes that are themselves valid; a mount of any other is not found.
    volumes: BTreeMap<&'a str, &'a Volume>,
    claims: BTreeSet<&'a str>,
}

impl<'a> Scope<'a> {
    fn new(spec: &'a PodSpec, errors: &mut FieldErrors, at: &Path) -> Self {
        let claims = spec.resource_claims.iter().flatten().map(|c| c.name.as_str()).collect();
        let volumes = volumes::all(errors, spec.volumes.as_deref().unwrap_or_default(), &at.child("volumes"));
        Scope { spec, host_users: spec.host_users != Some(false), volumes, claims }
    }

    fn grace(&self) -> Option<i64> {
        self.spec.termination_grace_period_seconds
    }
}

fn metadata(errors: &mut FieldErrors, meta: &ObjectMeta) {
    let at = Path::new("metadata");
    let name = meta.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        errors.required(&at.child("name"), "name or generateName is required");
    } else {
        errors.each(&at.child("name"), name, names::dns_subdomain(name));
    }
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    if namespace.is_empty() {
        errors.required(&at.child("namespace"), "");
    } else {
        errors.each(&at.child("namespace"), namespace, names::dns_label(namespace));
    }
    labels(errors, meta.labels.as_ref(), &at.child("labels"));
    let annotations = at.child("annotations");
    let mut size = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        size += key.len() + value.len();
        errors.each(&annotations, key, names::qualified_name(&key.to_lowercase()));
    }
    if size > ANNOTATIONS_MAX {
        errors.too_long(&annotations, ANNOTATIONS_MAX);
    }
    for (i, finalizer) in meta.finalizers.iter().flatten().enumerate() {
        errors.each(&at.child("finalizers").index(i), finalizer, names::qualified_name(finalizer));
    }
}

pub(super) fn labels(errors: &mut FieldErrors, labels: Option<&BTreeMap<String, String>>, at: &Path) {
    for (key, value) in labels.into_iter().flatten() {
        errors.each(at, key, names::qualified_name(key));
        errors.each(&at.key(key), value, names::label_value(value));
    }
}

fn names_and_numbers(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    type Check = fn(&str) -> Vec<String>;
    let fields: [(&str, &Option<String>, Check); 5] = [
        ("serviceAccountName", &spec.service_account_name, names::dns_subdomain),
        ("nodeName", &spec.node_name, names::dns_subdomain),
        ("hostname", &spec.hostname, names::dns_label),
        ("subdomain", &spec.subdomain, names::dns_label),
        ("priorityClassName", &spec.priority_class_name, names::dns_subdomain),
    ];
    for (name, value, check) in fields {
        if let Some(value) = value.as_deref().filter(|v| !v.is_empty()) {
            errors.each(&at.child(name), value, check(value));
        }
    }
    if let Some(class) = &spec.runtime_class_name {
        errors.each(&at.child("runtimeClassName"), class, names::dns_subdomain(class));
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        for message in names::in_range(deadline, 1, i64::from(i32::MAX)) {
            errors.invalid(&at.child("activeDeadlineSeconds"), deadline, message);
        }
    }
    match spec.termination_grace_period_seconds {
        None => errors.required(&at.child("terminationGracePeriodSeconds"), ""),
        Some(s) => non_negative(errors, s, &at.child("terminationGracePeriodSeconds")),
    }
    labels(errors, spec.node_selector.as_ref(), &at.child("nodeSelector"));
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let at = at.child("readinessGates").index(i).child("conditionType");
        errors.each(&at, &gate.condition_type, names::qualified_name(&gate.condition_type));
    }
}

fn policies(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    one_of(
        errors,
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
        &at.child("restartPolicy"),
    );
    let dns = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(errors, spec.dns_policy.as_deref(), &dns, &at.child("dnsPolicy"));
    if let Some(policy) = &spec.preemption_policy {
        one_of(errors, Some(policy), &["PreemptLowerPriority", "Never"], &at.child("preemptionPolicy"));
    }
    if let Some(os) = &spec.os {
        one_of(errors, Some(&os.name), &["linux", "windows"], &at.child("os"));
    }
}

fn host_namespaces(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    let yes = |flag: Option<bool>| flag == Some(true);
    if yes(spec.share_process_namespace) && yes(spec.host_pid) {
        let message = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.invalid(&at.child("securityContext").child("shareProcessNamespace"), true, message);
    }
    if spec.host_users == Some(false) {
        let shared =
            [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
        for (name, _) in shared.into_iter().filter(|(_, flag)| yes(*flag)) {
            errors.forbidden(&at.child(name), "when `hostUsers` is false");
        }
    }
    if let Some(hostname) = &spec.hostname_override {
        let at = at.child("hostnameOverride");
        if yes(spec.set_hostname_as_fqdn) {
            errors.forbidden(&at, "may not be specified when setHostnameAsFQDN is true");
        }
        if yes(spec.host_network) {
            errors.forbidden(&at, "may not be specified when hostNetwork is true");
        }
        if hostname.len() > 64 {
            errors.too_long(&at, 64);
        }
        errors.each(&at, hostname, names::dns_subdomain(hostname));
    }
}

fn dns(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    let none = spec.dns_policy.as_deref() == Some("None");
    let Some(config) = &spec.dns_config else {
        if none {
            errors.required(at, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        return;
    };
    let PodDNSConfig { nameservers, searches, options } = config;
    let nameservers = nameservers.as_deref().unwrap_or_default();
    let searches = searches.as_deref().unwrap_or_default();
    if none && nameservers.is_empty() {
        let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        return errors.required(&at.child("nameservers"), message);
    }
    if nameservers.len() > 3 {
        errors.invalid(
            &at.child("nameservers"),
            nameservers.to_vec(),
            "must not have more than 3 nameservers",
        );
    }
    for (i, server) in nameservers.iter().enumerate() {
        errors.each(&at.child("nameservers").index(i), server, names::ip(server));
    }
    if searches.len() > 32 {
        errors.invalid(&at.child("searches"), searches.to_vec(), "must not have more than 32 search paths");
    }
    if searches.iter().map(|s| s.len() + 1).sum::<usize>() > 2049 {
        let message = "must not have more than 2048 characters (including spaces) in the search list";
        errors.invalid(&at.child("searches"), searches.to_vec(), message);
    }
    for (i, search) in searches.iter().enumerate().filter(|(_, s)| *s != ".") {
        let name = search.strip_suffix('.').unwrap_or(search);
        errors.each(&at.child("searches").index(i), name, names::search_domain(name));
    }
    for (i, option) in options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            errors.required(&at.child("options").index(i), "must not be empty");
        }
    }
}

fn host_aliases(errors: &mut FieldErrors, spec: &PodSpec, at: &Path) {
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        errors.each(&at.index(i).child("ip"), &alias.ip, names::ip(&alias.ip));
        for (j, host) in alias.hostnames.iter().flatten().enumerate() {
            errors.each(&at.index(i).child("hostnames").index(j), host, names::dns_subdomain(host));
        }
    }
}

/// A required word out of a few.
pub(super) fn one_of(errors: &mut FieldErrors, value: Option<&str>, supported: &[&str], at: &Path) {
    match value.unwrap_or_default() {
        "" => errors.required(at, ""),
        value if supported.contains(&value) => {}
        value => errors.unsupported(at, value, supported),
    }
}

pub(super) fn port_number(errors: &mut FieldErrors, port: i32, at: &Path) {
    for message in names::port_number(i64::from(port)) {
        errors.invalid(at, port, message);
    }
}

pub(super) fn non_negative(errors: &mut FieldErrors, value: i64, at: &Path) {
    if value < 0 {
        errors.invalid(at, value, "must be greater than or equal to 0");
    }
}

pub(super) fn no_back_steps(errors: &mut FieldErrors, path: &str, at: &Path) {
    if path.split('/').any(|part| part == "..") {
        errors.invalid(at, path, "must not contain '..'");
    }
}

/// A path that stays below the directory it starts from.
pub(super) fn descending(errors: &mut FieldErrors, path: &str, at: &Path) {
    if path.starts_with('/') {
        errors.invalid(at, path, "must be a relative path");
    }
    no_back_steps(errors, path, at);
}

/// A descending path whose first name is not reserved for the atomic writer.
pub(super) fn not_reserved(errors: &mut FieldErrors, path: &str, at: &Path) {
    descending(errors, path, at);
    if path.starts_with("..") && !path.starts_with("../") && path != ".." {
        errors.invalid(at, path, "must not start with '..'");
    }
}

#[cfg(test)]
mod tests;
