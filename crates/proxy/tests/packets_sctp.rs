//! SCTP through the backends. Kernels without SCTP sockets still route and translate it, so the packets are made
//! by hand.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use proxy::backend::ipvs::IpvsDataplane;
use proxy::backend::nft::NftDataplane;
use proxy_core::objects::Family;
use proxy_core::rules::Mode;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};
use serde_json::json;
use support::ipvs::{programs, set_sysctls};
use support::matrix::Kernel;
use support::{Lab, MASQUERADE_BIT, Party, service, settings, slices};

const CLIENT_PORT: u16 = 40_000;

fn raw(party: &Party) -> OwnedFd {
    let ip = party.ip(Family::V4);
    party.ns.within(|| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(rustix::net::ipproto::SCTP))
            .unwrap();
        bind(&fd, &SocketAddr::new(ip, 0)).unwrap();
        fd
    })
}

/// The checksum of SCTP, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}

/// The packet that begins an association.
fn init(port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(CLIENT_PORT.to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0; 8]);
    // INIT: its tag, its window, streams out and in, its first number.
    packet.extend([1, 0, 0, 20]);
    packet.extend(7u32.to_be_bytes());
    packet.extend(65_536u32.to_be_bytes());
    packet.extend([0, 1, 0, 1]);
    packet.extend(1u32.to_be_bytes());
    let crc = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&crc);
    packet
}

/// Source and ports of what arrives, with its checksum looked at.
fn receive(fd: &OwnedFd) -> Option<(IpAddr, u16, u16)> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut buffer = [0; 256];
    while Instant::now() < deadline {
        let Ok((len, _)) = recv(fd, &mut buffer, RecvFlags::empty()) else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        let source = IpAddr::from(*buffer[12..].first_chunk::<4>().unwrap());
        let mut packet = buffer[20..len].to_vec();
        let sent = u32::from_le_bytes(*packet[8..].first_chunk().unwrap());
        packet[8..12].fill(0);
        assert_eq!(crc32c(&packet), sent, "the checksum was not made anew");
        let port = |at: usize| u16::from_be_bytes(*packet[at..].first_chunk().unwrap());
        return Some((source, port(0), port(2)));
    }
    None
}

#[test]
fn an_association_reaches_its_endpoint_through_nftables() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let kernels = Kernel::both(&lab, &settings(), |family| {
        Box::new(NftDataplane::open(family, MASQUERADE_BIT).unwrap())
    });
    reaches_its_endpoint(&lab, kernels);
}

#[test]
fn an_association_reaches_its_endpoint_through_ipvs() {
    if support::ipvs::skipped() {
        return;
    }
    let lab = Lab::new();
    set_sysctls(&lab);
    let mut settings = settings();
    settings.mode = Mode::Ipvs;
    let kernels = Kernel::both(&lab, &settings, |family| {
        let mark = 1 << MASQUERADE_BIT;
        Box::new(IpvsDataplane::open(programs(family).unwrap(), mark, "rr", Vec::new()).unwrap())
    });
    reaches_its_endpoint(&lab, kernels);
}

fn reaches_its_endpoint(lab: &Lab, mut kernels: [Kernel; 2]) {
    let (endpoint, client) = (&lab.pods[0], &lab.pods[2]);
    let ports = json!({"spec": {"ports": [{"name": "sctp", "protocol": "SCTP", "port": 80, "nodePort": 30080}],
                                "type": "NodePort"}});
    let mut slices = slices("web", &[endpoint]);
    for slice in &mut slices {
        let port = json!([{"name": "sctp", "protocol": "SCTP", "port": 8080}]);
        slice.ports = serde_json::from_value(port).unwrap();
    }
    let mut cluster = support::cluster();
    cluster.replace_services(&[service("web", 10, ports)]);
    cluster.replace_slices(&slices);
    kernels.iter_mut().for_each(|kernel| kernel.update(lab, &mut cluster));
    let server = raw(endpoint);
    for (from, to, port, is_masqueraded) in [
        (client, "10.96.0.10", 80, false),
        (client, "192.168.0.1", 30_080, true),
        (&lab.outside, "192.168.0.1", 30_080, true),
        (&lab.outside, "10.96.0.10", 80, true),
    ] {
        let to: IpAddr = to.parse().unwrap();
        sendto(raw(from), &init(port), SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
        let (source, _, arrived) = receive(&server).unwrap_or_else(|| panic!("{} to {to}:{port}", from.name));
        assert_eq!(arrived, 8080);
        assert_eq!(lab.host.is_local(source), is_masqueraded, "{} to {to}: {source}", from.name);
        assert!(is_masqueraded || source == from.ip(Family::V4));
    }
}
