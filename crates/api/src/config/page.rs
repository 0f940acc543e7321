//! Where the page of the node is (docs/decisions/030.md).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Reads `--node-page`: a port of this machine's own address, or an address and a port. None for no page.
pub fn page_address(text: &str) -> Result<Option<SocketAddr>, String> {
    let text = text.trim();
    if matches!(text, "" | "0") {
        return Ok(None);
    }
    let local = text.parse::<u16>().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    let found = local.ok().or_else(|| text.parse().ok()).filter(|address| address.port() != 0);
    found.map(Some).ok_or_else(|| {
        format!("{text:?} must be a port such as 4194, or an address with a port such as 192.0.2.1:4194")
    })
}

/// What to type into a browser: this machine's own page needs no proof of who looks, any other one asks for it over TLS.
#[must_use]
pub fn page_url(address: SocketAddr) -> String {
    let scheme = if address.ip().is_loopback() { "http" } else { "https" };
    format!("{scheme}://{address}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_machines_own() {
        let table = [
            ("", Ok(None)),
            ("0", Ok(None)),
            ("4194", Ok(Some("127.0.0.1:4194"))),
            ("0.0.0.0:4194", Ok(Some("0.0.0.0:4194"))),
            ("[::1]:80", Ok(Some("[::1]:80"))),
            ("192.0.2.1", Err(())),
            ("192.0.2.1:0", Err(())),
            ("70000", Err(())),
            ("true", Err(())),
            ("localhost:4194", Err(())),
        ];
        for (text, want) in table {
            let found = page_address(text).map(|a| a.map(|a| a.to_string())).map_err(|_| ());
            assert_eq!(found, want.map(|a| a.map(str::to_owned)), "{text}");
        }
    }
}
