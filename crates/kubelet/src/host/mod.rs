//! The machine below the Pods: its kernel, its files, its addresses, the process itself.

pub mod cgroups;
pub mod clock;
pub mod facts;
pub(crate) mod files;
pub mod identity;
pub(crate) mod inotify;
pub(crate) mod iptables;
pub(crate) mod kmsg;
pub(crate) mod lock_file;
pub mod net;
pub mod process;
pub mod topology;
mod units;
pub mod userns;
