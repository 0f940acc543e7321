//! Hands on the devices, addresses, routes, neighbours and queues of a network namespace: orders by the batch, and lists.
//!
//! * [`order`]: what can be ordered.
//! * [`read`]: what the kernel tells of what is there.

pub mod order;
pub mod read;

use std::io;
use std::net::IpAddr;

use nft::wire::{FLAG_ACK, FLAG_DUMP, Writer};
use rustix::io::Errno;

use crate::netlink::{Listed, Netlink, SocketError};
pub use order::{Form, LinkChange, NewLink, Order, Peer, Port, Queue};
pub use read::{Address, Link, MAIN_TABLE, Neighbour, Route};

const GET_LINK: u16 = 18;
const GET_ADDRESS: u16 = 22;
const GET_ROUTE: u16 = 26;
const GET_NEIGHBOUR: u16 = 30;
const GET_QUEUE: u16 = 38;
const IFNAME: u16 = 3;
const AF_BRIDGE: u8 = 7;

/// A list that is disturbed so often is taken as it is: whatever was missed is met the next time.
const TRIES: u32 = 5;

/// A conversation with the routing part of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Routing {
    netlink: Netlink,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("talking to the routing part of the kernel: {0}")]
    Socket(#[from] SocketError),
    #[error("{act}: {cause}")]
    Refused { act: String, cause: Errno },
    #[error("listing {what}: {cause}")]
    NotListed { what: &'static str, cause: Errno },
}

// === impl Routing ===

impl Routing {
    pub fn open() -> Result<Self, Error> {
        Ok(Self { netlink: Netlink::open(None)? })
    }

    /// Sends all at once. The kernel does them in order, each whatever became of the others, and says so of each.
    pub fn orders(&mut self, orders: &[Order<'_>]) -> Result<Vec<Result<(), Errno>>, Error> {
        let written: Vec<(u32, Vec<u8>)> = orders
            .iter()
            .map(|order| {
                let sequence = self.netlink.next_sequence();
                (sequence, order.write(sequence))
            })
            .collect();
        Ok(self.netlink.orders(&written)?)
    }

    /// The same for who needs all of them: the first that was refused is the failure, unless it is one of those that will
    /// do.
    pub fn commit(&mut self, orders: &[Order<'_>], will_do: &[Errno]) -> Result<(), Error> {
        let outcomes = self.orders(orders)?;
        for (order, outcome) in orders.iter().zip(outcomes) {
            match outcome {
                Err(cause) if !will_do.contains(&cause) => {
                    return Err(Error::Refused { act: order.to_string(), cause });
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub fn link(&mut self, name: &str) -> Result<Option<Link>, Error> {
        self.one_link(0, Some(name))
    }

    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, Error> {
        self.one_link(index, None)
    }

    fn one_link(&mut self, index: u32, name: Option<&str>) -> Result<Option<Link>, Error> {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let message = out.begin_with(GET_LINK, FLAG_ACK, sequence, &order::link_head(0, index, 0, 0));
        if let Some(name) = name {
            out.text(IFNAME, name);
        }
        out.end(message);
        let mut found = None;
        let listed = self.netlink.list(&out.into_bytes(), sequence, |body| {
            found = found.take().or_else(|| Link::read(body));
        })?;
        match listed {
            // A name that is too long to be one is nobody's either.
            Listed::Refused(Errno::NODEV | Errno::RANGE | Errno::INVAL) => Ok(None),
            Listed::Refused(cause) => Err(Error::NotListed { what: "a device", cause }),
            Listed::Whole | Listed::Disturbed => Ok(found),
        }
    }

    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        self.dump(GET_LINK, &order::link_head(0, 0, 0, 0), "devices", Link::read)
    }

    /// Of one device, or of all.
    pub fn addresses(&mut self, device: Option<u32>) -> Result<Vec<Address>, Error> {
        let mut all = self.dump(GET_ADDRESS, &[0; 8], "addresses", Address::read)?;
        all.retain(|address| device.is_none_or(|device| address.device == device));
        Ok(all)
    }

    /// Of all tables.
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        self.dump(GET_ROUTE, &[0; 12], "routes", Route::read)
    }

    /// The way that a packet of this machine would take; none where there is none, or where it would not leave.
    pub fn way_to(&mut self, ip: IpAddr) -> Result<Option<Route>, Error> {
        let mut out = Writer::default();
        let sequence = self.netlink.next_sequence();
        let (family, whole) = if ip.is_ipv4() { (2, 32) } else { (10, 128) };
        let mut head = [0; 12];
        head[..2].copy_from_slice(&[family, whole]);
        let message = out.begin_with(GET_ROUTE, FLAG_ACK, sequence, &head);
        order::write_ip(&mut out, 1, ip);
        out.end(message);
        let mut found = None;
        let listed = self.netlink.list(&out.into_bytes(), sequence, |body| {
            found = found.take().or_else(|| Route::read(body));
        })?;
        match listed {
            Listed::Refused(Errno::NETUNREACH | Errno::HOSTUNREACH) => Ok(None),
            Listed::Refused(cause) => Err(Error::NotListed { what: "a route", cause }),
            Listed::Whole | Listed::Disturbed => Ok(found),
        }
    }

    pub fn neighbours(&mut self) -> Result<Vec<Neighbour>, Error> {
        self.dump(GET_NEIGHBOUR, &[0; 12], "neighbours", Neighbour::read)
    }

    /// Which machine a bridge or a tunnel sends to for which hardware address.
    pub fn forwarding(&mut self) -> Result<Vec<Neighbour>, Error> {
        let mut head = [0; 16];
        head[0] = AF_BRIDGE;
        self.dump(GET_NEIGHBOUR, &head, "forwarding entries", Neighbour::read)
    }

    /// The kinds of the queues of a device, with the rate of those that have one, in bytes a second.
    pub fn queues(&mut self, device: u32) -> Result<Vec<(String, Option<u64>)>, Error> {
        let mut head = [0; 20];
        head[4..8].copy_from_slice(&device.to_ne_bytes());
        let found = self.dump(GET_QUEUE, &head, "queues", read::queue)?;
        Ok(found.into_iter().filter(|(at, ..)| *at == device).map(|(_, kind, rate)| (kind, rate)).collect())
    }

    fn dump<T>(
        &mut self,
        kind: u16,
        head: &[u8],
        what: &'static str,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        for tries in 1.. {
            let mut out = Writer::default();
            let sequence = self.netlink.next_sequence();
            let message = out.begin_with(kind, FLAG_DUMP, sequence, head);
            out.end(message);
            let mut found = Vec::new();
            match self.netlink.list(&out.into_bytes(), sequence, |body| found.extend(read(body)))? {
                Listed::Refused(cause) => return Err(Error::NotListed { what, cause }),
                Listed::Disturbed if tries < TRIES => {}
                Listed::Whole | Listed::Disturbed => return Ok(found),
            }
        }
        Ok(Vec::new())
    }
}

// === impl Error ===

impl Error {
    /// What the kernel said, where it said something.
    pub fn cause(&self) -> Option<Errno> {
        match self {
            Error::Socket(_) => None,
            Error::Refused { cause, .. } | Error::NotListed { cause, .. } => Some(*cause),
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error.cause() {
            Some(cause) => io::Error::new(io::Error::from(cause).kind(), error),
            None => io::Error::other(error),
        }
    }
}

#[cfg(test)]
mod tests;
