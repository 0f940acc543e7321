//! Walking a Pod's containers, whatever their kind.

use k8s_openapi::api::core::v1::{Container, ContainerPort, EphemeralContainer, Pod};

/// Which list of the spec a container stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerType {
    Init,
    /// An init container with restartPolicy Always.
    Sidecar,
    Regular,
    Ephemeral,
}

/// One container of a Pod.
#[derive(Clone, Copy, Debug)]
pub enum ContainerRef<'a> {
    Spec { kind: ContainerType, container: &'a Container },
    Ephemeral(&'a EphemeralContainer),
}

/// Every container of the Pod: init (sidecars among them) first, then regular, then ephemeral.
pub fn containers(pod: &Pod) -> impl Iterator<Item = ContainerRef<'_>> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|s| s.init_containers.as_ref()).into_iter().flatten().map(|container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        ContainerRef::Spec {
            kind: if sidecar { ContainerType::Sidecar } else { ContainerType::Init },
            container,
        }
    });
    let regular = spec.map(|s| &s.containers).into_iter().flatten();
    let regular = regular.map(|container| ContainerRef::Spec { kind: ContainerType::Regular, container });
    let ephemeral = spec.and_then(|s| s.ephemeral_containers.as_ref()).into_iter().flatten();
    init.chain(regular).chain(ephemeral.map(ContainerRef::Ephemeral))
}

// === impl ContainerRef ===

impl<'a> ContainerRef<'a> {
    #[must_use]
    pub fn kind(self) -> ContainerType {
        match self {
            ContainerRef::Spec { kind, .. } => kind,
            ContainerRef::Ephemeral(_) => ContainerType::Ephemeral,
        }
    }

    #[must_use]
    pub fn name(self) -> &'a str {
        match self {
            ContainerRef::Spec { container, .. } => &container.name,
            ContainerRef::Ephemeral(c) => &c.name,
        }
    }

    /// The image as the manifest writes it, empty if it names none.
    #[must_use]
    pub fn image(self) -> &'a str {
        match self {
            ContainerRef::Spec { container, .. } => container.image.as_deref(),
            ContainerRef::Ephemeral(c) => c.image.as_deref(),
        }
        .unwrap_or_default()
    }

    #[must_use]
    pub fn ports(self) -> &'a [ContainerPort] {
        match self {
            ContainerRef::Spec { container, .. } => container.ports.as_deref(),
            ContainerRef::Ephemeral(c) => c.ports.as_deref(),
        }
        .unwrap_or_default()
    }

    /// Whether it has a terminal.
    #[must_use]
    pub fn tty(self) -> bool {
        match self {
            ContainerRef::Spec { container, .. } => container.tty,
            ContainerRef::Ephemeral(c) => c.tty,
        }
        .unwrap_or_default()
    }

    /// The container proper; ephemeral containers are of another type.
    #[must_use]
    pub fn spec(self) -> Option<&'a Container> {
        match self {
            ContainerRef::Spec { container, .. } => Some(container),
            ContainerRef::Ephemeral(_) => None,
        }
    }
}
