//! The hash by which a running container is recognised as made from the current spec.

use k8s_openapi::api::core::v1::Container;

/// What the annotation `io.kubernetes.container.hash` holds for a container made from this spec.
#[must_use]
pub fn container_hash(container: &Container) -> u32 {
    api::pod::container_hash(&container.name, container.image.as_deref().unwrap_or_default())
}
