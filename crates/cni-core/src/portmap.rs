//! `portmap`: which ports of the machine are a container's.

use std::net::IpAddr;

use crate::bridge::check_backend;
use crate::error::{CniError, Code};
use crate::fields::Fields;
use crate::request::Request;
use crate::success::Success;

/// What `portmap` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMap {
    pub ports: Vec<HostPort>,
    /// Whether packets that would not find their way back are masqueraded.
    pub masquerade: bool,
    /// Whether all are.
    pub masquerade_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort {
    pub host: u16,
    pub container: u16,
    pub protocol: Protocol,
    /// `None` for every address of the machine.
    pub ip: Option<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// Where a container's ports lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    pub v4: Option<IpAddr>,
    pub v6: Option<IpAddr>,
}

// === impl PortMap ===

impl PortMap {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        check_backend(&fields, "backend")?;
        for key in ["conditionsV4", "conditionsV6"] {
            if !fields.list(key)?.is_empty() {
                let why = format!("{key}: rules in other programs' languages are not written");
                return Err(CniError::new(Code::Unsupported, why));
            }
        }
        let mark = fields.number("markMasqBit", 0..=31)?;
        let chain = fields.text("externalSetMarkChain")?;
        if mark.is_some() && chain.is_some() {
            return Err(CniError::field("markMasqBit", "it excludes externalSetMarkChain"));
        }
        let ports = match request.runtime()? {
            Some(runtime) => {
                let ports = runtime.objects("portMappings")?.into_iter().map(|one| HostPort::read(&one));
                ports.collect::<Result<Vec<_>, _>>()?
            }
            None => vec![],
        };
        Ok(Self {
            ports,
            masquerade: fields.maybe_bool("snat")?.unwrap_or(true),
            masquerade_all: fields.bool("masqAll")?,
        })
    }

    /// Those that lead to a container with these addresses, each with its target.
    pub fn targets(&self, targets: Targets) -> impl Iterator<Item = (HostPort, IpAddr)> {
        self.ports.iter().flat_map(move |port| {
            let both = [targets.v4, targets.v6].into_iter().flatten();
            let fits = both.filter(move |to| port.ip.is_none_or(|ip| ip.is_ipv6() == to.is_ipv6()));
            fits.map(move |to| {
                // The address that means all is one of none.
                let ip = port.ip.filter(|ip| !ip.is_unspecified());
                (HostPort { ip, ..*port }, to)
            })
        })
    }
}

// === impl HostPort ===

impl HostPort {
    fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let port = |key: &str| {
            let number = fields.number(key, 1..=65535)?.and_then(|number| u16::try_from(number).ok());
            number.ok_or_else(|| CniError::field(&fields.path(key), "it is missing"))
        };
        let protocol = match fields.text("protocol")?.map(str::to_ascii_lowercase).as_deref() {
            None | Some("" | "tcp") => Protocol::Tcp,
            Some("udp") => Protocol::Udp,
            Some("sctp") => Protocol::Sctp,
            Some(other) => {
                return Err(CniError::field(
                    &fields.path("protocol"),
                    format!("{other:?} is not tcp, udp or sctp"),
                ));
            }
        };
        Ok(Self {
            host: port("hostPort")?,
            container: port("containerPort")?,
            protocol,
            ip: fields.ip("hostIP")?,
        })
    }
}

// === impl Targets ===

impl Targets {
    /// The first address of each family that the container has by this interface.
    #[must_use]
    pub fn of(success: &Success, interface: &str) -> Self {
        let ips: Vec<IpAddr> = success.ips_of(interface).map(|ip| ip.address.addr()).collect();
        let first = |is_v6: bool| ips.iter().copied().find(|ip| ip.is_ipv6() == is_v6);
        Self { v4: first(false), v6: first(true) }
    }
}
