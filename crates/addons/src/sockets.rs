//! Ports that programs of this machine listen on.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::core::load_balancer::Port;

/// A TCP socket that listens, as the kernel writes it.
const LISTEN: &str = "0A";
/// A UDP socket that is bound and connected to nobody.
const UNCONNECTED: &str = "07";

/// The ports that somebody listens on at these addresses, or at all.
pub(crate) fn listening(at: &[IpAddr]) -> BTreeSet<Port> {
    let tables = [
        ("tcp", "TCP", LISTEN),
        ("tcp6", "TCP", LISTEN),
        ("udp", "UDP", UNCONNECTED),
        ("udp6", "UDP", UNCONNECTED),
    ];
    let mut ports = BTreeSet::new();
    for (file, protocol, state) in tables {
        let text = fs::read_to_string(Path::new("/proc/net").join(file)).unwrap_or_default();
        let found = parse(&text, state).filter(|(ip, _)| ip.is_unspecified() || at.contains(ip));
        ports.extend(found.map(|(_, number)| Port { protocol: protocol.to_owned(), number }));
    }
    ports
}

fn parse<'a>(text: &'a str, state: &'a str) -> impl Iterator<Item = (IpAddr, u16)> + 'a {
    text.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, is) = (words.next()?, words.next()?, words.next()?);
        let (ip, port) = local.split_once(':')?;
        (is == state).then_some((address(ip)?, u16::from_str_radix(port, 16).ok()?))
    })
}

/// Words of four bytes, each as the machine has it.
fn address(hex: &str) -> Option<IpAddr> {
    let words: Option<Vec<[u8; 4]>> = hex
        .as_bytes()
        .chunks(8)
        .map(|word| Some(u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?.to_ne_bytes()))
        .collect();
    match words?.concat().as_slice() {
        bytes if bytes.len() == 4 => <[u8; 4]>::try_from(bytes).ok().map(|b| Ipv4Addr::from(b).into()),
        bytes => <[u8; 16]>::try_from(bytes).ok().map(|b| Ipv6Addr::from(b).to_canonical()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::{TcpListener, UdpSocket};

    #[test]
    fn who_listens_is_found_and_who_does_not_is_not() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("[::]:0").unwrap();
        let port = |protocol: &str, number| Port { protocol: protocol.to_owned(), number };
        let (tcp, udp) =
            (port("TCP", tcp.local_addr().unwrap().port()), (udp.local_addr().unwrap().port(), udp));
        let at_loopback = listening(&["127.0.0.1".parse().unwrap()]);
        assert!(at_loopback.contains(&tcp), "{tcp:?}");
        assert!(at_loopback.contains(&port("UDP", udp.0)));
        // At another address it is in nobody's way.
        assert!(!listening(&["192.0.2.1".parse().unwrap()]).contains(&tcp));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn lines_of_the_kernel_are_read() {
        let text = "  sl  local_address rem_address   st\n   0: 0100007F:1F90 00000000:0000 0A 0\n   1: 00000000:0016 0A00007F:1234 01 0\n\
                    2: 0000000000000000FFFF00000200000C:0050 00000000000000000000000000000000:0000 0A\n";
        let found: Vec<String> = parse(text, LISTEN).map(|(ip, port)| format!("{ip} {port}")).collect();
        assert_eq!(found, ["127.0.0.1 8080", "12.0.0.2 80"]);
    }
}
