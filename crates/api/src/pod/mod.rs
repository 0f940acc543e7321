//! The Pod: what the kubelet derives from its text without running anything.

mod amount;
mod containers;
mod defaults;
mod hash;
mod image;
mod names;
mod qos;
pub mod resources;

pub use amount::Amount;
pub use containers::{ContainerRef, Kind, containers};
pub use defaults::set_defaults;
pub use hash::container_hash;
pub use image::{default_pull_policy, effective_image};
pub use qos::{QosClass, qos_class};
