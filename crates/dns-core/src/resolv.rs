//! `/etc/resolv.conf`, as far as a forwarder needs it.

use std::net::{IpAddr, SocketAddr};

/// More than any resolver looks at.
const SERVERS: usize = 15;

/// The name servers it names.
#[must_use]
pub fn servers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next()).flatten()
    });
    // The zone of a link-local address has no place in a socket's address here.
    let ips = lines.filter_map(|word| word.split('%').next()?.parse::<IpAddr>().ok());
    let mut found = Vec::new();
    for ip in ips {
        let server = SocketAddr::from((ip, 53));
        if !found.contains(&server) && found.len() < SERVERS {
            found.push(server);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #[test]
    fn name_servers_are_found() {
        let text = "# x\nsearch a.b\nnameserver 127.0.0.53\n nameserver  fd00::1 \nnameserver x\n#nameserver 9.9.9.9\n\
                    nameserver fe80::1%eth0\nnameserver 127.0.0.53\noptions edns0";
        let found: Vec<String> = super::servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["127.0.0.53:53", "[fd00::1]:53", "[fe80::1]:53"]);
    }
}
