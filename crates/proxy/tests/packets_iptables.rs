//! Real packets through the iptables backend, in both flavours of the programs: every kind of client, to every kind of
//! address, in both families and over both protocols, meets the fate that the rules say.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use fixture::Tools;
use proxy::backend::iptables::{IptablesDataplane, Programs, cleanup};
use proxy::observed::{Observed, Triggers};
use proxy::ports::Dataplane;
use proxy_core::objects::Family;
use proxy_core::rules::{Mode, Settings};
use support::matrix::{Kernel, check, objects};
use support::{Lab, MASQUERADE_BIT, settings};
use support::{lasting, strange};

/// The programs of a flavour, if packages were unpacked.
fn programs(flavour: &str, family: Family) -> Option<Programs> {
    let dir = Tools::iptables_from_env(flavour)?;
    Some(Programs::of(family, dir, Vec::new()))
}

fn serves_in(flavour: &'static str) {
    #[allow(clippy::print_stderr)]
    if support::skipped() || programs(flavour, Family::V4).is_none() {
        eprintln!("skipped: no {flavour} iptables");
        return;
    }
    let lab = Lab::new();
    lab.node.ns.sysctl("net/ipv4/conf/all/route_localnet", "1").unwrap();
    let mut settings = settings();
    settings.mode = Mode::Iptables;
    let mut kernels = Kernel::both(&lab, &settings, |family| {
        let programs = programs(flavour, family).unwrap();
        let mark = 1 << MASQUERADE_BIT;
        Box::new(IptablesDataplane::open(programs, mark, true, Duration::from_secs(30), Arc::default()))
    });
    let mut cluster = support::cluster();
    let (services, slices) = objects(&lab);
    cluster.replace_services(&[]);
    cluster.replace_slices(&slices);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    // Most of it comes as changes.
    cluster.replace_services(&services);
    kernels.iter_mut().for_each(|kernel| kernel.update(&lab, &mut cluster));
    check(&lab, &kernels);
    for family in Family::BOTH {
        let programs = programs(flavour, family).unwrap();
        lab.node.ns.within(|| {
            assert!(programs.save().unwrap().has_anything());
            cleanup(&programs).unwrap();
            assert!(!programs.save().unwrap().has_anything());
        });
    }
}

#[test]
fn packets_meet_their_fate_in_the_nft_flavour() {
    serves_in("nft");
}

#[test]
fn packets_meet_their_fate_in_the_legacy_flavour() {
    serves_in("legacy");
}

/// A backend with what is around it in the process.
fn open(flavour: &str, family: Family) -> Box<dyn Dataplane> {
    let (programs, mark) = (programs(flavour, family).unwrap(), 1 << MASQUERADE_BIT);
    let plane = IptablesDataplane::open(programs, mark, true, Duration::from_secs(30), Arc::default());
    Box::new(Observed::new(Box::new(plane), family, false, Arc::default(), Triggers::default()).0)
}

/// The flavour that most machines have does; the kernel does the rest for both.
#[test]
fn connections_flows_and_affinity_last_as_they_should_whatever_else_there_is() {
    const FLAVOUR: &str = "nft";
    if support::skipped() || programs(FLAVOUR, Family::V4).is_none() {
        return;
    }
    let settings = Settings { mode: Mode::Iptables, ..settings() };
    let in_lab = |act: &dyn Fn(&Lab, &mut [Kernel; 2])| {
        let lab = Lab::new();
        act(&lab, &mut Kernel::both(&lab, &settings, |family| open(FLAVOUR, family)));
    };
    in_lab(&|lab, kernels| lasting::connections(lab, kernels, |family| open(FLAVOUR, family)));
    in_lab(&lasting::flows);
    in_lab(&lasting::affinity);
    in_lab(&strange::harms_nobody);
}
