//! A Corefile at work: its tables, caches and upstreams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dns_core::cache::Cache;
use dns_core::corefile::{Corefile, PodMode, Server, Upstream};
use dns_core::hosts::Table;
use dns_core::name::Name;
use dns_core::query::Query;
use dns_core::{Rtype, resolv, route};

use crate::forward::Group;

/// What is read besides the Corefile, by path.
pub(crate) type Files = BTreeMap<String, String>;

#[derive(Debug)]
pub(crate) struct Live {
    file: Corefile,
    /// One for each server of the file.
    parts: Vec<Part>,
    /// A name that only we ask for: who hears it from outside forwards to himself.
    pub(crate) probe: Name,
    is_probing: AtomicBool,
    pub(crate) has_looped: AtomicBool,
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) hosts: Option<Table>,
    pub(crate) cache: Option<Mutex<Cache>>,
    pub(crate) groups: Vec<Group>,
}

/// A server of the file with what it works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) server: &'a Server,
    pub(crate) zone: &'a Name,
    pub(crate) part: &'a Part,
}

/// The files that a Corefile names.
pub(crate) fn files(file: &Corefile) -> Vec<String> {
    let hosts =
        file.servers.iter().filter_map(|server| server.hosts.as_ref()).map(|hosts| hosts.file.clone());
    let forwards = file.servers.iter().flat_map(|server| &server.forward).flat_map(|forward| &forward.to);
    let upstreams = forwards.filter_map(|to| match to {
        Upstream::File(path) => Some(path.clone()),
        Upstream::Address(_) => None,
    });
    hosts.chain(upstreams).collect()
}

// === impl Live ===

impl Live {
    /// `own` is where we listen: nobody is forwarded there.
    pub(crate) fn new(file: Corefile, files: &Files, own: &[SocketAddr], probe: Name) -> Live {
        let parts = file.servers.iter().map(|server| Part::new(server, files, own)).collect();
        Live { file, parts, probe, is_probing: AtomicBool::new(true), has_looped: AtomicBool::new(false) }
    }

    pub(crate) fn place(&self, name: &Name) -> Option<Place<'_>> {
        let (server, zone) = route::server(&self.file, name)?;
        let at = self.file.servers.iter().position(|one| std::ptr::eq(one, server))?;
        Some(Place { server, zone, part: self.parts.get(at)? })
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = (&Server, &Part)> {
        self.file.servers.iter().zip(&self.parts)
    }

    pub(crate) fn verifies_pods(&self) -> bool {
        self.plugins().any(|plugin| plugin.pods == PodMode::Verified)
    }

    pub(crate) fn uses_pod_names(&self) -> bool {
        self.plugins().any(|plugin| plugin.uses_pod_names)
    }

    /// Whether this is our own question that came back.
    pub(crate) fn is_probe(&self, query: &Query) -> bool {
        self.is_probing.load(Ordering::Relaxed) && query.rtype == Rtype::HINFO && query.name == self.probe
    }

    /// From now on nobody's question is ours.
    pub(crate) fn end_probe(&self) {
        self.is_probing.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_looped(&self) -> bool {
        self.has_looped.load(Ordering::Relaxed)
    }

    pub(crate) fn plugins(&self) -> impl Iterator<Item = &dns_core::corefile::Kubernetes> {
        self.file.servers.iter().filter_map(|server| server.kubernetes.as_ref())
    }
}

// === impl Part ===

impl Part {
    fn new(server: &Server, files: &Files, own: &[SocketAddr]) -> Part {
        let hosts = server.hosts.as_ref().map(|hosts| {
            let file = files.get(&hosts.file).map(String::as_str);
            Table::read(file.into_iter().chain(hosts.inline.iter().map(String::as_str)))
        });
        let group = |plan: &dns_core::corefile::Forward| {
            let mut to = Vec::new();
            for upstream in &plan.to {
                match upstream {
                    Upstream::Address(address) => to.push(*address),
                    Upstream::File(path) => {
                        to.extend(files.get(path).map(|text| resolv::servers(text)).unwrap_or_default());
                    }
                }
            }
            to.retain(|address| !is_own(*address, own));
            Group::new(plan.clone(), &to)
        };
        let cache = server.cache.clone().map(|settings| Mutex::new(Cache::new(settings)));
        Part { hosts, cache, groups: server.forward.iter().map(group).collect() }
    }
}

/// Whether a question sent there would come to ourselves.
fn is_own(address: SocketAddr, own: &[SocketAddr]) -> bool {
    let is_here = |one: &SocketAddr| {
        let is_every =
            one.ip().is_unspecified() && (address.ip().is_loopback() || address.ip().is_unspecified());
        one.port() == address.port() && (one.ip() == address.ip() || is_every)
    };
    own.iter().any(is_here)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_overheard_ends_nothing_later() {
        let probe = dns_core::name::parse("1.2.").unwrap();
        let file = dns_core::corefile::read(".:53 {\n loop\n}").unwrap();
        let live = Live::new(file, &Files::new(), &[], probe.clone());
        let query = crate::forward::question(probe, Rtype::HINFO);
        assert!(live.is_probe(&query));
        live.end_probe();
        assert!(!live.is_probe(&query));
    }

    #[test]
    fn nobody_is_his_own_upstream() {
        let own =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        for (address, listens, is_ours) in [
            ("127.0.0.1:53", &["127.0.0.1:53"][..], true),
            ("127.0.0.1:53", &["127.0.0.1:1053"], false),
            ("127.0.0.53:53", &["127.0.0.1:53"], false),
            ("127.0.0.1:53", &["0.0.0.0:53"], true),
            ("192.0.2.1:53", &["0.0.0.0:53"], false),
            ("[::1]:53", &["10.0.0.1:53", "[::]:53"], true),
        ] {
            assert_eq!(is_own(address.parse().unwrap(), &own(listens)), is_ours, "{address} {listens:?}");
        }
    }
}
