//! What the zone says to a question (DNS-based service discovery 1.1.0, in CoreDNS's reading).

use std::collections::HashSet;
use std::net::IpAddr;

use domain::base::Rtype;
use domain::base::iana::Rcode;

use crate::corefile::{Kubernetes, PodMode};
use crate::message::{self, Answer};
use crate::name::{self, Name};
use crate::query::Query;
use crate::reverse;
use crate::zone::{Endpoint, Entry, Port, Service, Zone};

/// The version of the specification, and for how long it holds.
const VERSION: &str = "1.1.0";
const VERSION_TTL: u32 = 28_800;
/// Aliases of aliases that are followed.
const CHAIN: usize = 8;

/// What became of a question.
#[derive(Debug, PartialEq)]
pub enum Found {
    Answer(Answer),
    /// The answer ends in an alias that somebody else knows.
    Chase(Answer, Name),
    /// The name does not exist here, and others may be asked. The answer if there is nobody.
    Fallthrough(Answer),
    /// In none of our zones.
    NotOurs,
}

/// What the zone is asked about, beside the zone itself.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    pub zone: &'a Zone,
    pub plugin: &'a Kubernetes,
    /// Where this server is reached, for `ns.dns`, if there is no DNS Service.
    pub own: &'a [IpAddr],
}

/// More records than the longest message can hold: an owner of a namespace may give a Service endpoints and ports without end, and
/// every question would look at all of them.
const ITEMS: usize = 4096;
/// Services that an address is told to belong to.
const OWNERS: usize = 64;

/// What there is under a name.
enum Hit<'a> {
    Missing,
    /// The name exists, and there is nothing to say.
    Empty,
    Items(Vec<Item<'a>>),
    External(&'a Name),
    Version,
    NameServer,
    Apex,
}

/// An address, with a port if it has any.
struct Item<'a> {
    ip: IpAddr,
    port: Option<u16>,
    entry: Option<&'a Entry>,
    endpoint: Option<&'a Endpoint>,
}

/// What stands in front of a Service's name.
#[derive(Clone, Copy)]
enum Prefix<'a> {
    None,
    Endpoint(&'a str),
    Port(&'a str, &'a str),
}

/// Asks the zone.
#[must_use]
pub fn answer(scene: &Scene<'_>, query: &Query) -> Found {
    let longest = scene.plugin.zones.iter().filter(|zone| query.name.ends_with(zone));
    let Some(apex) = longest.max_by_key(|zone| zone.label_count()) else { return Found::NotOurs };
    if matches!(query.rtype, Rtype::AXFR | Rtype::IXFR) {
        return Found::Answer(Answer::new(Rcode::REFUSED));
    }
    // A name that is not known yet may exist: to say no would be remembered.
    if !scene.is_ready() {
        return Found::Answer(Answer::new(Rcode::SERVFAIL));
    }
    if is_reverse(apex) {
        return scene.answer_reverse(apex, query);
    }
    scene.answer_forward(apex, query, Vec::new())
}

/// Below `arpa`.
#[must_use]
pub fn is_reverse(zone: &Name) -> bool {
    let labels: Vec<_> = zone.iter().map(|label| label.as_slice().to_ascii_lowercase()).collect();
    labels.ends_with(&[b"in-addr".to_vec(), b"arpa".to_vec(), vec![]])
        || labels.ends_with(&[b"ip6".to_vec(), b"arpa".to_vec(), vec![]])
}

// === impl Scene ===

impl<'a> Scene<'a> {
    /// Whether what is missing is known to be missing.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let pods = self.plugin.pods != PodMode::Verified || self.zone.has_listed(crate::zone::Kind::Pods);
        self.zone.has_synced() && pods
    }

    fn answer_forward(&self, apex: &Name, query: &Query, chain: Vec<message::Record>) -> Found {
        let ttl = self.plugin.ttl;
        let Some(labels) = name::labels_in(&query.name, apex) else { return Found::NotOurs };
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let mut said = Answer::authoritative(Rcode::NOERROR);
        said.answer = chain;
        match (self.find(&labels, query.rtype == Rtype::SRV), query.rtype) {
            (Hit::Missing, _) => return self.missing(apex, query, said),
            (Hit::External(target), Rtype::A | Rtype::AAAA | Rtype::CNAME) => {
                return self.follow(apex, query, target, said);
            }
            (Hit::Items(items), Rtype::A | Rtype::AAAA) => {
                let wanted = |ip: &IpAddr| ip.is_ipv4() == (query.rtype == Rtype::A);
                let mut seen = HashSet::new();
                let ips = items.iter().map(|item| item.ip).filter(|ip| wanted(ip) && seen.insert(*ip));
                said.answer.extend(ips.map(|ip| message::address(&query.name, ttl, ip)));
            }
            (Hit::Items(items), Rtype::SRV) => self.add_services(apex, query, &items, &mut said),
            (Hit::Version, Rtype::TXT) => {
                said.answer.push(message::txt(&query.name, VERSION_TTL, VERSION));
            }
            (Hit::NameServer, Rtype::A | Rtype::AAAA) => {
                let wanted = |ip: &IpAddr| ip.is_ipv4() == (query.rtype == Rtype::A);
                let ips = self.name_server(apex).1.into_iter().filter(wanted);
                said.answer.extend(ips.map(|ip| message::address(&query.name, ttl, ip)));
            }
            (Hit::Apex, Rtype::SOA) => said.answer.push(message::soa(apex, ttl, self.zone.serial())),
            (Hit::Apex, Rtype::NS) => {
                let (name, ips) = self.name_server(apex);
                said.additional.extend(ips.into_iter().map(|ip| message::address(&name, ttl, ip)));
                said.answer.push(message::ns(&query.name, ttl, name));
            }
            _ => {}
        }
        Found::Answer(self.or_soa(apex, said))
    }

    fn missing(&self, apex: &Name, query: &Query, said: Answer) -> Found {
        // An alias was found; that its target is not there does not take it back.
        if !said.answer.is_empty() {
            return Found::Answer(said);
        }
        let said = self.or_soa(apex, Answer { rcode: Rcode::NXDOMAIN, ..said });
        match self.falls_through(&query.name) {
            true => Found::Fallthrough(said),
            false => Found::Answer(said),
        }
    }

    /// An answer without records says which zone has none.
    fn or_soa(&self, apex: &Name, mut said: Answer) -> Answer {
        if said.answer.is_empty() {
            said.authority.push(message::soa(apex, self.plugin.ttl, self.zone.serial()));
        }
        said
    }

    fn falls_through(&self, name: &Name) -> bool {
        let zones = self.plugin.fallthrough.as_ref();
        zones.is_some_and(|zones| zones.is_empty() || zones.iter().any(|zone| name.ends_with(zone)))
    }

    /// An alias, and what is behind it as far as the zone knows.
    fn follow(&self, apex: &Name, query: &Query, target: &Name, mut said: Answer) -> Found {
        let is_loop = *target == query.name || said.answer.iter().any(|record| record.owner() == target);
        if is_loop || said.answer.len() >= CHAIN {
            return Found::Answer(self.or_soa(apex, said));
        }
        said.answer.push(message::cname(&query.name, self.plugin.ttl, target.clone()));
        if query.rtype == Rtype::CNAME {
            return Found::Answer(said);
        }
        match target.ends_with(apex) {
            true => self.answer_forward(apex, &query.about(target.clone()), said.answer),
            false => Found::Chase(said, target.clone()),
        }
    }

    fn answer_reverse(&self, apex: &Name, query: &Query) -> Found {
        let Some(ip) = reverse::address(&query.name) else {
            let said = Answer::authoritative(Rcode::NOERROR);
            // Between the zone and an address there is nothing of ours, and nothing to deny.
            return match name::labels_in(&query.name, apex) {
                Some(labels) if labels.is_empty() => Found::Answer(self.or_soa(apex, said)),
                _ => self.missing(apex, query, said),
            };
        };
        let names = self.names_of(ip);
        let mut said = Answer::authoritative(Rcode::NOERROR);
        if names.is_empty() {
            return self.missing(apex, query, said);
        }
        if query.rtype == Rtype::PTR {
            let pointer = |name| message::ptr(&query.name, self.plugin.ttl, name);
            said.answer.extend(names.into_iter().map(pointer));
        }
        Found::Answer(self.or_soa(apex, said))
    }

    /// A Service's address has its name; an endpoint's has one below each of its Services.
    fn names_of(&self, ip: IpAddr) -> Vec<Name> {
        let Some(zone) = self.plugin.zones.iter().find(|zone| !is_reverse(zone)) else { return Vec::new() };
        if let Some(entry) = self.zone.by_cluster_ip(ip).filter(|entry| self.is_exposed(&entry.namespace)) {
            return service_name(entry, zone).into_iter().collect();
        }
        let owners = self.zone.by_endpoint_ip(ip);
        let exposed = owners.filter(|entry| entry.service.is_some() && self.is_exposed(&entry.namespace));
        let below = exposed.take(OWNERS).filter_map(|entry| {
            let endpoint = entry.endpoints().find(|endpoint| endpoint.ip == ip)?;
            endpoint_name(entry, endpoint, zone)
        });
        below.collect()
    }

    /// The name and the addresses of whoever answers for the zone.
    fn name_server(&self, apex: &Name) -> (Name, Vec<IpAddr>) {
        if let Some(entry) = self.zone.service("kube-dns", "kube-system")
            && let Some(Service::ClusterIp { ips, .. }) = &entry.service
            && let Some(name) = service_name(entry, apex)
        {
            return (name, ips.to_vec());
        }
        let name = name::join(&["ns", "dns"], apex).unwrap_or_else(|| apex.clone());
        (name, self.own.to_vec())
    }

    fn is_exposed(&self, namespace: &str) -> bool {
        let only = &self.plugin.namespaces;
        self.zone.has_namespace(namespace) && (only.is_empty() || only.iter().any(|name| name == namespace))
    }

    fn find(&self, labels: &[&str], each_port: bool) -> Hit<'a> {
        match labels {
            [] => Hit::Apex,
            ["svc" | "pod" | "dns"] => Hit::Empty,
            ["dns-version"] => Hit::Version,
            ["ns", "dns"] => Hit::NameServer,
            [.., namespace, "svc" | "pod"] if !self.is_exposed(namespace) => Hit::Missing,
            [_, "svc"] => Hit::Empty,
            [_, "pod"] if self.plugin.pods != PodMode::Disabled => Hit::Empty,
            [pod, namespace, "pod"] => self.find_pod(pod, namespace),
            [service, namespace, "svc"] => self.find_service(service, namespace, Prefix::None, each_port),
            [endpoint, service, namespace, "svc"] => {
                self.find_service(service, namespace, Prefix::Endpoint(endpoint), each_port)
            }
            [port, protocol, service, namespace, "svc"] => {
                let strip = |label: &'_ str| label.strip_prefix('_').unwrap_or(label).to_owned();
                let (port, protocol) = (strip(port), strip(protocol));
                match port.is_empty() || protocol.is_empty() {
                    true => Hit::Missing,
                    false => self.find_service(service, namespace, Prefix::Port(&port, &protocol), each_port),
                }
            }
            _ => Hit::Missing,
        }
    }

    fn find_pod(&self, label: &str, namespace: &str) -> Hit<'a> {
        let is_v4 = label.matches('-').count() == 3 && !label.contains("--");
        let Ok(ip) = label.replace('-', if is_v4 { "." } else { ":" }).parse::<IpAddr>() else {
            return Hit::Missing;
        };
        match self.plugin.pods {
            PodMode::Disabled => Hit::Missing,
            PodMode::Verified if !self.zone.has_pod(ip, namespace) => Hit::Missing,
            _ => Hit::Items(vec![Item { ip, port: None, entry: None, endpoint: None }]),
        }
    }

    fn find_service(&self, name: &str, namespace: &str, prefix: Prefix<'_>, each_port: bool) -> Hit<'a> {
        let Some(entry) = self.zone.service(name, namespace) else { return Hit::Missing };
        let items = match (&entry.service, prefix) {
            (None, _) => return Hit::Missing,
            (Some(Service::External(Some(target))), Prefix::None) => return Hit::External(target),
            (Some(Service::External(_)), _) => return Hit::Missing,
            (Some(Service::ClusterIp { ips, ports }), Prefix::None | Prefix::Port(..)) => {
                if self.plugin.ignores_empty_services && entry.endpoints().next().is_none() {
                    return Hit::Missing;
                }
                let item = |ip: &IpAddr, port| Item { ip: *ip, port, entry: Some(entry), endpoint: None };
                let open: Vec<Option<u16>> = open_ports(ports, prefix);
                if open.is_empty() {
                    return Hit::Missing;
                }
                let items = open.iter().flat_map(|port| ips.iter().map(move |ip| item(ip, *port)));
                let items: Vec<Item<'a>> = items.collect();
                // It exists, though nobody gave it an address yet.
                return if items.is_empty() { Hit::Empty } else { Hit::Items(items) };
            }
            (Some(Service::Headless), _) | (_, Prefix::Endpoint(_)) => {
                endpoint_items(entry, prefix, each_port)
            }
        };
        if items.is_empty() { Hit::Missing } else { Hit::Items(items) }
    }

    /// One record for each target and port, its address beside it.
    fn add_services(&self, apex: &Name, query: &Query, items: &[Item<'a>], said: &mut Answer) {
        let ttl = self.plugin.ttl;
        let weight = u16::try_from(100 / items.len().max(1)).unwrap_or(1).max(1);
        let (mut services, mut addresses) = (HashSet::new(), HashSet::new());
        for item in items {
            let (Some(port), Some(entry)) = (item.port, item.entry) else { continue };
            let target = match item.endpoint {
                Some(endpoint) => endpoint_name(entry, endpoint, apex),
                None => service_name(entry, apex),
            };
            let Some(target) = target else { continue };
            if addresses.insert((target.clone(), item.ip)) {
                said.additional.push(message::address(&target, ttl, item.ip));
            }
            if services.insert((target.clone(), port)) {
                said.answer.push(message::srv(&query.name, ttl, weight, port, target));
            }
        }
    }
}

/// The ports that are meant. One that has no ports at all still has addresses.
fn open_ports(ports: &[Port], prefix: Prefix<'_>) -> Vec<Option<u16>> {
    match prefix {
        Prefix::Port(name, protocol) => {
            let is_meant = |port: &&Port| *port.name == *name && *port.protocol == *protocol;
            ports.iter().filter(is_meant).map(|port| Some(port.number)).collect()
        }
        _ if ports.is_empty() => vec![None],
        _ => ports.iter().map(|port| Some(port.number)).collect(),
    }
}

/// Once for each port where ports are asked for, else once.
fn endpoint_items<'a>(entry: &'a Entry, prefix: Prefix<'_>, each_port: bool) -> Vec<Item<'a>> {
    let mut items = Vec::new();
    for slice in &entry.slices {
        let mut ports = open_ports(&slice.ports, prefix);
        if !each_port {
            ports.truncate(1);
        }
        for endpoint in &slice.endpoints {
            if let Prefix::Endpoint(label) = prefix
                && !endpoint.is_called(label)
            {
                continue;
            }
            let item = |port: &Option<u16>| Item {
                ip: endpoint.ip,
                port: *port,
                entry: Some(entry),
                endpoint: Some(endpoint),
            };
            items.extend(ports.iter().map(item));
            if items.len() >= ITEMS {
                return items;
            }
        }
    }
    items
}

fn service_name(entry: &Entry, zone: &Name) -> Option<Name> {
    name::join(&[&entry.name, &entry.namespace, "svc"], zone)
}

fn endpoint_name(entry: &Entry, endpoint: &Endpoint, zone: &Name) -> Option<Name> {
    // A Pod's name may have dots, and then is several labels.
    let label = endpoint.label();
    let mut labels: Vec<&str> = label.split('.').collect();
    labels.extend([&*entry.name, &*entry.namespace, "svc"]);
    name::join(&labels, zone)
}
