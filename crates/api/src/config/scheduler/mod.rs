//! kube-scheduler: flags, `KubeSchedulerConfiguration`, defaults and validation.

mod args;
mod extender;
mod load;
mod types;

pub use args::*;
pub use extender::{Extender, ExtenderTls, ManagedResource};
pub use load::{FLAGS, Loaded, help, load, points};
pub use types::*;
