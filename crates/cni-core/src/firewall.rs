//! `firewall`: who may reach the containers of a bridge.

use crate::error::CniError;
use crate::request::Request;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Open,
    /// Containers of other bridges that say so too may not.
    SameBridge,
    /// Containers of the same bridge may not either.
    Isolated,
}

// === impl Policy ===

impl Policy {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        match fields.text("backend")? {
            None | Some("" | "nftables" | "iptables") => {}
            Some(other) => {
                return Err(CniError::field("backend", format!("{other:?} is not nftables or iptables")));
            }
        }
        fields.text("iptablesAdminChainName")?;
        fields.text("firewalldZone")?;
        match fields.text("ingressPolicy")? {
            None | Some("" | "open") => Ok(Policy::Open),
            Some("same-bridge") => Ok(Policy::SameBridge),
            Some("isolated") => Ok(Policy::Isolated),
            Some(other) => Err(CniError::field(
                "ingressPolicy",
                format!("{other:?} is not open, same-bridge or isolated"),
            )),
        }
    }
}
