//! Taking away what a mode left in the kernel.

use api::config::proxy::Mode;
use proxy_core::objects::Family;

use crate::backend::iptables::{self, Programs};
use crate::backend::ipvs;
use crate::backend::nft::NftDataplane;
use crate::ports::Error;

/// Removes the rules of every mode but one, or of all; says what went wrong. Blocks. Going from iptables to ipvs leaves
/// the chains that both have, which the new mode fills anew; going back takes the virtual servers away, whose addresses
/// would otherwise stay the node's.
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
        if keep == Some(Mode::Iptables)
            && let Err(error) = iptables::cleanup_ipvs(&Programs::new(family))
        {
            errors.push(format!("removing the rules of ipvs for {}: {error}", family.name()));
        }
        // After the rules that name its sets.
        if keep != Some(Mode::Ipvs)
            && let Err(error) = ipvs::cleanup(family)
        {
            errors.push(format!("removing the virtual servers for {}: {error}", family.name()));
        }
    }
    errors
}

/// Without nf_tables in the kernel there is nothing of it to remove.
fn remove_nftables(family: Family) -> Result<(), Error> {
    match NftDataplane::open(family, 0).and_then(|mut dataplane| dataplane.remove()) {
        Err(Error::Nftables(error)) if error.is_about_a_kernel_without() => Ok(()),
        done => done,
    }
}
