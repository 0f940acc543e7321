//! Address families and prefixes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

/// An address prefix, its host bits cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    network: IpAddr,
    length: u8,
}

/// Reads an address as the API server's old validation allowed it: leading zeros are decimal, and an IPv4
/// address in IPv6 clothes is an IPv4 address. Stored objects may still hold both.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next().filter(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))?;
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets).into())
}

// === impl Family ===

impl Family {
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// As the API spells it in `ipFamilies` and `addressType`.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

// === impl Cidr ===

impl Cidr {
    pub fn new(ip: IpAddr, length: u8) -> Option<Self> {
        let ip = ip.to_canonical();
        let family = Family::of(ip);
        (length <= family.bits()).then(|| Self { network: mask(ip, length), length })
    }

    /// The prefix that holds one address only.
    pub fn host(ip: IpAddr) -> Self {
        let ip = ip.to_canonical();
        Self { network: ip, length: Family::of(ip).bits() }
    }

    /// `None` for anything that is no prefix.
    pub fn parse(text: &str) -> Option<Self> {
        let (ip, length) = text.split_once('/')?;
        if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        Self::new(parse_ip(ip)?, length.parse().ok()?)
    }

    pub fn family(&self) -> Family {
        Family::of(self.network)
    }

    pub fn network(&self) -> IpAddr {
        self.network
    }

    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        Family::of(ip) == self.family() && mask(ip, self.length) == self.network
    }

    /// Whether the prefix excludes nothing of its family.
    pub fn is_everything(&self) -> bool {
        self.length == 0
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.length)
    }
}

fn mask(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let keep = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            IpAddr::V4((ip.to_bits() & keep).into())
        }
        IpAddr::V6(ip) => {
            let keep = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            IpAddr::V6((ip.to_bits() & keep).into())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_old_objects_hold_them() {
        let cases = [
            ("10.0.0.1", Some("10.0.0.1")),
            ("010.000.0.08", Some("10.0.0.8")),
            ("::ffff:10.0.0.1", Some("10.0.0.1")),
            ("fd00::1", Some("fd00::1")),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("10.0.0.256", None),
            ("10.0.0.+1", None),
            ("None", None),
            ("", None),
        ];
        for (text, ip) in cases {
            assert_eq!(parse_ip(text), ip.map(|ip| ip.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn prefixes_hold_what_they_should() {
        let cases = [
            ("10.0.0.7/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "255.1.1.1", true),
            ("0.0.0.0/0", "::1", false),
            ("fd00::/64", "fd00::ffff", true),
            ("fd00::/64", "fd00:0:0:1::", false),
            ("1.2.3.4/32", "1.2.3.4", true),
            ("1.2.3.4/32", "1.2.3.5", false),
            ("::/0", "fd00::1", true),
        ];
        for (cidr, ip, inside) in cases {
            assert_eq!(Cidr::parse(cidr).unwrap().contains(ip.parse().unwrap()), inside, "{cidr} {ip}");
        }
        for bad in ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/", "fd00::/129", "x/8"] {
            assert_eq!(Cidr::parse(bad), None, "{bad}");
        }
        assert_eq!(Cidr::parse("10.9.8.7/16").unwrap().to_string(), "10.9.0.0/16");
    }
}
