//! The kernel's side: what is there, and the orders that bring it where it is wanted. Everything in here blocks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rustix::io::Errno;
use sys::route::{Form, Link, LinkChange, MAIN_TABLE, NewLink, Order, Route as KernelRoute, Routing};

use crate::core::mac::Mac;
use crate::core::net_conf::NetConf;
use crate::core::plan::{Tunnel, Wanted};
use crate::core::steps::{PROTOCOL, Route, Step, There, steps};
use crate::core::underlay::Local;
use crate::core::{Both, Family};
use crate::{Error, rules};

/// How our devices are told from those of others.
const ALIAS: &str = "longshore overlay";

/// What was found of the machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    pub(crate) locals: Vec<Local>,
    /// The device that packets to the rest of the world leave by.
    pub(crate) default_device: Both<u32>,
    /// Of the tunnels that are there.
    pub(crate) macs: Both<Mac>,
}

/// A conversation with the kernel of the machine.
#[derive(Debug)]
pub(crate) struct Kernel {
    routing: Routing,
}

// === impl Kernel ===

impl Kernel {
    pub(crate) fn open() -> Result<Kernel, Error> {
        Ok(Kernel { routing: Routing::open().map_err(|e| failed("open netlink", &e))? })
    }

    pub(crate) fn machine(&mut self, conf: &NetConf) -> Result<Machine, Error> {
        let links = self.routing.links().map_err(|e| failed("list devices", &e))?;
        let addresses = self.routing.addresses(None).map_err(|e| failed("list addresses", &e))?;
        let local = |address: sys::route::Address| {
            let link = links.iter().find(|link| link.index == address.device)?;
            Some(Local { ip: address.ip, device: link.index, name: link.name.clone(), mtu: link.mtu })
        };
        let mut machine =
            Machine { locals: addresses.into_iter().filter_map(local).collect(), ..Machine::default() };
        for family in Family::ALL {
            machine.default_device.set(family, self.way_out(family)?);
            let name = conf.backend.device(family);
            let tunnel = links.iter().find(|link| Some(&link.name) == name.as_ref() && link.kind == "vxlan");
            machine.macs.set(family, tunnel.and_then(|link| link.mac).map(Mac));
        }
        Ok(machine)
    }

    fn way_out(&mut self, family: Family) -> Result<Option<u32>, Error> {
        // TEST-NET-1 and 2001:db8::/32: addresses that nobody has.
        let far = match family {
            Family::V4 => IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)),
            Family::V6 => IpAddr::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        };
        let way = self.routing.way_to(far).map_err(|e| failed("find the way out", &e))?;
        Ok(way.map(|way| way.device))
    }

    /// The device by which a machine is next to this one.
    pub(crate) fn next_to(&mut self, ip: IpAddr) -> Option<u32> {
        let way = self.routing.way_to(ip).ok().flatten()?;
        way.gateway.is_none().then_some(way.device)
    }

    /// Brings one family where it is wanted. Says how many orders it took.
    pub(crate) fn bring(&mut self, family: Family, wanted: &Wanted, conf: &NetConf) -> Result<usize, Error> {
        let mut count = 0;
        let name = conf.backend.device(family);
        let found = match &name {
            Some(name) => self.routing.link(name).map_err(|e| failed("look for the tunnel", &e))?,
            None => None,
        };
        let tunnel = match &wanted.tunnel {
            Some(tunnel) => Some(self.ensure(tunnel, found.as_ref(), &mut count)?),
            None => found.as_ref().filter(|link| link.alias == ALIAS).map(|link| link.index),
        };
        let there = self.there(tunnel)?;
        let steps = steps(family, wanted, &there);
        count += steps.len();
        self.carry_out(&steps, tunnel.unwrap_or_default())?;
        if wanted.tunnel.is_none()
            && let Some(index) = tunnel
        {
            count += 1;
            self.commit("delete the tunnel", &[Order::DeleteLink(index)], &[Errno::NODEV])?;
        }
        Ok(count)
    }

    /// Devices of ours that this configuration has no name for.
    pub(crate) fn forget_others(&mut self, conf: &NetConf) -> Result<(), Error> {
        let names: Vec<String> = Family::ALL.into_iter().filter_map(|f| conf.backend.device(f)).collect();
        let links = self.routing.links().map_err(|e| failed("list devices", &e))?;
        let others = links.iter().filter(|link| link.alias == ALIAS && !names.contains(&link.name));
        let orders: Vec<Order<'_>> = others.map(|link| Order::DeleteLink(link.index)).collect();
        self.commit("delete tunnels of before", &orders, &[Errno::NODEV])
    }

    /// One that is as it should be stays: its packets go on.
    fn ensure(&mut self, tunnel: &Tunnel, found: Option<&Link>, count: &mut usize) -> Result<u32, Error> {
        if let Some(link) = found.filter(|link| is_same(tunnel, link)) {
            let change = LinkChange {
                is_up: (!link.is_up).then_some(true),
                mac: (link.mac != Some(tunnel.mac.0)).then_some(tunnel.mac.0),
                mtu: (link.mtu != tunnel.mtu).then_some(tunnel.mtu),
                ..LinkChange::default()
            };
            let is_other = change.is_up.is_some() || change.mac.is_some() || change.mtu.is_some();
            let mut orders = Vec::new();
            if is_other {
                orders.push(Order::ChangeLink(link.index, change));
            }
            if link.alias != ALIAS {
                orders.push(Order::Describe { name: &tunnel.name, alias: ALIAS, port: None });
            }
            *count += orders.len();
            self.commit("change the tunnel", &orders, &[])?;
            return Ok(link.index);
        }
        let form = Form::Vxlan {
            id: tunnel.vxlan.vni,
            port: tunnel.vxlan.port,
            local: tunnel.local,
            device: tunnel.device,
            learns: tunnel.vxlan.learns,
            has_policy: tunnel.vxlan.has_policy,
        };
        let link = NewLink {
            name: &tunnel.name,
            form,
            mac: Some(tunnel.mac.0),
            mtu: Some(tunnel.mtu),
            master: None,
            is_up: true,
        };
        let mut orders: Vec<Order<'_>> = found.iter().map(|link| Order::DeleteLink(link.index)).collect();
        orders.push(Order::AddLink(link));
        orders.push(Order::Describe { name: &tunnel.name, alias: ALIAS, port: None });
        *count += orders.len();
        self.commit("make the tunnel", &orders, &[])?;
        let made = self.routing.link(&tunnel.name).map_err(|e| failed("look for the tunnel", &e))?;
        let gone = || Error::Kernel { act: "make the tunnel", cause: format!("{} is gone", tunnel.name) };
        made.map(|link| link.index).ok_or_else(gone)
    }

    fn there(&mut self, tunnel: Option<u32>) -> Result<There, Error> {
        let routes = self.routing.routes().map_err(|e| failed("list routes", &e))?;
        let route = |route: KernelRoute| {
            let to = IpNet::new(route.to, route.length).ok()?;
            (route.table == MAIN_TABLE).then_some(Route {
                to,
                device: route.device,
                gateway: route.gateway,
                protocol: route.protocol.unwrap_or_default(),
                is_on_link: route.is_on_link,
            })
        };
        let mut there =
            There { tunnel, routes: routes.into_iter().filter_map(route).collect(), ..There::default() };
        let Some(tunnel) = tunnel else { return Ok(there) };
        let addresses = self.routing.addresses(Some(tunnel)).map_err(|e| failed("list addresses", &e))?;
        there.addresses = addresses.into_iter().map(|address| (address.ip, address.length)).collect();
        let neighbours = self.routing.neighbours().map_err(|e| failed("list neighbours", &e))?;
        let ours = neighbours.into_iter().filter(|one| one.device == tunnel && one.is_permanent);
        there.neighbours = ours.filter_map(|one| Some((one.ip?, Mac(one.mac?)))).collect();
        let forwarding = self.routing.forwarding().map_err(|e| failed("list forwarding entries", &e))?;
        let ours = forwarding.into_iter().filter(|one| one.device == tunnel && one.is_permanent);
        there.forwarding = ours.filter_map(|one| Some((Mac(one.mac?), one.ip?))).collect();
        Ok(there)
    }

    /// All of them are tried; what one Node lacks is no other's loss.
    fn carry_out(&mut self, steps: &[Step], tunnel: u32) -> Result<(), Error> {
        let orders: Vec<Order<'_>> = steps.iter().map(|step| order(step, tunnel)).collect();
        let outcomes = self.routing.orders(&orders).map_err(|e| failed("change routes", &e))?;
        let failed = orders.iter().zip(outcomes).filter_map(|(order, outcome)| {
            let is_gone = matches!(
                (order, outcome),
                (
                    Order::DeleteRoute(_)
                        | Order::DeleteNeighbour { .. }
                        | Order::DeleteForwarding { .. }
                        | Order::DeleteAddress { .. },
                    Err(Errno::SRCH | Errno::NOENT | Errno::ADDRNOTAVAIL)
                )
            );
            outcome.err().filter(|_| !is_gone).map(|cause| format!("{order}: {cause}"))
        });
        let failed: Vec<String> = failed.collect();
        match failed.is_empty() {
            true => Ok(()),
            false => Err(Error::Kernel { act: "change routes", cause: failed.join("; ") }),
        }
    }

    fn commit(&mut self, act: &'static str, orders: &[Order<'_>], will_do: &[Errno]) -> Result<(), Error> {
        match orders.is_empty() {
            true => Ok(()),
            false => self.routing.commit(orders, will_do).map_err(|e| failed(act, &e)),
        }
    }
}

/// Takes everything of ours from the machine: tunnels, routes and rules.
pub fn clean_up() -> Result<(), Error> {
    let mut kernel = Kernel::open()?;
    let links = kernel.routing.links().map_err(|e| failed("list devices", &e))?;
    let routes = kernel.routing.routes().map_err(|e| failed("list routes", &e))?;
    let ours = routes.into_iter().filter(|route| route.protocol == Some(PROTOCOL));
    let mut orders: Vec<Order<'_>> = ours.map(Order::DeleteRoute).collect();
    orders.extend(links.iter().filter(|link| link.alias == ALIAS).map(|link| Order::DeleteLink(link.index)));
    kernel.commit("take the network away", &orders, &[Errno::NODEV, Errno::SRCH])?;
    Family::ALL.into_iter().try_for_each(rules::remove)
}

fn is_same(tunnel: &Tunnel, link: &Link) -> bool {
    let Some(there) = link.vxlan.as_ref().filter(|_| link.kind == "vxlan") else { return false };
    there.id == tunnel.vxlan.vni
        && there.port == tunnel.vxlan.port
        && there.local == Some(tunnel.local)
        && there.device == tunnel.device
        && there.learns == tunnel.vxlan.learns
        && there.has_policy == tunnel.vxlan.has_policy
}

fn order(step: &Step, device: u32) -> Order<'static> {
    match step {
        Step::AddAddress(ip) => {
            let length = Family::of(*ip).whole();
            Order::AddAddress { device, ip: *ip, length, is_trusted: true }
        }
        Step::DeleteAddress(ip, length) => Order::DeleteAddress { device, ip: *ip, length: *length },
        Step::SetNeighbour(ip, mac) => Order::SetNeighbour { device, ip: *ip, mac: mac.0 },
        Step::DeleteNeighbour(ip) => Order::DeleteNeighbour { device, ip: *ip },
        Step::SetForwarding(mac, to) => Order::SetForwarding { device, mac: mac.0, to: *to },
        Step::DeleteForwarding(mac, to) => Order::DeleteForwarding { device, mac: mac.0, to: *to },
        Step::SetRoute(route) => Order::ReplaceRoute(kernel_route(route)),
        Step::DeleteRoute(route) => Order::DeleteRoute(kernel_route(route)),
    }
}

fn kernel_route(route: &Route) -> KernelRoute {
    KernelRoute {
        protocol: Some(route.protocol),
        is_on_link: route.is_on_link,
        ..KernelRoute::new(route.to.network(), route.to.prefix_len(), route.device, route.gateway)
    }
}

fn failed(act: &'static str, cause: &sys::route::Error) -> Error {
    Error::Kernel { act, cause: cause.to_string() }
}
