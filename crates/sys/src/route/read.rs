//! What the kernel tells of devices, addresses, routes and neighbours.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nft::wire::{Attribute, Attributes};

pub(super) const UP: u32 = 0x1;
pub(super) const PROMISCUOUS: u32 = 0x100;
pub(super) const ALL_MULTICAST: u32 = 0x200;
const LOWER_UP: u32 = 0x1_0000;
const TENTATIVE: u32 = 0x40;
const DAD_FAILED: u32 = 0x08;

/// The table that everybody's routes are in.
pub const MAIN_TABLE: u32 = 254;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    /// What made it: `veth`, `bridge`, …; empty for the machine's own.
    pub kind: String,
    /// What somebody says that it is for.
    pub alias: String,
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    pub master: Option<u32>,
    /// The other end of a cable, by its number there.
    pub peer: Option<u32>,
    pub is_up: bool,
    /// What is at the other end is up as well.
    pub has_carrier: bool,
    pub is_promiscuous: bool,
    pub is_all_multicast: bool,
    pub queue_length: u32,
    /// Of a port of a bridge.
    pub is_hairpin: bool,
    pub is_isolated: bool,
    pub vxlan: Option<Vxlan>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vxlan {
    pub id: u32,
    pub port: u16,
    pub local: Option<IpAddr>,
    pub device: u32,
    pub learns: bool,
    pub has_policy: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub device: u32,
    pub ip: IpAddr,
    pub length: u8,
    /// Nobody may use it yet: others could have it.
    pub is_tentative: bool,
    /// Others have it.
    pub is_taken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub to: IpAddr,
    pub length: u8,
    pub device: u32,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    pub priority: Option<u32>,
    pub table: u32,
    pub scope: u8,
    pub protocol: Option<u8>,
    pub is_on_link: bool,
    pub mtu: Option<u32>,
    /// The largest segment that is announced.
    pub segment: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub device: u32,
    pub ip: Option<IpAddr>,
    pub mac: Option<[u8; 6]>,
    pub is_permanent: bool,
}

// === impl Link ===

impl Link {
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let index = word_at(body, 4)?;
        let flags = word_at(body, 8)?;
        let attributes = Attributes(body.get(16..)?);
        let info = attributes.get(18).map(|info| info.nested());
        let kind = info.and_then(|info| info.get(1)?.text()).unwrap_or_default().to_owned();
        let data = info.and_then(|info| info.get(2)).map(|data| data.nested());
        let port = info.and_then(|info| info.get(5)).map(|port| port.nested());
        let port_flag = |kind| port.and_then(|port| port.get(kind)?.u8()) == Some(1);
        let number = |kind| attributes.get(kind).and_then(|a| word_at(a.data, 0));
        Some(Self {
            index,
            name: attributes.get(3)?.text()?.to_owned(),
            vxlan: data.filter(|_| kind == "vxlan").map(read_vxlan),
            alias: attributes.get(20).and_then(|alias| alias.text()).unwrap_or_default().to_owned(),
            mac: attributes.get(1).and_then(read_mac),
            mtu: number(4).unwrap_or_default(),
            master: number(10),
            peer: number(5).filter(|_| kind == "veth"),
            is_up: flags & UP != 0,
            has_carrier: flags & LOWER_UP != 0,
            is_promiscuous: flags & PROMISCUOUS != 0 || number(30).is_some_and(|count| count > 0),
            is_all_multicast: flags & ALL_MULTICAST != 0,
            queue_length: number(13).unwrap_or_default(),
            is_hairpin: port_flag(4),
            is_isolated: port_flag(33),
            kind,
        })
    }
}

fn read_vxlan(data: Attributes<'_>) -> Vxlan {
    let number = |kind| data.get(kind).and_then(|a| word_at(a.data, 0)).unwrap_or_default();
    let port = data.get(15).and_then(|a| a.data.first_chunk().map(|bytes| u16::from_be_bytes(*bytes)));
    Vxlan {
        id: number(1),
        device: number(3),
        port: port.unwrap_or_default(),
        local: data.get(4).or_else(|| data.get(17)).and_then(read_ip),
        learns: data.get(7).and_then(|a| a.u8()) == Some(1),
        has_policy: data.get(23).is_some(),
    }
}

// === impl Address ===

impl Address {
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let attributes = Attributes(body.get(8..)?);
        let flags = attributes.get(8).and_then(|a| word_at(a.data, 0)).unwrap_or(u32::from(*body.get(2)?));
        Some(Self {
            device: word_at(body, 4)?,
            // Where the two differ, the other one is at the far end of the wire.
            ip: attributes.get(2).or_else(|| attributes.get(1)).and_then(read_ip)?,
            length: *body.get(1)?,
            is_tentative: flags & TENTATIVE != 0,
            is_taken: flags & DAD_FAILED != 0,
        })
    }
}

// === impl Route ===

impl Route {
    /// Through a gateway, or where the destination is at the device itself.
    #[must_use]
    pub fn new(to: IpAddr, length: u8, device: u32, gateway: Option<IpAddr>) -> Self {
        Self {
            to,
            length,
            device,
            gateway,
            source: None,
            priority: None,
            table: MAIN_TABLE,
            scope: 0,
            protocol: None,
            is_on_link: false,
            mtu: None,
            segment: None,
        }
    }

    /// `None` for what is no way for packets of ours: local and broadcast addresses, ways with several ends.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        const UNICAST: u8 = 1;
        let [family, length, _, _, table, protocol, scope, kind] = *body.first_chunk()?;
        let flags = word_at(body, 8)?;
        (kind == UNICAST && matches!(family, 2 | 10)).then_some(())?;
        let attributes = Attributes(body.get(12..)?);
        let number = |kind| attributes.get(kind).and_then(|a| word_at(a.data, 0));
        let metrics = attributes.get(8).map(|metrics| metrics.nested());
        let metric = |kind| metrics.and_then(|m| word_at(m.get(kind)?.data, 0));
        Some(Self {
            to: attributes.get(1).and_then(read_ip).unwrap_or(unspecified(family)),
            length,
            device: number(4)?,
            gateway: attributes.get(5).and_then(read_ip),
            source: attributes.get(7).and_then(read_ip),
            priority: number(6),
            table: number(15).unwrap_or(u32::from(table)),
            scope,
            protocol: Some(protocol),
            is_on_link: flags & 4 != 0,
            mtu: metric(2),
            segment: metric(8),
        })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.to, self.length)?;
        match self.gateway {
            Some(gateway) => write!(f, " by {gateway}"),
            None => Ok(()),
        }
    }
}

// === impl Neighbour ===

impl Neighbour {
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let state = u16::from_ne_bytes(*body.get(8..)?.first_chunk()?);
        let attributes = Attributes(body.get(12..)?);
        Some(Self {
            device: word_at(body, 4)?,
            ip: attributes.get(1).and_then(read_ip),
            mac: attributes.get(2).and_then(read_mac),
            is_permanent: state & 0x80 != 0,
        })
    }
}

/// The device, what kind of queue it has, and its rate in bytes a second.
pub(super) fn queue(body: &[u8]) -> Option<(u32, String, Option<u64>)> {
    let attributes = Attributes(body.get(20..)?);
    let kind = attributes.get(1)?.text()?.to_owned();
    let options = attributes.get(2).filter(|_| kind == "tbf").map(|options| options.nested());
    let rate = options.and_then(|options| {
        let wide = options.get(4).and_then(|a| a.data.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)));
        wide.or_else(|| word_at(options.get(1)?.data, 8).map(u64::from))
    });
    Some((word_at(body, 4)?, kind, rate))
}

fn word_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

fn read_mac(attribute: Attribute<'_>) -> Option<[u8; 6]> {
    attribute.data.try_into().ok()
}

fn read_ip(attribute: Attribute<'_>) -> Option<IpAddr> {
    match attribute.data.len() {
        4 => attribute.data.first_chunk::<4>().map(|bytes| IpAddr::from(*bytes)),
        16 => attribute.data.first_chunk::<16>().map(|bytes| IpAddr::from(*bytes)),
        _ => None,
    }
}

/// What a destination without an address is: everybody.
fn unspecified(family: u8) -> IpAddr {
    if family == 2 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}
