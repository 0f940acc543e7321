//! CoreDNS's configuration. What is not known is refused by its name: no line that a user wrote is passed over in silence.

use std::net::SocketAddr;
use std::time::Duration;

use crate::name::{self, Name};

mod plugins;
mod tokens;

/// Larger files are nobody's configuration.
pub const SIZE: usize = 1 << 20;

/// A whole Corefile.
#[derive(Clone, Debug, PartialEq)]
pub struct Corefile {
    pub servers: Vec<Server>,
    /// Of all servers: the port is one.
    pub port: u16,
    pub health: Option<SocketAddr>,
    pub ready: Option<SocketAddr>,
    pub prometheus: Option<SocketAddr>,
}

/// One block: zones, and what is asked in which order. The order is CoreDNS's own, not that of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub zones: Vec<Name>,
    pub kubernetes: Option<Kubernetes>,
    pub hosts: Option<Hosts>,
    pub forward: Vec<Forward>,
    pub cache: Option<Cache>,
    pub rewrite: Vec<Rewrite>,
    pub bufsize: Option<u16>,
    pub logs_queries: bool,
    pub logs_errors: bool,
    pub shuffles: bool,
    pub finds_loops: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubernetes {
    pub zones: Vec<Name>,
    pub pods: PodMode,
    /// Names that are not found go on to the next; all of them if the list is empty.
    pub fallthrough: Option<Vec<Name>>,
    pub ttl: u32,
    pub uses_pod_names: bool,
    pub ignores_empty_services: bool,
    /// All if empty.
    pub namespaces: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodMode {
    #[default]
    Disabled,
    Insecure,
    Verified,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    pub file: String,
    pub zones: Vec<Name>,
    /// Lines of a hosts file, written here.
    pub inline: Vec<String>,
    pub ttl: u32,
    pub has_reverse: bool,
    pub fallthrough: Option<Vec<Name>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    pub from: Name,
    pub to: Vec<Upstream>,
    pub except: Vec<Name>,
    pub policy: Policy,
    pub max_concurrent: Option<usize>,
    /// Failures before an upstream counts as down; 0 for never.
    pub max_fails: u32,
    pub health_check: Duration,
    pub forces_tcp: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    Address(SocketAddr),
    /// A file like `/etc/resolv.conf`.
    File(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    #[default]
    Random,
    RoundRobin,
    Sequential,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    pub zones: Vec<Name>,
    pub success: Part,
    pub denial: Part,
    pub servfail: Duration,
}

/// One half of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub capacity: usize,
    pub max_ttl: u32,
    pub min_ttl: u32,
    /// Zones it is switched off for.
    pub disabled: Vec<Name>,
}

/// A name that is asked instead of another; answers come under the name that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    pub how: Match,
    pub from: String,
    pub to: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Exact,
    Prefix,
    Suffix,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("Corefile:{line}: {what}")]
pub struct Error {
    pub line: usize,
    pub what: String,
}

/// What runs where nobody wrote a Corefile: kubeadm's, with the short lifetime that k3s has too.
#[must_use]
pub fn default_text(zone: &str) -> String {
    format!(
        ".:53 {{\n    errors\n    health {{\n        lameduck 5s\n    }}\n    ready\n    \
         kubernetes {zone} in-addr.arpa ip6.arpa {{\n        pods insecure\n        \
         fallthrough in-addr.arpa ip6.arpa\n        ttl 5\n    }}\n    prometheus :9153\n    \
         forward . /etc/resolv.conf {{\n        max_concurrent 1000\n    }}\n    cache 30\n    loop\n    \
         reload\n    loadbalance\n}}\n"
    )
}

/// Reads a Corefile, or says what is wrong with it and where.
pub fn read(text: &str) -> Result<Corefile, Error> {
    if text.len() > SIZE {
        return Err(Error::at(1, format!("larger than {SIZE} bytes")));
    }
    let mut file = Corefile { servers: Vec::new(), port: 0, health: None, ready: None, prometheus: None };
    for block in tokens::blocks(text)? {
        let (zones, port) = zones(&block)?;
        if file.port != 0 && file.port != port {
            return Err(Error::at(
                block.line,
                format!("port {port}: all servers have to listen on one port"),
            ));
        }
        for zone in &zones {
            if file.servers.iter().any(|server| server.zones.contains(zone)) {
                let zone = name::text(zone);
                return Err(Error::at(block.line, format!("zone {zone} has a server already")));
            }
        }
        file.port = port;
        let mut server = Server::new(zones);
        for directive in &block.directives {
            plugins::read(&mut file, &mut server, directive)?;
        }
        file.servers.push(server);
    }
    match file.servers.is_empty() {
        true => Err(Error::at(1, "no server")),
        false => Ok(file),
    }
}

fn zones(block: &tokens::Block) -> Result<(Vec<Name>, u16), Error> {
    let fail = |what: String| Error::at(block.line, what);
    if block.keys.is_empty() {
        return Err(fail("a server without a zone".into()));
    }
    let (mut zones, mut port) = (Vec::new(), 53);
    for key in &block.keys {
        if key.starts_with('(') {
            return Err(fail(format!("snippet {key} is not supported")));
        }
        let key = key.strip_prefix("dns://").unwrap_or(key);
        if let Some((scheme, _)) = key.split_once("://") {
            return Err(fail(format!("server {scheme}:// is not supported: only plain DNS is")));
        }
        let (zone, said) = match key.rsplit_once(':') {
            Some((zone, said)) => (zone, Some(said)),
            None => (key, None),
        };
        if let Some(said) = said {
            port = said.parse().map_err(|_| fail(format!("{said:?} is not a port")))?;
        }
        zones.push(plugins::zone(zone).map_err(fail)?);
    }
    Ok((zones, port))
}

// === impl Error ===

impl Error {
    pub(crate) fn at(line: usize, what: impl Into<String>) -> Error {
        Error { line, what: what.into() }
    }
}

// === impl Server ===

impl Server {
    fn new(zones: Vec<Name>) -> Server {
        Server {
            zones,
            kubernetes: None,
            hosts: None,
            forward: Vec::new(),
            cache: None,
            rewrite: Vec::new(),
            bufsize: None,
            logs_queries: false,
            logs_errors: false,
            shuffles: false,
            finds_loops: false,
        }
    }
}

// === impl Rewrite ===

impl Rewrite {
    /// The name to ask for; none if this is not about it.
    #[must_use]
    pub fn apply(&self, asked: &Name) -> Option<Name> {
        let text = name::text(asked).to_ascii_lowercase();
        let made = match self.how {
            Match::Exact => (text == self.from).then(|| self.to.clone()),
            Match::Prefix => text.strip_prefix(&self.from).map(|rest| format!("{}{rest}", self.to)),
            Match::Suffix => text.strip_suffix(&self.from).map(|rest| format!("{rest}{}", self.to)),
        };
        name::parse(&made?).ok()
    }
}
