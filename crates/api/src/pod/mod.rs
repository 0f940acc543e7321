//! The Pod: what the kubelet derives from its text without running anything.

mod amount;
mod containers;
mod decode;
mod defaults;
mod hash;
mod image;
mod qos;
pub mod resources;
pub mod static_pod;
mod validate;

pub use amount::{Amount, NotAQuantity};
pub use containers::{ContainerRef, ContainerType, containers};
pub use decode::{Manifest, ManifestError, decode, decode_pod, decode_spec};
pub use defaults::{set_defaults, set_template_defaults};
pub use hash::container_hash;
pub use image::{default_pull_policy, effective_image};
pub use qos::{QosClass, qos_class, qos_class_of};
pub use validate::{Stage, validate, validate_spec};
