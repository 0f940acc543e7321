//! kube-proxy's flags and KubeProxyConfiguration (`kubeproxy.config.k8s.io/v1alpha1`).

mod defaults;
pub mod fields;
pub mod flags;
mod load;
mod types;
mod validate;

pub use load::{Loaded, help, load};
pub use types::*;
