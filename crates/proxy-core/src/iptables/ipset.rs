//! Entries of the ipsets that rules look packets up in.

use std::net::IpAddr;

use crate::objects::{Cidr, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Ip(IpAddr),
    IpPort(IpAddr, Protocol, u16),
    IpPortIp(IpAddr, Protocol, u16, IpAddr),
    IpPortNet(IpAddr, Protocol, u16, Cidr),
    Port(u16),
}
