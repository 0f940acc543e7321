//! Hands on IPVS: virtual servers, the real servers behind them, timeouts.

use std::net::{IpAddr, SocketAddr};

use nft::wire::{Attributes, FLAG_ACK, FLAG_DUMP, Writer};
use rustix::io::Errno;
use rustix::net::netlink;

use crate::netlink::{Failures, Listed, Netlink, SocketError};

/// Generic netlink gives each family a number, and this one tells them.
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

const NEW_SERVICE: u8 = 1;
const SET_SERVICE: u8 = 2;
const DELETE_SERVICE: u8 = 3;
const GET_SERVICE: u8 = 4;
const NEW_DESTINATION: u8 = 5;
const SET_DESTINATION: u8 = 6;
const DELETE_DESTINATION: u8 = 7;
const GET_DESTINATION: u8 = 8;
const SET_CONFIG: u8 = 12;

const SERVICE: u16 = 1;
const DESTINATION: u16 = 2;
const TIMEOUT_TCP: u16 = 4;
const TIMEOUT_TCP_FIN: u16 = 5;
const TIMEOUT_UDP: u16 = 6;

/// Attributes of a service.
mod service {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const FIREWALL_MARK: u16 = 5;
    pub(super) const SCHEDULER: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const TIMEOUT: u16 = 8;
    pub(super) const NETMASK: u16 = 9;
}

/// Attributes of a destination.
mod destination {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 2;
    pub(super) const FORWARDING: u16 = 3;
    pub(super) const WEIGHT: u16 = 4;
    pub(super) const UPPER: u16 = 5;
    pub(super) const LOWER: u16 = 6;
    pub(super) const ACTIVE: u16 = 7;
    pub(super) const INACTIVE: u16 = 8;
    pub(super) const FAMILY: u16 = 11;
}

const PERSISTENT: u32 = 0x1;
/// The scheduler's second switch: for `mh` and `sh`, the client's port counts as well.
const HASHES_PORTS: u32 = 0x10;

const TRIES: u32 = 5;

/// The virtual servers of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Ipvs {
    netlink: Netlink,
    family: u16,
}

/// By what a virtual server is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerId {
    /// The number in the IP header.
    pub protocol: u8,
    pub address: SocketAddr,
}

/// How a virtual server behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    pub scheduler: String,
    /// For how many seconds a client keeps its real server.
    pub persistence: Option<u32>,
    pub hashes_ports: bool,
}

/// What is to be done to one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    Add(ServerId, Behaviour),
    Change(ServerId, Behaviour),
    Delete(ServerId),
    AddReal(ServerId, SocketAddr, u32),
    SetWeight(ServerId, SocketAddr, u32),
    DeleteReal(ServerId, SocketAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Real {
    pub address: SocketAddr,
    pub weight: u32,
    pub active: u32,
    pub inactive: u32,
}

/// Zero leaves a timeout as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    pub tcp: u32,
    pub tcp_fin: u32,
    pub udp: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to IPVS: {0}")]
    Socket(#[from] SocketError),
    #[error("this kernel has no IPVS")]
    Missing,
    #[error("listing {what}: {cause}")]
    Listing { what: &'static str, cause: Errno },
    #[error("{order}: {cause}")]
    Refused { order: String, cause: Errno },
}

// === impl Ipvs ===

impl Ipvs {
    /// Asking for it makes the kernel load it, where it is a module.
    pub fn open() -> Result<Self, Error> {
        let mut netlink = Netlink::open(Some(netlink::GENERIC))?;
        let mut out = Writer::default();
        let sequence = netlink.next_sequence();
        let message = out.begin_with(CONTROL, FLAG_ACK, sequence, &[GET_FAMILY, 1, 0, 0]);
        out.text(FAMILY_NAME, "IPVS");
        out.end(message);
        let mut family = None;
        let listed = netlink.list(&out.into_bytes(), sequence, |body| {
            let id = body.get(4..).and_then(|bytes| Attributes(bytes).get(FAMILY_ID));
            family = id.and_then(|id| id.data.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes)));
        })?;
        match (listed, family) {
            (Listed::Whole, Some(family)) => Ok(Self { netlink, family }),
            (Listed::Refused(Errno::NOENT), _) | (_, None) => Err(Error::Missing),
            (Listed::Refused(cause), _) => Err(Error::Listing { what: "netlink families", cause }),
            (Listed::Disturbed, Some(family)) => Ok(Self { netlink, family }),
        }
    }

    /// Every virtual server that is known by an address.
    pub fn servers(&mut self) -> Result<Vec<(ServerId, Behaviour)>, Error> {
        self.list("virtual servers", GET_SERVICE, |_| {}, read_service)
    }

    pub fn reals(&mut self, of: ServerId) -> Result<Vec<Real>, Error> {
        let read = |attributes: Attributes<'_>| read_destination(attributes, of.address.is_ipv6());
        self.list("real servers", GET_DESTINATION, |out| write_service(out, of, None), read)
    }

    /// All of them, whatever becomes of one. An error only if nobody can say what became of them.
    pub fn carry_out(&mut self, orders: &[Order]) -> Result<Failures<Error>, Error> {
        let messages: Vec<(u32, Vec<u8>)> = orders
            .iter()
            .map(|order| {
                let sequence = self.netlink.next_sequence();
                (sequence, order.write(self.family, sequence))
            })
            .collect();
        let outcomes = self.netlink.orders(&messages)?;
        let refused = orders.iter().zip(outcomes).enumerate().filter_map(|(place, (order, outcome))| {
            let cause = outcome.err().filter(|cause| !order.is_done_by(*cause))?;
            Some((place, Error::Refused { order: order.describe(), cause }))
        });
        Ok(Failures(refused.collect()))
    }

    pub fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin_with(self.family, FLAG_ACK, sequence, &[SET_CONFIG, 1, 0, 0]);
        let values =
            [(TIMEOUT_TCP, timeouts.tcp), (TIMEOUT_TCP_FIN, timeouts.tcp_fin), (TIMEOUT_UDP, timeouts.udp)];
        for (kind, seconds) in values {
            out.bytes(kind, &seconds.to_ne_bytes());
        }
        out.end(message);
        let outcome = self.netlink.order(&out.into_bytes(), sequence)?;
        outcome.map_err(|cause| Error::Refused { order: "setting the timeouts of IPVS".into(), cause })
    }

    fn list<T>(
        &mut self,
        what: &'static str,
        command: u8,
        fill: impl Fn(&mut Writer),
        read: impl Fn(Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        for tries in 1.. {
            let mut out = Writer::default();
            let sequence = self.netlink.next_sequence();
            let message = out.begin_with(self.family, FLAG_DUMP, sequence, &[command, 1, 0, 0]);
            fill(&mut out);
            out.end(message);
            let mut found = Vec::new();
            let listed = self.netlink.list(&out.into_bytes(), sequence, |body| {
                found.extend(body.get(4..).and_then(|bytes| read(Attributes(bytes))));
            })?;
            match listed {
                Listed::Refused(cause) => return Err(Error::Listing { what, cause }),
                Listed::Disturbed if tries < TRIES => {}
                Listed::Whole | Listed::Disturbed => return Ok(found),
            }
        }
        Ok(Vec::new())
    }
}

// === impl Order ===

impl Order {
    fn write(&self, family: u16, sequence: u32) -> Vec<u8> {
        let mut out = Writer::default();
        let command = match self {
            Order::Add(..) => NEW_SERVICE,
            Order::Change(..) => SET_SERVICE,
            Order::Delete(_) => DELETE_SERVICE,
            Order::AddReal(..) => NEW_DESTINATION,
            Order::SetWeight(..) => SET_DESTINATION,
            Order::DeleteReal(..) => DELETE_DESTINATION,
        };
        let message = out.begin_with(family, FLAG_ACK, sequence, &[command, 1, 0, 0]);
        match self {
            Order::Add(id, behaviour) | Order::Change(id, behaviour) => {
                write_service(&mut out, *id, Some(behaviour));
            }
            Order::Delete(id) => write_service(&mut out, *id, None),
            Order::AddReal(id, real, weight) | Order::SetWeight(id, real, weight) => {
                write_service(&mut out, *id, None);
                write_destination(&mut out, *real, Some(*weight));
            }
            Order::DeleteReal(id, real) => {
                write_service(&mut out, *id, None);
                write_destination(&mut out, *real, None);
            }
        }
        out.end(message);
        out.into_bytes()
    }

    /// Whether an error says that there is nothing left to do.
    fn is_done_by(&self, cause: Errno) -> bool {
        match self {
            Order::AddReal(..) => cause == Errno::EXIST,
            Order::Delete(_) => cause == Errno::SRCH,
            // The one if the virtual server is gone, the other if only the real one is.
            Order::DeleteReal(..) => cause == Errno::SRCH || cause == Errno::NOENT,
            Order::Add(..) | Order::Change(..) | Order::SetWeight(..) => false,
        }
    }

    fn describe(&self) -> String {
        match self {
            Order::Add(id, behaviour) => {
                format!("adding virtual server {} with scheduler {}", id.address, behaviour.scheduler)
            }
            Order::Change(id, _) => format!("changing virtual server {}", id.address),
            Order::Delete(id) => format!("deleting virtual server {}", id.address),
            Order::AddReal(id, real, _) => format!("adding real server {real} to {}", id.address),
            Order::SetWeight(id, real, weight) => {
                format!("giving real server {real} of {} weight {weight}", id.address)
            }
            Order::DeleteReal(id, real) => format!("deleting real server {real} of {}", id.address),
        }
    }
}

fn family_number(is_v6: bool) -> u16 {
    if is_v6 { 10 } else { 2 }
}

/// Whatever the family, there is room for the longer address.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut all = [0; 16];
            all[..4].copy_from_slice(&ip.octets());
            all
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn read_ip(data: &[u8], is_v6: bool) -> Option<IpAddr> {
    match is_v6 {
        false => data.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        true => data.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
    }
}

fn write_service(out: &mut Writer, id: ServerId, behaviour: Option<&Behaviour>) {
    let is_v6 = id.address.is_ipv6();
    let nest = out.nest(SERVICE);
    out.bytes(service::FAMILY, &family_number(is_v6).to_ne_bytes());
    out.bytes(service::PROTOCOL, &u16::from(id.protocol).to_ne_bytes());
    out.bytes(service::ADDRESS, &octets(id.address.ip()));
    out.bytes(service::PORT, &id.address.port().to_be_bytes());
    if let Some(behaviour) = behaviour {
        out.text(service::SCHEDULER, &behaviour.scheduler);
        let persistent = if behaviour.persistence.is_some() { PERSISTENT } else { 0 };
        let hashes_ports = if behaviour.hashes_ports { HASHES_PORTS } else { 0 };
        let flags = [(persistent | hashes_ports).to_ne_bytes(), u32::MAX.to_ne_bytes()].concat();
        out.bytes(service::FLAGS, &flags);
        out.bytes(service::TIMEOUT, &behaviour.persistence.unwrap_or(0).to_ne_bytes());
        // Each client for itself; the families count differently.
        let mask: u32 = if is_v6 { 128 } else { u32::MAX };
        out.bytes(service::NETMASK, &mask.to_ne_bytes());
    }
    out.close(nest);
}

fn write_destination(out: &mut Writer, real: SocketAddr, weight: Option<u32>) {
    let nest = out.nest(DESTINATION);
    out.bytes(destination::FAMILY, &family_number(real.is_ipv6()).to_ne_bytes());
    out.bytes(destination::ADDRESS, &octets(real.ip()));
    out.bytes(destination::PORT, &real.port().to_be_bytes());
    if let Some(weight) = weight {
        const MASQUERADING: u32 = 0;
        let values = [
            (destination::FORWARDING, MASQUERADING),
            (destination::WEIGHT, weight),
            (destination::UPPER, 0),
            (destination::LOWER, 0),
        ];
        for (kind, value) in values {
            out.bytes(kind, &value.to_ne_bytes());
        }
    }
    out.close(nest);
}

/// `None` for those known by a mark instead of an address: they are not ours.
fn read_service(attributes: Attributes<'_>) -> Option<(ServerId, Behaviour)> {
    let all = attributes.get(SERVICE)?.nested();
    let half = |kind: u16| all.get(kind)?.data.first_chunk().map(|b| u16::from_ne_bytes(*b));
    if all.get(service::FIREWALL_MARK).is_some() {
        return None;
    }
    let ip = read_ip(all.get(service::ADDRESS)?.data, half(service::FAMILY)? == 10)?;
    let port = u16::from_be_bytes(*all.get(service::PORT)?.data.first_chunk()?);
    let flags = u32::from_ne_bytes(*all.get(service::FLAGS)?.data.first_chunk()?);
    let timeout = u32::from_ne_bytes(*all.get(service::TIMEOUT)?.data.first_chunk()?);
    let behaviour = Behaviour {
        scheduler: all.get(service::SCHEDULER)?.text()?.to_owned(),
        persistence: (flags & PERSISTENT != 0).then_some(timeout),
        hashes_ports: flags & HASHES_PORTS != 0,
    };
    let protocol = u8::try_from(half(service::PROTOCOL)?).ok()?;
    Some((ServerId { protocol, address: SocketAddr::new(ip, port) }, behaviour))
}

fn read_destination(attributes: Attributes<'_>, is_v6: bool) -> Option<Real> {
    let all = attributes.get(DESTINATION)?.nested();
    let word = |kind: u16| all.get(kind)?.data.first_chunk().map(|b| u32::from_ne_bytes(*b));
    let family =
        all.get(destination::FAMILY).and_then(|a| a.data.first_chunk().map(|b| u16::from_ne_bytes(*b)));
    let ip = read_ip(all.get(destination::ADDRESS)?.data, family.map_or(is_v6, |family| family == 10))?;
    let port = u16::from_be_bytes(*all.get(destination::PORT)?.data.first_chunk()?);
    Some(Real {
        address: SocketAddr::new(ip, port),
        weight: word(destination::WEIGHT)?,
        active: word(destination::ACTIVE).unwrap_or(0),
        inactive: word(destination::INACTIVE).unwrap_or(0),
    })
}

#[cfg(test)]
#[path = "ipvs_tests.rs"]
mod tests;
