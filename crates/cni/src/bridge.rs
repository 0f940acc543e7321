//! `bridge`: a container on a bridge of the machine.

use cni_core::bridge::{Bridge, GatewayPlan, Names, gateway_plan};
use cni_core::mac::Mac;
use cni_core::success::{Interface, Success};
use cni_core::table::{self, Entry, SetId};
use cni_core::{CniError, Code, Request};
use ipnet::IpNet;
use rustix::io::Errno;
use serde_json::Value;
use sys::netns::Netns;
use sys::route::{Form, Link, LinkChange, NewLink, Order, Port, Routing};

use crate::delegate;
use crate::device::{self, Cable, Setup, kernel};
use crate::plugin::Plugin;
use crate::rules::Rules;
use crate::sysctl;

pub(crate) const PLUGIN: Plugin = Plugin { name: "bridge", add, del, check, status, gc };

pub(crate) const MASQUERADE: [SetId; 2] = [SetId::Neighbours, SetId::Masqueraded];

fn add(request: &Request) -> Result<Value, CniError> {
    let config = Bridge::read(request)?;
    let namespace = device::namespace(request)?;
    let mut host = device::routing()?;
    let bridge = ensure(&mut host, &config)?;
    let given = if config.has_addresses { delegate::add(request)? } else { Success::default() };
    let label = table::label(&request.network, &request.attachment);
    let attach = Attach { request, config: &config, namespace: &namespace, names: Names::of(&label), label };
    attach.all(&mut host, &bridge, given).inspect_err(|_| {
        // Whatever there is of it; that it fails is no news.
        let _ = undo(request, &config);
    })
}

fn del(request: &Request) -> Result<(), CniError> {
    let label = table::label(&request.network, &request.attachment);
    device::disconnect(request, &Names::of(&label))?;
    delegate::del(request)?;
    // It must not fail for what an addition would refuse.
    match Bridge::read(request) {
        Ok(config) if !config.masquerade => Ok(()),
        _ => Rules::open()?.remove(&MASQUERADE, &request.network, &request.attachment),
    }
}

fn undo(request: &Request, config: &Bridge) -> Result<(), CniError> {
    let label = table::label(&request.network, &request.attachment);
    device::delete(&mut device::routing()?, &Names::of(&label).host)?;
    delegate::del(request)?;
    match config.masquerade {
        true => Rules::open()?.remove(&MASQUERADE, &request.network, &request.attachment),
        false => Ok(()),
    }
}

fn check(request: &Request) -> Result<(), CniError> {
    let config = Bridge::read(request)?;
    let success = request.required_previous()?;
    delegate::check(request)?;
    let mut host = device::routing()?;
    let bridge = find_bridge(&mut host, &config)?
        .ok_or_else(|| CniError::new(Code::Changed, format!("there is no bridge {}", config.name)))?;
    let ports = host.links().map_err(kernel)?;
    let is_port = |told: &Interface| {
        ports.iter().any(|port| port.name == told.name && port.master == Some(bridge.index))
    };
    if !success.interfaces.iter().any(|told| told.sandbox.is_empty() && is_port(told)) {
        let why = format!("{} is no port of {} any more", request.attachment.interface, config.name);
        return Err(CniError::new(Code::Changed, why));
    }
    let (interface, sandbox) = (&request.attachment.interface, &request.namespace);
    device::within(&device::namespace(request)?, || device::check(&success, interface, sandbox))?;
    if config.masquerade {
        let label = table::label(&request.network, &request.attachment);
        Rules::open()?.check(&masquerade(&success, interface, &label))?;
    }
    Ok(())
}

fn status(request: &Request) -> Result<(), CniError> {
    let config = Bridge::read(request)?;
    find_bridge(&mut device::routing()?, &config)?;
    if config.masquerade {
        Rules::open().map_err(|e| CniError::new(Code::Unavailable, e.message))?;
    }
    delegate::status(request)
}

fn gc(request: &Request) -> Result<(), CniError> {
    let config = Bridge::read(request)?;
    let valid = request.valid_attachments()?;
    let bridge = find_bridge(&mut device::routing()?, &config)?.map(|bridge| bridge.index);
    // Each does what it can, whatever becomes of the others.
    let cables = device::collect(request, bridge, &valid);
    let rules = Rules::open().and_then(|mut rules| rules.keep(&MASQUERADE, &request.network, &valid));
    delegate::gc(request).and(cables).and(rules)
}

pub(crate) fn masquerade(success: &Success, interface: &str, label: &str) -> Vec<Entry> {
    success.ips_of(interface).flat_map(|ip| table::masquerade(ip.address, label)).collect()
}

fn find_bridge(host: &mut Routing, config: &Bridge) -> Result<Option<Link>, CniError> {
    match host.link(&config.name).map_err(kernel)? {
        Some(link) if link.kind != "bridge" => {
            let kind = if link.kind.is_empty() { "device" } else { &link.kind };
            Err(CniError::field("bridge", format!("{:?} is there and is a {kind}", config.name)))
        }
        found => Ok(found),
    }
}

fn ensure(host: &mut Routing, config: &Bridge) -> Result<Link, CniError> {
    let found = match find_bridge(host, config)? {
        Some(found) => found,
        None => {
            create(host, config)?;
            let made = find_bridge(host, config)?;
            let gone = || CniError::new(Code::Later, format!("bridge {} went as it came", config.name));
            let made = made.ok_or_else(gone)?;
            sysctl::set_if_there(&format!("net/ipv6/conf/{}/accept_ra", config.name), "0")?;
            made
        }
    };
    let is_promiscuous = (config.is_promiscuous && !found.is_promiscuous).then_some(true);
    if is_promiscuous.is_some() || !found.is_up {
        let change = LinkChange { is_up: Some(true), is_promiscuous, ..LinkChange::default() };
        host.commit(&[Order::ChangeLink(found.index, change)], &[]).map_err(kernel)?;
    }
    Ok(found)
}

/// With a hardware address of its own: else it would have that of the port with the lowest one, and change it as ports come
/// and go.
fn create(host: &mut Routing, config: &Bridge) -> Result<(), CniError> {
    let link = NewLink {
        name: &config.name,
        form: Form::Bridge { has_vlans: config.has_vlans() },
        mac: Some(random_mac()?.0),
        mtu: config.mtu,
        master: None,
        is_up: true,
    };
    // Somebody else may be as fast.
    host.commit(&[Order::AddLink(link)], &[Errno::EXIST]).map_err(kernel)
}

fn random_mac() -> Result<Mac, CniError> {
    let text = sysctl::read("kernel/random/uuid").map_err(|e| CniError::io("asking for randomness", &e))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    // From where no version is written.
    let bytes: Vec<u8> = (0..6).filter_map(|at| byte(20 + 2 * at)).collect();
    Ok(Mac::local(bytes.try_into().unwrap_or_default()))
}

/// One container's way onto the bridge.
struct Attach<'a> {
    request: &'a Request,
    config: &'a Bridge,
    namespace: &'a Netns,
    names: Names,
    label: String,
}

// === impl Attach ===

impl Attach<'_> {
    fn all(&self, host: &mut Routing, bridge: &Link, mut success: Success) -> Result<Value, CniError> {
        let config = self.config;
        let interface = self.request.attachment.interface.as_str();
        self.connect(host, bridge)?;
        let gateways = config.complete(&mut success)?;
        let setup = Setup {
            interface,
            ips: &success.ips,
            routes: &success.routes,
            detects_duplicates: config.detects_duplicates,
        };
        if !config.is_interface_disabled {
            device::within(self.namespace, || device::set_up(&setup))?;
        }
        if config.is_gateway {
            let on = self.gateway_device(host, bridge)?;
            ensure_gateways(host, &on, &gateways, config)?;
            device::forward(&success.ips)?;
            if on.index != bridge.index {
                let mac = mac(&on);
                success.interfaces.push(Interface { name: on.name, mac, ..Interface::default() });
            }
        }
        if !config.is_interface_disabled {
            device::connected(host, &self.names.host)?;
        }
        self.interfaces(host, &mut success)?;
        if config.masquerade && config.has_addresses {
            Rules::open()?.add(&masquerade(&success, interface, &self.label))?;
        }
        let dns = self.request.dns()?;
        if !dns.is_empty() {
            success.dns = dns;
        }
        Ok(self.request.answer(&success))
    }

    fn container_mac(&self) -> Mac {
        self.config.mac.unwrap_or(self.names.container_mac)
    }

    fn connect(&self, host: &mut Routing, bridge: &Link) -> Result<(), CniError> {
        let config = self.config;
        let cable = Cable {
            names: &self.names,
            container_mac: self.container_mac(),
            mtu: config.mtu,
            master: Some(bridge.index),
            port: Some(Port { is_hairpin: config.is_hairpin, is_isolated: config.is_isolated }),
            label: &self.label,
        };
        device::connect(host, &cable, self.namespace, &self.request.attachment.interface)?;
        if !config.has_vlans() {
            return Ok(());
        }
        let port = device::find(host, &self.names.host)?.index;
        host.commit(&vlans(config, port), &[Errno::NOENT]).map_err(kernel)
    }

    /// The bridge itself, or where its containers are in a VLAN, a port of it in the same.
    fn gateway_device(&self, host: &mut Routing, bridge: &Link) -> Result<Link, CniError> {
        let Some(id) = self.config.vlan else { return Ok(bridge.clone()) };
        let name = format!("{}.{id}", self.config.name);
        if host.link(&name).map_err(kernel)?.is_none() {
            make_vlan_gateway(host, self.config, bridge, &name)?;
        }
        device::find(host, &name)
    }

    fn interfaces(&self, host: &mut Routing, success: &mut Success) -> Result<(), CniError> {
        // A bridge that is not ours may have changed its own with its ports.
        let bridge = device::find(host, &self.config.name)?;
        let mut interfaces = vec![
            Interface { name: self.config.name.clone(), mac: mac(&bridge), ..Interface::default() },
            Interface {
                name: self.names.host.clone(),
                mac: self.names.host_mac.to_string(),
                ..Interface::default()
            },
            Interface {
                name: self.request.attachment.interface.clone(),
                mac: self.container_mac().to_string(),
                sandbox: self.request.namespace.clone(),
                ..Interface::default()
            },
        ];
        interfaces.append(&mut success.interfaces);
        success.interfaces = interfaces;
        Ok(())
    }
}

fn mac(link: &Link) -> String {
    link.mac.map(|mac| Mac(mac).to_string()).unwrap_or_default()
}

fn vlans(config: &Bridge, port: u32) -> Vec<Order<'static>> {
    let mut orders = Vec::new();
    if !config.keeps_default_vlan {
        orders.push(Order::DeleteVlan { port, id: 1 });
    }
    let add = |id: u16, is_own: bool| Order::AddVlan { port, id, is_own, of_bridge: false };
    orders.extend(config.vlan.map(|id| add(id, true)));
    orders.extend(config.trunk.iter().map(|id| add(*id, false)));
    // Without one of its own a trunk's is the first.
    if config.vlan.is_none() {
        orders.push(add(1, true));
    }
    orders
}

fn make_vlan_gateway(host: &mut Routing, config: &Bridge, bridge: &Link, name: &str) -> Result<(), CniError> {
    let peer_name = format!("{HIDDEN}{:08x}", bridge.index);
    let peer = sys::route::Peer { name, mac: None, mtu: config.mtu, namespace: None };
    let link = NewLink {
        name: &peer_name,
        form: Form::Veth(peer),
        mac: None,
        mtu: config.mtu,
        master: Some(bridge.index),
        is_up: true,
    };
    host.commit(&[Order::AddLink(link)], &[Errno::EXIST]).map_err(kernel)?;
    let port = device::find(host, &peer_name)?.index;
    host.commit(&vlans(config, port), &[Errno::NOENT]).map_err(kernel)?;
    let index = device::find(host, name)?.index;
    let up = LinkChange { is_up: Some(true), ..LinkChange::default() };
    host.commit(&[Order::ChangeLink(index, up)], &[]).map_err(kernel)
}

/// The end of a gateway's cable that is a port.
const HIDDEN: &str = "vethg";

fn ensure_gateways(
    host: &mut Routing,
    on: &Link,
    gateways: &[IpNet],
    config: &Bridge,
) -> Result<(), CniError> {
    for gateway in gateways {
        let has = host.addresses(Some(on.index)).map_err(kernel)?;
        let has: Vec<IpNet> = has.iter().filter_map(|a| IpNet::new(a.ip, a.length).ok()).collect();
        let GatewayPlan { delete, add } = gateway_plan(&on.name, &has, *gateway, config.is_address_forced)?;
        let device = on.index;
        let mut orders: Vec<Order<'_>> = delete
            .iter()
            .map(|old| Order::DeleteAddress { device, ip: old.addr(), length: old.prefix_len() })
            .collect();
        if let Some(new) = add {
            let (ip, length) = (new.addr(), new.prefix_len());
            orders.push(Order::AddAddress { device, ip, length, is_trusted: !config.detects_duplicates });
            // What it is set to it keeps, whoever made the bridge.
            orders.push(Order::ChangeLink(device, LinkChange { mac: on.mac, ..LinkChange::default() }));
        }
        host.commit(&orders, &[Errno::EXIST, Errno::ADDRNOTAVAIL]).map_err(kernel)?;
    }
    Ok(())
}
