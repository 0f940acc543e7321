//! What the CNI plugins decide: configurations read, addresses chosen, results written, rules as elements of our own table.
//!
//! Pure: the crate `cni` brings it to the kernel.
//!
//! * [`error`]: the errors of the contract, with their codes.
//! * [`fields`]: a configuration, read field by field; a wrong one is named.
//! * [`request`]: what every plugin is told.
//! * [`success`]: what a plugin answers, in every version of the contract.
//! * [`ranges`]: which address is next.
//! * [`fixed`]: addresses that the configuration names itself.
//! * [`bridge`], [`bandwidth`], [`portmap`], [`tuning`], [`firewall`]: one file per plugin.
//! * [`doctor`]: where a packet of a Pod goes, and where it ends.
//! * [`version`]: the versions of the contract.
//! * [`table`]: the table that holds what all plugins need of nf_tables.

pub mod bandwidth;
pub mod bridge;
pub mod doctor;
pub mod error;
pub mod fields;
pub mod firewall;
pub mod fixed;
pub mod mac;
pub mod portmap;
pub mod ranges;
pub mod request;
pub mod success;
pub mod table;
pub mod tuning;
pub mod version;

pub use error::{CniError, Code};
pub use request::{AttachmentId, Request, Verb};
pub use success::Success;
pub use version::{NEWEST, OLDEST, VERSIONS};
