//! Names of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::name::Name;

/// The address that a name below `in-addr.arpa` or `ip6.arpa` is about.
#[must_use]
pub fn address(name: &Name) -> Option<IpAddr> {
    let labels: Vec<String> =
        name.iter().map(|label| String::from_utf8_lossy(label.as_slice()).to_ascii_lowercase()).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    match labels.as_slice() {
        [parts @ .., "in-addr", "arpa", ""] if parts.len() == 4 => {
            let mut bytes = [0; 4];
            for (byte, part) in bytes.iter_mut().rev().zip(parts) {
                // `010` and `+1` are other names.
                *byte = part.parse().ok().filter(|byte: &u8| byte.to_string() == **part)?;
            }
            Some(Ipv4Addr::from(bytes).into())
        }
        [parts @ .., "ip6", "arpa", ""] if parts.len() == 32 => {
            let mut bits = 0_u128;
            for part in parts.iter().rev() {
                let digit = (part.len() == 1).then(|| u128::from_str_radix(part, 16).ok())??;
                bits = bits << 4 | digit;
            }
            Some(Ipv6Addr::from(bits).into())
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::name::parse;

    #[test]
    fn reverse_names_are_addresses() {
        for (name, ip) in [
            ("10.0.96.10.in-addr.arpa.", Some("10.96.0.10")),
            ("10.0.96.10.IN-ADDR.arpa.", Some("10.96.0.10")),
            ("0.96.10.in-addr.arpa.", None),
            ("1.10.0.96.10.in-addr.arpa.", None),
            ("010.0.96.10.in-addr.arpa.", None),
            ("256.0.96.10.in-addr.arpa.", None),
            ("1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", Some("fd00::1")),
            ("10.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", None),
            ("g.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa", None),
            ("arpa", None),
        ] {
            assert_eq!(address(&parse(name).unwrap()), ip.map(|ip| ip.parse().unwrap()), "{name}");
        }
        for ip in ["10.96.0.10", "fd00:10::a"] {
            let ip: IpAddr = ip.parse().unwrap();
            let name: Name = Name::reverse_from_addr(ip).unwrap();
            assert_eq!(address(&name), Some(ip));
        }
    }
}
