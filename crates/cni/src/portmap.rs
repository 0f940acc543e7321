//! `portmap`: ports of the machine that lead to a container.

use std::net::IpAddr;

use cni_core::portmap::{PortMap, Protocol, Targets};
use cni_core::table::{self, SetId};
use cni_core::{CniError, Code, Request};
use serde_json::Value;
use sys::conntrack::Conntrack;

use crate::device::{self, kernel};
use crate::plugin::{Plugin, pass_on};
use crate::rules::Rules;
use crate::sysctl;

pub(crate) const PLUGIN: Plugin = Plugin { name: "portmap", add, del, check, status, gc };

const SETS: [SetId; 5] =
    [SetId::HostPorts, SetId::AddressPorts, SetId::Hairpins, SetId::FromLoopback, SetId::HiddenCallers];

fn add(request: &Request) -> Result<Value, CniError> {
    let config = PortMap::read(request)?;
    let success = request.required_previous()?;
    let targets = Targets::of(&success, &request.attachment.interface);
    let label = table::label(&request.network, &request.attachment);
    let entries = table::ports(&config, targets, &label);
    if entries.is_empty() {
        return pass_on(request);
    }
    Rules::open()?.add(&entries)?;
    if let Some(ip) = targets.v4.filter(|_| config.masquerade) {
        // What comes from 127.0.0.1 may leave by the device that leads to the container.
        if let Some(name) = way_to(ip)? {
            sysctl::set_if_there(&format!("net/ipv4/conf/{name}/route_localnet"), "1")?;
        }
    }
    // Who talked to the port before went elsewhere, and would go on to.
    forget(&config, targets);
    pass_on(request)
}

fn del(request: &Request) -> Result<(), CniError> {
    let config = PortMap::read(request);
    // Callers say at the end what they said at the beginning: without ports there is nothing to take away.
    if config.as_ref().is_ok_and(|config| config.ports.is_empty()) {
        return Ok(());
    }
    Rules::open()?.remove(&SETS, &request.network, &request.attachment)?;
    if let (Ok(config), Ok(Some(success))) = (config, request.previous()) {
        forget(&config, Targets::of(&success, &request.attachment.interface));
    }
    Ok(())
}

fn check(request: &Request) -> Result<(), CniError> {
    let config = PortMap::read(request)?;
    let success = request.required_previous()?;
    let targets = Targets::of(&success, &request.attachment.interface);
    let label = table::label(&request.network, &request.attachment);
    Rules::open()?.check(&table::ports(&config, targets, &label))
}

fn status(request: &Request) -> Result<(), CniError> {
    PortMap::read(request)?;
    Rules::open().map(drop).map_err(|e| CniError::new(Code::Unavailable, e.message))
}

fn gc(request: &Request) -> Result<(), CniError> {
    Rules::open()?.keep(&SETS, &request.network, &request.valid_attachments()?)
}

/// The device that the machine reaches an address by: that with the longest route to it.
fn way_to(ip: IpAddr) -> Result<Option<String>, CniError> {
    let mut routing = device::routing()?;
    let routes = routing.routes().map_err(kernel)?;
    let reaches = |route: &&sys::route::Route| {
        ipnet::IpNet::new(route.to, route.length).is_ok_and(|network| network.contains(&ip))
    };
    let best = routes.iter().filter(reaches).max_by_key(|route| route.length);
    let Some(best) = best else { return Ok(None) };
    Ok(routing.link_by_index(best.device).map_err(kernel)?.map(|link| link.name))
}

/// UDP has no end that the kernel could see, so it would keep sending to where a port led before. A failure costs one who
/// talks all the time the time that the kernel remembers, and nobody else anything.
fn forget(config: &PortMap, targets: Targets) {
    let mut ports: Vec<(u16, bool)> = config
        .targets(targets)
        .filter(|(port, _)| port.protocol == Protocol::Udp)
        .map(|(port, to)| (port.host, to.is_ipv6()))
        .collect();
    ports.dedup();
    if ports.is_empty() {
        return;
    }
    let Ok(mut conntrack) = Conntrack::open() else { return };
    for is_v6 in [false, true] {
        let is_stale = |entry: &sys::conntrack::Entry| {
            entry.protocol == Protocol::Udp as u8 && ports.contains(&(entry.destination.port(), is_v6))
        };
        if !ports.iter().any(|(_, of_v6)| *of_v6 == is_v6) {
            continue;
        }
        for entry in conntrack.list(is_v6, is_stale).unwrap_or_default() {
            let _ = conntrack.delete(&entry);
        }
    }
}
