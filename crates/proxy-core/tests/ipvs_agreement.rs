//! Properties: what IPVS, its sets and its script do to every packet is what the neutral rules and the reference model
//! say, and the way they are kept up to date does not show in them.
#![allow(clippy::unwrap_used)]

mod support;

use proptest::prelude::*;
use proxy_core::doctor::Treatment;
use proxy_core::iptables::walk::Ending;
use proxy_core::ipvs::walk::Kernel;
use proxy_core::ipvs::{Content, Options, Step, compare, look, render};
use proxy_core::objects::{Cidr, Family};
use proxy_core::rules::Mode;
use proxy_core::trace::{Fate, Packet, trace};
use support::{World, drafts, reference};

const OPTIONS: Options = Options { mark: 0x4000, random_fully: true };

fn world() -> impl Strategy<Value = World> {
    drafts::world().prop_map(|mut world| {
        world.settings.mode = Mode::Ipvs;
        world
    })
}

fn expected(fate: &Fate) -> Vec<Ending> {
    let mut ends = match fate {
        Fate::Sent { targets, .. } => targets
            .iter()
            .map(|t| Ending::Sent { endpoint: t.endpoint, is_masqueraded: t.is_masqueraded })
            .collect(),
        Fate::Rejected => vec![Ending::Rejected],
        Fate::Dropped => vec![Ending::Dropped],
        Fate::Passed => vec![Ending::Passed],
    };
    ends.sort();
    ends
}

/// A packet as the kernel can see it: what comes in by an interface does not come from the node itself. The loopback
/// device is a world of its own, which this mode leaves alone.
fn is_possible(world: &World, packet: &Packet) -> bool {
    let is_own = packet.arrival.interface().is_some() && world.host.is_local(packet.source);
    !is_own && !packet.source.is_loopback() && !packet.destination.is_loopback()
}

fn content(world: &World, family: Family) -> Content {
    render(world.book(family).rules(), &world.host, "rr")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_kernel_treats_every_packet_as_the_rules_do(
        world in world(),
        shots in prop::collection::vec(drafts::shot(), 40),
    ) {
        let books = Family::BOTH.map(|family| world.book(family));
        let kernels = books.each_ref().map(|book| Kernel::new(book.rules(), &world.host, OPTIONS).unwrap());
        for packet in shots.into_iter().map(|shot| shot.aim(&world)).filter(|p| is_possible(&world, p)) {
            let family = Family::of(packet.destination) as usize;
            let fate = trace(books[family].rules(), &world.host, &packet);
            prop_assert_eq!(&fate, &reference::fate(&world, &packet));
            let found = kernels[family].endings(&packet);
            prop_assert_eq!(&found, &expected(&fate), "{:?}\n{}", packet, kernels[family].tables().save());
            // So does whoever looks at servers and sets alone, but for addresses that nobody serves.
            let seen = look(&content(&world, Family::of(packet.destination)), &packet);
            let wanted = Treatment::from(&fate);
            prop_assert!(seen == wanted || seen == Treatment::Nothing, "{:?}: {:?} {:?}", packet, seen, wanted);
            let is_served = matches!(wanted, Treatment::Sent(_) | Treatment::Dropped);
            prop_assert!(seen == wanted || !is_served, "{:?}: {:?}", packet, wanted);
        }
    }

    #[test]
    fn steps_lead_from_any_content_to_any_other(worlds in prop::collection::vec(world(), 2..4)) {
        for family in Family::BOTH {
            let mut is = content(&World::new(Mode::Ipvs), family);
            for world in &worlds {
                let should = content(world, family);
                let steps = compare(&is, &should, &[]);
                steps.iter().for_each(|step| is.apply(step));
                prop_assert_eq!(&is, &should);
                prop_assert_eq!(compare(&is, &should, &[]), vec![]);
            }
        }
    }

    #[test]
    fn what_is_refused_is_as_if_it_had_not_been_tried(
        worlds in prop::collection::vec(world(), 2),
        refusals in prop::collection::vec(any::<bool>(), 100),
    ) {
        let (is, should) = (content(&worlds[0], Family::V4), content(&worlds[1], Family::V4));
        let steps = compare(&is, &should, &[]);
        let (mut known, mut done) = (should.clone(), is.clone());
        for (step, is_refused) in steps.iter().zip(refusals.iter().cycle()) {
            match is_refused {
                true => known.withhold(step, &is),
                false => done.apply(step),
            }
        }
        prop_assert_eq!(&known, &done);
    }

    /// A virtual server is never bound before it is there, and never there without what it needs.
    #[test]
    fn steps_keep_their_order(worlds in prop::collection::vec(world(), 2)) {
        let (is, should) = (content(&worlds[0], Family::V4), content(&worlds[1], Family::V4));
        let rank = |step: &Step| match step {
            Step::AddEntries(..) => 0,
            Step::AddServer(..) | Step::ChangeServer(..) | Step::AddReal(..) | Step::Restore(..) => 1,
            Step::Bind(_) => 2,
            Step::Unbind(_) => 3,
            Step::Retire(..) | Step::DeleteServer(_) => 4,
            Step::DeleteEntries(..) => 5,
        };
        let ranks: Vec<i32> = compare(&is, &should, &[]).iter().map(rank).collect();
        prop_assert!(ranks.is_sorted(), "{:?}", ranks);
    }
}

#[test]
fn servers_in_excluded_ranges_are_somebody_elses() {
    let world = support::World::new(Mode::Ipvs);
    let should = content(&world, Family::V4);
    let mut is = should.clone();
    let server = proxy_core::ipvs::Server {
        scheduler: "wlc".into(),
        persistence: None,
        hashes_ports: false,
        reals: Default::default(),
    };
    for address in ["10.9.0.1:80", "10.8.0.1:80"] {
        let key = proxy_core::ipvs::ServerKey {
            protocol: proxy_core::objects::Protocol::Tcp,
            address: address.parse().unwrap(),
        };
        is.servers.insert(key, server.clone());
    }
    let steps = compare(&is, &should, &[Cidr::parse("10.9.0.0/16").unwrap()]);
    let [Step::DeleteServer(key)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!(key.address, "10.8.0.1:80".parse().unwrap());
}
