//! The lists of containers and what is common to their elements.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ContainerRestartRule, EphemeralContainer, ResourceRequirements,
};

use super::{Scope, Stage, env, handlers, mounts, one_of, port_number, requirements, security};
use crate::field::{FieldErrors, Path};
use crate::names;

const NOT_EPHEMERAL: &str = "cannot be set for an Ephemeral Container";
const NO_INIT_HANDLERS: &str = "may not be set for init containers without restartPolicy=Always";

pub(super) fn all(errors: &mut FieldErrors, scope: &Scope<'_>, at: &Path, stage: Stage) {
    let spec = scope.spec;
    let list = at.child("containers");
    if spec.containers.is_empty() {
        errors.required(&list, "");
    }
    let mut names = BTreeSet::new();
    let mut host_ports = BTreeSet::new();
    for (i, c) in spec.containers.iter().enumerate() {
        let at = list.index(i);
        common(errors, scope, c, &at);
        unique_name(errors, &mut names, c, &at);
        handlers::all(errors, scope, c, &at);
        restart_policy(errors, c, &at);
        unique_host_ports(errors, &mut host_ports, c, &at);
        if spec.host_network == Some(true) {
            host_network_ports(errors, c, &at);
        }
    }
    for (i, c) in spec.init_containers.iter().flatten().enumerate() {
        let at = at.child("initContainers").index(i);
        common(errors, scope, c, &at);
        unique_name(errors, &mut names, c, &at);
        init_only(errors, scope, c, &at);
        // They run one after the other, so only a container's own ports can collide.
        unique_host_ports(errors, &mut BTreeSet::new(), c, &at);
    }
    let ephemeral = spec.ephemeral_containers.as_deref().unwrap_or_default();
    let list = at.child("ephemeralContainers");
    match stage {
        _ if ephemeral.is_empty() => {}
        Stage::Create => errors.forbidden(&list, "cannot be set on create"),
        Stage::Template => errors.forbidden(&list, "ephemeral containers not allowed in pod template"),
        Stage::Update => self::ephemeral(errors, scope, &names, ephemeral, &list),
    }
}

fn ephemeral(
    errors: &mut FieldErrors,
    scope: &Scope<'_>,
    others: &BTreeSet<&str>,
    list: &[EphemeralContainer],
    at: &Path,
) {
    let mut seen = others.clone();
    for (i, e) in list.iter().enumerate() {
        let at = at.index(i);
        let forbidden = [
            ("ports", e.ports.as_ref().is_some_and(|p| !p.is_empty())),
            ("resources", e.resources.as_ref().is_some_and(|r| *r != ResourceRequirements::default())),
            ("resizePolicy", e.resize_policy.as_ref().is_some_and(|p| !p.is_empty())),
            ("livenessProbe", e.liveness_probe.is_some()),
            ("readinessProbe", e.readiness_probe.is_some()),
            ("startupProbe", e.startup_probe.is_some()),
            ("lifecycle", e.lifecycle.is_some()),
        ];
        common(errors, scope, &ordinary(e), &at);
        if !e.name.is_empty() && !seen.insert(&e.name) {
            errors.duplicate(&at.child("name"), e.name.as_str());
        }
        if let Some(target) =
            e.target_container_name.as_deref().filter(|t| !t.is_empty() && !others.contains(t))
        {
            errors.not_found(&at.child("targetContainerName"), target);
        }
        for (name, _) in forbidden.iter().filter(|(_, set)| *set) {
            errors.forbidden(&at.child(name), NOT_EPHEMERAL);
        }
        for (j, mount) in e.volume_mounts.iter().flatten().enumerate() {
            let at = at.child("volumeMounts").index(j);
            for (name, path) in [("subPath", &mount.sub_path), ("subPathExpr", &mount.sub_path_expr)] {
                if path.as_ref().is_some_and(|p| !p.is_empty()) {
                    errors.forbidden(&at.child(name), NOT_EPHEMERAL);
                }
            }
        }
    }
}

/// What an ephemeral container, another type, has in common with the others.
fn ordinary(e: &EphemeralContainer) -> Container {
    let e = e.clone();
    Container {
        name: e.name,
        image: e.image,
        image_pull_policy: e.image_pull_policy,
        env: e.env,
        env_from: e.env_from,
        volume_mounts: e.volume_mounts,
        volume_devices: e.volume_devices,
        security_context: e.security_context,
        termination_message_policy: e.termination_message_policy,
        ..Container::default()
    }
}

fn common(errors: &mut FieldErrors, scope: &Scope<'_>, c: &Container, at: &Path) {
    if c.name.is_empty() {
        errors.required(&at.child("name"), "");
    } else {
        errors.each(&at.child("name"), &c.name, names::dns_label(&c.name));
    }
    let image = c.image.as_deref().unwrap_or_default();
    if image.is_empty() {
        errors.required(&at.child("image"), "");
    } else if image.trim() != image {
        errors.invalid(&at.child("image"), image, "must not have leading or trailing whitespace");
    }
    let message = ["File", "FallbackToLogsOnError"];
    let policy = at.child("terminationMessagePolicy");
    one_of(errors, c.termination_message_policy.as_deref(), &message, &policy);
    let pull = ["Always", "IfNotPresent", "Never"];
    one_of(errors, c.image_pull_policy.as_deref(), &pull, &at.child("imagePullPolicy"));
    ports(errors, c.ports.as_deref(), &at.child("ports"));
    env::vars(errors, scope, c.env.as_deref(), &at.child("env"));
    env::from(errors, c.env_from.as_deref(), &at.child("envFrom"));
    mounts::mounts(errors, scope, c, at);
    mounts::devices(errors, scope, c, at);
    if let Some(resources) = &c.resources {
        requirements::of_container(errors, scope, resources, &at.child("resources"));
    }
    resize_policy(errors, scope, c, &at.child("resizePolicy"));
    if let Some(context) = &c.security_context {
        security::of_container(errors, context, scope.host_users, &at.child("securityContext"));
    }
}

fn unique_name<'a>(errors: &mut FieldErrors, seen: &mut BTreeSet<&'a str>, c: &'a Container, at: &Path) {
    if !c.name.is_empty() && !seen.insert(&c.name) {
        errors.duplicate(&at.child("name"), c.name.as_str());
    }
}

fn ports(errors: &mut FieldErrors, ports: Option<&[ContainerPort]>, at: &Path) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.into_iter().flatten().enumerate() {
        let at = at.index(i);
        if let Some(name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            let messages = names::port_name(name);
            if messages.is_empty() && !seen.insert(name) {
                errors.duplicate(&at.child("name"), name);
            }
            errors.each(&at.child("name"), name, messages);
        }
        if port.container_port == 0 {
            errors.required(&at.child("containerPort"), "");
        } else {
            port_number(errors, port.container_port, &at.child("containerPort"));
        }
        if let Some(host) = port.host_port.filter(|p| *p != 0) {
            port_number(errors, host, &at.child("hostPort"));
        }
        if let Some(ip) = port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
            errors.each(&at.child("hostIP"), ip, names::ip(ip));
        }
        one_of(errors, port.protocol.as_deref(), &["SCTP", "TCP", "UDP"], &at.child("protocol"));
    }
}

fn unique_host_ports(errors: &mut FieldErrors, seen: &mut BTreeSet<String>, c: &Container, at: &Path) {
    for (i, port) in c.ports.iter().flatten().enumerate() {
        let Some(number) = port.host_port.filter(|p| *p != 0) else { continue };
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let key = format!("{protocol}/{}/{number}", port.host_ip.as_deref().unwrap_or_default());
        if seen.contains(&key) {
            errors.duplicate(&at.child("ports").index(i).child("hostPort"), key);
        } else {
            seen.insert(key);
        }
    }
}

fn host_network_ports(errors: &mut FieldErrors, c: &Container, at: &Path) {
    for (i, port) in c.ports.iter().flatten().enumerate() {
        if port.host_port != Some(port.container_port) {
            let at = at.child("ports").index(i).child("hostPort");
            let message = "must match `containerPort` when `hostNetwork` is true";
            errors.invalid(&at, port.host_port.unwrap_or_default(), message);
        }
    }
}

fn init_only(errors: &mut FieldErrors, scope: &Scope<'_>, c: &Container, at: &Path) {
    restart_policy(errors, c, at);
    if c.restart_policy.as_deref() == Some("Always") {
        return handlers::all(errors, scope, c, at);
    }
    let handlers = [
        ("lifecycle", c.lifecycle.is_some()),
        ("livenessProbe", c.liveness_probe.is_some()),
        ("readinessProbe", c.readiness_probe.is_some()),
        ("startupProbe", c.startup_probe.is_some()),
    ];
    for (name, _) in handlers.iter().filter(|(_, set)| *set) {
        errors.forbidden(&at.child(name), NO_INIT_HANDLERS);
    }
    for (i, policy) in c.resize_policy.iter().flatten().enumerate() {
        if policy.restart_policy == "RestartContainer" {
            let at = at.child("resizePolicy").index(i).child("restartPolicy");
            let message = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            errors.invalid(&at, policy.restart_policy.as_str(), message);
        }
    }
}

fn restart_policy(errors: &mut FieldErrors, c: &Container, at: &Path) {
    let rules = c.restart_policy_rules.as_deref().unwrap_or_default();
    let policies = ["Always", "Never", "OnFailure"];
    let policy = at.child("restartPolicy");
    match c.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => errors.required(&policy, "must specify restartPolicy when restart rules are used"),
        Some(p) if !policies.contains(&p) => errors.unsupported(&policy, p, &policies),
        Some(_) => {}
    }
    let at = at.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.too_many(&at, rules.len(), 20);
    }
    for (i, rule) in rules.iter().enumerate() {
        restart_rule(errors, rule, &at.index(i));
    }
}

fn restart_rule(errors: &mut FieldErrors, rule: &ContainerRestartRule, at: &Path) {
    let actions = ["Restart", "RestartAllContainers"];
    if !actions.contains(&rule.action.as_str()) {
        errors.unsupported(&at.child("action"), &rule.action, &actions);
    }
    let at = at.child("exitCodes");
    let Some(codes) = &rule.exit_codes else { return errors.required(&at, "must be specified") };
    if !["In", "NotIn"].contains(&codes.operator.as_str()) {
        errors.unsupported(&at.child("operator"), &codes.operator, &["In", "NotIn"]);
    }
    let count = codes.values.as_ref().map_or(0, Vec::len);
    if count > 255 {
        errors.too_many(&at.child("values"), count, 255);
    }
}

fn resize_policy(errors: &mut FieldErrors, scope: &Scope<'_>, c: &Container, at: &Path) {
    let mut seen = BTreeSet::new();
    for (i, policy) in c.resize_policy.iter().flatten().enumerate() {
        let at = at.index(i);
        if !seen.insert(policy.resource_name.as_str()) {
            errors.duplicate(&at, policy.resource_name.as_str());
        }
        one_of(errors, Some(&policy.resource_name), &["cpu", "memory"], &at.child("resourceName"));
        let policies = ["NotRequired", "RestartContainer"];
        one_of(errors, Some(&policy.restart_policy), &policies, &at.child("restartPolicy"));
        let never = scope.spec.restart_policy.as_deref() == Some("Never");
        if never && policy.restart_policy != "NotRequired" {
            let message = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(&at, policy.restart_policy.as_str(), message);
        }
    }
}
