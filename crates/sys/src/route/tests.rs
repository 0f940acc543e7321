#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::net::IpAddr;
use std::os::fd::AsFd;

use super::*;
use fixture::Netns;

const NO_MAC: Option<[u8; 6]> = None;

fn veth<'a>(name: &'a str, peer: Peer<'a>, master: Option<u32>) -> Order<'a> {
    let mac = Some([2, 0, 0, 0, 0, 1]);
    Order::AddLink(NewLink { name, form: Form::Veth(peer), mac, mtu: Some(1400), master, is_up: true })
}

/// A cable from a bridge here into another namespace, with addresses and routes at both ends, in two batches.
#[test]
fn a_container_is_connected_in_two_batches() {
    if let Err(why) = Netns::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let (host, container) = (Netns::new().unwrap(), Netns::new().unwrap());
    host.within(|| {
        let mut routing = Routing::open().unwrap();
        assert_eq!(routing.link("br0").unwrap(), None);
        assert_eq!(routing.link("a-name-that-is-much-too-long").unwrap(), None);
        let bridge = NewLink {
            name: "br0",
            form: Form::Bridge { has_vlans: false },
            is_up: true,
            ..NewLink::default()
        };
        routing.commit(&[Order::AddLink(bridge)], &[]).unwrap();
        let bridge = routing.link("br0").unwrap().unwrap();
        assert_eq!((bridge.kind.as_str(), bridge.is_up), ("bridge", true));
        let peer = Peer { name: "eth0", mac: NO_MAC, mtu: Some(1400), namespace: Some(container.as_fd()) };
        let port = Some(Port { is_hairpin: true, is_isolated: true });
        let orders = [
            veth("veth-a", peer, Some(bridge.index)),
            Order::Describe { name: "veth-a", alias: "net: id/eth0", port },
            Order::AddAddress {
                device: bridge.index,
                ip: "10.9.0.1".parse().unwrap(),
                length: 24,
                is_trusted: true,
            },
        ];
        routing.commit(&orders, &[]).unwrap();
        let made = routing.link("veth-a").unwrap().unwrap();
        assert!(made.is_hairpin && made.is_isolated && made.is_up && !made.has_carrier);
        assert_eq!((made.alias.as_str(), made.master, made.mtu), ("net: id/eth0", Some(bridge.index), 1400));
        assert_eq!(made.mac, Some([2, 0, 0, 0, 0, 1]));
        let again = routing.commit(&orders[..1], &[]).unwrap_err();
        assert_eq!(again.cause(), Some(Errno::EXIST));
        assert!(again.to_string().contains("making device veth-a"), "{again}");
        assert_eq!(routing.link_by_index(made.index).unwrap(), Some(made));
    });
    container.within(|| {
        let mut routing = Routing::open().unwrap();
        let device = routing.link("eth0").unwrap().unwrap().index;
        let gateway = Some("10.9.0.1".parse().unwrap());
        let route = Route::new("0.0.0.0".parse().unwrap(), 0, device, gateway);
        let with_mtu = Route {
            mtu: Some(1300),
            priority: Some(7),
            ..Route::new("10.8.0.0".parse().unwrap(), 16, device, gateway)
        };
        let orders = [
            Order::AddAddress { device, ip: "10.9.0.2".parse().unwrap(), length: 24, is_trusted: true },
            Order::AddAddress { device, ip: "fd00::2".parse().unwrap(), length: 64, is_trusted: true },
            Order::ChangeLink(
                device,
                LinkChange { is_up: Some(true), mtu: Some(1350), ..LinkChange::default() },
            ),
            Order::AddRoute(route.clone()),
            Order::AddRoute(with_mtu.clone()),
            Order::SetNeighbour { device, ip: "10.9.0.77".parse().unwrap(), mac: [2, 0, 0, 0, 0, 7] },
        ];
        routing.commit(&orders, &[]).unwrap();
        let has: Vec<(IpAddr, u8)> =
            routing.addresses(Some(device)).unwrap().iter().map(|a| (a.ip, a.length)).collect();
        assert!(has.contains(&("10.9.0.2".parse().unwrap(), 24)), "{has:?}");
        let v6 = routing
            .addresses(Some(device))
            .unwrap()
            .into_iter()
            .find(|a| a.ip == "fd00::2".parse::<IpAddr>().unwrap());
        assert!(!v6.unwrap().is_tentative);
        let routes = routing.routes().unwrap();
        assert!(
            routes.iter().any(|r| r.to == route.to && r.length == 0 && r.gateway == gateway),
            "{routes:?}"
        );
        assert!(routes.iter().any(|r| r.mtu == Some(1300) && r.priority == Some(7)), "{routes:?}");
        assert!(
            routing.neighbours().unwrap().iter().any(|n| n.mac == Some([2, 0, 0, 0, 0, 7]) && n.is_permanent)
        );
        assert!(routing.link("eth0").unwrap().unwrap().has_carrier);
        routing.commit(&[Order::DeleteRoute(with_mtu.clone())], &[]).unwrap();
        assert_eq!(
            routing.commit(&[Order::DeleteRoute(with_mtu)], &[]).unwrap_err().cause(),
            Some(Errno::SRCH)
        );
    });
}

/// What arrives leaves by another device, and waits there.
#[test]
fn queues_are_made_and_told() {
    if let Err(why) = Netns::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let ns = Netns::new().unwrap();
    ns.within(|| {
        let mut routing = Routing::open().unwrap();
        let peer = Peer { name: "veth-b", mac: NO_MAC, mtu: None, namespace: None };
        let ifb = NewLink { name: "ifb-x", form: Form::Ifb, is_up: true, ..NewLink::default() };
        routing.commit(&[veth("veth-a", peer, None), Order::AddLink(ifb)], &[]).unwrap();
        let (from, to) = (routing.link("veth-a").unwrap().unwrap(), routing.link("ifb-x").unwrap().unwrap());
        assert_eq!(from.peer, routing.link("veth-b").unwrap().map(|link| link.index));
        let orders = [
            Order::AddQueue(to.index, Queue::TokenBucket { rate: 125_000, burst: 10_000, limit: 13_125 }),
            Order::AddQueue(from.index, Queue::Arrivals),
            Order::Redirect { from: from.index, to: to.index },
        ];
        routing.commit(&orders, &[]).unwrap();
        assert_eq!(routing.queues(to.index).unwrap(), [("tbf".to_owned(), Some(125_000))]);
        assert!(routing.queues(from.index).unwrap().iter().any(|(kind, _)| kind == "ingress"));
        let shown =
            std::process::Command::new("tc").args(["qdisc", "show", "dev", "ifb-x"]).output().unwrap();
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("rate 1Mbit burst 10000b lat 25ms"), "{shown}");
    });
}

#[test]
fn noise_is_read_without_harm() {
    for len in 0..64 {
        let noise: Vec<u8> = (0..len).map(|i: u8| i.wrapping_mul(37)).collect();
        let _ = (Link::read(&noise), Address::read(&noise), Route::read(&noise), Neighbour::read(&noise));
        let _ = read::queue(&noise);
    }
}
