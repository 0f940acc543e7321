//! Cables between the machine and a container, and what is set on them.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use cni_core::bridge::{Names, routed};
use cni_core::mac::Mac;
use cni_core::request::{AttachmentId, Verb};
use cni_core::success::{Ip, RouteTo, Success};
use cni_core::{CniError, Code, Request, bridge, table};
use ipnet::IpNet;
use rustix::io::Errno;
use sys::netns::Netns;
use sys::route::{Form, Link, LinkChange, NewLink, Order, Peer, Port, Route, Routing};

use crate::{deletions, sysctl};

/// For the kernel to let an address be used.
const SETTLED: Duration = Duration::from_secs(5);
/// For both ends of a cable to see each other.
const CONNECTED: Duration = Duration::from_secs(3);
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The number that loopback has everywhere.
pub(crate) const LOOPBACK: u32 = 1;

/// A cable to be.
#[derive(Debug)]
pub(crate) struct Cable<'a> {
    pub(crate) names: &'a Names,
    pub(crate) container_mac: Mac,
    pub(crate) mtu: Option<u32>,
    pub(crate) master: Option<u32>,
    pub(crate) port: Option<Port>,
    pub(crate) label: &'a str,
}

pub(crate) fn routing() -> Result<Routing, CniError> {
    Routing::open().map_err(|e| CniError::kernel("opening netlink", &e))
}

pub(crate) fn kernel(error: sys::route::Error) -> CniError {
    let code = match error.cause() {
        Some(Errno::EXIST) => Code::Taken,
        _ => Code::Kernel,
    };
    CniError::new(code, error.to_string())
}

/// The namespace of an attachment, which must be there.
pub(crate) fn namespace(request: &Request) -> Result<Netns, CniError> {
    let path = Path::new(&request.namespace);
    let namespace = Netns::open(path).map_err(|e| {
        let code = if e.kind() == io::ErrorKind::NotFound { Code::Container } else { Code::Io };
        CniError::new(code, format!("opening network namespace {}: {e}", path.display()))
    })?;
    let ours = Netns::current().and_then(|ours| ours.is(&namespace));
    match ours {
        Ok(false) => Ok(namespace),
        Ok(true) => Err(CniError::new(Code::Environment, "CNI_NETNS: it is the machine's own namespace")),
        Err(e) => Err(CniError::io("looking at our network namespace", &e)),
    }
}

/// The same for a deletion: it may be gone.
pub(crate) fn left_namespace(request: &Request) -> Result<Option<Netns>, CniError> {
    if request.namespace.is_empty() {
        return Ok(None);
    }
    match namespace(request) {
        Ok(namespace) => Ok(Some(namespace)),
        Err(e) if e.code == Code::Container as u64 => Ok(None),
        Err(e) => Err(e),
    }
}

pub(crate) fn within<T: Send>(
    namespace: &Netns,
    work: impl FnOnce() -> Result<T, CniError> + Send,
) -> Result<T, CniError> {
    namespace.within(work).map_err(|e| CniError::io("entering the network namespace", &e))?
}

/// Makes a cable and describes the machine's end of it: two messages, sent together. What a killed attempt left in its place
/// goes.
pub(crate) fn connect(
    host: &mut Routing,
    cable: &Cable<'_>,
    namespace: &Netns,
    interface: &str,
) -> Result<(), CniError> {
    use std::os::fd::AsFd;
    let peer = Peer {
        name: interface,
        mac: Some(cable.container_mac.0),
        mtu: cable.mtu,
        namespace: Some(namespace.as_fd()),
    };
    let link = NewLink {
        name: &cable.names.host,
        form: Form::Veth(peer),
        mac: Some(cable.names.host_mac.0),
        mtu: cable.mtu,
        master: cable.master,
        is_up: true,
    };
    let describe = Order::Describe { name: &cable.names.host, alias: cable.label, port: cable.port };
    let orders = [Order::AddLink(link), describe];
    let done = host.commit(&orders, &[]);
    let done = match done {
        Err(e) if e.cause() == Some(Errno::EXIST) && delete(host, &cable.names.host)? => {
            host.commit(&orders, &[])
        }
        done => done,
    };
    match done {
        Err(e) if e.cause() == Some(Errno::EXIST) => {
            let why = format!("there is a device {interface} in the container already");
            Err(CniError::new(Code::Taken, why))
        }
        done => done.map_err(kernel),
    }?;
    // Nobody else may tell the machine routes by it.
    sysctl::set_if_there(&format!("net/ipv6/conf/{}/accept_ra", cable.names.host), "0")
}

/// Says whether there was one.
pub(crate) fn delete(routing: &mut Routing, name: &str) -> Result<bool, CniError> {
    let Some(link) = routing.link(name).map_err(kernel)? else { return Ok(false) };
    deletions::delete(routing, link.index)?;
    Ok(true)
}

/// Takes a cable away by either end: the machine's if it is ours, else the container's.
pub(crate) fn disconnect(request: &Request, names: &Names) -> Result<(), CniError> {
    if delete(&mut routing()?, &names.host)? {
        return Ok(());
    }
    let Some(namespace) = left_namespace(request)? else { return Ok(()) };
    let interface = &request.attachment.interface;
    within(&namespace, || delete(&mut routing()?, interface).map(drop))
}

/// What is to be set on the container's end.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) interface: &'a str,
    pub(crate) ips: &'a [Ip],
    pub(crate) routes: &'a [RouteTo],
    pub(crate) detects_duplicates: bool,
}

/// Addresses, up, routes: called inside the namespace, one batch of messages.
pub(crate) fn set_up(setup: &Setup<'_>) -> Result<Link, CniError> {
    let mut routing = routing()?;
    let link = find(&mut routing, setup.interface)?;
    sysctls(setup)?;
    let mut orders: Vec<Order<'_>> =
        setup.ips.iter().map(|ip| address(link.index, ip.address, setup)).collect();
    let up = LinkChange { is_up: Some(true), ..LinkChange::default() };
    orders.push(Order::ChangeLink(LOOPBACK, up.clone()));
    orders.push(Order::ChangeLink(link.index, up));
    // While others are asked whether they have an address, routes by it are refused.
    let waits = setup.detects_duplicates && setup.ips.iter().any(|ip| ip.address.addr().is_ipv6());
    let routes = routed(setup.ips, setup.routes);
    let routes = routes.iter().map(|route| Order::AddRoute(kernel_route(route, link.index)));
    if waits {
        routing.commit(&orders, &[]).map_err(kernel)?;
        settle(&mut routing, link.index)?;
        routing.commit(&routes.collect::<Vec<_>>(), &[]).map_err(kernel)?;
    } else {
        orders.extend(routes);
        routing.commit(&orders, &[]).map_err(kernel)?;
    }
    Ok(link)
}

pub(crate) fn find(routing: &mut Routing, name: &str) -> Result<Link, CniError> {
    let found = routing.link(name).map_err(kernel)?;
    found.ok_or_else(|| CniError::new(Code::Changed, format!("there is no device {name}")))
}

fn address(device: u32, address: IpNet, setup: &Setup<'_>) -> Order<'static> {
    Order::AddAddress {
        device,
        ip: address.addr(),
        length: address.prefix_len(),
        is_trusted: !setup.detects_duplicates,
    }
}

fn sysctls(setup: &Setup<'_>) -> Result<(), CniError> {
    if setup.ips.is_empty() {
        return Ok(());
    }
    let name = setup.interface;
    let detect = if setup.detects_duplicates { "1" } else { "0" };
    if setup.detects_duplicates {
        sysctl::set_if_there(&format!("net/ipv6/conf/{name}/enhanced_dad"), detect)?;
    }
    sysctl::set_if_there(&format!("net/ipv6/conf/{name}/accept_dad"), detect)?;
    // Who knew somebody else by this address hears of it.
    sysctl::set_if_there(&format!("net/ipv4/conf/{name}/arp_notify"), "1")?;
    if setup.ips.iter().any(|ip| ip.address.addr().is_ipv6()) {
        for device in ["lo", name] {
            sysctl::set_if_there(&format!("net/ipv6/conf/{device}/disable_ipv6"), "0")?;
        }
        sysctl::set_if_there(&format!("net/ipv6/conf/{name}/keep_addr_on_down"), "1")?;
    }
    Ok(())
}

pub(crate) fn kernel_route(route: &RouteTo, device: u32) -> Route {
    let mut out = Route::new(route.to.network(), route.to.prefix_len(), device, route.gateway);
    (out.priority, out.mtu, out.segment) = (route.priority, route.mtu, route.segment);
    out.table = route.table.unwrap_or(out.table);
    out.scope = route.scope.unwrap_or(out.scope);
    out
}

fn settle(routing: &mut Routing, device: u32) -> Result<(), CniError> {
    let end = Instant::now() + SETTLED;
    loop {
        let addresses = routing.addresses(Some(device)).map_err(kernel)?;
        if let Some(taken) = addresses.iter().find(|address| address.is_taken) {
            return Err(CniError::new(Code::Taken, format!("address {} is somebody else's", taken.ip)));
        }
        if !addresses.iter().any(|address| address.is_tentative) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(CniError::new(Code::Later, "the addresses did not settle in time"));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// The machine's end, once it sees the other.
pub(crate) fn connected(host: &mut Routing, name: &str) -> Result<Link, CniError> {
    let end = Instant::now() + CONNECTED;
    loop {
        let link = find(host, name)?;
        if link.has_carrier {
            return Ok(link);
        }
        if Instant::now() > end {
            return Err(CniError::new(Code::Kernel, format!("device {name} does not see its other end")));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Packets may pass through the machine, for the families of these addresses.
pub(crate) fn forward<'a>(ips: impl IntoIterator<Item = &'a Ip>) -> Result<(), CniError> {
    let is_v6: Vec<bool> = ips.into_iter().map(|ip| ip.address.addr().is_ipv6()).collect();
    if is_v6.contains(&false) {
        sysctl::set("net/ipv4/ip_forward", "1")?;
    }
    if is_v6.contains(&true) {
        sysctl::set("net/ipv6/conf/all/forwarding", "1")?;
    }
    Ok(())
}

/// Whether a container has what it was given. Called inside its namespace.
pub(crate) fn check(success: &Success, interface: &str, namespace: &str) -> Result<(), CniError> {
    let changed = |why: String| CniError::new(Code::Changed, why);
    let mut routing = routing()?;
    let link = find(&mut routing, interface)?;
    let told = success.interfaces.iter().find(|told| told.name == interface && told.sandbox == namespace);
    let told =
        told.ok_or_else(|| changed(format!("prevResult has no interface {interface} in {namespace}")))?;
    let mac = link.mac.map(|mac| Mac(mac).to_string()).unwrap_or_default();
    if !told.mac.is_empty() && told.mac != mac {
        return Err(changed(format!("{interface} had hardware address {} and has {mac}", told.mac)));
    }
    if !link.is_up {
        return Err(changed(format!("{interface} is down")));
    }
    let addresses = routing.addresses(Some(link.index)).map_err(kernel)?;
    for ip in success.ips_of(interface) {
        let is_there =
            addresses.iter().any(|has| has.ip == ip.address.addr() && has.length == ip.address.prefix_len());
        if !is_there {
            return Err(changed(format!("{interface} has no address {}", ip.address)));
        }
    }
    let routes = routing.routes().map_err(kernel)?;
    let ips: Vec<Ip> = success.ips_of(interface).cloned().collect();
    for wanted in routed(&ips, &success.routes) {
        let is_there = routes.iter().any(|has| {
            (has.to, has.length) == (wanted.to.network(), wanted.to.prefix_len())
                && (wanted.gateway.is_none() || has.gateway == wanted.gateway)
        });
        if !is_there {
            return Err(changed(format!("the route to {} is gone", wanted.to)));
        }
    }
    Ok(())
}

/// Cables that are of this network and of no attachment that lives: by what they say of themselves, and where the one who made
/// them was killed before they could, by their name and their bridge.
pub(crate) fn collect(
    request: &Request,
    bridge: Option<u32>,
    valid: &[AttachmentId],
) -> Result<(), CniError> {
    debug_assert!(request.verb == Verb::Gc);
    let begin = table::label_of_network(&request.network);
    let live: Vec<String> =
        valid.iter().map(|of| Names::of(&table::label(&request.network, of)).host).collect();
    let mut routing = routing()?;
    let is_left = |link: &Link| {
        let is_of_network = match link.alias.is_empty() {
            true => bridge.is_some() && link.master == bridge,
            false => link.alias.starts_with(&begin),
        };
        link.kind == "veth" && bridge::is_ours(&link.name) && is_of_network && !live.contains(&link.name)
    };
    let links = routing.links().map_err(kernel)?;
    let deletions: Vec<Order<'_>> =
        links.iter().filter(|link| is_left(link)).map(|link| Order::DeleteLink(link.index)).collect();
    routing.commit(&deletions, &[Errno::NODEV]).map_err(kernel)
}
