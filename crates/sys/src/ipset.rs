//! Hands on ipsets: make, fill, list, destroy.

use std::net::IpAddr;

use nft::wire::{Attribute, Attributes, FLAG_ACK, FLAG_CREATE, FLAG_DUMP, Writer};
use rustix::io::Errno;
use rustix::net::netlink;

use crate::netlink::{Failures, Listed, Netlink, SocketError, code};

const SUBSYSTEM: u16 = 6 << 8;
const CREATE: u16 = SUBSYSTEM | 2;
const DESTROY: u16 = SUBSYSTEM | 3;
const LIST: u16 = SUBSYSTEM | 7;
const ADD: u16 = SUBSYSTEM | 9;
const DELETE: u16 = SUBSYSTEM | 10;
const TYPE: u16 = SUBSYSTEM | 13;

/// The oldest version of the language that kernels in use understand, which has all we need.
const PROTOCOL_VERSION: u8 = 6;

const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const REVISION: u16 = 4;
const FAMILY: u16 = 5;
const DATA: u16 = 7;
const ENTRIES: u16 = 8;
const LINE: u16 = 9;

const IP: u16 = 1;
const CIDR: u16 = 3;
const PORT: u16 = 4;
const PORT_TO: u16 = 5;
const PROTO: u16 = 7;
const MOST_ENTRIES: u16 = 19;
const IP2: u16 = 20;
const CIDR2: u16 = 21;
/// Says that a number is in network order.
const NETWORK_ORDER: u16 = 0x4000;

/// Entries of one message: all of them are nested in one attribute, which cannot hold more than 64 KiB.
const AT_ONCE: usize = 500;

/// Upstream stops at 65,536, and clusters have met that.
const MOST: u32 = 1 << 20;

const TRIES: u32 = 5;

/// The sets of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Ipsets {
    netlink: Netlink,
}

/// What an entry of a set consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetType {
    Ip,
    IpPort,
    IpPortIp,
    IpPortNet,
    /// Every port, one bit each.
    Port,
}

/// An entry; which parts there are depends on the kind of the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub ip: Option<IpAddr>,
    /// The number in the IP header.
    pub protocol: Option<u8>,
    pub port: Option<u16>,
    /// Another address, with the length of its prefix where the set has prefixes.
    pub second: Option<(IpAddr, Option<u8>)>,
}

/// A set as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub name: String,
    /// `None` for one that we would never make.
    pub kind: Option<SetType>,
    pub is_v6: bool,
    pub entries: Vec<Entry>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to ipset: {0}")]
    Socket(#[from] SocketError),
    #[error("{act} ipset {name}: {}", explain(*.code))]
    Refused { act: &'static str, name: String, code: i32 },
}

// === impl Ipsets ===

impl Ipsets {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open(Some(netlink::NETFILTER))? })
    }

    /// All sets whose name begins so, with their entries.
    pub fn list(&mut self, prefix: &str) -> Result<Vec<Set>, Error> {
        for tries in 1.. {
            let mut sets: Vec<Set> = Vec::new();
            let (sequence, bytes) = self.message(LIST, FLAG_DUMP, false, |_| {});
            let listed = self.netlink.list(&bytes, sequence, |body| {
                let set = body.get(4..).and_then(Set::read).filter(|set| set.name.starts_with(prefix));
                // A large set comes in several pieces.
                match (set, sets.last_mut()) {
                    (Some(more), Some(last)) if last.name == more.name => last.entries.extend(more.entries),
                    (Some(set), _) => sets.push(set),
                    (None, _) => {}
                }
            })?;
            match listed {
                Listed::Refused(cause) => return Err(refused("listing", "all", cause)),
                Listed::Disturbed if tries < TRIES => {}
                Listed::Whole | Listed::Disturbed => return Ok(sets),
            }
        }
        Ok(Vec::new())
    }

    /// Makes a set. One that is there already is an error.
    pub fn create(&mut self, name: &str, kind: SetType, is_v6: bool) -> Result<(), Error> {
        let revision = self.revision(kind, is_v6)?;
        let flags = FLAG_ACK | FLAG_CREATE | 0x200;
        let (sequence, bytes) = self.message(CREATE, flags, is_v6, |out| {
            out.text(NAME, name);
            out.text(TYPE_NAME, kind.name());
            out.u8(REVISION, revision);
            out.u8(FAMILY, family(kind, is_v6));
            let data = out.nest(DATA);
            match kind {
                SetType::Port => {
                    out.bytes(PORT | NETWORK_ORDER, &0u16.to_be_bytes());
                    out.bytes(PORT_TO | NETWORK_ORDER, &u16::MAX.to_be_bytes());
                }
                _ => out.u32(MOST_ENTRIES | NETWORK_ORDER, MOST),
            }
            out.close(data);
        });
        self.netlink.order(&bytes, sequence)?.map_err(|cause| refused("making", name, cause))
    }

    /// Destroys a set; one that is not there is no failure, one that a rule names is.
    pub fn destroy(&mut self, name: &str) -> Result<(), Error> {
        let (sequence, bytes) = self.message(DESTROY, FLAG_ACK, false, |out| out.text(NAME, name));
        match self.netlink.order(&bytes, sequence)? {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(cause) => Err(refused("destroying", name, cause)),
        }
    }

    /// Adds entries, whatever becomes of the others; those that are there already will do.
    pub fn add(&mut self, name: &str, entries: &[Entry]) -> Result<Failures<Error>, Error> {
        self.change(ADD, "adding to", name, entries)
    }

    /// Deletes entries, whatever becomes of the others; those that are not there will do.
    pub fn delete(&mut self, name: &str, entries: &[Entry]) -> Result<Failures<Error>, Error> {
        self.change(DELETE, "deleting from", name, entries)
    }

    fn change(
        &mut self,
        act: u16,
        verb: &'static str,
        name: &str,
        entries: &[Entry],
    ) -> Result<Failures<Error>, Error> {
        let mut all = Vec::new();
        for (chunk, some) in entries.chunks(AT_ONCE).enumerate() {
            let (sequence, bytes) = self.change_message(act, name, some);
            if self.netlink.order(&bytes, sequence)?.is_ok() {
                continue;
            }
            // The kernel stops at the first that it does not take and does not say which that was.
            let each: Vec<_> = some.chunks(1).map(|one| self.change_message(act, name, one)).collect();
            let outcomes = self.netlink.orders(&each)?.into_iter().enumerate();
            all.extend(outcomes.filter_map(|(at, outcome)| {
                Some((chunk * AT_ONCE + at, refused(verb, name, outcome.err()?)))
            }));
        }
        Ok(Failures(all))
    }

    /// Without the flag that wants to be the first, what is done already is no failure.
    fn change_message(&mut self, act: u16, name: &str, entries: &[Entry]) -> (u32, Vec<u8>) {
        self.message(act, FLAG_ACK, false, |out| {
            out.text(NAME, name);
            out.u32(LINE | NETWORK_ORDER, 0);
            let all = out.nest(ENTRIES);
            entries.iter().for_each(|entry| entry.write(out));
            out.close(all);
        })
    }

    /// The newest form of a kind of set that this kernel knows.
    fn revision(&mut self, kind: SetType, is_v6: bool) -> Result<u8, Error> {
        let (sequence, bytes) = self.message(TYPE, FLAG_ACK, is_v6, |out| {
            out.text(TYPE_NAME, kind.name());
            out.u8(FAMILY, family(kind, is_v6));
        });
        let mut revision = None;
        let listed = self.netlink.list(&bytes, sequence, |body| {
            revision = body.get(4..).and_then(|b| Attributes(b).get(REVISION)?.u8());
        })?;
        match (listed, revision) {
            (Listed::Refused(cause), _) => Err(refused("asking for the type of", kind.name(), cause)),
            (_, revision) => Ok(revision.unwrap_or(0)),
        }
    }

    fn message(
        &mut self,
        kind: u16,
        flags: u16,
        is_v6: bool,
        fill: impl FnOnce(&mut Writer),
    ) -> (u32, Vec<u8>) {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin(kind, flags, sequence, if is_v6 { 10 } else { 2 }, 0);
        out.u8(PROTOCOL, PROTOCOL_VERSION);
        fill(&mut out);
        out.end(message);
        (sequence, out.into_bytes())
    }
}

// === impl Error ===

impl Error {
    /// Whether it says that there are no ipsets here. A part of netfilter that is not there is an argument that is wrong.
    pub fn is_about_a_kernel_without(&self) -> bool {
        match self {
            Error::Socket(_) => false,
            Error::Refused { code, .. } => {
                [Errno::INVAL, Errno::OPNOTSUPP].iter().any(|errno| errno.raw_os_error() == *code)
            }
        }
    }
}

fn family(kind: SetType, is_v6: bool) -> u8 {
    match (kind, is_v6) {
        (SetType::Port, _) => 0,
        (_, false) => 2,
        (_, true) => 10,
    }
}

fn refused(act: &'static str, name: &str, cause: Errno) -> Error {
    Error::Refused { act, name: name.to_owned(), code: code(cause) }
}

/// ipset has error numbers of its own above those that everybody has.
fn explain(code: i32) -> String {
    match code {
        4097 => "the kernel did not understand the request".into(),
        4098 => "this kernel has no such type of set".into(),
        4099 => "there are too many sets".into(),
        4100 => "it is used by a rule".into(),
        4103 => "it is there already".into(),
        4104 => "there is no such prefix".into(),
        4109 | 4110 => "the address is of the other family".into(),
        4352 => "it is full".into(),
        4096.. => format!("error {code} of its own"),
        _ => Errno::from_raw_os_error(code).to_string(),
    }
}

// === impl SetType ===

impl SetType {
    const ALL: [SetType; 5] =
        [SetType::Ip, SetType::IpPort, SetType::IpPortIp, SetType::IpPortNet, SetType::Port];

    /// As `ipset list` calls it.
    pub fn name(self) -> &'static str {
        match self {
            SetType::Ip => "hash:ip",
            SetType::IpPort => "hash:ip,port",
            SetType::IpPortIp => "hash:ip,port,ip",
            SetType::IpPortNet => "hash:ip,port,net",
            SetType::Port => "bitmap:port",
        }
    }
}

// === impl Set ===

impl Set {
    fn read(bytes: &[u8]) -> Option<Self> {
        let attributes = Attributes(bytes);
        let kind = attributes.get(TYPE_NAME).and_then(|kind| kind.text());
        let entries = attributes.get(ENTRIES).map(|all| all.nested().filter_map(|e| Entry::read(e.nested())));
        Some(Self {
            name: attributes.get(NAME)?.text()?.to_owned(),
            kind: SetType::ALL.into_iter().find(|known| Some(known.name()) == kind),
            is_v6: attributes.get(FAMILY).and_then(|family| family.u8()) == Some(10),
            entries: entries.into_iter().flatten().collect(),
        })
    }
}

// === impl Entry ===

impl Entry {
    fn write(&self, out: &mut Writer) {
        let entry = out.nest(DATA);
        if let Some(ip) = self.ip {
            write_ip(out, IP, ip);
        }
        if let Some(port) = self.port {
            out.bytes(PORT | NETWORK_ORDER, &port.to_be_bytes());
        }
        if let Some(protocol) = self.protocol {
            out.u8(PROTO, protocol);
        }
        if let Some((ip, length)) = self.second {
            write_ip(out, IP2, ip);
            if let Some(length) = length {
                out.u8(CIDR2, length);
            }
        }
        out.close(entry);
    }

    fn read(attributes: Attributes<'_>) -> Option<Self> {
        let byte = |kind: u16| attributes.get(kind).and_then(|a| a.u8());
        let entry = Self {
            ip: attributes.get(IP).and_then(read_ip),
            protocol: byte(PROTO),
            port: attributes.get(PORT).and_then(|a| a.data.first_chunk().map(|b| u16::from_be_bytes(*b))),
            second: attributes.get(IP2).and_then(read_ip).map(|ip| (ip, byte(CIDR2))),
        };
        // Of an entry that stands for a network we know nothing.
        (byte(CIDR).is_none() && entry != Self::default()).then_some(entry)
    }
}

fn write_ip(out: &mut Writer, kind: u16, ip: IpAddr) {
    let nest = out.nest(kind);
    match ip {
        IpAddr::V4(ip) => out.bytes(1 | NETWORK_ORDER, &ip.octets()),
        IpAddr::V6(ip) => out.bytes(2 | NETWORK_ORDER, &ip.octets()),
    }
    out.close(nest);
}

fn read_ip(attribute: Attribute<'_>) -> Option<IpAddr> {
    let ip = attribute.nested();
    match ip.get(1) {
        Some(v4) => v4.data.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        None => ip.get(2)?.data.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
    }
}

#[cfg(test)]
#[path = "ipset_tests.rs"]
mod tests;
