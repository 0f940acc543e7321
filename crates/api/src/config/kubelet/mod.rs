//! The kubelet's flags and KubeletConfiguration (`kubelet.config.k8s.io/v1beta1`).

mod defaults;
pub mod fields;
mod types;

pub use types::*;
