//! What a sandbox and a container receive: a Pod, the node and what was prepared for it go in, a
//! complete CRI config comes out. Translating it for the runtime is mechanical and happens elsewhere.
//!
//! A container's CRI config is written in three steps, because some of its ingredients need hands:
//! [`env_files`] names the files its environment comes from, [`sub_paths`] the subPaths to prepare,
//! and [`container`] writes the rest.

mod dns;
mod env;
mod env_file;
mod expand;
mod hostname;
mod hosts;
pub mod metadata;
mod mounts;
mod ports;
mod resources;
mod security;
#[cfg(test)]
pub(crate) mod testing;
mod types;

use std::borrow::Cow;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};

pub use crate::container_spec::spec_of;
pub use dns::{MISSING_CLUSTER_DNS, check_resolver, parse_resolv_conf};
use env::Environment;
pub use expand::{EXPANSION_MAX, TooLong, expand, expand_words};
pub use hosts::HOSTS_PATH;
pub use mounts::SubPath;
pub(crate) use mounts::recursive_read_only;
pub use ports::protocol;
pub use resources::is_critical;
pub use types::*;

/// The CRI config of a Pod's sandbox.
pub fn sandbox(input: &SandboxInput<'_>) -> Result<SandboxConfig, CriConfigError> {
    let pod = input.pod;
    let (namespace, name, uid) = metadata::identity(pod);
    let spec = pod.spec.as_ref();
    let hostname = match spec.and_then(|s| s.host_network) {
        Some(true) => String::new(),
        _ => hostname::kernel_hostname(pod, &input.node.cluster_domain)
            .map_err(|e| CriConfigError::sandbox(e.message))?,
    };
    let (dns, warnings) = dns::dns(pod, input.node);
    let sysctls = spec.and_then(|s| s.security_context.as_ref()?.sysctls.as_ref());
    Ok(SandboxConfig {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        uid: uid.to_owned(),
        attempt: input.attempt,
        hostname,
        log_directory: metadata::log_directory(&input.config.pod_logs_dir, pod)
            .to_string_lossy()
            .into_owned(),
        dns,
        ports: ports::mappings(pod),
        labels: metadata::sandbox_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        cgroup_parent: input.cgroup_parent.to_owned(),
        sysctls: sysctls
            .into_iter()
            .flatten()
            .map(|s| (crate::sysctl::normalize(&s.name), s.value.clone()))
            .collect(),
        security: security::of_sandbox(input)?,
        resources: resources::of_sandbox(pod, input.node, input.config),
        overhead: resources::of_overhead(pod, input.node, input.config),
        warnings,
    })
}

/// The CRI config of one container.
pub fn container(input: &ContainerInput<'_>) -> Result<ContainerConfig, CriConfigError> {
    let spec = find(input)?;
    let env = env::environment(input, &spec)?;
    let mounts = mounts::mounts(input, &spec, &env)?;
    let security = security::of_container(input, &spec)?;
    let (command, args) = command_line(&spec, &env)?;
    Ok(ContainerConfig {
        name: spec.name.clone(),
        attempt: input.restart_count,
        image_ref: input.image_ref.to_owned(),
        image: spec.image.clone().unwrap_or_default(),
        command,
        args,
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        mounts,
        // Privileged containers see the host's devices through the runtime.
        devices: mounts::devices(input, &spec)?,
        cdi_devices: Vec::new(),
        labels: metadata::container_labels(input.pod, &spec.name),
        annotations: metadata::container_annotations(input.pod, &spec, input.restart_count),
        log_path: metadata::log_path(&spec.name, input.restart_count),
        stdin: spec.stdin == Some(true),
        stdin_once: spec.stdin_once == Some(true),
        tty: spec.tty == Some(true),
        stop_signal: spec.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
        resources: resources::of_container(input.pod, &spec, input.node, input.config),
        security,
        env: env.into_vars(),
    })
}

/// The command and its arguments, which share what the environment left them.
fn command_line(spec: &Container, env: &Environment) -> Result<(Vec<String>, Vec<String>), CriConfigError> {
    let words = |field: &str, words: &Option<Vec<String>>, max: usize| {
        let expanded = expand_words(field, words.as_deref().unwrap_or_default(), max, |name| env.get(name));
        expanded.map_err(CriConfigError::config)
    };
    let command = words("command", &spec.command, env.left())?;
    let taken = command.iter().map(String::len).sum::<usize>();
    let args = words("args", &spec.args, env.left().saturating_sub(taken))?;
    Ok((command, args))
}

/// What a container may use, for one that runs already.
#[must_use]
pub fn container_resources(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    config: &CriSettings,
) -> LinuxResources {
    resources::of_container(pod, container, node, config)
}

/// What the Pod costs beyond its containers, and what all of it may use.
#[must_use]
pub fn pod_resources(pod: &Pod, node: &NodeFacts, config: &CriSettings) -> (LinuxResources, LinuxResources) {
    (resources::of_overhead(pod, node, config), resources::of_sandbox(pod, node, config))
}

/// The subPaths to prepare before [`container`] is called.
pub fn sub_paths(input: &ContainerInput<'_>) -> Result<Vec<SubPath>, CriConfigError> {
    let spec = find(input)?;
    let env = env::environment(input, &spec)?;
    mounts::sub_paths(input, &spec, &env)
}

/// The files, by volume and path, to read before [`sub_paths`] and [`container`] are called.
#[must_use]
pub fn env_files(pod: &Pod, container: &str) -> Vec<(String, String)> {
    spec_of(pod, container).map(|c| env::env_files(&c)).unwrap_or_default()
}

/// The hosts file of a container, or none if it should not get one. `node_hosts` is the node's own.
pub fn hosts_file(
    pod: &Pod,
    container: &str,
    pod_ips: &[IpAddr],
    cluster_domain: &str,
    node_hosts: &str,
) -> Result<Option<String>, CriConfigError> {
    match spec_of(pod, container) {
        Some(spec) if hosts::wanted(pod, &spec, pod_ips) => {
            hosts::content(pod, pod_ips, cluster_domain, node_hosts).map(Some)
        }
        _ => Ok(None),
    }
}

fn find<'a>(input: &ContainerInput<'a>) -> Result<Cow<'a, Container>, CriConfigError> {
    spec_of(input.pod, input.name)
        .ok_or_else(|| CriConfigError::config(format!("container {} not found", input.name)))
}

#[cfg(test)]
mod tests;
