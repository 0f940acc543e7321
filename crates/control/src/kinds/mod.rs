//! The built-in kinds, one file each.

use crate::kind::Kind;

/// Every built-in kind, in the order discovery lists them.
#[must_use]
pub fn all() -> Vec<Kind> {
    vec![config_map::kind()]
}

mod config_map;
