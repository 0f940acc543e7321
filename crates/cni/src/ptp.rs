//! `ptp`: a container at the end of a cable, and no bridge. All it sends goes by the machine.

use cni_core::bridge::{Cable as Config, Names};
use cni_core::success::{Interface, Ip, Success};
use cni_core::{CniError, Code, Request, table};
use ipnet::IpNet;
use rustix::io::Errno;
use serde_json::Value;
use sys::route::{Order, Route, Routing};

use crate::bridge::{MASQUERADE, masquerade};
use crate::delegate;
use crate::device::{self, Cable, Setup, kernel};
use crate::plugin::Plugin;
use crate::rules::Rules;

pub(crate) const PLUGIN: Plugin = Plugin { name: "ptp", add, del, check, status, gc };

/// Reaches what is at the device itself.
const AT_LINK: u8 = 253;
/// Reaches a machine's own; in this scope upstream's plugin writes the way to the container.
const AT_HOST: u8 = 254;

fn add(request: &Request) -> Result<Value, CniError> {
    let config = Config::read(request)?;
    device::namespace(request)?;
    let given = delegate::add(request)?;
    attach(request, &config, given).inspect_err(|_| {
        let _ = del(request);
    })
}

fn attach(request: &Request, config: &Config, mut success: Success) -> Result<Value, CniError> {
    config.complete(&mut success)?;
    device::forward(&success.ips)?;
    let namespace = device::namespace(request)?;
    let label = table::label(&request.network, &request.attachment);
    let names = Names::of(&label);
    let interface = request.attachment.interface.as_str();
    let mut host = device::routing()?;
    let container_mac = names.container_mac;
    let cable =
        Cable { names: &names, container_mac, mtu: config.mtu, master: None, port: None, label: &label };
    device::connect(&mut host, &cable, &namespace, interface)?;
    set_up_host(&mut host, &names.host, &success.ips)?;
    device::within(&namespace, || set_up(interface, &success))?;
    device::connected(&mut host, &names.host)?;
    success.interfaces = vec![
        Interface { name: names.host.clone(), mac: names.host_mac.to_string(), ..Interface::default() },
        Interface {
            name: interface.to_owned(),
            mac: container_mac.to_string(),
            sandbox: request.namespace.clone(),
            ..Interface::default()
        },
    ];
    if config.masquerade {
        Rules::open()?.add(&masquerade(&success, interface, &label))?;
    }
    let dns = request.dns()?;
    if !dns.is_empty() {
        success.dns = dns;
    }
    Ok(request.answer(&success))
}

/// The network is not at the cable: only the gateway is, and the rest is reached by it.
fn set_up(interface: &str, success: &Success) -> Result<(), CniError> {
    let setup = Setup { interface, ips: &success.ips, routes: &[], detects_duplicates: false };
    let device = device::set_up(&setup)?.index;
    let mut orders = Vec::new();
    for Ip { address, gateway, .. } in &success.ips {
        let Some(gateway) = gateway else { continue };
        let network = Route::new(address.network(), address.prefix_len(), device, None);
        // The kernel's own, in whatever scope it is.
        orders.push(Order::DeleteRoute(Route { scope: NOWHERE, ..network.clone() }));
        let to_gateway = Route::new(*gateway, address.max_prefix_len(), device, None);
        let source = Some(address.addr());
        orders.push(Order::AddRoute(Route { source, scope: AT_LINK, ..to_gateway }));
        orders.push(Order::AddRoute(Route { source, gateway: Some(*gateway), ..network }));
    }
    let routes = cni_core::bridge::routed(&success.ips, &success.routes);
    orders.extend(routes.iter().map(|route| Order::AddRoute(device::kernel_route(route, device))));
    device::routing()?.commit(&orders, &[]).map_err(kernel)
}

/// Any scope, for a deletion.
const NOWHERE: u8 = 255;

fn set_up_host(host: &mut Routing, name: &str, ips: &[Ip]) -> Result<(), CniError> {
    let device = device::find(host, name)?.index;
    let mut orders = Vec::new();
    for Ip { address, gateway, .. } in ips {
        let length = address.max_prefix_len();
        if let Some(ip) = *gateway {
            orders.push(Order::AddAddress { device, ip, length, is_trusted: true });
        }
        let to = Route::new(address.addr(), length, device, None);
        orders
            .push(Order::AddRoute(Route { scope: if address.addr().is_ipv4() { AT_HOST } else { 0 }, ..to }));
    }
    host.commit(&orders, &[Errno::EXIST]).map_err(kernel)
}

fn del(request: &Request) -> Result<(), CniError> {
    let label = table::label(&request.network, &request.attachment);
    device::disconnect(request, &Names::of(&label))?;
    delegate::del(request)?;
    match Config::read(request) {
        Ok(config) if !config.masquerade => Ok(()),
        _ => Rules::open()?.remove(&MASQUERADE, &request.network, &request.attachment),
    }
}

fn check(request: &Request) -> Result<(), CniError> {
    let config = Config::read(request)?;
    let success = request.required_previous()?;
    delegate::check(request)?;
    let (interface, sandbox) = (&request.attachment.interface, &request.namespace);
    device::within(&device::namespace(request)?, || device::check(&success, interface, sandbox))?;
    let mut host = device::routing()?;
    let routes = host.routes().map_err(kernel)?;
    for ip in success.ips_of(interface) {
        let whole = IpNet::new(ip.address.addr(), ip.address.max_prefix_len());
        let is_there = routes.iter().any(|route| IpNet::new(route.to, route.length) == whole);
        if !is_there {
            let why = format!("the machine's route to {} is gone", ip.address.addr());
            return Err(CniError::new(Code::Changed, why));
        }
    }
    if config.masquerade {
        let label = table::label(&request.network, &request.attachment);
        Rules::open()?.check(&masquerade(&success, interface, &label))?;
    }
    Ok(())
}

fn status(request: &Request) -> Result<(), CniError> {
    Config::read(request)?;
    delegate::status(request)
}

fn gc(request: &Request) -> Result<(), CniError> {
    let valid = request.valid_attachments()?;
    let cables = device::collect(request, None, &valid);
    let rules = Rules::open().and_then(|mut rules| rules.keep(&MASQUERADE, &request.network, &valid));
    delegate::gc(request).and(cables).and(rules)
}
