//! The Pod: what the kubelet derives from its text without running anything.

mod amount;
mod containers;
mod hash;
mod image;
mod qos;

pub use amount::Amount;
pub use containers::{ContainerRef, Kind, containers};
pub use hash::container_hash;
pub use image::{default_pull_policy, effective_image};
pub use qos::{QosClass, qos_class};
