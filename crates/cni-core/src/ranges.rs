//! Addresses of ranges, each given once, round and round.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::error::{CniError, Code};
use crate::fields::{Fields, named};
use crate::request::Request;
use crate::success::{RouteTo, routes};

/// What `host-local` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLocal {
    /// One address is given of each.
    pub sets: Vec<RangeSet>,
    pub routes: Vec<RouteTo>,
    pub data_dir: Option<String>,
    pub resolv_conf: Option<String>,
    pub requested: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub subnet: IpNet,
    /// The first and the last address that is given.
    pub start: IpAddr,
    pub end: IpAddr,
    pub gateway: IpAddr,
}

/// Of a set, one round from where the last one was given.
#[derive(Clone, Debug)]
pub struct Candidates<'a> {
    set: &'a RangeSet,
    at: (usize, u128),
    first: Option<(usize, u128)>,
}

/// What is taken from which set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub set: usize,
    pub requested: Option<IpAddr>,
}

// === impl HostLocal ===

impl HostLocal {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        let ipam = fields.fields("ipam")?.ok_or_else(|| CniError::field("ipam", "it is missing"))?;
        let mut sets = Vec::new();
        if let Some(runtime) = request.runtime()? {
            sets.extend(range_sets(&runtime, "ipRanges")?);
        }
        // The form of old: one range, where the rest stands.
        if ipam.get("subnet").is_some() {
            sets.push(RangeSet(vec![Range::read(&ipam)?]));
        }
        sets.extend(range_sets(&ipam, "ranges")?);
        if sets.is_empty() {
            return Err(CniError::field("ipam.ranges", "it is missing: there is nothing to give"));
        }
        check_overlaps(&sets)?;
        let text = |key: &str| Ok(ipam.text(key)?.filter(|text| !text.is_empty()).map(str::to_owned));
        Ok(Self {
            sets,
            routes: routes(&ipam, "routes")?,
            data_dir: text("dataDir")?,
            resolv_conf: text("resolvConf")?,
            requested: requested(request)?,
        })
    }

    /// One address of each set; each that was asked for of the set that has it.
    pub fn wishes(&self) -> Result<Vec<Wish>, CniError> {
        let mut left = self.requested.clone();
        let sets = self.sets.iter().enumerate().map(|(set, ranges)| {
            let asked = left.iter().position(|ip| ranges.range_of(*ip).is_some());
            Wish { set, requested: asked.map(|at| left.remove(at)) }
        });
        let wishes: Vec<Wish> = sets.collect();
        for wish in &wishes {
            let gateway = wish
                .requested
                .filter(|ip| self.sets[wish.set].range_of(*ip).is_some_and(|range| range.gateway == *ip));
            if let Some(ip) = gateway {
                return Err(CniError::new(Code::Taken, format!("requested address {ip} is the gateway's")));
            }
        }
        match left.first() {
            None => Ok(wishes),
            Some(ip) => Err(CniError::new(
                Code::Config,
                format!("requested address {ip} is in no range that is free"),
            )),
        }
    }
}

/// By argument, by convention, and as a capability; a length behind it is no matter here.
fn requested(request: &Request) -> Result<Vec<IpAddr>, CniError> {
    let mut all: Vec<IpAddr> = Vec::new();
    let mut add = |path: &str, text: &str| {
        let ip = text.split('/').next().unwrap_or_default().trim().parse::<IpAddr>();
        let ip = ip.map_err(|_| CniError::field(path, format!("{text:?} is not an IP address")))?;
        let ip = ip.to_canonical();
        if !all.contains(&ip) {
            all.push(ip);
        }
        Ok(())
    };
    for one in request.argument("IP").into_iter().flat_map(|ips| ips.split(',')) {
        add("CNI_ARGS IP", one)?;
    }
    for asked in [request.conventional()?, request.runtime()?].into_iter().flatten() {
        for text in asked.texts("ips")? {
            add(&asked.path("ips"), &text)?;
        }
    }
    Ok(all)
}

fn range_sets(fields: &Fields<'_>, key: &str) -> Result<Vec<RangeSet>, CniError> {
    fields.list(key)?.into_iter().map(|(path, value)| RangeSet::read(&path, value)).collect()
}

fn check_overlaps(sets: &[RangeSet]) -> Result<(), CniError> {
    for (at, one) in sets.iter().enumerate() {
        for (other_at, other) in sets.iter().enumerate().skip(at + 1) {
            if one.0.iter().any(|a| other.0.iter().any(|b| a.overlaps(b))) {
                let why = format!("set {at} and set {other_at} have addresses in common");
                return Err(CniError::field("ipam.ranges", why));
            }
        }
    }
    Ok(())
}

// === impl RangeSet ===

impl RangeSet {
    fn read(path: &str, value: &Value) -> Result<Self, CniError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| CniError::field(path, "it is no list of ranges"))?;
        let each = named(path, list).into_iter().map(|(path, one)| Range::read(&Fields::of(one, path)?));
        let ranges = each.collect::<Result<Vec<_>, _>>()?;
        for (at, one) in ranges.iter().enumerate() {
            if one.subnet.addr().is_ipv6() != ranges[0].subnet.addr().is_ipv6() {
                return Err(CniError::field(path, "it has ranges of both families"));
            }
            if ranges[..at].iter().any(|other| other.overlaps(one)) {
                return Err(CniError::field(path, format!("range {at} overlaps with one before it")));
            }
        }
        Ok(Self(ranges))
    }

    #[must_use]
    pub fn of(ranges: Vec<Range>) -> Option<Self> {
        if ranges.is_empty() { None } else { Some(Self(ranges)) }
    }

    #[must_use]
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// The address after the last one comes first, so that one that became free rests as long as it can.
    #[must_use]
    pub fn candidates(&self, last: Option<IpAddr>) -> Candidates<'_> {
        let found = last.and_then(|ip| Some((self.0.iter().position(|range| range.contains(ip))?, ip)));
        let at = match found {
            Some((range, ip)) => self.after((range, number(ip))),
            None => (0, number(self.0[0].start)),
        };
        Candidates { set: self, at, first: None }
    }

    fn after(&self, (range, at): (usize, u128)) -> (usize, u128) {
        if at < number(self.0[range].end) {
            return (range, at + 1);
        }
        let next = (range + 1) % self.0.len();
        (next, number(self.0[next].start))
    }

    /// As messages name it.
    #[must_use]
    pub fn shown(&self) -> String {
        let each: Vec<String> = self.0.iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
        each.join(",")
    }
}

impl Iterator for Candidates<'_> {
    /// The address with the length of its network, and the gateway.
    type Item = (IpNet, IpAddr);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.first == Some(self.at) {
                return None;
            }
            let (range, at) = self.at;
            self.first.get_or_insert(self.at);
            self.at = self.set.after(self.at);
            let range = &self.set.0[range];
            let ip = address(at, range.subnet.addr().is_ipv6());
            if ip != range.gateway {
                return Some((range.address(ip)?, range.gateway));
            }
        }
    }
}

// === impl Range ===

impl Range {
    pub fn read(fields: &Fields<'_>) -> Result<Self, CniError> {
        let wrong = |key: &str, why: String| CniError::field(&fields.path(key), why);
        let subnet = fields.network("subnet")?.ok_or_else(|| wrong("subnet", "it is missing".into()))?;
        if subnet.addr() != subnet.network() {
            let why = format!("{subnet} has bits set beyond its length; the network is {}", subnet.trunc());
            return Err(wrong("subnet", why));
        }
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(wrong("subnet", format!("{subnet} is too small to give addresses of")));
        }
        let is_v6 = subnet.addr().is_ipv6();
        let first = address(number(subnet.network()) + 1, is_v6);
        let last = number(subnet.broadcast()) - u128::from(!is_v6);
        let mut range = Self {
            subnet,
            start: first,
            end: address(last, is_v6),
            gateway: fields.ip("gateway")?.unwrap_or(first),
        };
        for (key, bound) in [("rangeStart", &mut range.start), ("rangeEnd", &mut range.end)] {
            if let Some(ip) = fields.ip(key)? {
                if !subnet.contains(&ip) {
                    return Err(wrong(key, format!("{ip} is not in {subnet}")));
                }
                *bound = ip;
            }
        }
        if range.gateway.is_ipv6() != is_v6 {
            return Err(wrong("gateway", format!("{} is of another family than {subnet}", range.gateway)));
        }
        if range.start > range.end {
            return Err(wrong("rangeStart", format!("{} is behind rangeEnd {}", range.start, range.end)));
        }
        Ok(range)
    }

    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv6() == self.start.is_ipv6() && self.start <= ip && ip <= self.end
    }

    #[must_use]
    pub fn address(&self, ip: IpAddr) -> Option<IpNet> {
        IpNet::new(ip, self.subnet.prefix_len()).ok()
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.start.is_ipv6() == other.start.is_ipv6() && self.start <= other.end && other.start <= self.end
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn address(number: u128, is_v6: bool) -> IpAddr {
    match is_v6 {
        true => IpAddr::V6(number.into()),
        false => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
    }
}
