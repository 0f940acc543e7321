//! Hands on the connection tracking table: list entries, delete one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use nft::wire::{Attributes, FLAG_ACK, FLAG_DUMP, FLAG_INTERRUPTED, Header, Messages, Writer};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

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
    fd: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
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
    #[error("talking to connection tracking: {act}: {cause}")]
    Socket { act: &'static str, cause: io::Error },
    #[error("listing tracked connections: {0}")]
    Listing(Errno),
    #[error("deleting the tracked connection from {source_address} to {destination}: {cause}")]
    Deleting { source_address: SocketAddr, destination: SocketAddr, cause: Errno },
}

// === impl Conntrack ===

impl Conntrack {
    pub fn open() -> Result<Self, Error> {
        let kind = SocketType::RAW;
        let fd = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))
            .map_err(|e| failed("opening a socket", e))?;
        bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(|e| failed("binding", e))?;
        Ok(Self { fd, sequence: 1, buffer: vec![0; 1 << 17].into() })
    }

    /// The entries of a family that the caller wants.
    pub fn list(&mut self, is_v6: bool, is_wanted: impl Fn(&Entry) -> bool) -> Result<Vec<Entry>, Error> {
        for tries in 1.. {
            let mut found = Vec::new();
            let is_whole = self.list_once(is_v6, |entry| {
                if is_wanted(&entry) {
                    found.push(entry);
                }
            })?;
            if is_whole || tries == TRIES {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Says whether the entry was still there.
    pub fn delete(&mut self, entry: &Entry) -> Result<bool, Error> {
        let mut out = Writer::default();
        let sequence = self.next();
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
        match self.order(&out.into_bytes(), sequence)? {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(cause) => {
                Err(Error::Deleting { source_address: entry.source, destination: entry.destination, cause })
            }
        }
    }

    /// Whether the table held still.
    fn list_once(&mut self, is_v6: bool, mut hear: impl FnMut(Entry)) -> Result<bool, Error> {
        let mut out = Writer::default();
        let sequence = self.next();
        let message = out.begin(GET, FLAG_DUMP, sequence, family(is_v6), 0);
        out.end(message);
        self.send(&out.into_bytes())?;
        let mut is_whole = true;
        loop {
            let len = match self.receive() {
                Ok(len) => len,
                Err(Errno::NOBUFS) => {
                    is_whole = false;
                    continue;
                }
                Err(e) => return Err(failed("receiving", e)),
            };
            for (header, body) in Messages(&self.buffer[..len]).filter(|(h, _)| h.sequence == sequence) {
                is_whole &= header.flags & FLAG_INTERRUPTED == 0;
                match outcome(header, body) {
                    Some(Ok(())) => return Ok(is_whole),
                    Some(Err(Errno::INTR)) => return Ok(false),
                    Some(Err(cause)) => return Err(Error::Listing(cause)),
                    None => {
                        if let Some(entry) = Entry::read(body.get(4..).unwrap_or_default()) {
                            hear(entry);
                        }
                    }
                }
            }
        }
    }

    fn order(&mut self, bytes: &[u8], sequence: u32) -> Result<Result<(), Errno>, Error> {
        self.send(bytes)?;
        loop {
            let len = self.receive().map_err(|e| failed("receiving", e))?;
            let mut answers = Messages(&self.buffer[..len]).filter(|(h, _)| h.sequence == sequence);
            if let Some(outcome) = answers.find_map(|(header, body)| outcome(header, body)) {
                return Ok(outcome);
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), Error> {
        let kernel = SocketAddrNetlink::new(0, 0);
        loop {
            match sendto(&self.fd, bytes, SendFlags::empty(), &kernel) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed("sending", e)),
            }
        }
    }

    fn receive(&mut self) -> Result<usize, Errno> {
        loop {
            match recv(&self.fd, &mut *self.buffer, RecvFlags::empty()) {
                Ok((len, _)) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn next(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

const NESTED: u16 = 0x8000;

fn family(is_v6: bool) -> u8 {
    if is_v6 { 10 } else { 2 }
}

fn failed(act: &'static str, cause: Errno) -> Error {
    Error::Socket { act, cause: cause.into() }
}

/// `None` for a message that is no end.
fn outcome(header: Header, body: &[u8]) -> Option<Result<(), Errno>> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    let code = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match header.kind {
        ERROR | DONE if code < 0 => Some(Err(Errno::from_raw_os_error(-code))),
        ERROR | DONE => Some(Ok(())),
        _ => None,
    }
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
