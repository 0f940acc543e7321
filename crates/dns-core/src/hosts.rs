//! The `hosts` plugin: a table of names, as `/etc/hosts` has it.

use std::collections::HashMap;
use std::net::IpAddr;

use domain::base::Rtype;
use domain::base::iana::Rcode;

use crate::corefile::Hosts;
use crate::message::{self, Answer};
use crate::name::{self, Name};
use crate::query::Query;
use crate::reverse;

/// Lines of one file that are looked at.
const LINES: usize = 100_000;

#[derive(Debug, Default)]
pub struct Table {
    /// Names are in lower case.
    by_name: HashMap<Name, Vec<IpAddr>>,
    by_ip: HashMap<IpAddr, Vec<Name>>,
}

// === impl Table ===

impl Table {
    /// Reads lines of address and names; what is neither is passed over, as everybody does with this file.
    #[must_use]
    pub fn read<'a>(texts: impl IntoIterator<Item = &'a str>) -> Table {
        let mut table = Table::default();
        for line in texts.into_iter().flat_map(str::lines).take(LINES) {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(ip) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
            for name in words.filter_map(|word| name::parse(word).ok()) {
                let name = name::canonical(&name);
                table.by_name.entry(name.clone()).or_default().push(ip);
                table.by_ip.entry(ip).or_default().push(name);
            }
        }
        table
    }

    /// The answer; none if the next one is to be asked.
    #[must_use]
    pub fn answer(&self, plugin: &Hosts, query: &Query) -> Option<Answer> {
        if !plugin.zones.iter().any(|zone| query.name.ends_with(zone)) {
            return None;
        }
        let mut said = Answer::authoritative(Rcode::NOERROR);
        if let Some(ip) = reverse::address(&query.name).filter(|_| query.rtype == Rtype::PTR) {
            let names = self.by_ip.get(&ip).filter(|_| plugin.has_reverse)?;
            said.answer.extend(names.iter().map(|name| message::ptr(&query.name, plugin.ttl, name.clone())));
            return Some(said);
        }
        if let Some(ips) = self.by_name.get(&name::canonical(&query.name)) {
            let wanted = |ip: &&IpAddr| match query.rtype {
                Rtype::A => ip.is_ipv4(),
                Rtype::AAAA => ip.is_ipv6(),
                _ => false,
            };
            let ips = ips.iter().filter(wanted);
            said.answer.extend(ips.map(|ip| message::address(&query.name, plugin.ttl, *ip)));
            return Some(said);
        }
        match &plugin.fallthrough {
            Some(zones) if zones.is_empty() || zones.iter().any(|zone| query.name.ends_with(zone)) => None,
            _ => Some(Answer { rcode: Rcode::NXDOMAIN, ..said }),
        }
    }
}
