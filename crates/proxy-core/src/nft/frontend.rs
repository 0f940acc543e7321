//! What is said of a packet in one family.

use std::net::{IpAddr, SocketAddr};

use nft::{Address, Expr, Meta, Reg};

use crate::objects::{Cidr, Family, Protocol};
use crate::rules::{Hairpin, NodePortKey, VipKey};

use super::sets::SetId;

/// The lower bits of an affinity id number the endpoints of a port, as many as there may be.
pub(super) const ENDPOINT_BITS: u32 = 14;

/// The bits that all affinity ids of a Service port share.
pub(super) const PORT_MASK: u32 = !((1 << ENDPOINT_BITS) - 1);

/// How a packet finds its Service: by an address of its own, or by a port of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Frontend {
    Vip,
    NodePort,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matches(pub(super) Family);

// === impl Frontend ===

impl Frontend {
    pub(super) const BOTH: [Frontend; 2] = [Frontend::Vip, Frontend::NodePort];

    fn choose(self, vip: SetId, node_port: SetId) -> SetId {
        match self {
            Frontend::Vip => vip,
            Frontend::NodePort => node_port,
        }
    }

    pub(super) fn all(self) -> SetId {
        self.choose(SetId::ServiceIps, SetId::ServiceNodePorts)
    }

    pub(super) fn local(self) -> SetId {
        self.choose(SetId::LocalServiceIps, SetId::LocalServiceNodePorts)
    }

    pub(super) fn endpoints(self) -> SetId {
        self.choose(SetId::ServiceEndpoints, SetId::NodePortEndpoints)
    }

    pub(super) fn rejected(self) -> SetId {
        self.choose(SetId::NoEndpointServices, SetId::NoEndpointNodePorts)
    }

    pub(super) fn dropped(self) -> SetId {
        self.choose(SetId::NoLocalEndpointServices, SetId::NoLocalEndpointNodePorts)
    }

    pub(super) fn picks(self) -> SetId {
        self.choose(SetId::ServicePicks, SetId::NodePortPicks)
    }

    /// How the chains of this frontend are called that lead to all endpoints, or to those of this node.
    pub(super) fn list_name(self, is_local: bool) -> &'static str {
        match (self, is_local) {
            (Frontend::Vip, false) => "service",
            (Frontend::Vip, true) => "local-service",
            (Frontend::NodePort, false) => "nodeport",
            (Frontend::NodePort, true) => "local-nodeport",
        }
    }

    pub(super) fn affinity_endpoints(self) -> SetId {
        self.choose(SetId::AffinityEndpoints, SetId::NodePortAffinityEndpoints)
    }

    pub(super) fn affinity_slots(self) -> SetId {
        self.choose(SetId::AffinitySlots, SetId::NodePortAffinitySlots)
    }
}

// === impl Matches ===

impl Matches {
    pub(super) fn address_len(self) -> usize {
        match self.0 {
            Family::V4 => 4,
            Family::V6 => 16,
        }
    }

    pub(super) fn key_len(self, frontend: Frontend) -> usize {
        match frontend {
            Frontend::Vip => self.address_len() + 8,
            Frontend::NodePort => 8,
        }
    }

    pub(super) fn source(self, into: Reg) -> Expr {
        match self.0 {
            Family::V4 => Expr::Network { offset: 12, len: 4, into },
            Family::V6 => Expr::Network { offset: 8, len: 16, into },
        }
    }

    pub(super) fn destination(self, into: Reg) -> Expr {
        match self.0 {
            Family::V4 => Expr::Network { offset: 16, len: 4, into },
            Family::V6 => Expr::Network { offset: 24, len: 16, into },
        }
    }

    pub(super) fn protocol(self, into: Reg) -> Expr {
        Expr::Meta { key: Meta::Protocol, into }
    }

    pub(super) fn port(self, into: Reg) -> Expr {
        Expr::Transport { offset: 2, len: 2, into }
    }

    /// What a frontend knows its Services by.
    pub(super) fn key(self, frontend: Frontend, into: Reg) -> Vec<Expr> {
        let mut exprs = Vec::with_capacity(3);
        let mut next = into;
        if frontend == Frontend::Vip {
            exprs.push(self.destination(next));
            next = next.after(self.address_len());
        }
        exprs.push(self.protocol(next));
        exprs.push(self.port(next.after(4)));
        exprs
    }

    /// By what a client's endpoint is remembered: the part of a noted affinity id that says which Service port it is for, and
    /// where the client is.
    pub(super) fn client(self, into: Reg) -> Vec<Expr> {
        let (mask, xor) = (PORT_MASK.to_ne_bytes().into(), [0; 4].into());
        vec![
            Expr::Meta { key: Meta::Priority, into },
            Expr::Bitwise { from: into, into, mask, xor },
            self.source(into.after(4)),
        ]
    }

    pub(super) fn dnat(self, endpoint: Reg) -> Expr {
        Expr::Dnat { family: self.family(), address: endpoint, port: endpoint.after(self.address_len()) }
    }

    pub(super) fn family(self) -> nft::Family {
        match self.0 {
            Family::V4 => nft::Family::Ip,
            Family::V6 => nft::Family::Ip6,
        }
    }

    pub(super) fn address_type(self, of: Address, op: nft::Cmp) -> [Expr; 2] {
        /// `RTN_LOCAL`.
        const LOCAL: u32 = 2;
        [
            Expr::AddressType { of, into: Reg(0) },
            Expr::Cmp { from: Reg(0), op, data: LOCAL.to_ne_bytes().into() },
        ]
    }

    /// Matches addresses in the prefix, or those that are not.
    pub(super) fn in_prefix(self, load: Expr, op: nft::Cmp, cidr: &Cidr) -> Vec<Expr> {
        let mut exprs = vec![load];
        let mask = mask(self.address_len(), cidr.length());
        if mask.iter().any(|byte| *byte != 0xff) {
            let xor = vec![0; mask.len()].into();
            exprs.push(Expr::Bitwise { from: Reg(0), into: Reg(0), mask, xor });
        }
        exprs.push(Expr::Cmp { from: Reg(0), op, data: address(cidr.network()).into() });
        exprs
    }
}

fn mask(len: usize, bits: u8) -> Box<[u8]> {
    let bits = usize::from(bits);
    let byte = |i: usize| match bits.saturating_sub(i * 8) {
        8.. => 0xff,
        left => !(0xff_u8 >> left),
    };
    (0..len).map(byte).collect()
}

// Keys as registers hold them.

pub(super) fn address(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn protocol_and_port(protocol: Protocol, port: u16) -> [u8; 8] {
    let [high, low] = port.to_be_bytes();
    [protocol.number(), 0, 0, 0, high, low, 0, 0]
}

pub(super) fn vip_key(key: &VipKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(address(key.ip));
    bytes.extend(protocol_and_port(key.protocol, key.port));
    bytes
}

pub(super) fn node_port_key(key: &NodePortKey) -> Vec<u8> {
    protocol_and_port(key.protocol, key.port).to_vec()
}

pub(super) fn hairpin_key(hairpin: &Hairpin) -> Vec<u8> {
    let ip = address(hairpin.endpoint.ip());
    [&ip[..], &ip, &protocol_and_port(hairpin.protocol, hairpin.endpoint.port())].concat()
}

pub(super) fn socket_address(address_and_port: SocketAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20);
    bytes.extend(address(address_and_port.ip()));
    let [high, low] = address_and_port.port().to_be_bytes();
    bytes.extend([high, low, 0, 0]);
    bytes
}

pub(super) fn number(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

/// The last address of a prefix.
pub(super) fn last_address(cidr: &Cidr) -> Vec<u8> {
    let mut last = address(cidr.network());
    let mask = mask(last.len(), cidr.length());
    for (byte, kept) in last.iter_mut().zip(&*mask) {
        *byte |= !kept;
    }
    last
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_they_should() {
        let rows =
            [("10.1.0.0/16", "10.1.255.255"), ("10.0.0.0/7", "11.255.255.255"), ("1.2.3.4/32", "1.2.3.4")];
        for (cidr, last) in rows {
            let cidr = Cidr::parse(cidr).unwrap();
            assert_eq!(last_address(&cidr), address(last.parse().unwrap()), "{cidr}");
        }
        assert_eq!(&*mask(4, 9), [0xff, 0x80, 0, 0]);
        assert_eq!(&*mask(4, 0), [0; 4]);
    }
}
