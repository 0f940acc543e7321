//! What can be ordered of the routing part of the kernel, and how it is written.

use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nft::wire::{FLAG_ACK, FLAG_CREATE, FLAG_EXCLUSIVE, Writer};

use super::read::{ALL_MULTICAST, PROMISCUOUS, Route, UP};

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const SET_LINK: u16 = 19;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const NEW_QUEUE: u16 = 36;
const NEW_FILTER: u16 = 44;

const FLAG_REPLACE: u16 = 0x100;

const NO_DAD: u8 = 0x02;
const AF_BRIDGE: u8 = 7;
/// Set by hand, and never forgotten.
const PERMANENT: u16 = 0x80;
/// The gateway counts as a neighbour though no address says so.
const ON_LINK: u32 = 4;

#[derive(Clone, Debug)]
pub enum Order<'a> {
    AddLink(NewLink<'a>),
    ChangeLink(u32, LinkChange<'a>),
    DeleteLink(u32),
    /// All devices of a group.
    DeleteGroup(u32),
    /// What a device is for, and how the bridge treats it that it is a port of. By name: the number of a new device is not known
    /// yet.
    Describe {
        name: &'a str,
        alias: &'a str,
        port: Option<Port>,
    },
    /// Of a bridge's port, or of the bridge itself. Its own one is what packets without a tag are in.
    AddVlan {
        port: u32,
        id: u16,
        is_own: bool,
        of_bridge: bool,
    },
    DeleteVlan {
        port: u32,
        id: u16,
    },
    AddAddress {
        device: u32,
        ip: IpAddr,
        length: u8,
        is_trusted: bool,
    },
    DeleteAddress {
        device: u32,
        ip: IpAddr,
        length: u8,
    },
    AddRoute(Route),
    /// In the place of one to the same destination.
    ReplaceRoute(Route),
    DeleteRoute(Route),
    /// Who has an address on a device.
    SetNeighbour {
        device: u32,
        ip: IpAddr,
        mac: [u8; 6],
    },
    DeleteNeighbour {
        device: u32,
        ip: IpAddr,
    },
    /// Behind which machine a tunnel finds a hardware address.
    SetForwarding {
        device: u32,
        mac: [u8; 6],
        to: IpAddr,
    },
    DeleteForwarding {
        device: u32,
        mac: [u8; 6],
        to: IpAddr,
    },
    AddQueue(u32, Queue),
    /// What arrives at one device leaves by another.
    Redirect {
        from: u32,
        to: u32,
    },
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Port {
    pub is_hairpin: bool,
    pub is_isolated: bool,
}

#[derive(Clone, Debug, Default)]
pub struct NewLink<'a> {
    pub name: &'a str,
    pub form: Form<'a>,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u32>,
    pub master: Option<u32>,
    pub is_up: bool,
}

#[derive(Clone, Debug, Default)]
pub enum Form<'a> {
    #[default]
    Dummy,
    Bridge {
        has_vlans: bool,
    },
    Veth(Peer<'a>),
    /// What is sent to it, it sends on after its queue.
    Ifb,
    Vxlan {
        id: u32,
        port: u16,
        local: IpAddr,
        device: u32,
        learns: bool,
        /// Packets carry the mark of their group (GBP).
        has_policy: bool,
    },
}

/// The other end of a cable.
#[derive(Clone, Debug)]
pub struct Peer<'a> {
    pub name: &'a str,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u32>,
    /// Where it is to be, if not here. It is down there.
    pub namespace: Option<BorrowedFd<'a>>,
}

#[derive(Clone, Debug, Default)]
pub struct LinkChange<'a> {
    pub is_up: Option<bool>,
    pub is_promiscuous: Option<bool>,
    pub is_all_multicast: Option<bool>,
    pub name: Option<&'a str>,
    pub mac: Option<[u8; 6]>,
    pub mtu: Option<u32>,
    /// Zero leaves the one it has.
    pub master: Option<u32>,
    pub queue_length: Option<u32>,
    pub group: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub enum Queue {
    /// Where what arrives passes before anything else.
    Arrivals,
    /// In bytes: so many a second, so many at once, so many that wait.
    TokenBucket { rate: u64, burst: u32, limit: u32 },
}

// === impl Order ===

impl Order<'_> {
    pub(super) fn write(&self, sequence: u32) -> Vec<u8> {
        let mut out = Writer::default();
        let (kind, flags, head) = self.head();
        let message = out.begin_with(kind, flags | FLAG_ACK, sequence, &head);
        self.write_body(&mut out);
        out.end(message);
        out.into_bytes()
    }

    fn head(&self) -> (u16, u16, Vec<u8>) {
        let new = FLAG_CREATE | FLAG_EXCLUSIVE;
        match self {
            Order::AddLink(link) => (NEW_LINK, new, new_link_head(link.is_up)),
            Order::ChangeLink(index, change) => (NEW_LINK, 0, change.head(*index)),
            Order::DeleteLink(index) => (DELETE_LINK, 0, link_head(0, *index, 0, 0).to_vec()),
            Order::DeleteGroup(_) => (DELETE_LINK, 0, link_head(0, 0, 0, 0).to_vec()),
            Order::Describe { .. } => (NEW_LINK, 0, link_head(0, 0, 0, 0).to_vec()),
            Order::AddVlan { port, .. } => (SET_LINK, 0, link_head(AF_BRIDGE, *port, 0, 0).to_vec()),
            Order::DeleteVlan { port, .. } => (DELETE_LINK, 0, link_head(AF_BRIDGE, *port, 0, 0).to_vec()),
            Order::AddAddress { device, ip, length, is_trusted } => {
                let flags = if *is_trusted && ip.is_ipv6() { NO_DAD } else { 0 };
                (NEW_ADDRESS, new, address_head(*ip, *length, flags, *device))
            }
            Order::DeleteAddress { device, ip, length } => {
                (DELETE_ADDRESS, 0, address_head(*ip, *length, 0, *device))
            }
            Order::AddRoute(route) => (NEW_ROUTE, FLAG_CREATE, route_head(route)),
            Order::ReplaceRoute(route) => (NEW_ROUTE, FLAG_CREATE | FLAG_REPLACE, route_head(route)),
            Order::DeleteRoute(route) => {
                // Whoever made it.
                let mut head = route_head(route);
                head[5] = route.protocol.unwrap_or(0);
                (DELETE_ROUTE, 0, head)
            }
            Order::SetNeighbour { device, ip, .. } => {
                (NEW_NEIGHBOUR, FLAG_CREATE | FLAG_REPLACE, neighbour_head(family(*ip), *device, 0))
            }
            Order::DeleteNeighbour { device, ip } => {
                (DELETE_NEIGHBOUR, 0, neighbour_head(family(*ip), *device, 0))
            }
            Order::SetForwarding { device, .. } => {
                (NEW_NEIGHBOUR, FLAG_CREATE | FLAG_REPLACE, neighbour_head(AF_BRIDGE, *device, SELF))
            }
            Order::DeleteForwarding { device, .. } => {
                (DELETE_NEIGHBOUR, 0, neighbour_head(AF_BRIDGE, *device, SELF))
            }
            Order::AddQueue(device, queue) => (NEW_QUEUE, new, queue.head(*device)),
            Order::Redirect { from, .. } => {
                let every_protocol = u32::from(3_u16.to_be());
                (NEW_FILTER, new, traffic_head(*from, 0, 0xffff_0000, 1 << 16 | every_protocol))
            }
        }
    }

    fn write_body(&self, out: &mut Writer) {
        match self {
            Order::AddLink(link) => link.write(out),
            Order::ChangeLink(_, change) => change.write(out),
            Order::DeleteLink(_) => {}
            Order::DeleteGroup(group) => word(out, GROUP, *group),
            Order::Describe { name, alias, port } => {
                out.text(IFNAME, name);
                out.bytes(ALIAS, alias.as_bytes());
                let Some(Port { is_hairpin, is_isolated }) = port else { return };
                let info = out.nest(LINK_INFO);
                out.text(4, "bridge");
                let data = out.nest(5);
                out.u8(4, u8::from(*is_hairpin));
                out.u8(33, u8::from(*is_isolated));
                out.close(data);
                out.close(info);
            }
            Order::AddVlan { id, is_own, of_bridge, .. } => {
                // The machine's side of a bridge is its own; what goes without a tag is so both ways.
                write_vlan(out, if *is_own { 2 | 4 } else { 0 }, *id, if *of_bridge { 2 } else { 1 });
            }
            Order::DeleteVlan { id, .. } => write_vlan(out, 0, *id, 1),
            Order::AddAddress { ip, .. } | Order::DeleteAddress { ip, .. } => {
                write_ip(out, 2, *ip);
                write_ip(out, 1, *ip);
            }
            Order::AddRoute(route) | Order::ReplaceRoute(route) | Order::DeleteRoute(route) => {
                write_route(out, route);
            }
            Order::SetNeighbour { ip, mac, .. } => {
                write_ip(out, 1, *ip);
                out.bytes(2, mac);
            }
            Order::DeleteNeighbour { ip, .. } => write_ip(out, 1, *ip),
            Order::SetForwarding { mac, to, .. } | Order::DeleteForwarding { mac, to, .. } => {
                write_ip(out, 1, *to);
                out.bytes(2, mac);
            }
            Order::AddQueue(_, queue) => queue.write(out),
            Order::Redirect { to, .. } => write_redirect(out, *to),
        }
    }
}

impl fmt::Display for Order<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::AddLink(link) => write!(f, "making device {}", link.name),
            Order::ChangeLink(index, _) => write!(f, "changing device {index}"),
            Order::DeleteLink(index) => write!(f, "deleting device {index}"),
            Order::DeleteGroup(group) => write!(f, "deleting the devices of group {group}"),
            Order::Describe { name, .. } => write!(f, "describing device {name}"),
            Order::AddVlan { id, .. } => write!(f, "adding VLAN {id}"),
            Order::DeleteVlan { id, .. } => write!(f, "deleting VLAN {id}"),
            Order::AddAddress { ip, length, .. } => write!(f, "adding address {ip}/{length}"),
            Order::DeleteAddress { ip, length, .. } => write!(f, "deleting address {ip}/{length}"),
            Order::AddRoute(route) => write!(f, "adding the route to {route}"),
            Order::ReplaceRoute(route) => write!(f, "replacing the route to {route}"),
            Order::DeleteRoute(route) => write!(f, "deleting the route to {route}"),
            Order::SetNeighbour { ip, .. } => write!(f, "adding neighbour {ip}"),
            Order::DeleteNeighbour { ip, .. } => write!(f, "deleting neighbour {ip}"),
            Order::SetForwarding { to, .. } => write!(f, "forwarding to {to}"),
            Order::DeleteForwarding { to, .. } => write!(f, "no longer forwarding to {to}"),
            Order::AddQueue(index, _) => write!(f, "adding a queue to device {index}"),
            Order::Redirect { from, .. } => write!(f, "redirecting what arrives at device {from}"),
        }
    }
}

// === links ===

const ADDRESS: u16 = 1;
const IFNAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const QUEUE_LENGTH: u16 = 13;
const LINK_INFO: u16 = 18;
const ALIAS: u16 = 20;
const GROUP: u16 = 27;
const NAMESPACE: u16 = 28;
const AF_SPEC: u16 = 26;
const SELF: u8 = 2;

pub(super) fn link_head(family: u8, index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut head = [0; 16];
    head[0] = family;
    head[4..8].copy_from_slice(&index.to_ne_bytes());
    head[8..12].copy_from_slice(&flags.to_ne_bytes());
    head[12..16].copy_from_slice(&change.to_ne_bytes());
    head
}

fn new_link_head(is_up: bool) -> Vec<u8> {
    let flags = if is_up { UP } else { 0 };
    link_head(0, 0, flags, flags).to_vec()
}

fn word(out: &mut Writer, kind: u16, value: u32) {
    out.bytes(kind, &value.to_ne_bytes());
}

// === impl NewLink ===

impl NewLink<'_> {
    fn write(&self, out: &mut Writer) {
        out.text(IFNAME, self.name);
        if let Some(mac) = self.mac {
            out.bytes(ADDRESS, &mac);
        }
        if let Some(mtu) = self.mtu {
            word(out, MTU, mtu);
        }
        if let Some(master) = self.master {
            word(out, MASTER, master);
        }
        let info = out.nest(LINK_INFO);
        out.text(1, self.form.kind());
        let data = out.nest(2);
        self.form.write(out);
        out.close(data);
        out.close(info);
    }
}

// === impl Form ===

impl Form<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Form::Dummy => "dummy",
            Form::Bridge { .. } => "bridge",
            Form::Veth(_) => "veth",
            Form::Ifb => "ifb",
            Form::Vxlan { .. } => "vxlan",
        }
    }

    fn write(&self, out: &mut Writer) {
        match self {
            Form::Dummy | Form::Ifb | Form::Bridge { has_vlans: false } => {}
            Form::Bridge { has_vlans: true } => out.u8(7, 1),
            Form::Veth(peer) => {
                let nest = out.nest(1);
                // A head of its own comes before the attributes of the other end.
                out.raw(&link_head(0, 0, 0, 0));
                out.text(IFNAME, peer.name);
                if let Some(mac) = peer.mac {
                    out.bytes(ADDRESS, &mac);
                }
                if let Some(mtu) = peer.mtu {
                    word(out, MTU, mtu);
                }
                if let Some(namespace) = peer.namespace {
                    out.bytes(NAMESPACE, &namespace.as_raw_fd().to_ne_bytes());
                }
                out.close(nest);
            }
            Form::Vxlan { id, port, local, device, learns, has_policy } => {
                word(out, 1, *id);
                word(out, 3, *device);
                write_ip(out, if local.is_ipv4() { 4 } else { 17 }, *local);
                out.u8(7, u8::from(*learns));
                out.bytes(15, &port.to_be_bytes());
                if *has_policy {
                    out.bytes(23, &[]);
                }
            }
        }
    }
}

// === impl LinkChange ===

impl LinkChange<'_> {
    fn head(&self, index: u32) -> Vec<u8> {
        let flags =
            [(self.is_up, UP), (self.is_promiscuous, PROMISCUOUS), (self.is_all_multicast, ALL_MULTICAST)];
        let (mut value, mut mask) = (0, 0);
        for (wanted, bit) in flags {
            mask |= if wanted.is_some() { bit } else { 0 };
            value |= if wanted == Some(true) { bit } else { 0 };
        }
        link_head(0, index, value, mask).to_vec()
    }

    fn write(&self, out: &mut Writer) {
        if let Some(name) = self.name {
            out.text(IFNAME, name);
        }
        if let Some(mac) = self.mac {
            out.bytes(ADDRESS, &mac);
        }
        let words =
            [(MTU, self.mtu), (MASTER, self.master), (QUEUE_LENGTH, self.queue_length), (GROUP, self.group)];
        for (kind, value) in words {
            if let Some(value) = value {
                word(out, kind, value);
            }
        }
    }
}

fn write_vlan(out: &mut Writer, flags: u16, id: u16, of: u16) {
    let spec = out.nest(AF_SPEC);
    out.bytes(0, &of.to_ne_bytes());
    let ([a, b], [c, d]) = (flags.to_ne_bytes(), id.to_ne_bytes());
    out.bytes(2, &[a, b, c, d]);
    out.close(spec);
}

// === addresses, routes, neighbours ===

pub(super) fn family(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 2 } else { 10 }
}

fn address_head(ip: IpAddr, length: u8, flags: u8, device: u32) -> Vec<u8> {
    let [a, b, c, d] = device.to_ne_bytes();
    vec![family(ip), length, flags, 0, a, b, c, d]
}

pub(super) fn write_ip(out: &mut Writer, kind: u16, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => out.bytes(kind, &ip.octets()),
        IpAddr::V6(ip) => out.bytes(kind, &ip.octets()),
    }
}

fn route_head(route: &Route) -> Vec<u8> {
    const BOOT: u8 = 3;
    const UNICAST: u8 = 1;
    let table = u8::try_from(route.table).unwrap_or(0);
    let flags = if route.is_on_link { ON_LINK } else { 0 };
    let protocol = route.protocol.unwrap_or(BOOT);
    let mut head = vec![family(route.to), route.length, 0, 0, table, protocol, route.scope, UNICAST];
    head.extend(flags.to_ne_bytes());
    head
}

fn write_route(out: &mut Writer, route: &Route) {
    if route.length > 0 {
        write_ip(out, 1, route.to);
    }
    if route.device != 0 {
        word(out, 4, route.device);
    }
    if let Some(gateway) = route.gateway {
        write_ip(out, 5, gateway);
    }
    if let Some(priority) = route.priority {
        word(out, 6, priority);
    }
    if let Some(source) = route.source {
        write_ip(out, 7, source);
    }
    word(out, 15, route.table);
    if route.mtu.is_some() || route.segment.is_some() {
        let metrics = out.nest(8);
        for (kind, value) in [(2, route.mtu), (8, route.segment)] {
            if let Some(value) = value {
                word(out, kind, value);
            }
        }
        out.close(metrics);
    }
}

fn neighbour_head(family: u8, device: u32, flags: u8) -> Vec<u8> {
    let mut head = vec![family, 0, 0, 0];
    head.extend(device.to_ne_bytes());
    head.extend(PERMANENT.to_ne_bytes());
    head.extend([flags, 0]);
    head
}

// === queues ===

fn traffic_head(device: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let mut head = vec![0; 4];
    for word in [device, handle, parent, info] {
        head.extend(word.to_ne_bytes());
    }
    head
}

// === impl Queue ===

impl Queue {
    fn head(self, device: u32) -> Vec<u8> {
        const ROOT: u32 = 0xffff_ffff;
        const INGRESS: u32 = 0xffff_fff1;
        match self {
            Queue::Arrivals => traffic_head(device, 0xffff_0000, INGRESS, 0),
            Queue::TokenBucket { .. } => traffic_head(device, 0x0001_0000, ROOT, 0),
        }
    }

    fn write(self, out: &mut Writer) {
        match self {
            Queue::Arrivals => out.text(1, "ingress"),
            Queue::TokenBucket { rate, burst, limit } => {
                out.text(1, "tbf");
                let options = out.nest(2);
                let mut parameters = rate_head(u32::try_from(rate).unwrap_or(u32::MAX));
                parameters.extend([0; 12]);
                // Of the burst the kernel makes what it calls buffer.
                for value in [limit, 0, 0] {
                    parameters.extend(value.to_ne_bytes());
                }
                out.bytes(1, &parameters);
                if rate > u64::from(u32::MAX) {
                    out.bytes(4, &rate.to_ne_bytes());
                }
                out.bytes(6, &burst.to_ne_bytes());
                out.close(options);
            }
        }
    }
}

fn rate_head(rate: u32) -> Vec<u8> {
    const ETHERNET: u8 = 1;
    let mut head = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
    head.extend(rate.to_ne_bytes());
    head
}

/// One key that every packet has, and what is done with those.
fn write_redirect(out: &mut Writer, to: u32) {
    const TERMINAL: u8 = 1;
    const STOLEN: u32 = 4;
    const EGRESS_REDIRECT: u32 = 1;
    out.text(1, "u32");
    let options = out.nest(2);
    let mut selector = vec![TERMINAL, 0, 1, 0];
    selector.extend([0; 12]);
    selector.extend([0; 16]);
    word(out, 1, 0x0001_0001);
    out.bytes(5, &selector);
    let actions = out.nest(7);
    let first = out.nest(1);
    out.text(1, "mirred");
    let parameters = out.nest(2);
    let mut mirror = Vec::new();
    for value in [0, 0, STOLEN, 0, 0, EGRESS_REDIRECT, to] {
        mirror.extend(value.to_ne_bytes());
    }
    out.bytes(2, &mirror);
    out.close(parameters);
    out.close(first);
    out.close(actions);
    out.close(options);
}
