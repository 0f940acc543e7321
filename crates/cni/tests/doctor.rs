//! The doctor on a real Pod's network: what it finds in a good one, and in one where something was broken.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::net::IpAddr;

use cni::doctor::{examine, gather};
use support::{Container, Machine, bridge, can_run, ips, listen};

fn texts(machine: &Machine, ip: IpAddr, to: &str, port: Option<u16>) -> Vec<String> {
    let to = to.parse().unwrap();
    let facts = machine.ns.within(|| gather("default/web", ip, (to, to), port)).unwrap();
    examine(&facts).into_iter().map(|finding| format!("{:?} {}", finding.grade, finding.text)).collect()
}

#[test]
fn the_way_of_a_packet_is_told_and_what_is_broken_on_it() {
    if !can_run() {
        return;
    }
    let machine = Machine::new();
    let world = machine.neighbour();
    let container = Container::new("web");
    // Other tests have containers too, and the doctor looks at all of the machine.
    let mut config = bridge(&machine);
    config["ipam"]["ranges"] = serde_json::json!([[{"subnet": "10.77.0.0/24"}]]);
    let result = machine.add(&[config], &container).unwrap();
    let ip = ips(&result)[0];
    let server = listen(&world, "0.0.0.0:90");
    let found = texts(&machine, ip, "192.0.2.2", Some(90));
    assert_eq!(found.last().unwrap(), "Good a connection to 192.0.2.2:90 was answered", "{found:#?}");
    assert!(found.iter().any(|text| text.contains("as if it came from the machine")), "{found:#?}");
    drop(server);
    let refused = texts(&machine, ip, "192.0.2.2", Some(90));
    assert!(
        refused.last().unwrap().starts_with("Note a connection to 192.0.2.2:90 was refused"),
        "{refused:#?}"
    );
    let anybody = texts(&machine, ip, "192.0.2.2", None);
    assert!(anybody.last().unwrap().ends_with("was answered"), "{anybody:#?}");

    machine.ns.sysctl("net/ipv4/ip_forward", "0").unwrap();
    let broken = texts(&machine, ip, "192.0.2.2", Some(90));
    assert!(
        broken.iter().any(|text| text == "Wrong the machine passes no packets on: net.ipv4.ip_forward is 0"),
        "{broken:#?}"
    );
    machine.ns.ip("link set cni0 down\n").unwrap();
    let broken = texts(&machine, ip, "192.0.2.2", Some(90));
    assert!(broken.contains(&"Wrong bridge cni0 is down".to_owned()), "{broken:#?}");
    let nobody = texts(&machine, "10.77.0.99".parse().unwrap(), "192.0.2.2", None);
    assert!(
        nobody[0].starts_with("Wrong no network namespace of this machine has 10.77.0.99"),
        "{nobody:#?}"
    );
}
