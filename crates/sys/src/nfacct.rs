//! Hands on netfilter's accounts: counters with a name, which rules of iptables add to.

use nft::wire::{Attributes, FLAG_ACK, FLAG_CREATE, Writer};
use rustix::io::Errno;
use rustix::net::netlink;

use crate::netlink::{Listed, Netlink, SocketError};

const SUBSYSTEM: u16 = 7 << 8;
const NEW: u16 = SUBSYSTEM;
const GET: u16 = SUBSYSTEM | 1;

const NAME: u16 = 1;
const PACKETS: u16 = 2;

/// A conversation about the accounts of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Accounts {
    netlink: Netlink,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking about accounts: {0}")]
    Socket(#[from] SocketError),
    #[error("{act} account {name}: {cause}")]
    Refused { act: &'static str, name: String, cause: Errno },
}

// === impl Accounts ===

impl Accounts {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open(Some(netlink::NETFILTER))? })
    }

    /// Makes an account, if there is none of the name.
    pub fn ensure(&mut self, name: &str) -> Result<(), Error> {
        let (bytes, sequence) = self.message(NEW, FLAG_ACK | FLAG_CREATE, name);
        match self.netlink.order(&bytes, sequence)? {
            Ok(()) | Err(Errno::BUSY | Errno::EXIST) => Ok(()),
            Err(cause) => Err(Error::Refused { act: "making", name: name.to_owned(), cause }),
        }
    }

    /// How many packets were counted; `None` if there is no such account.
    pub fn packets(&mut self, name: &str) -> Result<Option<u64>, Error> {
        let (bytes, sequence) = self.message(GET, FLAG_ACK, name);
        let mut packets = None;
        let listed = self.netlink.list(&bytes, sequence, |body| {
            let found = Attributes(body.get(4..).unwrap_or_default()).get(PACKETS);
            packets =
                found.and_then(|found| found.data.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)));
        })?;
        match listed {
            Listed::Refused(Errno::NOENT) => Ok(None),
            Listed::Refused(cause) => Err(Error::Refused { act: "asking for", name: name.to_owned(), cause }),
            Listed::Whole | Listed::Disturbed => Ok(packets),
        }
    }

    fn message(&mut self, kind: u16, flags: u16, name: &str) -> (Vec<u8>, u32) {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin(kind, flags, sequence, 0, 0);
        out.bytes(NAME, &[name.as_bytes(), &[0]].concat());
        out.end(message);
        (out.into_bytes(), sequence)
    }
}

#[cfg(test)]
#[path = "nfacct_tests.rs"]
mod tests;
