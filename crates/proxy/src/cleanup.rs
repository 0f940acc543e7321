//! Taking away what a mode left in the kernel.

use api::config::proxy::Mode;
use proxy_core::objects::Family;

use crate::backend::iptables::{self, Programs};
use crate::backend::nft::NftDataplane;

/// Removes the rules of every mode but one, or of all; says what went wrong. Blocks. Going from iptables to ipvs or back
/// leaves the other's chains, as upstream does: they share some.
pub(crate) fn remove_others(keep: Option<Mode>) -> Vec<String> {
    let mut errors = Vec::new();
    for family in Family::BOTH {
        if keep != Some(Mode::Nftables)
            && let Err(error) = remove_nftables(family)
        {
            errors.push(format!("removing the nftables rules for {}: {error}", family.name()));
        }
        if matches!(keep, None | Some(Mode::Nftables))
            && let Err(error) = iptables::cleanup(&Programs::new(family))
        {
            errors.push(format!("removing the iptables rules for {}: {error}", family.name()));
        }
    }
    errors
}

/// Without nf_tables in the kernel there is nothing of it to remove.
fn remove_nftables(family: Family) -> Result<(), crate::ports::Error> {
    let Ok(mut dataplane) = NftDataplane::open(family, 0) else { return Ok(()) };
    match dataplane.read() {
        Ok(content) if content.is_there => dataplane.remove(),
        _ => Ok(()),
    }
}
