//! From what is there to what is wanted, in an order in which no packet is lost: first all that is missing, then what is too
//! much. Only what is ours goes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Family;
use super::mac::Mac;
use super::plan::{Wanted, Way};

/// How our routes are told from those of others.
pub(crate) const PROTOCOL: u8 = 76;

/// What the kernel has, as far as it could be ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct There {
    /// The number of the tunnel's device.
    pub(crate) tunnel: Option<u32>,
    /// Of the tunnel.
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) neighbours: Vec<(IpAddr, Mac)>,
    pub(crate) forwarding: Vec<(Mac, IpAddr)>,
    /// Of the main table.
    pub(crate) routes: Vec<Route>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: IpNet,
    pub(crate) device: u32,
    pub(crate) gateway: Option<IpAddr>,
    /// Who made it.
    pub(crate) protocol: u8,
    pub(crate) is_on_link: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    AddAddress(IpAddr),
    DeleteAddress(IpAddr, u8),
    SetNeighbour(IpAddr, Mac),
    DeleteNeighbour(IpAddr),
    SetForwarding(Mac, IpAddr),
    DeleteForwarding(Mac, IpAddr),
    SetRoute(Route),
    DeleteRoute(Route),
}

/// Made by the kernel with an address, and gone with it.
const KERNEL: u8 = 2;

/// What is to be done. A tunnel that is wanted is there already.
pub(crate) fn steps(family: Family, wanted: &Wanted, there: &There) -> Vec<Step> {
    let mut steps = Vec::new();
    let (routes, neighbours, forwarding) = flat(wanted, there.tunnel);
    let address = wanted.tunnel.as_ref().map(|tunnel| (tunnel.address, family.whole()));
    if let Some((ip, _)) = address.filter(|address| !there.addresses.contains(address)) {
        steps.push(Step::AddAddress(ip));
    }
    let missing = neighbours.iter().filter(|one| !there.neighbours.contains(one));
    steps.extend(missing.map(|(ip, mac)| Step::SetNeighbour(*ip, *mac)));
    let missing = forwarding.iter().filter(|one| !there.forwarding.contains(one));
    steps.extend(missing.map(|(mac, ip)| Step::SetForwarding(*mac, *ip)));
    let missing = routes.iter().filter(|route| !there.routes.iter().any(|other| is_same(other, route)));
    steps.extend(missing.map(|route| Step::SetRoute(route.clone())));

    let is_ours = |route: &&Route| {
        let is_in_tunnel = there.tunnel == Some(route.device) && route.protocol != KERNEL;
        Family::of_net(route.to) == family && (is_in_tunnel || route.protocol == PROTOCOL)
    };
    let too_much = there.routes.iter().filter(is_ours);
    let too_much = too_much.filter(|route| !routes.iter().any(|wanted| wanted.to == route.to));
    steps.extend(too_much.map(|route| Step::DeleteRoute(route.clone())));
    let is_known = |mac: Mac| forwarding.iter().any(|(known, _)| *known == mac);
    let too_much = there.forwarding.iter().filter(|(mac, _)| !is_known(*mac));
    steps.extend(too_much.map(|(mac, ip)| Step::DeleteForwarding(*mac, *ip)));
    let is_known = |ip: IpAddr| neighbours.iter().any(|(known, _)| *known == ip);
    let too_much = there.neighbours.iter().filter(|(ip, _)| !is_known(*ip));
    steps.extend(too_much.map(|(ip, _)| Step::DeleteNeighbour(*ip)));
    let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    let too_much = there.addresses.iter().filter(|own| Some(**own) != address && !is_link_local(own.0));
    steps.extend(too_much.map(|(ip, length)| Step::DeleteAddress(*ip, *length)));
    steps
}

type Flat = (Vec<Route>, Vec<(IpAddr, Mac)>, Vec<(Mac, IpAddr)>);

/// The ways as the kernel knows them. The first address of a subnet stands for the machine at the other end.
fn flat(wanted: &Wanted, tunnel: Option<u32>) -> Flat {
    let (mut routes, mut neighbours, mut forwarding) = (Vec::new(), Vec::new(), Vec::new());
    for (to, way) in &wanted.ways {
        let (device, gateway, is_on_link) = match (way, tunnel) {
            (Way::Direct { gateway, device }, _) => (*device, *gateway, false),
            (Way::Tunnel { mac, to: machine }, Some(tunnel)) => {
                neighbours.push((to.network(), *mac));
                forwarding.push((*mac, *machine));
                (tunnel, to.network(), true)
            }
            (Way::Tunnel { .. }, None) => continue,
        };
        routes.push(Route { to: *to, device, gateway: Some(gateway), protocol: PROTOCOL, is_on_link });
    }
    (routes, neighbours, forwarding)
}

/// Whoever made it: what leads to the same place may stay.
fn is_same(one: &Route, other: &Route) -> bool {
    (one.to, one.device, one.gateway) == (other.to, other.device, other.gateway)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::net_conf::Vxlan;
    use super::super::plan::Tunnel;
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn wanted(ways: &[(&str, Way)]) -> Wanted {
        let tunnel = Tunnel {
            name: "flannel.1".into(),
            vxlan: Vxlan { vni: 1, port: 8472, has_policy: false, learns: false, is_direct: false },
            local: ip("192.0.2.1"),
            device: 7,
            mac: Mac::named("a"),
            mtu: 1450,
            address: ip("10.0.1.0"),
        };
        let ways: BTreeMap<IpNet, Way> = ways.iter().map(|(to, way)| (net(to), *way)).collect();
        Wanted { tunnel: Some(tunnel), ways }
    }

    fn tunnelled(node: &str, to: &str) -> Way {
        Way::Tunnel { mac: Mac::named(node), to: ip(to) }
    }

    /// What the kernel has afterwards.
    fn act(mut there: There, steps: &[Step]) -> There {
        for step in steps {
            match step.clone() {
                Step::AddAddress(ip) => there.addresses.push((ip, 32)),
                Step::DeleteAddress(ip, _) => there.addresses.retain(|(own, _)| *own != ip),
                Step::SetNeighbour(ip, mac) => {
                    there.neighbours.retain(|(known, _)| *known != ip);
                    there.neighbours.push((ip, mac));
                }
                Step::DeleteNeighbour(ip) => there.neighbours.retain(|(known, _)| *known != ip),
                Step::SetForwarding(mac, ip) => {
                    there.forwarding.retain(|(known, _)| *known != mac);
                    there.forwarding.push((mac, ip));
                }
                Step::DeleteForwarding(mac, _) => there.forwarding.retain(|(known, _)| *known != mac),
                Step::SetRoute(route) => {
                    there.routes.retain(|known| known.to != route.to);
                    there.routes.push(route);
                }
                Step::DeleteRoute(route) => there.routes.retain(|known| *known != route),
            }
        }
        there
    }

    #[test]
    fn from_anywhere_one_round_leads_there_and_a_second_has_nothing_to_do() {
        let none = There { tunnel: Some(9), ..There::default() };
        let two = wanted(&[
            ("10.0.2.0/24", tunnelled("b", "192.0.2.2")),
            ("10.0.3.0/24", tunnelled("c", "192.0.2.3")),
        ]);
        let moved = wanted(&[
            ("10.0.2.0/24", tunnelled("b", "192.0.2.22")),
            ("10.0.4.0/24", tunnelled("c", "192.0.2.3")),
            ("10.0.5.0/24", Way::Direct { gateway: ip("192.0.2.5"), device: 7 }),
        ]);
        let empty = Wanted::default();
        let all = [&none_wanted(), &two, &moved, &empty];
        for from in all {
            let start = act(none.clone(), &steps(Family::V4, from, &none));
            for to in all {
                let there = act(start.clone(), &steps(Family::V4, to, &start));
                assert_eq!(steps(Family::V4, to, &there), [], "{from:?} -> {to:?}");
                assert_eq!(there.routes.len(), to.ways.len());
            }
        }
    }

    fn none_wanted() -> Wanted {
        wanted(&[])
    }

    #[test]
    fn what_is_missing_comes_before_what_is_too_much_and_a_way_after_what_it_needs() {
        let before = wanted(&[("10.0.2.0/24", tunnelled("b", "192.0.2.2"))]);
        let there = There { tunnel: Some(9), ..There::default() };
        let there = act(there.clone(), &steps(Family::V4, &before, &there));
        let after = wanted(&[("10.0.3.0/24", tunnelled("c", "192.0.2.3"))]);
        let steps = steps(Family::V4, &after, &there);
        let names: Vec<String> = steps
            .iter()
            .map(|step| format!("{step:?}").split(['(', ' ']).next().unwrap_or_default().to_owned())
            .collect();
        assert_eq!(
            names,
            [
                "SetNeighbour",
                "SetForwarding",
                "SetRoute",
                "DeleteRoute",
                "DeleteForwarding",
                "DeleteNeighbour"
            ]
        );
    }

    #[test]
    fn what_others_made_stays_unless_it_is_in_our_tunnel() {
        let route = |to: &str, device, protocol| Route {
            to: net(to),
            device,
            gateway: None,
            protocol,
            is_on_link: false,
        };
        let there = There {
            tunnel: Some(9),
            addresses: vec![(ip("10.0.1.0"), 32), (ip("fe80::1"), 64)],
            routes: vec![
                route("0.0.0.0/0", 7, 3),
                route("10.9.0.0/16", 7, 4),
                route("10.9.1.0/24", 9, KERNEL),
                route("fd00::/64", 9, 3),
                route("10.9.2.0/24", 9, 3),
                route("10.9.3.0/24", 7, PROTOCOL),
            ],
            ..There::default()
        };
        let gone = ["10.9.2.0/24", "10.9.3.0/24"];
        let steps = steps(Family::V4, &wanted(&[]), &there);
        let routes: Vec<String> = steps
            .iter()
            .map(|step| match step {
                Step::DeleteRoute(route) => route.to.to_string(),
                other => format!("{other:?}"),
            })
            .collect();
        assert_eq!(routes, gone);
    }
}
