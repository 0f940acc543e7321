//! Proxies that the environment names: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, read as Go's programs read them.

use std::net::IpAddr;

use http::Uri;

use crate::proxy::Proxy;

/// Which way leads to which server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    https: Option<String>,
    http: Option<String>,
    exempt: Vec<Exempt>,
}

/// Servers that are reached without a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exempt {
    All,
    Network(IpAddr, u8),
    Address(IpAddr, Option<u16>),
    /// With `itself`, the domain and not only what is below it. The name begins with a dot.
    Domain {
        suffix: String,
        itself: bool,
        port: Option<u16>,
    },
}

// === impl Proxies ===

impl Proxies {
    /// What the variables say; `variable` gives the value of one.
    pub fn named_by(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first =
            |names: [&str; 2]| names.into_iter().filter_map(&variable).find(|value| !value.is_empty());
        let exempt = first(["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Self {
            https: first(["HTTPS_PROXY", "https_proxy"]),
            http: first(["HTTP_PROXY", "http_proxy"]),
            exempt: exempt.split(',').filter_map(Exempt::parse).collect(),
        }
    }

    /// The proxy on the way to a server, if there is one. The error names the variable.
    pub fn on_the_way_to(&self, server: &str) -> Result<Option<Proxy>, String> {
        let Ok(uri) = server.parse::<Uri>() else { return Ok(None) };
        let (name, url, usual) = match uri.scheme_str() {
            Some("https") => ("HTTPS_PROXY", &self.https, 443),
            Some("http") => ("HTTP_PROXY", &self.http, 80),
            _ => return Ok(None),
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
        let Some(url) = url.as_deref().filter(|_| self.is_far(&host, uri.port_u16().unwrap_or(usual))) else {
            return Ok(None);
        };
        let url = match url.split_once("://") {
            Some(("socks5h", rest)) => format!("socks5://{rest}"),
            Some(_) => url.to_owned(),
            None => format!("http://{url}"),
        };
        Proxy::parse(&url).map(Some).map_err(|why| format!("{name}: {why}"))
    }

    /// This machine itself is never asked through a proxy.
    fn is_far(&self, host: &str, port: u16) -> bool {
        let address: Option<IpAddr> = host.parse().ok();
        let is_here = host == "localhost" || address.is_some_and(|a| a.to_canonical().is_loopback());
        !is_here && !self.exempt.iter().any(|exempt| exempt.covers(host, address, port))
    }
}

// === impl Exempt ===

impl Exempt {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if text == "*" {
            return Some(Self::All);
        }
        if let Some((address, bits)) = text.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse::<u8>())
        {
            return Some(Self::Network(address, bits));
        }
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address, None));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text.as_str(), None),
        };
        let host = host.trim_matches(['[', ']']);
        if let Ok(address) = host.parse() {
            return Some(Self::Address(address, port));
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        match host {
            "" => None,
            below if below.starts_with('.') => {
                Some(Self::Domain { suffix: below.to_owned(), itself: false, port })
            }
            name => Some(Self::Domain { suffix: format!(".{name}"), itself: true, port }),
        }
    }

    fn covers(&self, host: &str, address: Option<IpAddr>, at: u16) -> bool {
        let here = |port: &Option<u16>| port.is_none_or(|port| port == at);
        match self {
            Self::All => true,
            Self::Network(network, bits) => address.is_some_and(|a| is_in(a.to_canonical(), *network, *bits)),
            Self::Address(one, port) => {
                address.is_some_and(|a| a.to_canonical() == one.to_canonical()) && here(port)
            }
            Self::Domain { suffix, itself, port } => {
                (host.ends_with(suffix.as_str()) || (*itself && host == &suffix[1..])) && here(port)
            }
        }
    }
}

fn is_in(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let number = |a: IpAddr| match a {
        IpAddr::V4(a) => (u128::from(a.to_bits()) << 96, 32),
        IpAddr::V6(a) => (a.to_bits(), 128),
    };
    let ((a, width), (n, of)) = (number(address), number(network));
    width == of && bits <= width && (bits == 0 || (a ^ n) >> (128 - u32::from(bits)) == 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn proxies(pairs: &[(&str, &str)]) -> Proxies {
        Proxies::named_by(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    fn way(proxies: &Proxies, server: &str) -> String {
        match proxies.on_the_way_to(server) {
            Ok(proxy) => proxy.map_or("direct".to_owned(), |proxy| format!("{proxy:?}")),
            Err(why) => why,
        }
    }

    #[test]
    fn the_scheme_chooses_the_variable() {
        let both = proxies(&[("HTTPS_PROXY", "http://secure:3128"), ("http_proxy", "plain:8080")]);
        assert_eq!(way(&both, "https://api.example:6443"), "Http secure:3128");
        assert_eq!(way(&both, "http://api.example"), "Http plain:8080");
        assert_eq!(way(&proxies(&[]), "https://api.example"), "direct");
        let upper_first = proxies(&[("https_proxy", "lower"), ("HTTPS_PROXY", "upper")]);
        assert_eq!(way(&upper_first, "https://a"), "Http upper:80");
        assert_eq!(
            way(&proxies(&[("HTTPS_PROXY", ""), ("https_proxy", "lower")]), "https://a"),
            "Http lower:80"
        );
        assert_eq!(way(&proxies(&[("HTTPS_PROXY", "socks5h://s")]), "https://a"), "Socks5 s:1080");
        let tls = proxies(&[("HTTPS_PROXY", "https://p")]);
        assert_eq!(way(&tls, "https://a"), "HTTPS_PROXY: a proxy that itself wants TLS is not supported");
    }

    #[test]
    fn some_servers_are_reached_directly() {
        let rows: &[(&str, &str, bool)] = &[
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.2:6443", true),
            ("", "https://[::1]:6443", true),
            ("", "https://10.0.0.1:6443", false),
            ("*", "https://10.0.0.1", true),
            ("10.0.0.0/8", "https://10.0.0.1:6443", true),
            ("10.0.0.0/8", "https://11.0.0.1:6443", false),
            ("10.0.0.0/8", "https://api.example", false),
            ("0.0.0.0/0", "https://11.0.0.1", true),
            ("0.0.0.0/0", "https://[fd00::1]", false),
            ("fd00::/8", "https://[fd12::1]:6443", true),
            (" 10.0.0.1 , x", "https://10.0.0.1:6443", true),
            ("10.0.0.1:6443", "https://10.0.0.1:6443", true),
            ("10.0.0.1:443", "https://10.0.0.1:6443", false),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", true),
            ("fd00::1", "https://[fd00::1]:6443", true),
            ("example.com", "https://example.com", true),
            ("example.com", "https://API.Example.com:6443", true),
            ("example.com", "https://notexample.com", false),
            (".example.com", "https://example.com", false),
            (".example.com", "https://api.example.com", true),
            ("*.example.com", "https://api.example.com", true),
            ("*.example.com", "https://example.com", false),
            ("example.com:443", "https://example.com", true),
            ("example.com:443", "https://example.com:6443", false),
            (",,", "https://example.com", false),
        ];
        for (exempt, server, direct) in rows {
            let all = proxies(&[("HTTPS_PROXY", "p:1"), ("NO_PROXY", exempt)]);
            assert_eq!(way(&all, server) == "direct", *direct, "NO_PROXY={exempt} {server}");
        }
    }
}
