//! A Pod's containers, whatever their kind.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    Ephemeral,
    Init,
    /// An init container with restartPolicy Always.
    Sidecar,
    Regular,
}

/// A container of whatever kind, by name. Ephemeral ones have a type of their own with the same fields.
#[must_use]
pub fn spec_of<'a>(pod: &'a Pod, name: &str) -> Option<Cow<'a, Container>> {
    let spec = pod.spec.as_ref()?;
    let mut plain = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if let Some(c) = plain.find(|c| c.name == name) {
        return Some(Cow::Borrowed(c));
    }
    spec.ephemeral_containers.iter().flatten().find(|c| c.name == name).map(|c| Cow::Owned(as_container(c)))
}

fn as_container(c: &EphemeralContainer) -> Container {
    let c = c.clone();
    Container {
        args: c.args,
        command: c.command,
        env: c.env,
        env_from: c.env_from,
        image: c.image,
        image_pull_policy: c.image_pull_policy,
        lifecycle: c.lifecycle,
        name: c.name,
        ports: c.ports,
        resources: c.resources,
        security_context: c.security_context,
        stdin: c.stdin,
        stdin_once: c.stdin_once,
        termination_message_path: c.termination_message_path,
        termination_message_policy: c.termination_message_policy,
        tty: c.tty,
        volume_devices: c.volume_devices,
        volume_mounts: c.volume_mounts,
        working_dir: c.working_dir,
        ..Container::default()
    }
}
