//! The kubelet's flags and KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`).

mod defaults;
pub mod fields;
pub mod flags;
mod load;
mod settings;
mod types;
mod validate;

pub use defaults::EVICTION_HARD;
pub use load::{Loaded, help, load};
pub use settings::KubeletFlags;
pub use types::*;
pub use validate::{HostFacts, check_host};
