//! Hands on the connection tracking table: list entries, delete one.

use std::net::{IpAddr, SocketAddr};

use nft::wire::{Attributes, FLAG_ACK, FLAG_DUMP, Writer};
use rustix::io::Errno;
use rustix::net::netlink;

use crate::netlink::{Listed, Netlink, SocketError};

const SUBSYSTEM: u16 = 1 << 8;
const GET: u16 = SUBSYSTEM | 1;
const DELETE: u16 = SUBSYSTEM | 2;
#[cfg(test)]
const NEW: u16 = SUBSYSTEM;

const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;

/// A table that changes while it is listed says so; after so many tries what was seen has to do. Whatever was missed
/// is met the next time.
const TRIES: u32 = 5;

/// A conversation with the table of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Conntrack {
    netlink: Netlink,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number in the IP header.
    pub protocol: u8,
    /// Who began, and where to.
    pub source: SocketAddr,
    pub destination: SocketAddr,
    /// Where the answers come from.
    pub answers_from: SocketAddr,
    /// How the kernel knows the entry again.
    original: Vec<u8>,
    id: Option<u32>,
    zone: Option<u16>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to connection tracking: {0}")]
    Socket(#[from] SocketError),
    #[error("listing tracked connections: {0}")]
    Listing(Errno),
    #[error("deleting the tracked connection from {source_address} to {destination}: {cause}")]
    Deleting { source_address: SocketAddr, destination: SocketAddr, cause: Errno },
}

// === impl Conntrack ===

impl Conntrack {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open(Some(netlink::NETFILTER))? })
    }

    /// The entries of a family that the caller wants.
    pub fn list(&mut self, is_v6: bool, is_wanted: impl Fn(&Entry) -> bool) -> Result<Vec<Entry>, Error> {
        Ok(self.list_while(is_v6, is_wanted, || true)?.unwrap_or_default())
    }

    /// The same for a caller who may have better things to do before the end: then there is nothing, and nothing more
    /// can be asked of this conversation.
    pub fn list_while(
        &mut self,
        is_v6: bool,
        is_wanted: impl Fn(&Entry) -> bool,
        go_on: impl Fn() -> bool,
    ) -> Result<Option<Vec<Entry>>, Error> {
        for tries in 1.. {
            let mut found = Vec::new();
            let listed = self.list_once(is_v6, |entry| {
                if is_wanted(&entry) {
                    found.push(entry);
                }
                go_on()
            })?;
            match listed {
                None => break,
                Some(Listed::Whole) => return Ok(Some(found)),
                Some(Listed::Disturbed) if tries == TRIES => return Ok(Some(found)),
                Some(Listed::Disturbed) => {}
                Some(Listed::Refused(cause)) => return Err(Error::Listing(cause)),
            }
        }
        Ok(None)
    }

    /// Says whether the entry was still there.
    pub fn delete(&mut self, entry: &Entry) -> Result<bool, Error> {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin(DELETE, FLAG_ACK, sequence, family(entry.destination.is_ipv6()), 0);
        out.bytes(TUPLE_ORIGINAL | NESTED, &entry.original);
        if let Some(id) = entry.id {
            // Not another connection that has the same addresses by now.
            out.bytes(ID, &id.to_be_bytes());
        }
        if let Some(zone) = entry.zone {
            out.bytes(ZONE, &zone.to_be_bytes());
        }
        out.end(message);
        match self.netlink.order(&out.into_bytes(), sequence)? {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(cause) => {
                Err(Error::Deleting { source_address: entry.source, destination: entry.destination, cause })
            }
        }
    }

    fn list_once(
        &mut self,
        is_v6: bool,
        mut hear: impl FnMut(Entry) -> bool,
    ) -> Result<Option<Listed>, Error> {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin(GET, FLAG_DUMP, sequence, family(is_v6), 0);
        out.end(message);
        let listed = self.netlink.list_while(&out.into_bytes(), sequence, |body| {
            Entry::read(body.get(4..).unwrap_or_default()).is_none_or(&mut hear)
        })?;
        Ok(listed)
    }
}

const NESTED: u16 = 0x8000;

fn family(is_v6: bool) -> u8 {
    if is_v6 { 10 } else { 2 }
}

// === impl Entry ===

impl Entry {
    fn read(bytes: &[u8]) -> Option<Self> {
        let attributes = Attributes(bytes);
        let original = attributes.get(TUPLE_ORIGINAL)?;
        let (protocol, source, destination) = read_tuple(original.nested())?;
        let (_, answers_from, _) = read_tuple(attributes.get(TUPLE_REPLY)?.nested())?;
        let id = attributes.get(ID).and_then(|a| a.data.first_chunk().map(|b| u32::from_be_bytes(*b)));
        let zone = attributes.get(ZONE).and_then(|a| a.data.first_chunk().map(|b| u16::from_be_bytes(*b)));
        Some(Self { protocol, source, destination, answers_from, original: original.data.to_vec(), id, zone })
    }
}

/// Protocol, source and destination; `None` for protocols without ports.
fn read_tuple(tuple: Attributes<'_>) -> Option<(u8, SocketAddr, SocketAddr)> {
    let (ip, protocol) = (tuple.get(TUPLE_IP)?.nested(), tuple.get(TUPLE_PROTOCOL)?.nested());
    let address = |v4: u16, v6: u16| -> Option<IpAddr> {
        match ip.get(v4) {
            Some(found) => found.data.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
            None => ip.get(v6)?.data.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        }
    };
    let port = |kind: u16| protocol.get(kind)?.data.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
    Some((
        protocol.get(1)?.u8()?,
        SocketAddr::new(address(1, 3)?, port(2)?),
        SocketAddr::new(address(2, 4)?, port(3)?),
    ))
}

#[cfg(test)]
#[path = "conntrack_tests.rs"]
mod tests;
