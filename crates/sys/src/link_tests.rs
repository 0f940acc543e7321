#![allow(clippy::unwrap_used, clippy::print_stderr)]

use super::*;
use fixture::Netns;

/// In a namespace of its own. Dummy devices are not in every kernel; every device can have addresses.
#[test]
fn addresses_come_and_go() {
    if let Err(why) = Netns::available() {
        eprintln!("skipped: {why}");
        return;
    }
    let ns = Netns::new().unwrap();
    ns.ip("link add veth-x type veth peer name veth-y\n").unwrap();
    ns.within(|| {
        let mut links = Links::open().unwrap();
        assert_eq!(links.find("nobody").unwrap(), None);
        let lo = links.find("lo").unwrap().unwrap();
        let device = links.find("veth-x").unwrap().unwrap();
        assert_ne!(lo, device);
        let ips: Vec<IpAddr> = (0..200)
            .flat_map(|i| [format!("10.96.1.{i}"), format!("fd96::{i:x}")])
            .map(|ip| ip.parse().unwrap())
            .collect();
        links.add_addresses(device, &ips).unwrap().none().unwrap();
        links.add_addresses(device, &ips[..2]).unwrap().none().unwrap();
        let of_device = |links: &mut Links| -> Vec<IpAddr> {
            let mut all: Vec<IpAddr> = links
                .addresses()
                .unwrap()
                .into_iter()
                .filter(|(at, _)| *at == device)
                .map(|(_, ip)| ip)
                .collect();
            all.sort();
            all
        };
        let mut wanted = ips.clone();
        wanted.sort();
        assert_eq!(of_device(&mut links), wanted);
        let on_lo = links.addresses().unwrap().into_iter().any(|(at, ip)| at == lo && ip.is_loopback());
        assert!(on_lo);
        links.delete_addresses(device, &ips[1..]).unwrap().none().unwrap();
        links.delete_addresses(device, &ips[1..]).unwrap().none().unwrap();
        assert_eq!(of_device(&mut links), ips[..1]);
        assert!(links.add_addresses(Index(9999), &ips[..1]).unwrap().none().is_err());
        // One that the kernel will not have keeps none of the others away.
        let mixed = [ips[2], "ff0e::1".parse().unwrap(), ips[3]];
        let refused = links.add_addresses(device, &mixed).unwrap().0;
        assert!(matches!(refused.as_slice(), [(1, Error::Refused { .. })]), "{refused:?}");
        assert_eq!(of_device(&mut links).len(), 3);
        match links.ensure_dummy("kube-ipvs0") {
            Ok(made) => assert_eq!(links.ensure_dummy("kube-ipvs0").unwrap(), made),
            Err(error) => eprintln!("this kernel has no dummy devices: {error}"),
        }
        links.remove("veth-x").unwrap();
        links.remove("veth-x").unwrap();
        assert_eq!(links.find("veth-x").unwrap(), None);
    });
}

#[test]
fn messages_are_as_the_kernel_reads_them() {
    let bytes = write_address(NEW_ADDRESS, FLAG_ACK, 7, Index(3), "10.0.0.1".parse().unwrap());
    let wanted = [
        40, 0, 0, 0, 20, 0, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0, // header
        2, 32, 0, 0, 3, 0, 0, 0, // family, prefix, flags, scope, device
        8, 0, 2, 0, 10, 0, 0, 1, 8, 0, 1, 0, 10, 0, 0, 1,
    ];
    if cfg!(target_endian = "little") {
        assert_eq!(bytes, wanted);
    }
    assert_eq!(read_address(&bytes[16..]), Some((Index(3), "10.0.0.1".parse().unwrap())));
    assert_eq!(read_address(&[0; 7]), None);
}
