//! Containers on a bridge, and packets between them, the machine and the world.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::net::IpAddr;

use serde_json::{Value, json};
use support::{Container, Machine, NEVER, bridge, caller, can_run, ips, is_unreachable, listen, portmap};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The way there and back of every packet that a Pod of a cluster sends or receives.
#[test]
fn packets_find_their_way_with_the_right_sender() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let world = machine.neighbour();
    let (one, two) = (Container::new("one"), Container::new("two"));
    let ports = json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "192.0.2.1"},
    ]);
    let with_ports = [bridge(&machine), portmap(ports)];
    let result = machine.add(&with_ports, &one).unwrap();
    let without = [bridge(&machine)];
    let other = machine.add(&without, &two).unwrap();
    let (first, second) = (ips(&result), ips(&other));
    assert_eq!(first, [ip("10.22.0.2"), ip("fd22::2")]);
    assert_eq!(second, [ip("10.22.0.3"), ip("fd22::3")]);

    let server = listen(&one.ns, "[::]:80");
    let seen = |from: &fixture::Netns, to: &str| caller(from, to, &server).unwrap().to_canonical();
    // Between containers, and from the machine, nothing changes.
    assert_eq!(seen(&two.ns, "10.22.0.2:80"), second[0]);
    assert_eq!(seen(&two.ns, "[fd22::2]:80"), second[1]);
    assert_eq!(seen(&machine.ns, "10.22.0.2:80"), ip("10.22.0.1"));
    // From the world by a port of the machine, the caller is kept.
    assert_eq!(seen(&world, "192.0.2.1:8080"), ip("192.0.2.2"));
    assert_eq!(seen(&world, "[2001:db8::1]:8080"), ip("2001:db8::2"));
    assert_eq!(seen(&world, "192.0.2.1:8081"), ip("192.0.2.2"));
    assert!(is_unreachable(&machine.ns, "127.0.0.1:8081"));
    // By the machine's own loopback, and by a container to itself, it cannot be.
    assert_eq!(seen(&machine.ns, "127.0.0.1:8080"), ip("10.22.0.1"));
    assert_eq!(seen(&one.ns, "192.0.2.1:8080"), ip("10.22.0.1"));
    assert_eq!(seen(&one.ns, "[2001:db8::1]:8080"), ip("fd22::1"));
    // Another container by the port of the machine.
    assert_eq!(seen(&two.ns, "192.0.2.1:8080"), second[0]);
    // To the world everybody is the machine.
    let outside = listen(&world, "[::]:90");
    assert_eq!(caller(&two.ns, "192.0.2.2:90", &outside).unwrap().to_canonical(), ip("192.0.2.1"));
    assert_eq!(caller(&two.ns, "[2001:db8::2]:90", &outside).unwrap(), ip("2001:db8::1"));

    machine.each("CHECK", &with_ports, &result, &one).unwrap();
    machine.del(&with_ports, &result, &one).unwrap();
    assert!(is_unreachable(&world, "192.0.2.1:8080"));
    let checked = machine.each("CHECK", &with_ports, &result, &one).unwrap_err();
    assert_eq!(checked.code, 103, "{checked}");
    // A second deletion is as good as the first.
    machine.del(&with_ports, &result, &one).unwrap();
    machine.each("CHECK", &without, &other, &two).unwrap();
    machine.del(&without, &Value::Null, &two).unwrap();
}

/// A port that is somebody's is not taken away from him; the one who wanted it leaves nothing.
#[test]
fn a_port_of_the_machine_is_one_containers_own() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let (one, two) = (Container::new("one"), Container::new("two"));
    let configs = [bridge(&machine), portmap(json!([{"hostPort": 80, "containerPort": 80}]))];
    let first = machine.add(&configs, &one).unwrap();
    let second = machine.add(&configs[..1], &two).unwrap();
    let mut config = configs[1].clone();
    config["prevResult"] = second.clone();
    let taken = machine.call("ADD", &config, &two).unwrap_err();
    assert_eq!((taken.code, taken.message.as_str()), (102, "host port 80/tcp is taken by pods: one/eth0"));
    // Who is deleted takes only his own.
    machine.del(&configs, &second, &two).unwrap();
    machine.each("CHECK", &configs, &first, &one).unwrap();
    // Only when it is free it can be had.
    machine.del(&configs, &first, &one).unwrap();
    machine.add(&configs, &two).unwrap();
}

/// What a container left behind that died without a word does not stand in the way of the one who gets its address, and a late
/// deletion of the dead does no harm.
#[test]
fn a_late_deletion_does_not_touch_who_has_the_address_now() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let mut config = bridge(&machine);
    config["ipam"]["ranges"] =
        json!([[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.0.9", "rangeEnd": "10.22.0.9"}]]);
    let configs = [config, portmap(json!([{"hostPort": 80, "containerPort": 80}]))];
    let one = Container::new("one");
    machine.add(&configs, &one).unwrap();
    let full = machine.add(&configs, &Container::new("two")).unwrap_err();
    assert_eq!((full.code, full.message.as_str()), (101, "no address is left in 10.22.0.9-10.22.0.9"));
    // The address alone is given back, as by somebody who cleaned the directory.
    std::fs::remove_file(machine.data.path().join("pods/10.22.0.9")).unwrap();
    let two = Container::new("two");
    let result = machine.add(&configs, &two).unwrap();
    machine.del(&configs, &Value::Null, &one).unwrap();
    machine.each("CHECK", &configs, &result, &two).unwrap();
}

#[test]
fn containers_of_a_cable_reach_everybody_by_the_machine() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let world = machine.neighbour();
    let config = json!({
        "cniVersion": "1.0.0", "name": "cables", "type": "ptp", "ipMasq": true, "mtu": 1400,
        "ipam": {"type": "host-local", "dataDir": machine.data.path(),
                 "ranges": [[{"subnet": "10.23.0.0/24"}], [{"subnet": "fd23::/64"}]],
                 "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]},
    });
    let (one, two) = (Container::new("one"), Container::new("two"));
    let configs = [config];
    let result = machine.add(&configs, &one).unwrap();
    machine.add(&configs, &two).unwrap();
    let server = listen(&one.ns, "[::]:80");
    assert_eq!(caller(&two.ns, "10.23.0.2:80", &server).unwrap().to_canonical(), ip("10.23.0.3"));
    assert_eq!(caller(&two.ns, "[fd23::2]:80", &server).unwrap(), ip("fd23::3"));
    assert_eq!(caller(&machine.ns, "10.23.0.2:80", &server).unwrap().to_canonical(), ip("10.23.0.1"));
    let outside = listen(&world, "[::]:90");
    assert_eq!(caller(&two.ns, "192.0.2.2:90", &outside).unwrap().to_canonical(), ip("192.0.2.1"));
    machine.each("CHECK", &configs, &result, &one).unwrap();
    machine.del(&configs, &result, &one).unwrap();
    assert_eq!(machine.each("CHECK", &configs, &result, &one).unwrap_err().code, 103);
}

/// Containers of bridges that say so do not meet; those of one bridge meet unless it says that they do not either.
#[test]
fn bridges_are_kept_apart_where_they_ask_for_it() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let network = |name: &str, subnet: &str, policy: &str| {
        let ipam = json!({"type": "host-local", "dataDir": machine.data.path(), "subnet": subnet});
        [
            json!({"cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": name, "isDefaultGateway": true, "ipam": ipam}),
            json!({"cniVersion": "1.0.0", "name": name, "type": "firewall", "ingressPolicy": policy}),
        ]
    };
    let (a, b) = (network("a", "10.31.0.0/24", "same-bridge"), network("b", "10.32.0.0/24", "same-bridge"));
    let open = network("c", "10.33.0.0/24", "open");
    let containers = ["1", "2", "3", "4"].map(Container::new);
    let [a1, a2, b1, c1] = &containers;
    let result = machine.add(&a, a1).unwrap();
    for (configs, of) in [(&a, a2), (&b, b1), (&open, c1)] {
        machine.add(configs, of).unwrap();
    }
    let servers = [a1, b1, c1].map(|of| listen(&of.ns, "0.0.0.0:80"));
    assert_eq!(caller(&a2.ns, "10.31.0.2:80", &servers[0]).unwrap(), ip("10.31.0.3"));
    assert!(is_unreachable(&a2.ns, "10.32.0.2:80") && is_unreachable(&b1.ns, "10.31.0.2:80"));
    assert_eq!(caller(&a2.ns, "10.33.0.2:80", &servers[2]).unwrap(), ip("10.31.0.3"));
    machine.each("CHECK", &a, &result, a1).unwrap();
    // As long as one of its containers lives a network is kept apart.
    machine.gc(&a, &[a2]).unwrap();
    assert!(is_unreachable(&b1.ns, "10.31.0.3:80"));
    machine.gc(&a, &[]).unwrap();
    let left = machine.elements(nft::Family::Ip);
    assert!(left.iter().all(|element| !element.contains("\"a: \"")), "{left:#?}");
}

/// A second of sending at a limit is a second, and not much less.
#[test]
fn a_container_sends_and_receives_no_more_than_it_may() {
    if !can_run() {
        return;
    }
    use std::io::{Read, Write};
    let machine = Machine::new();
    let one = Container::new("one");
    // 1 MB a second, 50 kB at once.
    let limits = json!({"cniVersion": "1.0.0", "name": "pods", "type": "bandwidth", "capabilities": {"bandwidth": true},
        "runtimeConfig": {"bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 400_000, "egressRate": 8_000_000, "egressBurst": 400_000}}});
    let configs = [bridge(&machine), limits];
    let result = machine.add(&configs, &one).unwrap();
    let names: Vec<&str> =
        result["interfaces"].as_array().unwrap().iter().map(|i| i["name"].as_str().unwrap()).collect();
    assert!(names.len() == 4 && names[3].starts_with("bwp"), "{names:?}");
    machine.each("CHECK", &configs, &result, &one).unwrap();
    let (inside, outside) = (listen(&one.ns, "0.0.0.0:80"), listen(&machine.ns, "0.0.0.0:81"));
    for (from, to, server) in [(&machine.ns, "10.22.0.2:80", &inside), (&one.ns, "10.22.0.1:81", &outside)] {
        let mut client = from.within(|| std::net::TcpStream::connect(to).unwrap());
        let (mut served, _) = server.accept().unwrap();
        let began = std::time::Instant::now();
        let writer = std::thread::spawn(move || client.write_all(&[7; 400_000]));
        let mut bytes = vec![0; 400_000];
        served.read_exact(&mut bytes).unwrap();
        writer.join().unwrap().unwrap();
        let took = began.elapsed();
        assert!(took >= NEVER, "{to} took {took:?}");
    }
    machine.del(&configs, &result, &one).unwrap();
    assert!(!machine.inventory().contains("bwp"));
}
