//! What a plugin answers, in every version of the contract.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use crate::error::CniError;
use crate::fields::Fields;
use crate::version::is_at_least;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Success {
    pub interfaces: Vec<Interface>,
    pub ips: Vec<Ip>,
    pub routes: Vec<RouteTo>,
    pub dns: Dns,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub mac: String,
    pub mtu: Option<u64>,
    /// The namespace it is in; empty on the machine's side.
    pub sandbox: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Its place in the list of interfaces.
    pub interface: Option<usize>,
    pub address: IpNet,
    pub gateway: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTo {
    pub to: IpNet,
    pub gateway: Option<IpAddr>,
    pub mtu: Option<u32>,
    pub segment: Option<u32>,
    pub priority: Option<u32>,
    pub table: Option<u32>,
    pub scope: Option<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    pub nameservers: Vec<String>,
    pub domain: String,
    pub search: Vec<String>,
    pub options: Vec<String>,
}

// === impl Success ===

impl Success {
    pub fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let interfaces: Vec<Interface> =
            fields.objects("interfaces")?.iter().map(Interface::read).collect::<Result<_, _>>()?;
        let mut ips = fields.objects("ips")?.iter().map(Ip::read).collect::<Result<Vec<_>, _>>()?;
        for ip in &mut ips {
            if ip.interface.is_some_and(|at| at >= interfaces.len()) {
                return Err(CniError::field(
                    &fields.path("ips"),
                    "one is of an interface that is not listed",
                ));
            }
        }
        let mut routes = routes(fields, "routes")?;
        // Before 0.3.0 there was one address of each family.
        for key in ["ip4", "ip6"] {
            if let Some(old) = fields.fields(key)? {
                ips.push(Ip { interface: None, address: required(&old, "ip")?, gateway: old.ip("gateway")? });
                routes.extend(self::routes(&old, "routes")?);
            }
        }
        let dns = fields.fields("dns")?.map_or(Ok(Dns::default()), |dns| Dns::read(&dns))?;
        Ok(Self { interfaces, ips, routes, dns })
    }

    #[must_use]
    pub fn to_json(&self, version: &str) -> Value {
        if !is_at_least(version, "0.3.0") {
            return self.to_old_json(version);
        }
        let mut out = Map::new();
        out.insert("cniVersion".into(), json!(version));
        let lists: [(&str, Vec<Value>); 3] = [
            ("interfaces", self.interfaces.iter().map(|one| one.to_json(version)).collect()),
            ("ips", self.ips.iter().map(|one| one.to_json(version)).collect()),
            ("routes", self.routes.iter().map(|one| one.to_json(version)).collect()),
        ];
        for (key, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            out.insert(key.into(), Value::Array(list));
        }
        if !self.dns.is_empty() || !is_at_least(version, "1.0.0") {
            out.insert("dns".into(), self.dns.to_json());
        }
        Value::Object(out)
    }

    fn to_old_json(&self, version: &str) -> Value {
        let mut out = Map::new();
        out.insert("cniVersion".into(), json!(version));
        for (key, is_v6) in [("ip4", false), ("ip6", true)] {
            let first = self.ips.iter().find(|ip| ip.address.addr().is_ipv6() == is_v6);
            let Some(ip) = first else { continue };
            let mut one = Map::new();
            one.insert("ip".into(), json!(ip.address.to_string()));
            one.extend(ip.gateway.map(|gateway| ("gateway".to_owned(), json!(gateway.to_string()))));
            let routes = self.routes.iter().filter(|route| route.to.addr().is_ipv6() == is_v6);
            let routes: Vec<Value> = routes.map(|route| route.to_json(version)).collect();
            if !routes.is_empty() {
                one.insert("routes".into(), Value::Array(routes));
            }
            out.insert(key.into(), Value::Object(one));
        }
        out.insert("dns".into(), self.dns.to_json());
        Value::Object(out)
    }

    /// The addresses of one interface of a container. Without interfaces all addresses are its.
    pub fn ips_of<'a>(&'a self, interface: &'a str) -> impl Iterator<Item = &'a Ip> {
        self.ips.iter().filter(move |ip| match ip.interface.and_then(|at| self.interfaces.get(at)) {
            Some(of) => of.name == interface && !of.sandbox.is_empty(),
            None => true,
        })
    }
}

fn required(fields: &Fields<'_>, key: &str) -> Result<IpNet, CniError> {
    fields.network(key)?.ok_or_else(|| CniError::field(&fields.path(key), "it is missing"))
}

/// A list of routes, as configurations and answers have it.
pub fn routes(fields: &Fields<'_>, key: &str) -> Result<Vec<RouteTo>, CniError> {
    fields.objects(key)?.iter().map(RouteTo::read).collect()
}

// === impl Interface ===

impl Interface {
    fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let text = |key: &str| Ok(fields.text(key)?.unwrap_or_default().to_owned());
        Ok(Self {
            name: text("name")?,
            mac: text("mac")?,
            mtu: fields.number("mtu", 0..=u64::from(u32::MAX))?,
            sandbox: text("sandbox")?,
        })
    }

    fn to_json(&self, version: &str) -> Value {
        let mut out = Map::new();
        out.insert("name".into(), json!(self.name));
        if !self.mac.is_empty() {
            out.insert("mac".into(), json!(self.mac));
        }
        if let Some(mtu) = self.mtu.filter(|_| is_at_least(version, "1.1.0")) {
            out.insert("mtu".into(), json!(mtu));
        }
        if !self.sandbox.is_empty() {
            out.insert("sandbox".into(), json!(self.sandbox));
        }
        Value::Object(out)
    }
}

// === impl Ip ===

impl Ip {
    fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let at = fields.number("interface", 0..=1 << 16)?;
        Ok(Self {
            interface: at.and_then(|at| usize::try_from(at).ok()),
            address: required(fields, "address")?,
            gateway: fields.ip("gateway")?,
        })
    }

    fn to_json(&self, version: &str) -> Value {
        let mut out = Map::new();
        if !is_at_least(version, "1.0.0") {
            out.insert("version".into(), json!(if self.address.addr().is_ipv4() { "4" } else { "6" }));
        }
        out.extend(self.interface.map(|at| ("interface".to_owned(), json!(at))));
        out.insert("address".into(), json!(self.address.to_string()));
        out.extend(self.gateway.map(|gateway| ("gateway".to_owned(), json!(gateway.to_string()))));
        Value::Object(out)
    }
}

// === impl RouteTo ===

impl RouteTo {
    #[must_use]
    pub fn new(to: IpNet, gateway: Option<IpAddr>) -> Self {
        Self { to, gateway, mtu: None, segment: None, priority: None, table: None, scope: None }
    }

    fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let to = required(fields, "dst")?;
        let gateway = fields.ip("gw")?;
        if gateway.is_some_and(|gateway| gateway.is_ipv6() != to.addr().is_ipv6()) {
            return Err(CniError::field(&fields.path("gw"), "it is of another family than dst"));
        }
        let word = |key: &str| {
            let number = fields.number(key, 0..=u64::from(u32::MAX))?;
            Ok(number.and_then(|number| u32::try_from(number).ok()))
        };
        let scope = fields.number("scope", 0..=255)?;
        Ok(Self {
            to: to.trunc(),
            gateway,
            mtu: word("mtu")?,
            segment: word("advmss")?,
            priority: word("priority")?,
            table: word("table")?,
            scope: scope.and_then(|scope| u8::try_from(scope).ok()),
        })
    }

    fn to_json(&self, version: &str) -> Value {
        let mut out = Map::new();
        out.insert("dst".into(), json!(self.to.to_string()));
        out.extend(self.gateway.map(|gateway| ("gw".to_owned(), json!(gateway.to_string()))));
        if is_at_least(version, "1.1.0") {
            let words = [
                ("mtu", self.mtu),
                ("advmss", self.segment),
                ("priority", self.priority),
                ("table", self.table),
            ];
            out.extend(words.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
            out.extend(self.scope.map(|scope| ("scope".to_owned(), json!(scope))));
        }
        Value::Object(out)
    }
}

// === impl Dns ===

impl Dns {
    pub fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        Ok(Self {
            nameservers: fields.texts("nameservers")?,
            domain: fields.text("domain")?.unwrap_or_default().to_owned(),
            search: fields.texts("search")?,
            options: fields.texts("options")?,
        })
    }

    /// Of a resolv.conf.
    #[must_use]
    pub fn of_resolv_conf(text: &str) -> Self {
        let mut dns = Dns::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => dns.nameservers.extend(words.next().map(str::to_owned)),
                Some("domain") => dns.domain = words.next().unwrap_or_default().to_owned(),
                Some("search") => dns.search.extend(words.map(str::to_owned)),
                Some("options") => dns.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        dns
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }

    fn to_json(&self) -> Value {
        let mut out = Map::new();
        if !self.nameservers.is_empty() {
            out.insert("nameservers".into(), json!(self.nameservers));
        }
        if !self.domain.is_empty() {
            out.insert("domain".into(), json!(self.domain));
        }
        for (key, list) in [("search", &self.search), ("options", &self.options)] {
            if !list.is_empty() {
                out.insert(key.into(), json!(list));
            }
        }
        Value::Object(out)
    }
}
