//! Real packets through the ipvs backend, on kernels that have it: every kind of client, to every kind of address, in
//! both families and over both protocols, meets the fate that the rules say.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use fixture::{Netns, Tools};
use proxy::backend::iptables::{Programs, cleanup as remove_rules};
use proxy::backend::ipvs::{IpvsDataplane, SCHEDULERS, check as check_kernel, cleanup};
use proxy_core::objects::{Family, Protocol};
use proxy_core::rules::{Mode, Settings};
use serde_json::json;
use support::matrix::{Kernel, check, objects};
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};

fn programs(family: Family) -> Option<Programs> {
    Some(Programs::of(family, Tools::iptables_from_env("nft")?, Vec::new()))
}

/// Why these tests cannot run here.
fn skipped() -> bool {
    if support::skipped() {
        return true;
    }
    let kernel = Netns::new().unwrap().within(|| check_kernel("rr").map_err(|e| e.to_string()));
    let why = match (kernel, programs(Family::V4)) {
        (Err(why), _) => why,
        (_, None) => "no iptables".to_owned(),
        (Ok(()), Some(_)) => return false,
    };
    #[allow(clippy::print_stderr)]
    {
        eprintln!("skipped: {why}");
    }
    true
}

fn mode() -> Settings {
    let mut settings = settings();
    settings.mode = Mode::Ipvs;
    settings
}

fn lab() -> Lab {
    let lab = Lab::new();
    for name in ["conntrack", "expire_nodest_conn", "expire_quiescent_template"] {
        lab.node.ns.sysctl(&format!("net/ipv4/vs/{name}"), "1").unwrap();
    }
    lab
}

fn kernels(lab: &Lab, scheduler: &str) -> [Kernel; 2] {
    Kernel::both(lab, &mode(), |family| {
        let (programs, mark) = (programs(family).unwrap(), 1 << MASQUERADE_BIT);
        Box::new(IpvsDataplane::open(programs, mark, scheduler, Vec::new()).unwrap())
    })
}

#[test]
fn packets_meet_their_fate() {
    if skipped() {
        return;
    }
    let lab = lab();
    let mut kernels = kernels(&lab, "rr");
    let mut cluster = support::cluster();
    let (services, slices) = objects(&lab);
    cluster.replace_services(&[]);
    cluster.replace_slices(&slices);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    // Most of it comes as changes.
    cluster.replace_services(&services);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    check(&lab, &kernels);
    lab.node.ns.within(|| {
        for family in Family::BOTH {
            remove_rules(&programs(family).unwrap()).unwrap();
            cleanup(family).unwrap();
        }
        assert_eq!(sys::ipvs::Ipvs::open().unwrap().servers().unwrap(), []);
        assert_eq!(sys::ipset::Ipsets::open().unwrap().list("").unwrap(), []);
        assert_eq!(sys::link::Links::open().unwrap().find("kube-ipvs0").unwrap(), None);
    });
}

#[test]
fn every_scheduler_serves_and_affinity_lasts() {
    if skipped() {
        return;
    }
    for scheduler in SCHEDULERS {
        if let Err(why) = Netns::new().unwrap().within(|| check_kernel(scheduler).map_err(|e| e.to_string()))
        {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("{scheduler}: {why}");
            }
            continue;
        }
        let lab = lab();
        let mut kernels = kernels(&lab, scheduler);
        let mut cluster = support::cluster();
        let sticky = json!({"spec": {"sessionAffinity": "ClientIP"}});
        cluster.replace_services(&[service("plain", 10, json!({})), service("sticky", 11, sticky)]);
        let endpoints = [&lab.pods[0], &lab.pods[1], &lab.there];
        cluster.replace_slices(&[slices("plain", &endpoints), slices("sticky", &endpoints)].concat());
        kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
        for (plain, sticky) in [("10.96.0.10:80", "10.96.0.11:80"), ("[fd96::10]:80", "[fd96::11]:80")] {
            let heard = lab.pods[2].calls(plain.parse().unwrap(), Protocol::Tcp, 6);
            assert!(heard.iter().all(|a| matches!(a, Answer::From { .. })), "{scheduler}: {heard:?}");
            if scheduler == "rr" {
                assert_eq!(heard.len(), 3, "{heard:?}");
            }
            let heard = lab.pods[2].calls(sticky.parse().unwrap(), Protocol::Tcp, 6);
            assert!(heard.len() == 1 && matches!(heard.first(), Some(Answer::From { .. })), "{heard:?}");
        }
    }
}

/// A conversation that goes on while others come and go.
struct Held(TcpStream);

impl Held {
    fn open(party: &Party, to: SocketAddr) -> Self {
        let stream = party.ns.within(|| TcpStream::connect_timeout(&to, Duration::from_secs(5))).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self(stream)
    }

    fn echo(&mut self) -> std::io::Result<()> {
        self.0.write_all(b"?")?;
        self.0.read_exact(&mut [0])
    }
}

#[test]
fn an_endpoint_goes_when_its_last_connection_ends() {
    if skipped() {
        return;
    }
    let lab = lab();
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let echo = a.ns.within(|| TcpListener::bind((a.ip(Family::V4), 9000))).unwrap();
    std::thread::spawn(move || {
        for stream in echo.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    let mut kernels = kernels(&lab, "rr");
    let mut cluster = support::cluster();
    let slices_of = |who: &[&Party]| {
        let mut all = slices("web", who);
        for slice in &mut all {
            slice.ports.iter_mut().flatten().for_each(|port| port.port = Some(9000));
        }
        all
    };
    cluster.replace_services(&[service("web", 10, json!({}))]);
    cluster.replace_slices(&slices_of(&[a]));
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    let mut held = Held::open(&lab.pods[2], "10.96.0.10:80".parse().unwrap());
    held.echo().unwrap();
    cluster.replace_slices(&slices_of(&[b]));
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    held.echo().unwrap();
    let weights = || -> BTreeSet<(SocketAddr, u32)> {
        lab.node.ns.within(|| {
            let mut ipvs = sys::ipvs::Ipvs::open().unwrap();
            let servers = ipvs.servers().unwrap();
            let (id, _) = servers.iter().find(|(id, _)| id.protocol == 6 && id.address.is_ipv4()).unwrap();
            ipvs.reals(*id).unwrap().into_iter().map(|real| (real.address, real.weight)).collect()
        })
    };
    let at = |party: &Party| SocketAddr::new(party.ip(Family::V4), 9000);
    assert_eq!(weights(), BTreeSet::from([(at(a), 0), (at(b), 1)]));
    // It comes back, and goes again.
    cluster.replace_slices(&slices_of(&[a, b]));
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    assert_eq!(weights(), BTreeSet::from([(at(a), 1), (at(b), 1)]));
    cluster.replace_slices(&slices_of(&[b]));
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    held.echo().unwrap();
    assert_eq!(weights(), BTreeSet::from([(at(a), 0), (at(b), 1)]));
}
