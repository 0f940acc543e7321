//! Which tunnel and which ways one family wants. Levels, not edges: all of it, whatever was there before.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::lease::{End, Lease};
use super::mac::Mac;
use super::net_conf::{Backend, NetConf, Vxlan};
use super::underlay::Local;
use super::{Both, Family};

/// What one family wants of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// None as long as no way leads through it: then it is not there either.
    pub(crate) tunnel: Option<Tunnel>,
    pub(crate) ways: BTreeMap<IpNet, Way>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tunnel {
    pub(crate) name: String,
    pub(crate) vxlan: Vxlan,
    /// Where its packets come from, and by which device.
    pub(crate) local: IpAddr,
    pub(crate) device: u32,
    pub(crate) mac: Mac,
    pub(crate) mtu: u32,
    /// What the machine is called when it speaks to Pods elsewhere.
    pub(crate) address: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tunnel { mac: Mac, to: IpAddr },
    Direct { gateway: IpAddr, device: u32 },
}

/// A machine is next to this one by a device; none where something is between.
pub(crate) type NextTo<'a> = &'a dyn Fn(IpAddr) -> Option<u32>;

/// What this family wants, and what cannot be had: the Node, and why.
pub(crate) fn plan(
    (family, conf): (Family, &NetConf),
    own: &Lease,
    peers: &[Lease],
    underlay: &Local,
    next_to: NextTo<'_>,
) -> (Wanted, Vec<(String, String)>) {
    let Some(here) = own.ends.get(family) else { return (Wanted::default(), Vec::new()) };
    let (mut ways, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut taken: Vec<(IpNet, &str)> = vec![(here.subnet, &own.node)];
    for (lease, end) in peers.iter().filter_map(|lease| Some((lease, lease.ends.get(family)?))) {
        let overlaps = |(net, _): &&(IpNet, &str)| net.contains(&end.subnet) || end.subnet.contains(net);
        if let Some((net, whose)) = taken.iter().find(overlaps) {
            wrong.push((lease.node.clone(), format!("its subnet {} is in {net} of {whose}", end.subnet)));
            continue;
        }
        match way(conf.backend, end, next_to) {
            Ok(way) => {
                ways.insert(end.subnet, way);
                taken.push((end.subnet, &lease.node));
            }
            Err(why) => wrong.push((lease.node.clone(), why)),
        }
    }
    let needs_tunnel = ways.values().any(|way| matches!(way, Way::Tunnel { .. }));
    let tunnel = needs_tunnel.then(|| tunnel((family, conf), here, underlay)).flatten();
    (Wanted { tunnel, ways }, wrong)
}

/// Of the packets of Pods, in all families: as long as the shortest way takes them.
pub(crate) fn mtu(conf: &NetConf, underlays: &Both<Local>) -> u32 {
    let of = |family| {
        let local = underlays.get(family)?;
        Some(conf.mtu.unwrap_or(local.mtu).saturating_sub(conf.overhead(family)))
    };
    Family::ALL.into_iter().filter_map(of).min().unwrap_or(1500)
}

fn way(backend: Backend, end: &End, next_to: NextTo<'_>) -> Result<Way, String> {
    let direct = || next_to(end.public).map(|device| Way::Direct { gateway: end.public, device });
    match backend {
        Backend::HostGw => direct().ok_or_else(|| {
            format!("host-gw needs it next to this machine, and {} is behind a router", end.public)
        }),
        Backend::Vxlan(vxlan) => {
            let mac = end.mac.ok_or_else(|| "it has no tunnel".to_owned())?;
            let short = if vxlan.is_direct { direct() } else { None };
            Ok(short.unwrap_or(Way::Tunnel { mac, to: end.public }))
        }
    }
}

fn tunnel((family, conf): (Family, &NetConf), here: &End, underlay: &Local) -> Option<Tunnel> {
    let Backend::Vxlan(vxlan) = conf.backend else { return None };
    Some(Tunnel {
        name: conf.backend.device(family)?,
        vxlan,
        local: underlay.ip,
        device: underlay.device,
        mac: here.mac?,
        mtu: conf.mtu.unwrap_or(underlay.mtu).saturating_sub(conf.overhead(family)),
        address: here.subnet.network(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn lease(node: &str, subnet: &str, public: &str) -> Lease {
        let mac = Some(Mac::named(node));
        let end = End { subnet: subnet.parse().unwrap(), public: public.parse().unwrap(), mac };
        Lease { node: node.into(), ends: Both { v4: Some(end), v6: None } }
    }

    fn conf(backend: &str) -> NetConf {
        NetConf::parse(&format!(r#"{{"Network": "10.0.0.0/8", "Backend": {backend}}}"#)).unwrap()
    }

    fn underlay() -> Local {
        Local { ip: "192.0.2.1".parse().unwrap(), device: 7, name: "eth0".into(), mtu: 1500 }
    }

    /// Machines of 192.0.2.0/24 are next to us.
    fn next_to(ip: IpAddr) -> Option<u32> {
        ip.to_string().starts_with("192.0.2.").then_some(7)
    }

    fn planned(backend: &str, peers: &[Lease]) -> (Wanted, Vec<(String, String)>) {
        let own = lease("a", "10.0.1.0/24", "192.0.2.1");
        plan((Family::V4, &conf(backend)), &own, peers, &underlay(), &next_to)
    }

    #[test]
    fn alone_there_is_nothing() {
        for backend in [r#"{"Type": "vxlan"}"#, r#"{"Type": "host-gw"}"#] {
            assert_eq!(planned(backend, &[]), (Wanted::default(), vec![]));
        }
    }

    #[test]
    fn every_node_is_reached_by_the_way_that_the_backend_has() {
        let peers = [lease("b", "10.0.2.0/24", "192.0.2.2"), lease("c", "10.0.3.0/24", "198.51.100.3")];
        let (b, c) = ("10.0.2.0/24".parse().unwrap(), "10.0.3.0/24".parse().unwrap());
        let near = Way::Direct { gateway: "192.0.2.2".parse().unwrap(), device: 7 };
        let far = Way::Tunnel { mac: Mac::named("c"), to: "198.51.100.3".parse().unwrap() };
        let (wanted, wrong) = planned(r#"{"Type": "vxlan"}"#, &peers);
        assert!(wrong.is_empty() && matches!(wanted.ways[&b], Way::Tunnel { .. }) && wanted.ways[&c] == far);
        let tunnel = wanted.tunnel.unwrap();
        assert_eq!((tunnel.name.as_str(), tunnel.mtu, tunnel.device), ("flannel.1", 1450, 7));
        assert_eq!((tunnel.address.to_string(), tunnel.mac), ("10.0.1.0".into(), Mac::named("a")));
        let (wanted, _) = planned(r#"{"Type": "vxlan", "DirectRouting": true}"#, &peers);
        assert!(wanted.ways[&b] == near && wanted.ways[&c] == far && wanted.tunnel.is_some());
        let (wanted, _) = planned(r#"{"Type": "vxlan", "DirectRouting": true}"#, &peers[..1]);
        assert!(wanted.tunnel.is_none());
        let (wanted, wrong) = planned(r#"{"Type": "host-gw"}"#, &peers);
        assert!(wanted.ways[&b] == near && wanted.ways.len() == 1 && wanted.tunnel.is_none());
        let why = "host-gw needs it next to this machine, and 198.51.100.3 is behind a router";
        assert_eq!(wrong, [("c".to_owned(), why.to_owned())]);
    }

    #[test]
    fn a_subnet_has_one_node() {
        let peers = [
            lease("b", "10.0.2.0/24", "192.0.2.2"),
            lease("c", "10.0.2.128/25", "192.0.2.3"),
            lease("d", "10.0.0.0/16", "192.0.2.4"),
        ];
        let (wanted, wrong) = planned(r#"{"Type": "vxlan"}"#, &peers);
        assert_eq!(wanted.ways.len(), 1);
        assert_eq!(wrong[0].1, "its subnet 10.0.2.128/25 is in 10.0.2.0/24 of b");
        assert_eq!(wrong[1].1, "its subnet 10.0.0.0/16 is in 10.0.1.0/24 of a");
    }

    #[test]
    fn packets_are_as_long_as_the_shortest_way_takes_them() {
        let six = Local { ip: "2001:db8::1".parse().unwrap(), ..underlay() };
        let both = Both { v4: Some(underlay()), v6: Some(six.clone()) };
        let (vxlan, gw) = (r#"{"Type": "vxlan"}"#, r#"{"Type": "host-gw"}"#);
        assert_eq!(mtu(&conf(vxlan), &both), 1430);
        assert_eq!(mtu(&conf(vxlan), &Both { v6: None, ..both.clone() }), 1450);
        assert_eq!(mtu(&conf(gw), &both), 1500);
        assert_eq!(mtu(&conf(r#"{"Type": "vxlan", "MTU": 9000}"#), &both), 8930);
    }
}
