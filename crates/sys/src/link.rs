//! Hands on network devices and their addresses.

use std::net::IpAddr;

use nft::wire::{Attributes, FLAG_ACK, FLAG_CREATE, FLAG_DUMP, FLAG_EXCLUSIVE, Writer};
use rustix::io::Errno;

use crate::netlink::{Failures, Listed, Netlink, SocketError};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;

const IFNAME: u16 = 3;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// Duplicate address detection would keep an address of a device that is down from ever being used.
const NO_DAD: u8 = 0x02;

/// A list that is disturbed so often is taken as it is: whatever was missed is met the next time.
const TRIES: u32 = 5;

/// The devices of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Links {
    netlink: Netlink,
}

/// A device's number, which it keeps as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Index(u32);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to the routing part of the kernel: {0}")]
    Socket(#[from] SocketError),
    #[error("{act} {what}: {cause}")]
    Refused { act: &'static str, what: String, cause: Errno },
}

// === impl Links ===

impl Links {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open(None)? })
    }

    /// The device of a name, if there is one.
    pub fn find(&mut self, name: &str) -> Result<Option<Index>, Error> {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin_with(GET_LINK, FLAG_ACK, sequence, &link_head(0));
        out.text(IFNAME, name);
        out.end(message);
        let mut found = None;
        let listed = self.netlink.list(&out.into_bytes(), sequence, |body| {
            found =
                found.or(body.get(4..8).and_then(|b| b.first_chunk()).map(|b| Index(u32::from_ne_bytes(*b))));
        })?;
        match listed {
            Listed::Refused(Errno::NODEV) => Ok(None),
            Listed::Refused(cause) => Err(refused("looking for device", name, cause)),
            Listed::Whole | Listed::Disturbed => Ok(found),
        }
    }

    /// Makes a device that leads nowhere; it stays down. One that is there already will do.
    pub fn ensure_dummy(&mut self, name: &str) -> Result<Index, Error> {
        if let Some(index) = self.find(name)? {
            return Ok(index);
        }
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let flags = FLAG_ACK | FLAG_CREATE | FLAG_EXCLUSIVE;
        let message = out.begin_with(NEW_LINK, flags, sequence, &link_head(0));
        out.text(IFNAME, name);
        let info = out.nest(LINK_INFO);
        out.text(INFO_KIND, "dummy");
        out.close(info);
        out.end(message);
        match self.netlink.order(&out.into_bytes(), sequence)? {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(cause) => return Err(refused("making dummy device", name, cause)),
        }
        self.find(name)?.ok_or_else(|| refused("making dummy device", name, Errno::NODEV))
    }

    /// Removes a device with its addresses. One that is not there is no failure.
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        let Some(index) = self.find(name)? else { return Ok(()) };
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin_with(DELETE_LINK, FLAG_ACK, sequence, &link_head(index.0));
        out.end(message);
        match self.netlink.order(&out.into_bytes(), sequence)? {
            Ok(()) | Err(Errno::NODEV) => Ok(()),
            Err(cause) => Err(refused("removing device", name, cause)),
        }
    }

    /// Every address of the namespace and the device that has it.
    pub fn addresses(&mut self) -> Result<Vec<(Index, IpAddr)>, Error> {
        for tries in 1.. {
            let mut out = Writer::default();
            let sequence = self.netlink.next_sequence();
            let message = out.begin_with(GET_ADDRESS, FLAG_DUMP, sequence, &address_head(0, 0, 0, Index(0)));
            out.end(message);
            let mut found = Vec::new();
            let listed =
                self.netlink.list(&out.into_bytes(), sequence, |body| found.extend(read_address(body)))?;
            match listed {
                Listed::Refused(cause) => return Err(refused("listing", "addresses", cause)),
                Listed::Disturbed if tries < TRIES => {}
                Listed::Whole | Listed::Disturbed => return Ok(found),
            }
        }
        Ok(Vec::new())
    }

    /// Gives a device addresses, each alone in its network, whatever becomes of the others. Those that it has already will
    /// do.
    pub fn add_addresses(&mut self, device: Index, ips: &[IpAddr]) -> Result<Failures<Error>, Error> {
        let exist = FLAG_ACK | FLAG_CREATE | FLAG_EXCLUSIVE;
        self.change_addresses(NEW_ADDRESS, exist, device, ips, ("adding address", Errno::EXIST))
    }

    /// Takes addresses from a device, whatever becomes of the others. Those that it does not have will do.
    pub fn delete_addresses(&mut self, device: Index, ips: &[IpAddr]) -> Result<Failures<Error>, Error> {
        let gone = ("deleting address", Errno::ADDRNOTAVAIL);
        self.change_addresses(DELETE_ADDRESS, FLAG_ACK, device, ips, gone)
    }

    fn change_addresses(
        &mut self,
        kind: u16,
        flags: u16,
        device: Index,
        ips: &[IpAddr],
        (act, done_before): (&'static str, Errno),
    ) -> Result<Failures<Error>, Error> {
        let orders: Vec<(u32, Vec<u8>)> = ips
            .iter()
            .map(|ip| {
                let sequence = self.netlink.next_sequence();
                (sequence, write_address(kind, flags, sequence, device, *ip))
            })
            .collect();
        let outcomes = self.netlink.orders(&orders)?;
        let refused = ips.iter().zip(outcomes).enumerate().filter_map(|(place, (ip, outcome))| {
            let cause = outcome.err().filter(|cause| *cause != done_before)?;
            Some((place, refused(act, &ip.to_string(), cause)))
        });
        Ok(Failures(refused.collect()))
    }
}

fn refused(act: &'static str, what: &str, cause: Errno) -> Error {
    Error::Refused { act, what: what.to_owned(), cause }
}

fn link_head(index: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head
}

fn address_head(family: u8, length: u8, flags: u8, device: Index) -> [u8; 8] {
    let [a, b, c, d] = device.0.to_ne_bytes();
    [family, length, flags, 0, a, b, c, d]
}

fn write_address(kind: u16, flags: u16, sequence: u32, device: Index, ip: IpAddr) -> Vec<u8> {
    let mut out = Writer::default();
    let (head, octets) = match ip {
        IpAddr::V4(ip) => (address_head(2, 32, 0, device), ip.octets().to_vec()),
        IpAddr::V6(ip) => (address_head(10, 128, NO_DAD, device), ip.octets().to_vec()),
    };
    let message = out.begin_with(kind, flags, sequence, &head);
    out.bytes(LOCAL, &octets);
    out.bytes(ADDRESS, &octets);
    out.end(message);
    out.into_bytes()
}

fn read_address(body: &[u8]) -> Option<(Index, IpAddr)> {
    let device = Index(u32::from_ne_bytes(*body.get(4..8)?.first_chunk()?));
    let attributes = Attributes(body.get(8..)?);
    // Where the two differ, the other one is at the far end of the wire.
    let data = attributes.get(LOCAL).or_else(|| attributes.get(ADDRESS))?.data;
    let ip = match data.len() {
        4 => IpAddr::from(*data.first_chunk::<4>()?),
        _ => IpAddr::from(*data.first_chunk::<16>()?),
    };
    Some((device, ip))
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
