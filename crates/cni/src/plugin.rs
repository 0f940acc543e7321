//! What every plugin is: one function for each verb.

use cni_core::{CniError, Request};
use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) name: &'static str,
    pub(crate) add: fn(&Request) -> Result<Value, CniError>,
    pub(crate) del: fn(&Request) -> Result<(), CniError>,
    pub(crate) check: fn(&Request) -> Result<(), CniError>,
    pub(crate) status: fn(&Request) -> Result<(), CniError>,
    pub(crate) gc: fn(&Request) -> Result<(), CniError>,
}

/// What the plugin before answered, handed on as it is.
pub(crate) fn pass_on(request: &Request) -> Result<Value, CniError> {
    request.required_previous()?;
    Ok(request.config.get("prevResult").cloned().unwrap_or_default())
}
