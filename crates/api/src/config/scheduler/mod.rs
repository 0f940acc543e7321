//! kube-scheduler: flags, `KubeSchedulerConfiguration`, defaults and validation.

mod args;
mod load;
mod types;

pub use args::*;
pub use load::{FLAGS, Loaded, help, load, points};
pub use types::*;
