//! The rules of nf_tables: there, or not. Everything in here blocks.

use ipnet::IpNet;
use nft::{Message, Question, What};
use rustix::io::Errno;
use sys::nft::{Error as NftError, Nftables};

use crate::Error;
use crate::core::Family;
use crate::core::masquerade::{messages, rules, table};

/// Makes the rules what they should be; those that are already are left alone.
pub(crate) fn ensure(network: IpNet) -> Result<(), Error> {
    let id = table(Family::of_net(network));
    let mut nft = Nftables::open().map_err(|e| failed(&e))?;
    let mut there = Vec::new();
    let asked = nft.ask(&id, &Question::Rules, &mut there, Vec::clear, |there, notice| {
        if let What::Rule(_, rule) = notice.what {
            there.push(rule.exprs);
        }
        true
    });
    match asked {
        Ok(()) if there == rules(network) => Ok(()),
        Ok(()) | Err(NftError::NotListed { cause: Errno::NOENT, .. }) => {
            nft.commit(&id, &messages(network)).map_err(|e| failed(&e))
        }
        Err(e) => Err(failed(&e)),
    }
}

pub(crate) fn remove(family: Family) -> Result<(), Error> {
    let mut nft = match Nftables::open() {
        Ok(nft) => nft,
        // What is not there has no rules of ours.
        Err(e) if e.is_about_a_kernel_without() => return Ok(()),
        Err(e) => return Err(failed(&e)),
    };
    match nft.commit(&table(family), &[Message::DeleteTable]) {
        Ok(()) | Err(NftError::Refused { cause: Errno::NOENT, .. }) => Ok(()),
        Err(e) if e.is_about_a_kernel_without() => Ok(()),
        Err(e) => Err(failed(&e)),
    }
}

fn failed(cause: &NftError) -> Error {
    Error::Kernel { act: "masquerade what Pods send", cause: cause.to_string() }
}
