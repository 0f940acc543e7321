#![allow(clippy::unwrap_used, clippy::print_stderr)]

use super::*;
use fixture::Netns;
use nft::wire::Messages;

fn id(text: &str) -> ServerId {
    ServerId { protocol: 6, address: text.parse().unwrap() }
}

fn behaviour(scheduler: &str, persistence: Option<u32>) -> Behaviour {
    Behaviour { scheduler: scheduler.into(), persistence, hashes_ports: scheduler == "mh" }
}

/// As `ipvsadm -A -t 10.96.0.10:80 -s rr -p 300` sends it.
#[test]
fn a_virtual_server_is_written_as_the_kernel_reads_it() {
    let order = Order::Add(id("10.96.0.10:80"), behaviour("rr", Some(300)));
    let bytes = order.write(0x1c, 5);
    let mut wanted = vec![104, 0, 0, 0, 0x1c, 0, 5, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0];
    wanted.extend([84, 0, 1, 0x80]);
    wanted.extend([6, 0, 1, 0, 2, 0, 0, 0]);
    wanted.extend([6, 0, 2, 0, 6, 0, 0, 0]);
    wanted.extend([20, 0, 3, 0, 10, 96, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    wanted.extend([6, 0, 4, 0, 0, 80, 0, 0]);
    wanted.extend([7, 0, 6, 0, b'r', b'r', 0, 0]);
    wanted.extend([12, 0, 7, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    wanted.extend([8, 0, 8, 0, 0x2c, 1, 0, 0]);
    wanted.extend([8, 0, 9, 0, 0xff, 0xff, 0xff, 0xff]);
    if cfg!(target_endian = "little") {
        assert_eq!(bytes, wanted);
    }
}

#[test]
fn what_is_written_is_read() {
    for (address, real) in [("10.96.0.10:80", "10.244.0.5:8080"), ("[fd96::10]:80", "[fd44::5]:8080")] {
        let told = behaviour("mh", Some(7));
        let bytes = Order::Add(id(address), told.clone()).write(20, 1);
        let (_, body) = Messages(&bytes).next().unwrap();
        assert_eq!(read_service(Attributes(&body[4..])), Some((id(address), told)));
        let real: SocketAddr = real.parse().unwrap();
        let bytes = Order::AddReal(id(address), real, 1).write(20, 1);
        let (_, body) = Messages(&bytes).next().unwrap();
        let read = read_destination(Attributes(&body[4..]), real.is_ipv6());
        assert_eq!(read, Some(Real { address: real, weight: 1, active: 0, inactive: 0 }));
    }
    assert_eq!(read_service(Attributes(&[0; 9])), None);
}

#[test]
fn servers_come_change_and_go() {
    if let Err(why) = Netns::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let ns = Netns::new().unwrap();
    ns.within(|| {
        let mut ipvs = match Ipvs::open() {
            Err(Error::Missing) => {
                eprintln!("skipped: this kernel has no IPVS");
                return;
            }
            opened => opened.unwrap(),
        };
        for (address, reals) in [
            ("10.96.0.10:80", ["10.244.0.5:8080", "10.244.0.6:8080"]),
            ("[fd96::10]:80", ["[fd44::5]:8080", "[fd44::6]:8080"]),
        ] {
            let (server, [a, b]) = (id(address), reals.map(|real| real.parse::<SocketAddr>().unwrap()));
            let first = behaviour("rr", None);
            ipvs.carry_out(&[
                Order::Add(server, first.clone()),
                Order::AddReal(server, a, 1),
                Order::AddReal(server, b, 1),
                Order::AddReal(server, b, 1),
            ])
            .unwrap()
            .none()
            .unwrap();
            assert_eq!(ipvs.servers().unwrap(), [(server, first)]);
            let second = behaviour("mh", Some(30));
            ipvs.carry_out(&[
                Order::Change(server, second.clone()),
                Order::SetWeight(server, a, 0),
                Order::DeleteReal(server, b),
                Order::DeleteReal(server, b),
            ])
            .unwrap()
            .none()
            .unwrap();
            assert_eq!(ipvs.servers().unwrap(), [(server, second)]);
            let reals = ipvs.reals(server).unwrap();
            assert_eq!(reals, [Real { address: a, weight: 0, active: 0, inactive: 0 }]);
            let unknown = Order::Add(id("10.96.0.11:80"), behaviour("nosuch", None));
            // What the kernel will not do keeps it from nothing else.
            let nobody = if server.address.is_ipv4() { "239.1.1.1:80" } else { "[ff0e::1]:80" };
            let orders =
                [unknown, Order::AddReal(server, nobody.parse().unwrap(), 1), Order::AddReal(server, b, 1)];
            let refused = ipvs.carry_out(&orders).unwrap().0;
            assert!(matches!(refused.as_slice(), [(0, _), (1, _)]), "{refused:?}");
            assert_eq!(ipvs.reals(server).unwrap().len(), 2);
            ipvs.carry_out(&[Order::Delete(server), Order::Delete(server)]).unwrap().none().unwrap();
            assert_eq!(ipvs.servers().unwrap(), []);
        }
        ipvs.set_timeouts(Timeouts { tcp: 900, tcp_fin: 0, udp: 300 }).unwrap();
    });
}
