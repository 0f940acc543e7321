//! What a Pod's network looks like from inside and from the machine, for `longshore doctor network`.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use cni_core::CniError;
pub use cni_core::doctor::examine;
use cni_core::doctor::{Device, Facts, Place, Probe, Way};
use ipnet::IpNet;
use sys::netns::Netns;

use crate::device::{self, kernel, within};
use crate::rules::Rules;
use crate::sysctl;

/// For an answer to the one connection that is tried.
const ANSWERS: Duration = Duration::from_secs(3);
/// Nobody listens there, so whoever is there says no.
const UNUSED: u16 = 1;

/// Gathers what there is to know of a packet from a Pod, to where it dials and to where that leads, and
/// tries one connection. Needs root; blocks.
pub fn gather(
    pod: &str,
    ip: IpAddr,
    (dials, to): (IpAddr, IpAddr),
    port: Option<u16>,
) -> Result<Facts, CniError> {
    let namespace = namespace_of(ip)?;
    let container = namespace.as_ref().map(|namespace| within(namespace, look)).transpose()?;
    let forwards = if ip.is_ipv4() { "net/ipv4/ip_forward" } else { "net/ipv6/conf/all/forwarding" };
    let probe = match &namespace {
        Some(namespace) => within(namespace, || Ok(probe(dials, port)))?,
        None => Probe::None,
    };
    Ok(Facts {
        pod: pod.to_owned(),
        ip,
        dials,
        to,
        container,
        machine: look()?,
        forwards: sysctl::read(forwards).is_ok_and(|value| value == "1"),
        is_masqueraded: Rules::open()?.is_masqueraded(ip)?,
        probe,
    })
}

/// The network namespace that has an address, found by the processes in it; none where it is the machine's own. Of several the
/// one on a cable that ends here.
fn namespace_of(ip: IpAddr) -> Result<Option<Netns>, CniError> {
    let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    let mut seen: HashSet<PathBuf> = HashSet::from([own]);
    let cables = cables()?;
    let mut found = None;
    let processes = std::fs::read_dir("/proc").map_err(|e| CniError::io("reading /proc", &e))?;
    for process in processes.flatten() {
        let path = process.path().join("ns/net");
        // One that is no process, or ends as we look.
        let Ok(id) = std::fs::read_link(&path) else { continue };
        if !seen.insert(id) {
            continue;
        }
        let Ok(namespace) = Netns::open(&path) else { continue };
        let there = within(&namespace, || {
            let addresses = device::routing()?.addresses(None).map_err(kernel)?;
            let device = addresses.iter().find(|address| address.ip == ip).map(|address| address.device);
            Ok((device, self::cables()?))
        });
        let Ok((Some(device), theirs)) = there else { continue };
        let is_ours =
            theirs.iter().any(|(index, peer)| *index == device && cables.contains(&(*peer, *index)));
        if is_ours {
            return Ok(Some(namespace));
        }
        found.get_or_insert(namespace);
    }
    Ok(found)
}

/// The numbers of both ends of each cable that begins in the namespace that the calling thread is in.
fn cables() -> Result<Vec<(u32, u32)>, CniError> {
    let links = device::routing()?.links().map_err(kernel)?;
    Ok(links.into_iter().filter_map(|link| Some((link.index, link.peer?))).collect())
}

/// The namespace that the calling thread is in.
fn look() -> Result<Place, CniError> {
    let mut routing = device::routing()?;
    let addresses = routing.addresses(None).map_err(kernel)?;
    let of = |index: u32| {
        let own = addresses.iter().filter(move |address| address.device == index);
        own.filter_map(|address| IpNet::new(address.ip, address.length).ok()).collect()
    };
    let links = routing.links().map_err(kernel)?;
    let devices = links.into_iter().map(|link| Device {
        addresses: of(link.index),
        index: link.index,
        name: link.name,
        kind: link.kind,
        is_up: link.is_up,
        has_carrier: link.has_carrier,
        mtu: link.mtu,
        master: link.master,
        peer: link.peer,
    });
    let devices = devices.collect();
    let routes = routing.routes().map_err(kernel)?;
    let ways = routes.into_iter().filter(|route| route.table == sys::route::MAIN_TABLE).filter_map(|route| {
        let to = IpNet::new(route.to, route.length).ok()?;
        let priority = route.priority.unwrap_or(0);
        Some(Way { to, gateway: route.gateway, device: route.device, priority })
    });
    Ok(Place { devices, ways: ways.collect() })
}

fn probe(to: IpAddr, port: Option<u16>) -> Probe {
    let address = SocketAddr::new(to, port.unwrap_or(UNUSED));
    let what = match port {
        Some(_) => format!("a connection to {address}"),
        None => format!("a connection to {address}, where nobody listens,"),
    };
    match TcpStream::connect_timeout(&address, ANSWERS) {
        Ok(_) => Probe::Answered(what),
        // Without a port a refusal is the answer that was looked for.
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => match port {
            Some(_) => Probe::Refused(what),
            None => Probe::Answered(what),
        },
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => Probe::Silent(what),
        Err(e) => Probe::Failed(what, e.to_string()),
    }
}
